"""What an audit finds in veil: nothing as it is, and every planted bug."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.audit.planted_bugs import (
    BARE,
    CHARGED,
    COUNTS,
    DELTA,
    HOSTILE,
    SPREAD,
    all_but_the_last,
    exact_votes,
    noisy,
    protect,
)
from veilrec.audit.method import small_problem
from veilrec.audit.plan import audit_plan
from veilrec.client.veil import PLACES
from veilrec.core.plan import Plan
from veilrec.methods.base import configure, promised
from veilrec.methods.veil import news
from veilrec.methods.veil.method import METHOD, plan
from veilrec.privacy.mechanisms.reports import VoteReports
from veilrec.privacy.mechanisms.sums import CohortSum

RATINGS, NEWS = "synthetic-ratings", "synthetic-news"


def failed(data: str, change: Callable[[Plan], None] | None = None) -> set[str]:
    """The checks that a plan with all kinds of rounds fails; people=20000 is a nominal number."""
    on = small_problem(METHOD, 40, 6, data)
    settings = ["privacy.epsilon=8", *(["people=20000"] if data == RATINGS else [])]
    config, _ = configure(METHOD, preset="tuned", dataset="", settings=settings)
    made = plan(config, on)
    if change is not None:
        change(made)
    checks = audit_plan(made, METHOD.devices(config, on), on.train, promised(METHOD, config, on), rounds=3, drawn=100)
    return {check.name for check in checks if not check.holds}


def longer_bounds(made: Plan) -> None:
    """Rounds that may be as long as the longest, and are charged by their own bound."""
    made.mechanism._clip_norm = lambda about: 1.0  # type: ignore[attr-defined]


def charge_of_one_round(made: Plan) -> None:
    sound = made.mechanism.events
    made.mechanism.events = lambda rounds: sound(1)  # type: ignore[method-assign]


def half_sigma(made: Plan) -> None:
    made.mechanism.sigma /= 2.0  # type: ignore[attr-defined]


def less_noise_on_places(patch: pytest.MonkeyPatch) -> None:
    sound = CohortSum.sigma_in
    patch.setattr(
        CohortSum, "sigma_in", lambda self, name, about: sound(self, name, about) * (0.5 if name == PLACES else 1.0)
    )


def noise_of_one_round(patch: pytest.MonkeyPatch) -> None:
    sound = news.noisy_sum
    patch.setattr(news, "noisy_sum", lambda *given, **named: sound(*given, **(named | {"rounds": 1})))


IN_CODE = {
    "no noise": (lambda patch: patch.setattr(CohortSum, "protect", lambda *arguments: None), BARE, (RATINGS, NEWS)),
    "half noise": (noisy(lambda self, total, noise: noise / 2), SPREAD, (RATINGS, NEWS)),
    "a tensor left out": (protect(all_but_the_last), BARE, (RATINGS, NEWS)),
    "no clip": (lambda patch: patch.setattr(CohortSum, "bound", lambda self, u, about: u), HOSTILE, (RATINGS, NEWS)),
    "less on places": (less_noise_on_places, SPREAD, (RATINGS,)),
    "exact votes": (lambda patch: patch.setattr(VoteReports, "protect", exact_votes), COUNTS, (RATINGS,)),
    "noise of one round": (noise_of_one_round, DELTA, (NEWS,)),
}
IN_PLAN = {
    "half sigma": (half_sigma, SPREAD, (RATINGS, NEWS)),
    "charge of one round": (charge_of_one_round, CHARGED, (RATINGS, NEWS)),
    "longer bounds": (longer_bounds, HOSTILE, (RATINGS,)),
}


@pytest.mark.parametrize("data", [RATINGS, NEWS])
def test_the_audit_holds(data: str) -> None:
    assert failed(data) == set()


@pytest.mark.parametrize(("bug", "data"), [(bug, data) for bug, planted in IN_CODE.items() for data in planted[2]])
def test_a_bug_in_the_code_is_found(bug: str, data: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, seen_by, _ = IN_CODE[bug]
    plant(monkeypatch)  # type: ignore[operator]
    assert seen_by in failed(data)


@pytest.mark.parametrize(("bug", "data"), [(bug, data) for bug, planted in IN_PLAN.items() for data in planted[2]])
def test_a_bug_in_a_plan_is_found(bug: str, data: str) -> None:
    change, seen_by, _ = IN_PLAN[bug]
    assert seen_by in failed(data, change)
