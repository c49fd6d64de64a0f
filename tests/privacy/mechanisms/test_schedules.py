"""DP-PrivRec, Algorithm 2, line by line."""

import itertools
import math
from collections import Counter
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from veilrec.core.errors import BadInput, VeilrecError
from veilrec.core.schema import BOUND, RoundSpec, Schema, Tensor, from_vectors, to_vectors, with_bound
from veilrec.privacy.accounting import Rounds, epsilon_of
from veilrec.privacy.accounting.accountant import noise_for
from veilrec.privacy.events import ComposedEvent, GaussianEvent, SampledEvent, TreeEvent, repeated
from veilrec.privacy.mechanisms import schedules
from veilrec.privacy.mechanisms.clipping import BadUpdate, update_norms
from veilrec.privacy.mechanisms.schedules import AdaptiveSum, PublishedAdaptiveSum, ScheduledSum, TreeSum
from veilrec.privacy.mechanisms.sums import CohortSum
from veilrec.privacy.randomness import FastSource, KeyedSource, SeededSource

LAYER = Schema((Tensor("layer", (4,), by_row=False),))
EVERYBODY = Rounds(rounds=1, sampling="fixed", population=30, cohort=30)


adaptive = partial(
    AdaptiveSum,
    schema=with_bound(LAYER),
    clip_norm=1.0,
    noise_multiplier=1.0,
    count_standard_deviation=1.5,
    taking_part=EVERYBODY,
    delta=1e-3,
)


def updates(*norms):
    vectors = np.zeros((len(norms), 5))
    vectors[:, 0] = norms
    return from_vectors(vectors, with_bound(LAYER))


@pytest.mark.parametrize(("sampling", "moved"), [("fixed", 1.0), ("poisson", 0.5)])
def test_both_releases_together_cost_what_one_would(sampling, moved):
    people = Rounds(rounds=1, sampling=sampling, population=30, cohort=10)
    mechanism = adaptive(taking_part=people)
    mu_count = moved / mechanism.count_standard_deviation + 2.0**-20
    mu_update = (mechanism.sensitivity.value * (1 + 2.0**-51 * 900) / mechanism.sigma) + math.sqrt(5) * 2.0**-20
    assert math.hypot(mu_update, mu_count) == pytest.approx(1.0, abs=1e-12)
    alone = CohortSum(schema=LAYER, clip_norm=1.0, noise_multiplier=1.0, taking_part=people, delta=1e-3)
    assert mechanism.event() == alone.event()


def test_who_is_within_the_bound_of_the_round_is_decided_before_clipping_whatever_a_trainer_says():
    bounded = adaptive().bound(updates(0.0, 0.5, 1.0, 1.001, 50.0), RoundSpec(0))
    assert bounded.dense[BOUND].ravel().tolist() == [0.5, 0.5, 0.5, -0.5, -0.5]
    norms = update_norms(schedules.without_count(bounded))
    assert norms == pytest.approx([0.0, 0.5, 1.0, 1.0, 1.0], rel=1e-6)
    assert (norms <= 1.0).all()
    mechanism, spec = adaptive(), RoundSpec(3, clip_norm=4.0)
    bounded = mechanism.bound(updates(2.0, 5.0), spec)
    assert bounded.dense[BOUND].ravel().tolist() == [0.5, -0.5]
    assert update_norms(schedules.without_count(bounded)) == pytest.approx([2.0, 4.0], rel=1e-6)
    assert mechanism.sigma_in("layer", spec) == 4.0 * mechanism.sigma
    assert mechanism.sigma_in(BOUND, spec) == mechanism.count_standard_deviation
    mechanism.check(bounded, spec)
    with pytest.raises(BadUpdate, match="takes at most 1"):
        mechanism.check(bounded, RoundSpec(3))
    own = updates(0.5)
    own.dense[BOUND][...] = 1e30
    assert adaptive().bound(own, RoundSpec(0)).dense[BOUND].tolist() == [[0.5]]


@pytest.mark.parametrize("counts", [None, [[0.25]], [[1.0]], [[math.nan]], [[0.5, 0.5]]])
def test_counts_that_no_client_sends_are_refused(counts):
    mechanism = adaptive()
    dense = dict(mechanism.bound(updates(0.5), RoundSpec(0)).dense)
    del dense[BOUND]
    if counts is not None:
        dense[BOUND] = np.array(counts, np.float32)
    with pytest.raises(BadUpdate, match="1/2"):
        mechanism.check(replace(updates(0.5), dense=dense), RoundSpec(0))


def test_noise_of_a_round_follows_its_bound_and_that_of_the_count_does_not():
    mechanism = adaptive()
    for clip_norm in (0.5, 8.0):
        sums = {"layer": np.zeros(20_000), BOUND: np.zeros(20_000)}
        mechanism.protect(sums, RoundSpec(0, clip_norm=clip_norm), SeededSource(3))
        # The standard error of a spread of 20,000 numbers is 0.5 %: 2.5 % is five of them, wrong once in 10^6 seeds.
        assert np.std(sums["layer"]) == pytest.approx(clip_norm * mechanism.sigma, rel=0.025)
        assert np.std(sums[BOUND]) == pytest.approx(1.5, rel=0.025)
        steps = sums["layer"] / (clip_norm * mechanism.sigma / 2.0**20)
        assert np.allclose(steps, np.round(steps), rtol=0, atol=1e-6)  # on the lattice of its own sigma


def test_noise_split_of_section_5():
    table = [
        ("fixed", "user", 50.0, 1.000200),
        ("fixed", "user", 1.5, 1.341641),
        ("poisson", "user", 1.5, 1.060660),
        ("poisson", "click", 1.5, 1.341641),  # a click moves the count by one, whatever the sampling
    ]
    for sampling, unit, deviation, expected in table:
        people = Rounds(rounds=1, sampling=sampling, population=30, cohort=30, unit=unit)
        mechanism = adaptive(count_standard_deviation=deviation, taking_part=people)
        assert mechanism.sigma / mechanism.sensitivity.value == pytest.approx(expected, abs=1e-5)


PUBLISHED_SCHEMA = with_bound(Schema((Tensor("rows", (2, 2), by_row=True), Tensor("layer", (2,), by_row=False))))
PEOPLE = Rounds(rounds=1000, sampling="fixed", population=4800, cohort=30)


published = partial(
    PublishedAdaptiveSum,
    schema=PUBLISHED_SCHEMA,
    clip_norm=2.0,
    noise_multiplier=1.0,
    count_share=0.7,
    server_rate=1.0,
    taking_part=PEOPLE,
    delta=1e-6,
)


def bounded_as_published(clip_norm, *norms):
    vectors = np.zeros((len(norms), 7))
    vectors[:, 0] = norms
    sent = published().bound(from_vectors(vectors, PUBLISHED_SCHEMA), RoundSpec(0, clip_norm=clip_norm))
    return (
        to_vectors(sent, PUBLISHED_SCHEMA)[:, 0],
        sent.dense[BOUND].ravel(),
        update_norms(schedules.without_count(sent)),
    )


def test_the_published_count_after_clipping_is_one_and_a_bound_below_nothing_turns_updates_round():
    values, counts, _ = bounded_as_published(2.0, 0.0, 1.0, 2.0, 50.0)
    assert values == pytest.approx([0.0, 1.0, 2.0, 2.0], rel=1e-6)
    assert counts.tolist() == [1.0, 1.0, 1.0, 1.0]
    values, counts, norms = bounded_as_published(-3.0, 0.0, 1.0, 50.0)
    assert values == pytest.approx([0.0, -3.0, -3.0], rel=1e-6)  # min(1, S / norm), as printed
    assert counts.tolist() == [0.0, 0.0, 0.0]
    assert norms.max() <= 3.0 * (1.0 + 1e-6)


@pytest.mark.parametrize("rate", [1.0, 2.0])
def test_a_round_is_one_release_with_the_noise_divided_by_the_rate(rate):
    event = published(server_rate=rate).event()
    assert isinstance(event, SampledEvent)
    # z_1 = z / sqrt(1 - h) / alpha_3; the count moves by 1 and has noise 2 z / sqrt(h)
    assert event.mu == pytest.approx(math.sqrt(0.3 * rate**2 + 0.7 / 4.0), rel=1e-5)
    assert (event.rate, event.sampling) == (30 / 4800, "fixed")


@pytest.mark.parametrize(("count", "length"), [(0.5, 1.0), (2.0, 1.0), (1.0, 3.0)])
def test_what_no_client_sends_is_refused(count, length):
    vectors = np.zeros((1, 7))
    vectors[0, 0] = length
    sent = from_vectors(vectors, PUBLISHED_SCHEMA)
    sent.dense[BOUND][...] = count
    with pytest.raises(BadUpdate):
        published().check(sent, RoundSpec(0))
    vectors[0, 0] = 1.0
    right = published().bound(from_vectors(vectors, PUBLISHED_SCHEMA), RoundSpec(0))
    published().check(right, RoundSpec(0))


TWO_LAYERS = Schema((Tensor("first", (3,), by_row=False), Tensor("second", (2, 2), by_row=False)))
CLIP_NORMS = (0.5, 1.0, 1.0, 0.25)


scheduled = partial(
    ScheduledSum,
    schema=TWO_LAYERS,
    clip_norms=CLIP_NORMS,
    noise_multiplier=2.0,
    taking_part=Rounds(rounds=4, sampling="poisson", population=30, cohort=30),
    delta=1e-3,
)


def test_all_rounds_cost_the_root_of_the_sum_of_squares_and_that_of_the_largest_bound_most():
    mechanism = scheduled()
    mus = [bound / mechanism.sigma for bound in CLIP_NORMS]
    expected = epsilon_of(GaussianEvent(math.hypot(*mus)), 1e-6)
    assert epsilon_of(ComposedEvent(mechanism.events(4)), 1e-6) == pytest.approx(expected, rel=1e-4)
    assert epsilon_of(ComposedEvent(mechanism.events(4)), 1e-6) >= expected  # the lattice of the noise counts too
    assert sum(count for _, count in mechanism.events(4)) == 4
    mechanism = scheduled()
    assert mechanism.event_in(RoundSpec(1)) == mechanism.event()
    costs = [epsilon_of(mechanism.event_in(RoundSpec(number)), 1e-6) for number in range(4)]
    assert costs[3] < costs[0] < costs[1] == costs[2]
    assert mechanism.event_in(RoundSpec(4)) == mechanism.event()  # nothing is known of it: as if it were the costliest


def test_a_message_is_cut_to_the_bound_and_the_tensors_of_its_round():
    mechanism = scheduled()
    huge = from_vectors(np.full((2, 7), 1e6), TWO_LAYERS)
    for number, bound in enumerate((*CLIP_NORMS, min(CLIP_NORMS))):
        for said in (None, 100.0, bound):
            kept = mechanism.bound(huge, RoundSpec(number, clip_norm=said))
            assert update_norms(kept) == pytest.approx(bound, rel=1e-5)
            assert (update_norms(kept) <= bound).all()
    assert update_norms(mechanism.bound(huge, RoundSpec(1, clip_norm=0.1))).max() <= 0.1
    mechanism, spec = scheduled(), RoundSpec(1, tensors=("second",))
    huge = from_vectors(np.full((2, 7), 1e6), TWO_LAYERS)
    kept = mechanism.bound(huge, spec)
    assert list(kept.dense) == ["second"]
    assert update_norms(kept) == pytest.approx(1.0, rel=1e-5)
    with pytest.raises(BadUpdate, match="other tensors"):
        mechanism.check(huge, spec)
    assert schedules.only_of_round(kept, spec) is kept
    mechanism.check(kept, spec)


def test_noise_is_the_same_in_every_round_and_on_every_tensor():
    mechanism = scheduled(schema=Schema((Tensor("first", (4000,), by_row=False), Tensor("second", (4000,), False))))
    for number in range(4):
        sums = {"first": np.zeros(4000), "second": np.zeros(4000)}
        mechanism.protect(sums, RoundSpec(number), SeededSource(number))
        for noise in sums.values():
            assert noise.std() == pytest.approx(mechanism.sigma, rel=0.06)  # 5 standard errors


@pytest.mark.parametrize("cohort", [30, 6])
def test_noise_that_is_chosen_for_a_promise_keeps_it(cohort):
    people = Rounds(rounds=4, sampling="poisson", population=30, cohort=cohort)
    noise = noise_for(lambda z: schedules.run_event(CLIP_NORMS, people, z, 7), 1.0, 1e-6, guess=5.0)
    mechanism = scheduled(noise_multiplier=noise, taking_part=people)
    spent = epsilon_of(ComposedEvent(mechanism.events(4)), 1e-6)
    assert 0.99 < spent <= 1.0
    assert all(isinstance(event, SampledEvent) for event, _ in mechanism.events(4))


SECRET = bytes(range(32))


tree_sum = partial(
    TreeSum, schema=LAYER, clip_norm=1.0, noise_multiplier=2.0, steps=8, participations=1, population=40, delta=1e-6
)


def test_a_round_takes_back_the_nodes_inside_the_one_that_it_ends():
    assert [schedules.taken_back(number, 8) for number in range(8)] == [(), (0,), (), (2, 1), (), (4,), (), (6, 5, 3)]
    assert schedules.taken_back(8, 8) == ()  # a new tree
    assert [schedules.taken_back(number, 3) for number in range(6)] == [(), (0,), (), (), (3,), ()]


@pytest.mark.parametrize("steps", [1, 5, 8, 13])
def test_what_is_left_of_all_noise_are_the_nodes_of_the_binary_digits(steps):
    left = Counter()
    for number in range(steps):
        left[number] += 1
        left.subtract(schedules.taken_back(number, steps))
        nodes = [node for node, times in left.items() if times]
        assert all(left[node] == 1 for node in nodes)
        assert len(nodes) == (number + 1).bit_count()


def protected(mechanism, number, source, size=4):
    sums = {"layer": np.zeros(size)}
    mechanism.protect(sums, RoundSpec(number), source)
    return sums["layer"]


@pytest.mark.parametrize("secret", [True, False])
def test_prefix_sums_have_the_noise_of_few_nodes(secret):
    mechanism, size = tree_sum(), 20_000
    total = np.zeros(size)
    for number in range(8):
        source = KeyedSource(SECRET, 7, number) if secret else FastSource(5, 7, number, one_generator=True)
        total += protected(mechanism, number, source, size)
        nodes = (number + 1).bit_count()
        # The standard error of a spread of 20,000 numbers is 0.5 %: 2.5 % is five of them, wrong once in 10^6 seeds.
        assert np.std(total) == pytest.approx(mechanism.sigma * math.sqrt(nodes), rel=0.025)


def test_tree_noise_is_the_same_after_a_restart_and_a_person_pays_for_every_level():
    mechanism = tree_sum()
    first, again = (protected(mechanism, 7, KeyedSource(SECRET, 7, 7), 100) for _ in range(2))
    assert np.array_equal(first, again)
    steps = first / (mechanism.sigma / 2.0**20)
    assert np.allclose(steps, np.round(steps), rtol=0, atol=1e-6)
    mechanism = tree_sum(noise_multiplier=7.0, steps=2048)
    assert mechanism.event() == TreeEvent(7.0, 2048)
    # dp-accounting 0.6.0: SingleEpochTreeAggregationDpEvent(7.0, 2048), RDP, delta 1e-6: 2.39201
    assert epsilon_of(mechanism.event(), 1e-6) <= 2.39201
    assert epsilon_of(mechanism.event(), 1e-6) == pytest.approx(2.229, abs=1e-3)
    alike = repeated(GaussianEvent(1.0 / 7.0), 12)
    assert epsilon_of(mechanism.event(), 1e-6) == pytest.approx(epsilon_of(alike, 1e-6))


def test_what_makes_no_sense_is_refused():
    part = RoundSpec(0, rows=np.array([1], np.int32))
    for spec in (part, RoundSpec(0, shares={"layer": 0.5}), RoundSpec(0, rank=1)):
        with pytest.raises(BadInput, match="whole model"):
            tree_sum().protect({"layer": np.zeros(4)}, spec, KeyedSource(SECRET, 0))
    with pytest.raises(VeilrecError, match="names the noise"):
        tree_sum().protect({"layer": np.zeros(4)}, RoundSpec(0), SeededSource(1))
    for name in ("steps", "participations", "population", "clip_norm"):
        with pytest.raises(BadInput, match=name):
            tree_sum(**{name: 0})
    for name, value in (("clip_norm", 0.0), ("delta", 1.0), ("count_standard_deviation", 0.5), ("schema", LAYER)):
        with pytest.raises(BadInput, match=name):
            adaptive(**{name: value})
    for clip_norm in (0.0099, 101.0):
        with pytest.raises(BadInput, match=r"from 0.01 to 100"):
            adaptive().bound(updates(0.5), RoundSpec(0, clip_norm=clip_norm))
    with pytest.raises(BadInput, match="clip_norm"):
        schedules.first_bound(0.0)
    with pytest.raises(BadInput, match="give one for each"):
        scheduled(clip_norms=(1.0, 1.0))
    with pytest.raises(BadInput, match="clip_norm_of_round_1"):
        scheduled(clip_norms=(1.0, 0.0, 1.0, 1.0))


def test_the_noise_of_lines_8_to_10_also_at_a_bound_of_nothing():
    z, h, cohort = 1.0, 0.7, 30
    for rate, bound in itertools.product((1.0, 2.0), (2.0, 0.5, -0.5)):
        mechanism, spec = published(server_rate=rate), RoundSpec(0, clip_norm=bound)
        on_the_model = mechanism.sigma_in("layer", spec) * rate / cohort
        assert on_the_model == pytest.approx(2.0 * abs(bound) * z / cohort * math.sqrt(1.0 / (1.0 - h)))
        assert mechanism.sigma_in(BOUND, spec) / cohort == pytest.approx(2.0 * z / cohort * math.sqrt(1.0 / h))
    sums = {"rows": np.zeros((2, 2)), "layer": np.zeros(2), BOUND: np.zeros(1)}
    published().protect(sums, RoundSpec(0, clip_norm=0.0), SeededSource(1))
    assert not sums["rows"].any()
    assert sums[BOUND].any()
