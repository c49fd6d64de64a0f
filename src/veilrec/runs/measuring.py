"""A model measured beside popularity and chance: over all cases, by groups of users, and what is to be said of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from veilrec._arrays import Doubles, Offsets
from veilrec.evaluate.evaluator import Judgement, judge, judge_ties
from veilrec.evaluate.groups import FAIRNESS_METRIC, by_activity, by_known_items
from veilrec.evaluate.lists import Items
from veilrec.evaluate.personalisation import personalisation
from veilrec.evaluate.split import Split
from veilrec.methods.base import Problem, configure, make_trainer
from veilrec.methods.registry import exists, get
from veilrec.models.scores import Model
from veilrec.privacy.guarantee import Guarantee

BASELINES = ("popularity", "random")
PRIVATE_POPULARITY = "private-popularity"


@dataclass(frozen=True)
class Measured:
    """How a model and the baselines answered the test cases of a split."""

    model: Judgement
    baselines: Mapping[str, Judgement]

    def to_json(self) -> dict[str, Any]:
        """`metrics`, `baselines`, `groups` and `fairness` as result.json has them."""
        return {
            "metrics": self.model.means(),
            "baselines": {name: judgement.means() for name, judgement in self.baselines.items()},
            "groups": self.groups(),
            "fairness": self.fairness(),
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

    def fairness(self) -> dict[str, Any] | None:
        """The least active fifth of the test users beside the rest, of the model and of popularity.

        None for impressions.
        """
        model, popularity = by_activity(self.model), by_activity(self.baselines["popularity"])
        if model is None or popularity is None:
            return None
        sides = {
            name: {"least_active": of.least_active, "rest": of.rest, "spread": of.spread, "error": of.error}
            for name, of in (("model", model), ("popularity", popularity))
        }
        return {"metric": FAIRNESS_METRIC, "users": model.users, "known_items": model.known_items, **sides}


def measure(
    model: Model, split: Split, seed: int, items: Items | None = None, *, judged: Judgement | None = None
) -> Measured:
    """Judge a model and the baselines on the test cases; their lists, too, if `items` are given.

    A model that was `judged` already, without `items`, is not asked again.
    """
    baselines = {name: judge(split.test, split.train, baseline(name, split, seed), items) for name in BASELINES}
    return Measured(judge(split.test, split.train, model, items) if judged is None else judged, baselines)


def by_given_items(model: Model, split: Split, seed: int, measured: Measured) -> list[dict[str, Any]]:
    """The main metrics by how many items of a new user the model is given, beside the baselines.

    These do not look at a user's items, and the questions stay the same: `measured` has them for every number.
    """
    baselines = {name: judgement.main for name, judgement in measured.baselines.items()}
    return [
        {"given": given.label, "mean_items": given.mean_items, "metrics": given.judgement.main, "baselines": baselines}
        for given in personalisation(split, model, seed)
    ]


def by_ties(model: Model, split: Split, seed: int) -> list[dict[str, Any]]:
    """The main metrics by who wins where scores are equal, of the model and of the baselines."""
    ranked = {name: judge_ties(split.test, split.train, baseline(name, split, seed)) for name in BASELINES}
    return [
        {
            "ties": rule,
            "metrics": judgement.main,
            "baselines": {name: by_rule[rule].main for name, by_rule in ranked.items()},
        }
        for rule, judgement in judge_ties(split.test, split.train, model).items()
    ]


def before_and_after(start: Model, trained: Model, split: Split) -> dict[str, Any]:
    """The main metrics of a start and of what was trained from it on the test cases, and what training gained.

    `gain_error` is the standard error of the mean gain; cases of one user count as one draw.
    """
    before, after = (judge(split.test, split.train, model) for model in (start, trained))
    first, second = before.main, after.main
    return {
        "start": first,
        "trained": second,
        "gain": {name: second[name] - first[name] for name in first},
        "gain_error": {name: _error(after.values[name] - before.values[name], before.users) for name in first},
    }


def _error(gains: Doubles, users: Offsets) -> float:
    """Of the mean of gains, where those of one user go together."""
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
    other = _promise_of_private_popularity()
    if _terms(guarantee) == _terms(other):
        gives = "may give as much at a smaller epsilon in the same terms"
    else:
        unit, adjacency, scope, trust, basis = _terms(other)
        gives = f"may give as much, in other terms (per {unit}, {adjacency}, {scope}, trusting: {trust}, {basis})"
    caveat = f"This run ranks no better than popularity: {PRIVATE_POPULARITY} {gives}; compare the two."
    return replace(guarantee, caveats=(*guarantee.caveats, caveat))


def _promise_of_private_popularity() -> Guarantee:
    method = get(PRIVATE_POPULARITY)
    config, _ = configure(method, preset="tuned", dataset="")
    return method.guarantee(config)


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
        warnings.append(
            f"This run ranks no better than popularity ({name} {metrics[name]:.4f}, popularity {popularity[name]:.4f}):"
            " measured so, it is worth no more than a list of what everybody likes. Train longer, try other settings,"
            " or use popularity."
        )
    if method != "random" and not _beats(metrics, chance):
        why = "Train longer, or try other settings."
        if guarantee.basis != "none":
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
