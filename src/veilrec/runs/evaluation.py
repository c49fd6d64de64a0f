"""A saved model measured again: on its own data, by its own protocol or another, or on other news."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from veilrec._arrays import Bools
from veilrec.data.datasets import load
from veilrec.data.population import Population
from veilrec.errors import BadInput, known_name, unknown_name
from veilrec.evaluate.impressions import count_common, marks_of
from veilrec.evaluate.lists import describe_items
from veilrec.evaluate.personalisation import refuse_without_halves
from veilrec.evaluate.protocols import PROTOCOLS, make_split, make_transfer_split
from veilrec.evaluate.scorer import Reader
from veilrec.evaluate.split import Split
from veilrec.models.scores import Model
from veilrec.runs.folder import read_result
from veilrec.runs.measuring import by_given_items, by_ties, measure, warnings_of, with_popularity
from veilrec.runs.per_user import check_per_user, write_per_user
from veilrec.runs.request import Trained, read_trained, sizes
from veilrec.runs.saved import SavedModel, open_model

METRICS = ("main", "all")


def evaluate_run(
    folder: Path,
    protocol: str | None = None,
    data: str | None = None,
    *,
    metrics: str = "main",
    per_user: Path | None = None,
    personalisation: bool = False,
    ties: bool = False,
    method: str | None = None,
) -> dict[str, Any]:
    """Metrics of a run on the test part of its own or another protocol, or on another data set.

    `metrics="all"` also measures whole lists; the file `per_user` gets a row for every case with all that it has.
    `personalisation` adds what a new user gets by how many items the model was given, `ties` what the rule for equal
    scores decides.
    `method` is the file of the method that trained it, where that is not installed and ranks in a way of its own.
    """
    if metrics not in METRICS:
        raise unknown_name("choice of metrics", metrics, METRICS)
    if per_user is not None:
        check_per_user(per_user)
    asked = open_for_evaluation(folder, protocol, data, method=method)
    trained, model, population, split = asked.trained, asked.model, asked.population, asked.split
    if personalisation:
        refuse_without_halves(split.protocol, adapts=split.test.adapt is not None)
    items = None
    if metrics == "all" or per_user is not None:
        items = describe_items(split.train, split.n_items, population.catalogue)
    judged = measure(asked.ranks, split, trained.seed, items)
    measured = judged.to_json()
    scores, baselines = measured["metrics"], measured["baselines"]
    guarantee = with_popularity(model.guarantee, scores, baselines["popularity"], method=trained.method)
    if per_user is not None:
        write_per_user(per_user, judged.model, population.users)
    further: dict[str, Any] = {} if per_user is None else {"per_user": str(per_user)}
    if personalisation:
        further["personalisation"] = by_given_items(asked.ranks, split, trained.seed, judged)
    if ties:
        further["ties"] = by_ties(asked.ranks, split, trained.seed)
    return {
        "method": trained.method,
        "dataset": population.name,
        "seed": trained.seed,
        "data": trained.data if data is None else data,
        "rounds": read_result(folder)["rounds"],
        "protocol": split.protocol,
        **measured,
        "warnings": warnings_of(trained.method, guarantee, scores, baselines),
        "guarantee": guarantee.to_json(),
    } | further


@dataclass(frozen=True)
class Opened:
    """A run, the data that it is measured on, and the questions."""

    trained: Trained
    model: SavedModel
    population: Population
    ranks: Model
    split: Split


def open_for_evaluation(folder: Path, protocol: str | None, data: str | None, *, method: str | None = None) -> Opened:
    """Read a run and what it is to be measured on; see `evaluate_run`."""
    trained, model = read_trained(folder), open_model(folder, method)
    protocol = None if protocol is None else known_name("protocol", protocol, PROTOCOLS)
    population = load(trained.data if data is None else data)
    if data is not None:
        ranks = _reading_others(folder, trained, model, population, data)
        split = _split_of_others(model, trained.seed, population, protocol or _protocol_elsewhere(trained, population))
        return Opened(trained, model, population, ranks, split)
    refuse_changed_data(folder, trained, model, population)
    split = trained.split(population)
    if protocol is not None and protocol != split.protocol:
        asked = make_split(population, protocol, seed=trained.seed)
        refuse_seen_items(asked, split)
        split = asked
    return Opened(trained, model, population, model.for_users, split)


def refuse_changed_data(folder: Path, trained: Trained, model: SavedModel, population: Population) -> None:
    """A model belongs to the users and items that it was trained with."""
    for key, found in sizes(population).items():
        if trained.sizes[key] != found:
            raise BadInput(
                f"{trained.data} has {found:,} {key} and had {trained.sizes[key]:,} when {folder} was trained:"
                f" bring the old files back, or train again, for instance with --from {folder}"
            )
    for what, now, then in (("items", population.items, model.items), ("users", population.users, model.devices.users)):
        if not np.array_equal(now.offsets, then.offsets) or not np.array_equal(now.data, then.data):
            raise BadInput(
                f"the {what} of {trained.data} are not those that {folder} was trained with: bring the old files back,"
                " or train again"
            )


def _protocol_elsewhere(trained: Trained, population: Population) -> str | None:
    """The run's own protocol where the other data set has what it asks for, else that of the data set."""
    return None if population.impressions else trained.protocol


def _split_of_others(model: SavedModel, seed: int, population: Population, protocol: str | None) -> Split:
    """The questions of another data set, none of which was learnt from."""
    split = make_transfer_split(population, protocol, seed=seed)
    asked, learnt = split.test.impressions, model.devices.learnt_from
    if asked is not None and learnt is not None:
        these = marks_of(asked).named(population.users, population.items)
        common = count_common(these, learnt.named(model.devices.users, model.items))
        if common:
            raise BadInput(
                f"{common:,} of the {len(asked):,} impressions were in the training of the run: give data that it has"
                " not seen, or leave out --data to measure its own test part"
            )
    return split


def _reading_others(folder: Path, trained: Trained, model: SavedModel, population: Population, data: str) -> Model:
    """The model on the items of another data set."""
    reader = model.for_anybody
    if not isinstance(reader, Reader):
        raise BadInput(
            f"{model.method} knows items by their ids and cannot rank those of another data set: leave out"
            " --data; for a log that has grown, go on with `veilrec train"
            f" {trained.method} --data {data} --protocol {trained.protocol} --from {folder}`; methods that read titles,"
            " such as nrms, can be measured elsewhere"
        )
    if population.catalogue is None:
        raise BadInput(f"{population.name} has no titles to read: give data with news, such as mind:FOLDER")
    return reader.on(population.catalogue)


def refuse_seen_items(asked: Split, trained: Split) -> None:
    """An evaluation whose test items were trained on would measure memory."""
    if asked.test.impressions is not None or asked.test.adapt is not None:
        seen = asked.protocol != trained.protocol
    else:
        seen = bool(_in_training(asked, trained).any())
    if seen:
        raise BadInput(
            f"the run was trained for {trained.protocol}, and test items of {asked.protocol} were in its training part:"
            f" train again with --protocol {asked.protocol}"
        )


def _in_training(asked: Split, trained: Split) -> Bools:
    tested = asked.test.users[asked.test.positives.row_numbers()] * asked.n_items + asked.test.positives.items
    learned = trained.train.row_numbers() * trained.n_items + trained.train.items
    return np.isin(tested, learned)
