"""A saved model measured again: on its own data, by its own protocol or another, or on other news.

A model measured beside popularity and chance: over all cases, by groups of users, and what is to be said of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from veilrec.core.arrays import Doubles, Offsets
from veilrec.core.errors import BadInput, known_name, unknown_name
from veilrec.data.datasets import load
from veilrec.data.population import Population
from veilrec.evaluation import evaluator
from veilrec.evaluation.evaluator import EvaluationResult, by_known_items, evaluate_cases, refuse_without_halves
from veilrec.evaluation.lists import ListItems, describe_items
from veilrec.evaluation.protocols import PROTOCOLS, make_split, make_transfer_split
from veilrec.evaluation.split import Split, TextReader, count_common, marks_of
from veilrec.methods.base import Problem, configure, make_trainer
from veilrec.methods.registry import exists, get
from veilrec.models.scores import Model
from veilrec.privacy.guarantee import Guarantee
from veilrec.runs.checkpoint import read_result
from veilrec.runs.export import check_per_user, write_per_user
from veilrec.runs.request import Trained, read_trained, sizes
from veilrec.runs.saved import SavedModel, open_model

BASELINES = ("popularity", "random")
PRIVATE_POPULARITY = "private-popularity"


@dataclass(frozen=True)
class TestMetrics:
    """How a model and the baselines answered the test cases of a split."""

    model: EvaluationResult
    baselines: Mapping[str, EvaluationResult]

    def to_json(self) -> dict[str, Any]:
        """`metrics`, `baselines` and `groups` as result.json has them."""
        return {
            "metrics": self.model.means(),
            "baselines": {name: result.means() for name, result in self.baselines.items()},
            "groups": self.groups(),
        }

    def groups(self) -> list[dict[str, Any]]:
        """The main metrics of users with few and with many known items, beside those of popularity."""
        popularity = by_known_items(self.baselines["popularity"])
        return [
            {
                "known_items": name,
                "users": len(np.unique(group.users)),
                "cases": len(group),
                "metrics": group.main,
                "popularity": popularity[name].main,
            }
            for name, group in by_known_items(self.model).items()
        ]


def measure(
    model: Model, split: Split, seed: int, items: ListItems | None = None, *, judged: EvaluationResult | None = None
) -> TestMetrics:
    """Evaluate a model and the baselines on the test cases; their lists, too, if `items` are given.

    A model that was `judged` already, without `items`, is not asked again.
    """
    baselines = {
        name: evaluate_cases(split.test, split.train, baseline(name, split, seed), items) for name in BASELINES
    }
    return TestMetrics(evaluate_cases(split.test, split.train, model, items) if judged is None else judged, baselines)


def before_and_after(start: Model, trained: Model, split: Split) -> dict[str, Any]:
    """The main metrics of a start and of what was trained from it on the test cases, and what training gained.

    `gain_error` is the standard error of the mean gain; cases of one user count as one draw.
    """
    before, after = (evaluate_cases(split.test, split.train, model) for model in (start, trained))
    first, second = before.main, after.main
    return {
        "start": first,
        "trained": second,
        "gain": {name: second[name] - first[name] for name in first},
        "gain_error": {name: _error(after.values[name] - before.values[name], before.users) for name in first},
    }


def _error(gains: Doubles, users: Offsets) -> float:
    """Return the standard error of the mean gain, where the gains of one user go together."""
    _, owner = np.unique(users, return_inverse=True)
    by_user = np.bincount(owner.reshape(-1), gains - gains.mean())
    return float(np.sqrt((by_user**2).sum()) / len(gains))


def baseline(name: str, split: Split, seed: int) -> Model:
    """Popularity or random, learnt from the training part."""
    method = get(name)
    config, _ = configure(method, preset="tuned", dataset="")
    trainer = make_trainer(method, config, Problem(split.train, split.n_items, seed))
    trainer.step(0)
    return trainer.model()


def with_popularity(
    guarantee: Guarantee, metrics: Mapping[str, float], popularity: Mapping[str, float], *, method: str
) -> Guarantee:
    """A private model that ranks no better than the items' counts says so, unless it is made of nothing else."""
    if guarantee.basis == "none" or method == PRIVATE_POPULARITY or _beats(metrics, popularity):
        return guarantee
    other = usual_guarantee(PRIVATE_POPULARITY)
    if _terms(guarantee) == _terms(other):
        gives = "may give as much at a smaller epsilon in the same terms"
    else:
        unit, adjacency, scope, trust, basis = _terms(other)
        gives = f"may give as much, in other terms (per {unit}, {adjacency}, {scope}, trusting: {trust}, {basis})"
    caveat = f"This run ranks no better than popularity: {PRIVATE_POPULARITY} {gives}; compare the two."
    return replace(guarantee, caveats=(*guarantee.caveats, caveat))


def usual_guarantee(name: str) -> Guarantee:
    """Guarantee of a method with its defaults."""
    config, _ = configure(get(name), preset="tuned", dataset="")
    return get(name).guarantee(config)


def _terms(guarantee: Guarantee) -> tuple[str | None, ...]:
    """What two epsilons must share to be compared."""
    return guarantee.unit, guarantee.adjacency, guarantee.scope, guarantee.trust, guarantee.basis


def warnings_of(
    method: str, guarantee: Guarantee, metrics: Mapping[str, float], baselines: Mapping[str, Mapping[str, float]]
) -> list[str]:
    """What the user of a run has to be told; a private run that loses to popularity says it in its guarantee."""
    name, warnings = _decisive(metrics), []
    popularity, chance = baselines["popularity"], baselines["random"]
    if guarantee.basis == "none" and not _is_baseline(method) and not _beats(metrics, popularity):
        advice = "Train longer, try other settings, or use popularity."
        if "rmse" in metrics:
            advice = "It has learnt to predict ratings: judge it by their errors."
        warnings.append(
            f"This run ranks no better than popularity ({name} {metrics[name]:.4f}, popularity {popularity[name]:.4f}):"
            f" measured so, it is worth no more than a list of what everybody likes. {advice}"
        )
    if method != "random" and not _beats(metrics, chance):
        why = "Train longer, or try other settings."
        if not _beats(popularity, chance):
            why = "Nor does popularity without noise: there may be little to learn here."
        elif guarantee.basis != "none":
            why = "The noise has drowned what there was to learn: it takes more people, or a weaker promise."
        warnings.append(
            f"This run ranks no better than random ({name} {metrics[name]:.4f}, random {chance[name]:.4f}): its lists"
            f" are of no use. {why}"
        )
    return warnings


def _is_baseline(method: str) -> bool:
    """A run whose method came from a file has only its name, by which nothing is found: such a one is none."""
    return exists(method) and get(method).kind == "baseline"


def _beats(metrics: Mapping[str, float], popularity: Mapping[str, float]) -> bool:
    name = _decisive(metrics)
    return metrics[name] > popularity[name]


def _decisive(metrics: Mapping[str, float]) -> str:
    """The metric that a model has to be better in: AUC where impressions are ranked."""
    return "auc" if "auc" in metrics else "ndcg@10"


METRICS = ("main", "all")


def evaluate_run(
    folder: Path,
    protocol: str | None = None,
    data: str | None = None,
    *,
    metrics: str = "main",
    per_user: Path | None = None,
    personalisation: bool = False,
    method: str | None = None,
) -> dict[str, Any]:
    """Metrics of a run on the test part of its own or another protocol, or on another data set.

    `metrics="all"` also measures whole lists; the file `per_user` gets a row for every case with all that it has.
    `personalisation` adds what a new user gets by how many items the model was given.
    `method` is the file of the method that trained it, where that is not installed and ranks in a way of its own.
    """
    if metrics not in METRICS:
        raise unknown_name("choice of metrics", metrics, METRICS)
    if per_user is not None:
        check_per_user(per_user)
    asked = open_for_evaluation(folder, protocol, data, method=method)
    trained, population, split = asked.trained, asked.population, asked.split
    if personalisation:
        refuse_without_halves(split.protocol, adapts=split.test.adapt is not None)
    items = None
    if metrics == "all" or per_user is not None:
        items = describe_items(split.train, split.n_items, population.catalogue)
    judged = measure(asked.ranks, split, trained.seed, items)
    measured = judged.to_json()
    scores, baselines = measured["metrics"], measured["baselines"]
    guarantee = with_popularity(asked.model.guarantee, scores, baselines["popularity"], method=trained.method)
    if per_user is not None:
        write_per_user(per_user, judged.model, population.users)
    further: dict[str, Any] = {} if per_user is None else {"per_user": str(per_user)}
    if personalisation:  # baselines do not look at a user's items: they are the same for every number
        beside = {name: result.main for name, result in judged.baselines.items()}
        further["personalisation"] = [
            {"given": of.label, "mean_items": of.mean_items, "metrics": of.result.main, "baselines": beside}
            for of in evaluator.personalisation(split, asked.ranks, trained.seed)
        ]
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
class OpenedRun:
    """A run, the data that it is measured on, and the questions."""

    trained: Trained
    model: SavedModel
    population: Population
    ranks: Model
    split: Split


def open_for_evaluation(
    folder: Path, protocol: str | None, data: str | None, *, method: str | None = None
) -> OpenedRun:
    """Read a run and what it is to be measured on; see `evaluate_run`."""
    trained, model = read_trained(folder), open_model(folder, method)
    protocol = None if protocol is None else known_name("protocol", protocol, PROTOCOLS)
    population = load(trained.data if data is None else data)
    if data is not None:
        ranks = _reading_others(folder, trained, model, population, data)
        own = None if population.impressions else trained.protocol  # where the other data set has what it asks for
        split = _split_of_others(model, trained.seed, population, protocol or own)
        return OpenedRun(trained, model, population, ranks, split)
    refuse_changed_data(folder, trained, model, population)
    split = trained.split(population)
    if protocol is not None and protocol != split.protocol:
        asked = make_split(population, protocol, seed=trained.seed)
        refuse_seen_items(asked, split)
        split = asked
    return OpenedRun(trained, model, population, model.for_users, split)


def refuse_changed_data(folder: Path, trained: Trained, model: SavedModel, population: Population) -> None:
    """A model belongs to the users and items that it was trained with."""
    for key, found in sizes(population).items():
        if trained.sizes[key] != found:
            raise BadInput(
                f"{trained.data} has {found:,} {key} and had {trained.sizes[key]:,} when {folder} was trained:"
                f" bring the old files back, or train again, for instance with --from {folder}"
            )
    for what, now, then in (("items", population.items, model.items), ("users", population.users, model.clients.users)):
        if not np.array_equal(now.offsets, then.offsets) or not np.array_equal(now.data, then.data):
            raise BadInput(
                f"the {what} of {trained.data} are not those that {folder} was trained with: bring the old files back,"
                " or train again"
            )


def _split_of_others(model: SavedModel, seed: int, population: Population, protocol: str | None) -> Split:
    """The questions of another data set, none of which was learnt from."""
    split = make_transfer_split(population, protocol, seed=seed)
    asked, learnt = split.test.impressions, model.clients.learnt_from
    if asked is not None and learnt is not None:
        these = marks_of(asked).named(population.users, population.items)
        common = count_common(these, learnt.named(model.clients.users, model.items))
        if common:
            raise BadInput(
                f"{common:,} of the {len(asked):,} impressions were in the training of the run: give data that it has"
                " not seen, or leave out --data to measure its own test part"
            )
    return split


def _reading_others(folder: Path, trained: Trained, model: SavedModel, population: Population, data: str) -> Model:
    """The model on the items of another data set."""
    reader = model.for_anybody
    if not isinstance(reader, TextReader):
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
    test, learnt = asked.test, trained.train
    if test.impressions is not None or test.adapt is not None:
        seen = asked.protocol != trained.protocol
    else:
        tested = test.users[test.positives.row_numbers()] * asked.n_items + test.positives.items
        seen = bool(np.isin(tested, learnt.row_numbers() * trained.n_items + learnt.items).any())
    if seen:
        raise BadInput(
            f"the run was trained for {trained.protocol}, and test items of {asked.protocol} were in its training part:"
            f" train again with --protocol {asked.protocol}"
        )
