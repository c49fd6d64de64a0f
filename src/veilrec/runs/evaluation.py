"""A saved model measured again: on its own data, by its own protocol or another, or on other news."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from veilrec._arrays import Bools
from veilrec.data.datasets import load
from veilrec.data.population import Population
from veilrec.errors import BadInput
from veilrec.evaluate.evaluator import evaluate
from veilrec.evaluate.impressions import count_common, marks_of
from veilrec.evaluate.protocols import make_split, make_transfer_split
from veilrec.evaluate.scorer import Reader
from veilrec.evaluate.split import Split
from veilrec.models.scores import Model
from veilrec.runs.folder import read_result
from veilrec.runs.request import Trained, read_trained, sizes
from veilrec.runs.saved import SavedModel, open_model
from veilrec.runs.training import measure_baselines, with_popularity


def evaluate_run(folder: Path, protocol: str | None = None, data: str | None = None) -> dict[str, Any]:
    """Metrics of a run on the test part of its own or another protocol, or on another data set."""
    trained, model = read_trained(folder), open_model(folder)
    rounds = read_result(folder)["rounds"]
    population = load(trained.data if data is None else data)
    ranks: Model
    if data is None:
        _refuse_changed_data(folder, trained, model, population)
        split, ranks = trained.split(population), model.for_users
        if protocol is not None and protocol != split.protocol:
            asked = make_split(population, protocol, seed=trained.seed)
            refuse_seen_items(asked, split)
            split = asked
    else:
        split = _split_of_others(model, trained.seed, population, protocol)
        ranks = _reading_others(model, population)
    metrics = evaluate(split.test, split.train, ranks)
    baselines = measure_baselines(split, trained.seed)
    guarantee = with_popularity(model.guarantee, metrics, baselines["popularity"])
    return {
        "method": trained.method,
        "dataset": population.name,
        "seed": trained.seed,
        "data": trained.data if data is None else data,
        "rounds": rounds,
        "protocol": split.protocol,
        "metrics": metrics,
        "baselines": baselines,
        "guarantee": guarantee.to_json(),
    }


def _refuse_changed_data(folder: Path, trained: Trained, model: SavedModel, population: Population) -> None:
    """A model belongs to the users and items that it was trained with."""
    for key, found in sizes(population).items():
        if trained.sizes[key] != found:
            raise BadInput(
                f"{trained.data} has {found:,} {key} and had {trained.sizes[key]:,} when {folder} was trained:"
                " bring the old files back, or train again"
            )
    for what, now, then in (("items", population.items, model.items), ("users", population.users, model.devices.users)):
        if not np.array_equal(now.offsets, then.offsets) or not np.array_equal(now.data, then.data):
            raise BadInput(
                f"the {what} of {trained.data} are not those that {folder} was trained with: bring the old files back,"
                " or train again"
            )


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


def _reading_others(model: SavedModel, population: Population) -> Model:
    """The model on the items of another data set."""
    reader = model.for_anybody
    if not isinstance(reader, Reader):
        raise BadInput(
            f"{model.method} knows items by their ids and cannot rank those of another data set: leave out"
            " --data, or train a method that reads titles, such as nrms or fednewsrec"
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
