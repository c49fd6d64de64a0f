"""What a saved run is good for: measuring it again, and recommending."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from veilrec._arrays import Floats, Indices, Offsets
from veilrec._csr import Csr
from veilrec.data.population import Population
from veilrec.data.spec import load
from veilrec.errors import BadInput
from veilrec.evaluate.elsewhere import ask_elsewhere, count_common
from veilrec.evaluate.evaluator import evaluate
from veilrec.evaluate.protocols import make_split
from veilrec.evaluate.scorer import Model, Reader
from veilrec.evaluate.split import Split
from veilrec.runs.training import Prepared, measure_baselines, open_run, with_popularity

ONE_USER: Offsets = np.zeros(1, np.int64)


def evaluate_run(folder: Path, protocol: str | None = None, data: str | None = None) -> dict[str, Any]:
    """Metrics of a run on the test part of its own or another protocol, or on another data set."""
    prepared, progress = open_run(folder)
    population, split, model = prepared.population, prepared.split, prepared.trainer.model()
    if data is not None:
        population = load(data)
        split = _split_elsewhere(prepared, population, protocol)
        model = _on_other_items(prepared, model, population)
    elif protocol is not None and protocol != split.protocol:
        split = make_split(population, protocol, seed=prepared.request.seed)
        refuse_seen_items(split, prepared.split)
    metrics = evaluate(split.test, split.train, model)
    baselines = measure_baselines(split, prepared.request.seed)
    guarantee = with_popularity(prepared.guarantee(), metrics, baselines["popularity"])
    return {
        "method": prepared.request.method,
        "dataset": population.name,
        "seed": prepared.request.seed,
        "data": prepared.request.data if data is None else data,
        "rounds": progress.rounds_done,
        "protocol": split.protocol,
        "metrics": metrics,
        "baselines": baselines,
        "guarantee": guarantee.to_json(),
    }


def _split_elsewhere(prepared: Prepared, population: Population, protocol: str | None) -> Split:
    """The questions of another data set, none of which was learnt from."""
    split = ask_elsewhere(population, protocol, seed=prepared.request.seed)
    asked, learnt = split.test.impressions, prepared.split.train_impressions
    if asked is not None and learnt is not None:
        common = count_common(population, asked, prepared.population, learnt)
        if common:
            raise BadInput(
                f"{common:,} of the {len(asked):,} impressions were in the training of the run: give data that it has"
                " not seen, or leave out --data to measure its own test part"
            )
    return split


def _on_other_items(prepared: Prepared, model: Model, population: Population) -> Model:
    if not isinstance(model, Reader):
        raise BadInput(
            f"{prepared.request.method} knows items by their ids and cannot rank those of another data set: leave out"
            " --data, or train a method that reads titles, such as nrms or fednewsrec"
        )
    if population.catalogue is None:
        raise BadInput(f"{population.name} has no titles to read: give data with news, such as mind:FOLDER")
    return model.on(population.catalogue)


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


def _in_training(asked: Split, trained: Split) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    tested = asked.test.users[asked.test.positives.row_numbers()] * asked.n_items + asked.test.positives.items
    learned = trained.train.row_numbers() * trained.n_items + trained.train.items
    return np.isin(tested, learned)


def recommend_known(prepared: Prepared, user: str, k: int) -> list[dict[str, Any]]:
    """The best unused items of a user of the data set."""
    index = prepared.population.users.find(user)
    if index is None:
        few = ", ".join(prepared.population.users[i] for i in range(min(3, prepared.population.n_users)))
        raise BadInput(
            f"no user {user!r} in {prepared.population.name}: its ids look like {few}; for a new user give --history"
        )
    used = prepared.population.interactions.pairs().row(index)
    model = prepared.trainer.model()
    if len(prepared.split.train.row(index)) == 0:  # never took part: joins with what the device has
        return _best(prepared, model.fold_in(_one_row(used)).score_all(ONE_USER)[0], used, k)
    return _best(prepared, model.score_all(np.array([index]))[0], used, k)


def recommend_new(prepared: Prepared, history: Sequence[str], k: int) -> list[dict[str, Any]]:
    """The best items for a user of whom only a history of external item ids is known."""
    if not history:
        raise BadInput("--history is empty: give at least one item id")
    found = [prepared.population.items.find(item) for item in history]
    unknown = [item for item, index in zip(history, found, strict=True) if index is None]
    if unknown:
        few = ", ".join(prepared.population.items[i] for i in range(min(3, prepared.population.n_items)))
        raise BadInput(f"no item {unknown[0]!r} in {prepared.population.name}: its ids look like {few}")
    used = np.array(list(dict.fromkeys(found)), np.int32)  # in the order given: the latest click comes last
    scores = prepared.trainer.model().fold_in(_one_row(used)).score_all(ONE_USER)[0]
    return _best(prepared, scores, used, k)


def _one_row(items: Indices) -> Csr:
    return Csr(np.array([0, len(items)], np.int64), np.ascontiguousarray(items, dtype=np.int32))


def _best(prepared: Prepared, scores: Floats, used: Indices, k: int) -> list[dict[str, Any]]:
    open_scores = scores.astype(np.float64)
    open_scores[used] = -np.inf
    order = np.argsort(-open_scores, kind="stable")[: min(k, len(scores) - len(used))]
    catalogue = prepared.population.catalogue
    return [
        {
            "item": prepared.population.items[int(item)],
            "title": catalogue.titles[int(item)] if catalogue else "",
            "score": float(scores[item]),
        }
        for item in order
    ]
