"""veil: what it spends, what it works with and without, and what an audit finds in it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from veilrec.audit.contract_subject import features, histories_of, split
from veilrec.client.veil import CLIPS, FURTHER, MAP, PASSES, PLACES, WEIGHTS
from veilrec.core.csr import Csr
from veilrec.core.features import Features, Side
from veilrec.data.population import ItemTable, Strings
from veilrec.methods.base import Problem, configure, make_trainer
from veilrec.methods.veil.method import (
    METHOD,
    MOMENTUM,
    SPENDINGS,
    WITHOUT_MAP,
    bounds_of,
    phases_of,
    plan,
    spending_for,
    steps_of,
)
from veilrec.models.scores import Model
from veilrec.privacy.events import GaussianEvent
from veilrec.privacy.mechanisms.schedules import ScheduledSum

MANY = "people=20000"  # a nominal number: all kinds of rounds


def configured(*settings: str) -> Any:
    return configure(METHOD, preset="tuned", dataset="", settings=settings)[0]


def problem(rounds: int = 6, users: int = 60) -> Problem:
    first = np.arange(users)
    return Problem(split("loo-99").train.take(first), 300, 5, rounds, features=features(first))


def model_of(*settings: str, on: Problem | None = None) -> Model:
    on = on or problem()
    trainer = make_trainer(METHOD, configured(*settings), on)
    for number in range(on.rounds):
        trainer.step(number)
    return trainer.model()


def test_shares_are_those_of_the_table() -> None:
    made = plan(configured("privacy.epsilon=8", MANY), problem(rounds=18))
    assert isinstance(made.mechanism, ScheduledSum)
    assert made.reports is not None
    event = made.reports.mechanism.event()
    assert isinstance(event, GaussianEvent)
    votes = event.mu**2
    rounds = sum((bound / made.mechanism.sigma) ** 2 for bound in made.mechanism.clip_norms)
    row = SPENDINGS[-1]
    assert votes / (votes + rounds) == pytest.approx(row.votes, rel=5e-3)
    for name, share in ((PLACES, row.places), (FURTHER, row.further)):
        spent = [
            (made.mechanism.clip_norms[number] / made.mechanism.sigma) ** 2
            for number in range(18)
            if made.agenda.next(number, made.start, None).tensors == (name,)
        ]
        assert sum(spent) / (votes + rounds) == pytest.approx(share, rel=5e-3)


def test_what_is_learnt_follows_from_people_and_budget() -> None:
    kinds = {
        nu: {name for phase in phases_of(spending_for(1.0, nu, has_map=True), 18) for name in phase.tensors}
        for nu in (100, 800, 10000)
    }
    assert kinds == {100: {WEIGHTS, MAP}, 800: {WEIGHTS, MAP}, 10000: {WEIGHTS, MAP, PLACES, FURTHER}}
    assert spending_for(1.0, 10**6, has_map=False).map == 0.0
    for row in (*SPENDINGS, WITHOUT_MAP):
        assert row.votes + row.weights + row.map + row.places + row.further == pytest.approx(1.0)
        for rounds in (1, 2, 3, 5, 18, 40):
            phases = phases_of(row, rounds)
            assert sum(phase.rounds for phase in phases) == rounds
            assert max(bounds_of(phases)) == 1.0


def test_steps_go_as_far_as_noise_allows_or_until_they_settle() -> None:
    phases = phases_of(SPENDINGS[1], 18)
    bounds = bounds_of(phases)
    loud, quiet, silent = (steps_of(SPENDINGS[1], phases, bounds, sigma, 1000).units for sigma in (100.0, 50.0, 1e-9))
    for name in (WEIGHTS, MAP):
        assert quiet[name] == pytest.approx(2.0 * loud[name])  # half the noise: twice as far
        assert silent[name] > quiet[name]
    # All rounds together put as much noise on the map as is allowed.
    total = loud[MAP] * 100.0 * np.sqrt(phases[1].rounds) / (1.0 - MOMENTUM)
    assert total == pytest.approx(0.3)


def test_places_that_were_released_are_saved_for_other_rankers() -> None:
    on = problem()
    trainer = make_trainer(METHOD, configured("privacy.epsilon=100", MANY, "dim=5"), on)
    for number in range(on.rounds):
        trainer.step(number)
    made = trainer.model()
    saved = made._ranker.tables(trainer.server.weights)  # type: ignore[attr-defined]
    told = made._told  # type: ignore[attr-defined]
    assert np.array_equal(saved["places.values"], told.places.values)
    assert saved["places.values"].shape == saved["places.gains"].shape == saved["places.expected"].shape
    for among in np.hsplit(saved["places.values"], 2):  # of both passes
        assert np.abs(among).max() > 0.01
    # Content has fewer directions than the table would pay for: messages and units are of as many as there are.
    n_directions, bounds = saved["places.values"].shape[1] // 2, trainer.plan.mechanism.clip_norms  # type: ignore[attr-defined]
    assert n_directions == 5 < SPENDINGS[-1].directions
    for name, bound in zip(PASSES, bounds, strict=False):
        units = made._ranker.steps.units[name]  # type: ignore[attr-defined]
        assert units * bound == pytest.approx(CLIPS[name] * np.sqrt(n_directions))
    assert told.basis.shape[1] > told.places.values.shape[1]


def test_without_order_the_latest_items_count_hardly_more_than_others() -> None:
    rows = histories_of([[1, 2, 3, 4, 5, 6, 7], [7, 6, 5, 4, 3, 2, 1]])
    apart = []
    for order in ("off", "on"):
        first, second = model_of(f"order={order}", "caution=0", MANY).fold_in(rows).score_all(np.arange(2))
        apart.append(np.linalg.norm(first - second) / np.linalg.norm(first))
    assert apart[0] < 0.2 * apart[1]


def test_without_features_and_titles_popularity_is_left() -> None:
    bare = replace(problem(), features=None)
    model = model_of("privacy.epsilon=100", on=bare)
    scores = model.fold_in(histories_of([[], [1, 2, 3, 4, 5, 6]])).score_all(np.arange(2))
    assert np.isfinite(scores).all()
    uses = np.bincount(bare.train.items, minlength=300)
    assert np.corrcoef(scores[0], np.log1p(uses))[0, 1] > 0.6


def test_a_new_item_is_ranked_by_its_content() -> None:
    on = problem(rounds=12, users=300)
    assert on.features is not None
    kinds = on.features.items.codes[:, 0]
    used = np.unique(on.train.items)
    history = [int(item) for item in used if kinds[item] == kinds[used[0]]][:8]
    # Item 0 is used by nobody any more.
    kept = on.train.items != 0
    lengths = np.bincount(on.train.row_numbers()[kept], minlength=len(on.train))
    alone = Csr(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64), on.train.items[kept])
    liked = on.features.items.codes.copy()
    liked[0] = liked[history[0]]
    items = Side(on.features.items.features, liked, on.features.items.numbers)
    on = replace(on, train=alone, features=Features(on.features.users, items))
    scores = (
        model_of("privacy.epsilon=100", MANY, on=on).fold_in(histories_of([history])).score_all(np.zeros(1, int))[0]
    )
    others = np.flatnonzero((kinds != kinds[history[0]]) & (np.bincount(alone.items, minlength=300) > 0))
    assert (scores[0] > scores[others]).mean() > 0.6


def test_titles_are_read_where_there_are_any() -> None:
    titles = Strings.of(f"the {word} story ({1950 + n % 40})" for n, word in enumerate(["green", "old", "last"] * 100))
    with_titles = replace(problem(), features=None, catalogue=ItemTable(titles, Strings.of([""] * 300)))
    content = plan(configured(), with_titles).learner.content  # type: ignore[attr-defined]
    assert content.texts.shape[1] > 0
    assert len(content.starts) == 2  # the year, wide and narrow
    off = plan(configured("titles=off"), with_titles).learner.content  # type: ignore[attr-defined]
    assert off.texts.shape[1] == 0
