"""PrivRec and its relatives: budgets that are kept, claims beside what holds, presets, and one-line errors."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from veilrec.core.errors import BadInput
from veilrec.data.synthetic_ratings import generate
from veilrec.methods.base import Problem, configure, make_trainer, promised
from veilrec.methods.registry import get
from veilrec.models.feature_net import POPULARITY
from veilrec.simulation.simulation import Simulation

FAMILY = ("privrec", "privrec-cen", "nn-self", "fofl-self", "dp-privrec", "popularity-head")
SMALL = ("cohort.size=40", "local.steps=2", "local.negatives=8")


@pytest.fixture(scope="module")
def problem() -> Problem:
    made_up = generate(users=150, items=90, seed=2)
    return Problem(made_up.interactions.pairs(), made_up.n_items, 3, rounds=4, features=made_up.features)


def plan_of(name: str, problem: Problem, *settings: str, preset: str = "tuned") -> Any:
    method = get(name)
    config, _ = configure(method, preset=preset, dataset="", settings=settings)
    assert method.plan is not None
    return method.plan(config, problem)


def test_who_is_replaced_moves_votes_further_than_who_is_added(problem: Problem) -> None:
    fixed, poisson = (plan_of("dp-privrec", problem, *SMALL, f"cohort.sampling={way}") for way in ("fixed", "poisson"))
    assert fixed.reports.mechanism.adjacency == "replace-one"
    assert poisson.reports.mechanism.adjacency == "add-remove"
    assert fixed.reports.mechanism.sigma > 1.4 * poisson.reports.mechanism.sigma


def test_as_published_the_papers_epsilon_stands_beside_what_holds(problem: Problem) -> None:
    method = get("dp-privrec")
    settings = ["calibration=as-published", "cohort.size=30", "local.steps=2", "server.rate=1"]
    config, _ = configure(method, preset="tuned", dataset="", settings=settings)
    told = promised(method, config, problem)
    assert (told.basis, told.unit, told.adjacency, told.scope, told.trust) == (
        *("as published", "user", "replace-one"),
        *("whole run", "server"),
    )
    assert told.honest_epsilon is not None
    assert told.epsilon is not None
    assert 0.0 < told.honest_epsilon < told.epsilon  # it charges itself for every device of a round


@pytest.mark.parametrize("name", FAMILY)
def test_every_preset_starts(problem: Problem, name: str) -> None:
    method = get(name)
    calibrations = ("proven", "as-published") if "calibration" in method.config.model_fields else (None,)
    for preset in sorted({key.partition("@")[0].partition(":")[0] for key in method.presets} | {"tuned"}):
        for calibration in calibrations:
            asked = [] if calibration is None else [f"calibration={calibration}"]
            config, rounds = configure(method, preset=preset, dataset="", settings=asked)
            assert rounds >= 1
            if preset != "ratings":
                fits = config.model_copy(update={"cohort": replace(config.cohort, size=30)})
                make_trainer(method, fits, problem)


@pytest.mark.parametrize("name", ["privrec", "dp-privrec", "popularity-head"])
def test_the_model_holds_votes_and_nothing_else_of_people(problem: Problem, name: str) -> None:
    method = get(name)
    settings = [one for one in SMALL if not (name == "popularity-head" and one.startswith("cohort"))]
    config, _ = configure(method, preset="tuned", dataset="", settings=settings)
    trainer = make_trainer(method, config, replace(problem, rounds=1))
    assert isinstance(trainer, Simulation)
    trainer.step(0)
    parts = trainer.parts()
    assert set(parts.weights) <= {POPULARITY, "bound", "layer1.weight", "layer1.bias"}
    exact = np.bincount(problem.train.items, minlength=problem.n_items) > 0
    noisy = parts.weights[POPULARITY].reshape(-1)
    assert ((noisy > 0) == exact).all() == (name == "privrec")  # in the clear, who has votes is exact


def test_popularity_moves_scores_as_an_offset(problem: Problem) -> None:
    method = get("popularity-head")
    config, _ = configure(method, preset="tuned", dataset="", settings=["privacy.epsilon=1000"])
    trainer = make_trainer(method, config, replace(problem, rounds=1))
    trainer.step(0)
    nobody = trainer.model().fold_in(problem.train.take(np.zeros(0, np.int64)))
    assert nobody.n_items == problem.n_items
    empty = type(problem.train)(np.zeros(2, np.int64), np.zeros(0, np.int32))
    scores = trainer.model().fold_in(empty).score_all(np.zeros(1, np.int64))[0]
    votes = trainer.parts().weights[POPULARITY].reshape(-1)
    assert np.array_equal(np.argsort(-scores, kind="stable")[:20], np.argsort(-votes, kind="stable")[:20])


@pytest.mark.parametrize("name", ["privrec", "dp-privrec", "popularity-head", "nn-self"])
def test_data_without_features_is_refused(problem: Problem, name: str) -> None:
    with pytest.raises(BadInput, match=r"features\.yaml"):
        plan_of(name, replace(problem, features=None))


def test_ratings_and_the_logarithm_of_votes_do_not_go_together(problem: Problem) -> None:
    rated = replace(problem, ratings=np.ones(len(problem.train.items), np.float32))
    with pytest.raises(BadInput, match="use --preset ratings"):
        plan_of("privrec", rated, "cohort.size=30", "local.loss=rating")
    plan_of("privrec", rated, "cohort.size=30", preset="ratings")
