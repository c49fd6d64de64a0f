"""How many a test finds: closed forms, enumeration, the vectors, and the best test itself played many times.

Tests are played 200,000 times a side. The threshold is off by at most a few thousandths of the finds, so that a
difference of 0.012 is five standard errors: less than 1 seed in 100,000 fails.
"""

import math
from itertools import product

import numpy as np
import pytest

from veilrec.core.errors import BadInput
from veilrec.privacy import events
from veilrec.privacy.accounting import Rounds, delta_of, detection_by, detection_of, epsilon_of
from veilrec.privacy.events import ComposedEvent, GaussianEvent, LaplaceEvent, NonPrivateEvent, PureEvent, SampledEvent

A = 0.01
PLAYED = 200_000
CLOSE = 0.012
MIXED = ComposedEvent(((LaplaceEvent(0.7), 3), (GaussianEvent(0.5), 2), (PureEvent(0.4), 4)))
POISSON = Rounds(rounds=6, sampling="poisson", population=10, cohort=3).event(0.8)


@pytest.mark.parametrize(
    ("noise_multiplier", "rounds", "found", "guess"),  # privacy-math.md, corrections
    [(2.06512, 10, 0.213, 0.778), (4.0, 20, 0.113, 0.712)],
)
def test_vectors_of_gaussian_noise(noise_multiplier, rounds, found, guess):
    test = detection_of(Rounds(rounds=rounds).event(noise_multiplier), false_alarms=A)
    assert (round(test.found, 3), round(test.best_guess, 3), test.how) == (found, guess, "exact")


@pytest.mark.parametrize("epsilon", [0.01, 0.5, 1.0, 3.0, 8.0, 40.0, 6172.0])
@pytest.mark.parametrize("false_alarms", [0.001, 0.01, 0.2, 0.5, 0.9])
def test_randomised_response_and_laplace_have_closed_forms(epsilon, false_alarms):
    a, grown = false_alarms, math.exp(min(epsilon, 700.0)) * false_alarms
    response = detection_of(PureEvent(epsilon), false_alarms=a)
    assert response.found == pytest.approx(min(grown, 1.0 - math.exp(-epsilon) * (1.0 - a)), rel=1e-6)
    assert response.best_guess == pytest.approx(1.0 / (1.0 + math.exp(-epsilon)))
    # Thresholds of a Laplace variable: below the one centre, between both, above the other.
    edge = 0.5 * math.exp(-epsilon)
    laplace = grown if a <= edge else 1.0 - math.exp(-epsilon) / (4.0 * a) if a <= 0.5 else None
    if laplace is None:
        laplace = 1.0 - math.exp(-epsilon) * (1.0 - a)
    test = detection_of(LaplaceEvent(epsilon), false_alarms=a)
    assert test.found == pytest.approx(laplace, rel=1e-6)
    assert test.best_guess == pytest.approx(1.0 - 0.5 * math.exp(-epsilon / 2.0))
    assert test.how == response.how == "exact"


@pytest.mark.parametrize("false_alarms", [0.004, 0.05, 0.3])
def test_answers_repeated_by_enumeration(false_alarms):
    """Every outcome of six answers, the most telling first: the test of Neyman and Pearson."""
    epsilon, times = 0.8, 6
    keep = 1.0 / (1.0 + math.exp(-epsilon))
    outcomes = [
        (math.prod(keep if b else 1 - keep for b in bits), math.prod(1 - keep if b else keep for b in bits))
        for bits in product((True, False), repeat=times)
    ]
    left, found = false_alarms, 0.0
    for with_data, without in sorted(outcomes, key=lambda pair: -pair[0] / pair[1]):
        share = min(1.0, left / without)
        found, left = found + share * with_data, left - share * without
    test = detection_of(events.repeated(PureEvent(epsilon), times), false_alarms=false_alarms)
    assert test.found == pytest.approx(found, rel=1e-6)
    assert test.best_guess == pytest.approx(0.5 + 0.25 * sum(abs(p - q) for p, q in outcomes))


def play_mixed(generator, used):
    """Log-likelihood ratios of everything in MIXED."""
    total = np.zeros(PLAYED)
    for _ in range(3):
        seen = generator.laplace(0.7 if used else 0.0, 1.0, PLAYED)
        total += np.abs(seen) - np.abs(seen - 0.7)
    for _ in range(2):
        seen = generator.normal(0.5 if used else 0.0, 1.0, PLAYED)
        total += 0.5 * seen - 0.125
    keep = 1.0 / (1.0 + math.exp(-0.4))
    for _ in range(4):
        true = generator.random(PLAYED) < (keep if used else 1.0 - keep)
        total += np.where(true, 0.4, -0.4)
    return total


def play_poisson(generator, used):
    mu, rate = 1.25, 0.3
    total = np.zeros(PLAYED)
    for _ in range(6):
        there = (generator.random(PLAYED) < rate) & used
        seen = generator.normal(0.0, 1.0, PLAYED) + mu * there
        total += np.log1p(rate * np.expm1(mu * seen - mu * mu / 2.0))
    return total


def finds(play, sign):
    """Of the best test, in one of the two directions."""
    generator = np.random.default_rng(7)
    null, other = sign * play(generator, sign < 0), sign * play(generator, sign > 0)
    threshold = np.quantile(null, 1.0 - A)
    tied = null == threshold
    at = (A - np.mean(null > threshold)) / np.mean(tied) if tied.any() else 0.0
    return float(np.mean(other > threshold) + at * np.mean(other == threshold))


def test_the_best_test_finds_as_many_as_said_and_half_the_noise_would_be_seen():
    test = detection_of(MIXED, false_alarms=A)
    assert test.how == "loss distribution"
    assert finds(play_mixed, 1.0) == pytest.approx(test.found, abs=CLOSE)
    test = detection_of(POISSON, false_alarms=A)
    both = finds(play_poisson, 1.0), finds(play_poisson, -1.0)
    assert max(both) == pytest.approx(test.found, abs=CLOSE)
    assert test.how == "loss distribution"
    fewer = Rounds(rounds=6, sampling="poisson", population=10, cohort=3).event(1.6)
    assert max(finds(play_poisson, 1.0), finds(play_poisson, -1.0)) > detection_of(fewer, false_alarms=A).found + CLOSE


EVENTS = (
    GaussianEvent(0.7),
    LaplaceEvent(2.0),
    events.repeated(LaplaceEvent(0.3), 12),
    events.repeated(PureEvent(0.3), 12),
    MIXED,
    POISSON,
    events.repeated(SampledEvent(1.2, 0.1, "fixed"), 20),
    SampledEvent(1.2, 0.5, "padding"),
)


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: str(event)[:60])
def test_no_epsilon_of_the_profile_says_less(event):
    """What any single (epsilon, delta) of an event allows is never below what the whole of it does."""
    test = detection_of(event, false_alarms=A)
    assert A <= test.found <= 1.0
    assert 0.5 <= test.best_guess <= 1.0
    for delta in (1e-2, 1e-4, 1e-8):
        epsilon = epsilon_of(event, delta)
        alone = detection_by(epsilon, delta, false_alarms=A)
        assert test.found <= alone.found * (1.0 + 1e-6)
        assert test.best_guess <= alone.best_guess * (1.0 + 1e-6)
        assert alone.how == "epsilon and delta"
    more = detection_of(events.repeated(event, 2), false_alarms=A)
    assert more.found >= test.found
    assert test.best_guess <= 0.5 + 0.5 * min(1.0, delta_of(event, 0.0)) + 1e-12


def test_in_the_clear_everybody_is_found():
    assert detection_of(events.repeated(NonPrivateEvent(), 2), false_alarms=A).found == 1.0
    assert detection_of(ComposedEvent(()), false_alarms=A).found == pytest.approx(A)


@pytest.mark.parametrize("share", [0.0, 1.0, -1.0, math.nan])
def test_a_share_of_false_alarms_is_one(share):
    with pytest.raises(BadInput, match="false_alarms is"):
        detection_of(GaussianEvent(1.0), false_alarms=share)
    with pytest.raises(BadInput, match="false_alarms is"):
        detection_by(1.0, 0.0, false_alarms=share)


@pytest.mark.parametrize("event", [*EVENTS, NonPrivateEvent()], ids=lambda event: str(event)[:60])
def test_events_are_read_back_as_written(event):
    assert events.event_from_json(events.event_to_json(event)) == event


def test_what_is_no_event_is_refused():
    for fields in [
        None,
        {},
        [],
        "gaussian",
        {"kind": "gaussian"},
        {"kind": "gaussian", "mu": "much"},
        {"kind": "gaussian", "mu": 1.0, "more": 1},
        {"kind": "magic"},
        {"kind": ["gaussian"]},
        {"kind": "composed", "parts": [[{"kind": "gaussian", "mu": 1.0}, 2.5]]},
        {"kind": "composed", "parts": [1]},
    ]:
        with pytest.raises(BadInput, match="not a privacy event"):
            events.event_from_json(fields)
