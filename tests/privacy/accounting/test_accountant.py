"""Composition and calibration: [vec] values of privacy-math.md sections 2, 4, 5 and 9, enumeration, known traps."""

from __future__ import annotations

import itertools
import math
import time

import pytest

from veilrec.core.errors import BadInput
from veilrec.privacy.accounting import Rounds, delta_of, epsilon_for, epsilon_of, noise_for, noise_multiplier_for
from veilrec.privacy.accounting.accountant import adaptive_clipping_noise
from veilrec.privacy.accounting.composition import FlatComposition, composed, distribution
from veilrec.privacy.accounting.gaussian import delta_gaussian, epsilon_gaussian, mu_for
from veilrec.privacy.events import (
    ComposedEvent,
    Event,
    GaussianEvent,
    LaplaceEvent,
    NonPrivateEvent,
    PureEvent,
    SampledEvent,
    TreeEvent,
    repeated,
)

ONE_QUERY = 0.236704  # mu of (1, 1e-6), section 9


@pytest.mark.parametrize(("queries", "epsilon"), [(10, 3.5247), (30, 6.5848), (100, 13.507), (365, 31.040)])
def test_gaussian_queries_compose_exactly_as_in_section_9(queries: int, epsilon: float) -> None:
    assert epsilon_of(repeated(GaussianEvent(ONE_QUERY), queries), 1e-6) == pytest.approx(epsilon, abs=5e-4)


def test_gaussians_of_any_nesting_are_one_gaussian() -> None:
    nested = ComposedEvent(((repeated(GaussianEvent(3.0), 2), 2), (GaussianEvent(0.5), 4), (GaussianEvent(9.0), 0)))
    assert epsilon_of(nested, 1e-9) == epsilon_gaussian(math.sqrt(37.0), 1e-9)
    assert delta_of(nested, 2.0) == delta_gaussian(2.0, math.sqrt(37.0))


@pytest.mark.parametrize(
    ("population", "cohort", "fixed", "poisson"),
    [
        (4800, 5, 0.22678, 0.1939),  # the notes: .2269 and .1941, on a coarser grid; see the next test
        (4800, 10, 0.4758, 0.4084),
        (4800, 20, 0.9925, 0.8492),
        (4800, 30, 1.5244, 1.2978),
        (760, 2, 0.6099, 0.5234),
        (760, 8, 2.6545, 2.2426),
        (760, 15, 5.2349, 4.3822),
    ],
)
def test_a_thousand_sampled_rounds_of_section_5(population: int, cohort: int, fixed: float, poisson: float) -> None:
    rate = cohort / population
    assert epsilon_of(repeated(SampledEvent(1.0, rate, "fixed"), 1000), 1e-6) == pytest.approx(fixed, abs=1.1e-4)
    assert epsilon_of(repeated(SampledEvent(1.0, rate, "poisson"), 1000), 1e-6) == pytest.approx(poisson, abs=1.1e-4)


def test_the_first_row_of_section_5_on_the_grid_of_the_notes() -> None:
    """Its interval of 2e-4 gives its digits; a finer one agrees with prv-accountant (.1939, quoted there)."""
    for sampling, printed, finer in (("fixed", 0.2269, 0.22678), ("poisson", 0.1941, 0.1939)):
        event = SampledEvent(1.0, 5 / 4800, sampling)  # type: ignore[arg-type]
        coarse = distribution(event, 2e-4).self_compose(1000).get_epsilon_for_delta(1e-6)
        assert coarse == pytest.approx(printed, abs=5.5e-5)
        assert epsilon_of(repeated(event, 1000), 1e-6) == pytest.approx(finer, abs=5.5e-5)


@pytest.mark.parametrize(
    ("queries", "fresh", "shared"), [(1, 0.5933, 0.5933), (30, 3.2111, 5.703), (100, 6.2822, 12.471)]
)
def test_padded_queries_of_section_9(queries: int, fresh: float, shared: float) -> None:
    one = SampledEvent(ONE_QUERY, 0.5, "padding")
    assert epsilon_of(repeated(one, queries), 1e-6) == pytest.approx(fresh, abs=1e-4)
    # One mask for all draws: the composition is amplified once, instead of every draw.
    together = SampledEvent(ONE_QUERY * math.sqrt(queries), 0.5, "padding")
    assert epsilon_of(together, 1e-6) == pytest.approx(shared, abs=5e-4)


def test_one_padded_release_agrees_with_its_composed_distribution() -> None:
    event = SampledEvent(0.7, 0.3, "padding")
    assert composed(FlatComposition(0.0, ((event, 1),))).get_epsilon_for_delta(1e-6) == pytest.approx(
        epsilon_of(event, 1e-6), rel=1e-4
    )
    assert delta_of(event, epsilon_of(event, 1e-6)) == pytest.approx(1e-6, rel=1e-9)


def test_ten_answers_of_section_5_trap_1() -> None:
    from dp_accounting import dp_event
    from dp_accounting.pld import PLDAccountant
    from dp_accounting.privacy_accountant import NeighboringRelation

    ten = repeated(PureEvent(1.0), 10)
    assert epsilon_of(ten, 1e-6) == pytest.approx(9.99998, abs=5e-6)
    assert delta_of(ten, 1.0) == pytest.approx(0.8212, abs=5e-5)
    response = dp_event.RandomizedResponseDpEvent(2.0 / (math.e + 1.0), 2)
    trap = PLDAccountant(NeighboringRelation.REPLACE_ONE).compose(response, 10).get_epsilon(1e-6)
    assert trap == pytest.approx(
        1.0, abs=1e-3
    )  # what we would get from dp-accounting itself; if it changes, look again


def test_one_gaussian_of_section_5_trap_2() -> None:
    from dp_accounting import dp_event
    from dp_accounting.pld import PLDAccountant
    from dp_accounting.privacy_accountant import NeighboringRelation
    from dp_accounting.rdp import RdpAccountant

    event, relation = dp_event.GaussianDpEvent(1.0), NeighboringRelation.REPLACE_ONE
    doubled = PLDAccountant(relation).compose(event).get_epsilon(1e-6)
    not_doubled = RdpAccountant(neighboring_relation=relation).compose(event).get_epsilon(1e-6)
    assert (doubled, not_doubled) == (pytest.approx(10.9972, abs=1e-3), pytest.approx(5.2215, abs=1e-3))
    assert epsilon_of(GaussianEvent(2.0), 1e-6) == pytest.approx(doubled, abs=1e-3)
    assert epsilon_of(GaussianEvent(1.0), 1e-6) < not_doubled


@pytest.mark.parametrize("count", [1, 2, 7])
@pytest.mark.parametrize("epsilon", [0.0, 0.4, 1.7])
def test_repeated_answers_agree_with_enumeration(count: int, epsilon: float) -> None:
    truth = math.exp(0.6) / (1.0 + math.exp(0.6))
    delta = 0.0
    for answers in itertools.product((True, False), repeat=count):
        one = math.prod(truth if answer else 1.0 - truth for answer in answers)
        other = math.prod(1.0 - truth if answer else truth for answer in answers)
        delta += max(0.0, one - math.exp(epsilon) * other)
    assert delta_of(repeated(PureEvent(0.6), count), epsilon) == pytest.approx(delta, abs=1e-12)


def test_different_answers_agree_with_enumeration() -> None:
    strengths = (0.3, 0.3, 0.8, 1.1)
    delta = 0.0
    for answers in itertools.product((1, -1), repeat=4):
        loss = sum(sign * strength for sign, strength in zip(answers, strengths, strict=True))
        chance = math.prod(1.0 / (1.0 + math.exp(-s * e)) for s, e in zip(answers, strengths, strict=True))
        delta += chance * max(0.0, 1.0 - math.exp(0.5 - loss))
    event = ComposedEvent(((PureEvent(0.3), 2), (PureEvent(0.8), 1), (PureEvent(1.1), 1)))
    assert delta <= delta_of(event, 0.5) <= delta * (1.0 + 1e-4)


def test_a_block_of_300_laplace_coordinates_of_section_4() -> None:
    block = repeated(LaplaceEvent(2.0 / 3.0), 300)
    assert epsilon_of(block, 0.0) == pytest.approx(200.0)
    assert epsilon_of(block, 1e-6) == pytest.approx(99.80, abs=5e-3)


def test_a_whole_upload_of_section_4_in_pure_privacy() -> None:
    upload = repeated(LaplaceEvent(2.0 / 3.0), 2_522_803)
    assert epsilon_of(upload, 0.0) == pytest.approx(1_681_868.67, abs=5e-3)


def test_one_laplace_release_has_its_textbook_profile() -> None:
    assert delta_of(LaplaceEvent(2.0), 1.0) == pytest.approx(1.0 - math.exp(-0.5))
    assert epsilon_of(LaplaceEvent(2.0), 1e-3) == pytest.approx(2.0 + 2.0 * math.log1p(-1e-3))


def test_trees_are_gaussian_in_their_depth() -> None:
    assert epsilon_of(TreeEvent(7.0, 2048), 1e-6) == epsilon_gaussian(math.sqrt(12.0) / 7.0, 1e-6)
    assert epsilon_of(TreeEvent(4.0, 1), 1e-6) == epsilon_gaussian(0.25, 1e-6)


MIXED = ComposedEvent(
    ((GaussianEvent(0.5), 3), (LaplaceEvent(0.1), 10), (PureEvent(0.2), 5), (SampledEvent(1.0, 0.01, "fixed"), 500))
)


def test_mixed_events_cost_more_than_any_and_less_than_all_added_up() -> None:
    total = epsilon_of(MIXED, 1e-6)
    parts = [epsilon_of(repeated(event, count), 2.5e-7) for event, count in MIXED.parts]
    assert max(epsilon_of(repeated(event, count), 1e-6) for event, count in MIXED.parts) < total < sum(parts)
    assert delta_of(MIXED, total) == pytest.approx(1e-6, rel=1e-3)


def test_sampling_everybody_is_no_sampling() -> None:
    for sampling in ("fixed", "poisson", "padding"):
        assert epsilon_of(SampledEvent(1.0, 1.0, sampling), 1e-6) == epsilon_gaussian(1.0, 1e-6)


def test_poisson_agrees_with_dp_accounting() -> None:
    from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism

    theirs = from_gaussian_mechanism(0.8, sampling_prob=0.02, value_discretization_interval=1e-4).self_compose(200)
    ours = epsilon_of(repeated(SampledEvent(1.25, 0.02, "poisson"), 200), 1e-5)
    assert ours == pytest.approx(theirs.get_epsilon_for_delta(1e-5), rel=1e-3)


def test_nothing_costs_nothing_and_the_clear_costs_everything() -> None:
    assert epsilon_of(ComposedEvent(()), 0.0) == 0.0
    assert epsilon_of(repeated(NonPrivateEvent(), 0), 1e-6) == 0.0
    assert epsilon_of(ComposedEvent(((GaussianEvent(0.1), 1), (NonPrivateEvent(), 1))), 1e-6) == math.inf
    assert delta_of(NonPrivateEvent(), 100.0) == 1.0
    assert epsilon_of(GaussianEvent(1.0), 0.0) == math.inf


@pytest.mark.parametrize(
    "event",
    [
        "gaussian",
        SampledEvent(1.0, 0.1, "shuffled"),
        SampledEvent(1.0, 0.0, "fixed"),
        SampledEvent(1.0, 1.5, "poisson"),
    ],  # type: ignore[arg-type]
)
def test_an_unknown_event_raises(event: Event) -> None:
    with pytest.raises(BadInput, match="no accounting is known"):
        epsilon_of(event, 1e-6)


@pytest.mark.parametrize(
    ("event", "message"),
    [
        (GaussianEvent(-1.0), "mu is -1"),
        (GaussianEvent(math.inf), "mu is inf"),
        (PureEvent(math.nan), "epsilon is nan"),
        (TreeEvent(0.0, 4), "noise multiplier above 0"),
        (ComposedEvent(((GaussianEvent(1.0), -1),)), "repeated -1 times"),
        (ComposedEvent(((SampledEvent(1.0, 0.1, "fixed"), 1), (SampledEvent(1.0, 0.1, "poisson"), 1))), "adjacency"),
    ],
)
def test_an_event_that_makes_no_sense_raises(event: Event, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        delta_of(event, 1.0)


@pytest.mark.parametrize("delta", [-1e-6, 1.0, math.nan])
def test_an_impossible_delta_raises(delta: float) -> None:
    with pytest.raises(BadInput, match="delta is"):
        epsilon_of(GaussianEvent(1.0), delta)


def test_a_delta_below_the_rounding_raises_instead_of_guessing() -> None:
    with pytest.raises(BadInput, match="give a larger one"):
        epsilon_of(MIXED, 1e-15)


def test_a_thousand_rounds_take_seconds_at_most() -> None:
    start = time.perf_counter()
    epsilon_of(repeated(SampledEvent(1.01, 100 / 6040, "fixed"), 1000), 1e-6)
    first = time.perf_counter()
    epsilon_of(repeated(SampledEvent(1.01, 100 / 6040, "fixed"), 1000), 1e-5)
    again = time.perf_counter()
    assert first - start < 10.0
    assert again - first < 2.0


@pytest.mark.parametrize(("epsilon", "sampling"), [(0.5, "poisson"), (2.0, "fixed"), (8.0, "poisson")])
def test_the_noise_for_an_epsilon_keeps_it_and_wastes_little(epsilon: float, sampling: str) -> None:
    rounds = Rounds(rounds=200, sampling=sampling, population=6040, cohort=100)  # type: ignore[arg-type]
    noise = noise_multiplier_for(epsilon, 1e-6, rounds)
    assert 0.999 * epsilon <= epsilon_for(noise, 1e-6, rounds) <= epsilon
    assert epsilon_for(0.99 * noise, 1e-6, rounds) > epsilon


def test_without_sampling_the_noise_is_exact() -> None:
    rounds = Rounds(rounds=30)
    assert noise_multiplier_for(2.0, 1e-6, rounds) == pytest.approx(math.sqrt(30) / mu_for(2.0, 1e-6))
    assert epsilon_for(noise_multiplier_for(2.0, 1e-6, rounds), 1e-6, rounds) == pytest.approx(2.0)


def test_an_epsilon_that_protects_nobody_is_refused() -> None:
    rounds = Rounds(rounds=2, sampling="poisson", population=60, cohort=20)
    assert noise_multiplier_for(1e6, 1e-6, rounds) > 0.0
    for epsilon in (2e6, 1e308):
        with pytest.raises(BadInput, match=r"which protects nobody: give at most 1e\+06"):
            noise_multiplier_for(epsilon, 1e-6, rounds)


def test_more_noise_or_fewer_rounds_or_a_smaller_cohort_spend_less() -> None:
    def spent(noise: float = 1.0, rounds: int = 100, cohort: int = 50) -> float:
        return epsilon_for(noise, 1e-6, Rounds(rounds=rounds, sampling="fixed", population=1000, cohort=cohort))

    assert spent(noise=1.5) < spent() < spent(noise=0.7)
    assert spent(rounds=50) < spent() < spent(rounds=200)
    assert spent(cohort=20) < spent() < spent(cohort=100)


def test_epsilon_of_section_5() -> None:
    rounds = Rounds(rounds=1000, sampling="fixed", population=4800, cohort=30)
    assert epsilon_for(1.0, 1e-6, rounds) == pytest.approx(1.5244, abs=1e-4)
    assert rounds.adjacency == "replace-one"
    assert Rounds(rounds=1, sampling="poisson", population=9, cohort=3).adjacency == "add-remove"


def test_noise_for_any_event() -> None:
    def event(noise: float) -> Event:
        return ComposedEvent(((GaussianEvent(1.0 / noise), 10), (PureEvent(0.1), 3)))

    noise = noise_for(event, 2.0, 1e-6)
    assert 1.998 <= epsilon_of(event(noise), 1e-6) <= 2.0


def test_a_budget_that_no_noise_can_keep_is_refused() -> None:
    with pytest.raises(BadInput, match="no noise gives that epsilon"):
        noise_for(lambda _: repeated(PureEvent(1.0), 5), 2.0, 1e-6)


@pytest.mark.parametrize(
    ("cohort", "adjacency", "noise"),
    [(1000, "replace-one", 1.000200), (30, "replace-one", 1.341641), (30, "add-remove", 1.060660)],
)
def test_noise_left_for_the_update_of_section_5(cohort: int, adjacency: str, noise: float) -> None:
    split = adaptive_clipping_noise(1.0, cohort / 20, adjacency=adjacency)  # type: ignore[arg-type]
    assert split.update_noise_multiplier == pytest.approx(noise, abs=5e-7)
    assert split.count_standard_deviation == cohort / 20


def test_the_split_of_the_paper_of_section_5() -> None:
    # h = 0.7 of the budget on the quantile: z / sqrt(1 - h) on the update, z / sqrt(h) on the count
    split = adaptive_clipping_noise(1.0, 1.195229, adjacency="replace-one")
    assert split.update_noise_multiplier == pytest.approx(1.825742, abs=5e-6)


def test_a_count_that_spends_everything_is_refused() -> None:
    with pytest.raises(BadInput, match="give more than 1"):
        adaptive_clipping_noise(1.0, 0.9, adjacency="replace-one")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rounds": 0}, "rounds is 0"),
        ({"rounds": 1, "sampling": "some"}, "unknown sampling 'some'"),
        ({"rounds": 1, "sampling": "fixed", "population": 10, "cohort": 11}, "a cohort of 11"),
        ({"rounds": 1, "sampling": "fixed", "population": 10, "cohort": 0}, "a cohort of 0"),
    ],
)
def test_impossible_rounds_are_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        Rounds(**arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(("epsilon", "delta"), [(0.0, 1e-6), (-1.0, 1e-6), (1.0, 0.0), (1.0, 2.0)])
def test_impossible_wishes_are_refused(epsilon: float, delta: float) -> None:
    with pytest.raises(BadInput):
        noise_multiplier_for(epsilon, delta, Rounds(rounds=5, sampling="fixed", population=10, cohort=2))


def test_noise_of_zero_is_refused() -> None:
    with pytest.raises(BadInput, match="noise_multiplier is 0"):
        epsilon_for(0.0, 1e-6, Rounds(rounds=5))
