"""Events on different people: whoever is asked about has met one of them, and the worst is what counts."""

from __future__ import annotations

import pytest

from veilrec.privacy.accounting import delta_of, detection_of, epsilon_of
from veilrec.privacy.events import (
    ComposedEvent,
    Event,
    GaussianEvent,
    ParallelEvent,
    PureEvent,
    SampledEvent,
    event_from_json,
    event_to_json,
    repeated,
)

SMALL, LARGE = GaussianEvent(0.3), repeated(SampledEvent(1.0, 0.2, "poisson"), 20)


def test_the_worse_group_counts() -> None:
    both = ParallelEvent((SMALL, LARGE))
    assert epsilon_of(both, 1e-6) == max(epsilon_of(SMALL, 1e-6), epsilon_of(LARGE, 1e-6))
    assert delta_of(both, 0.5) == max(delta_of(SMALL, 0.5), delta_of(LARGE, 0.5))
    worst = max(detection_of(one, false_alarms=0.05).found for one in (SMALL, LARGE))
    assert detection_of(both, false_alarms=0.05).found == worst


def test_what_comes_after_adds_to_every_group() -> None:
    after = GaussianEvent(0.4)
    together = ComposedEvent(((ParallelEvent((SMALL, GaussianEvent(1.0))), 1), (after, 1)))
    assert epsilon_of(together, 1e-6) == pytest.approx(epsilon_of(GaussianEvent((1.0 + 0.16) ** 0.5), 1e-6))


def test_twice_may_be_another_group_each_time() -> None:
    twice = repeated(ParallelEvent((GaussianEvent(1.0), PureEvent(0.5))), 2)
    ways: list[Event] = [
        repeated(GaussianEvent(1.0), 2),
        repeated(PureEvent(0.5), 2),
        ComposedEvent(((GaussianEvent(1.0), 1), (PureEvent(0.5), 1))),
    ]
    assert epsilon_of(twice, 1e-6) == pytest.approx(max(epsilon_of(way, 1e-6) for way in ways))


def test_it_can_be_written_and_read() -> None:
    event = ComposedEvent(((ParallelEvent((SMALL, LARGE)), 1), (SMALL, 2)))
    assert event_from_json(event_to_json(event)) == event
