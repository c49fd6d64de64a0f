"""Who takes part (statistical tests, each with one false alarm in a million), and what rounds are about."""

import math
import tracemalloc

import numpy as np
import pytest
from scipy import stats

from tests.wire.raising import raises
from veilrec.core.errors import BadInput
from veilrec.core.plan import FullModelRounds
from veilrec.core.schema import Schema, Tensor
from veilrec.privacy.mechanisms.clipping import BadUpdate
from veilrec.privacy.mechanisms.reports import ItemHistogram, RandomisedReports
from veilrec.privacy.mechanisms.responses import RandomisedResponse
from veilrec.server.round_specs import (
    Ballot,
    CohortSampler,
    CohortSettings,
    MovedRows,
    ReportedItems,
    ReportThreshold,
    SeededDirections,
    SeededParts,
    Tally,
)
from veilrec.wire import messages
from veilrec.wire.messages import BadMessage

ALMOST_NEVER = 1e-6
ELIGIBLE = np.arange(200) * 3 + 1  # not every number is a client that can learn
ROUNDS = 600


def sampler(seed=5, **settings):
    return CohortSampler(CohortSettings(**({"size": 20} | settings)), ELIGIBLE, seed)


def test_a_fixed_cohort_has_its_size_and_only_eligible_clients_and_is_always_the_same():
    for round_number in range(50):
        clients = sampler().draw(round_number)
        assert len(clients) == 20
        assert np.all(np.diff(clients) > 0) and np.isin(clients, ELIGIBLE).all()
    used = sampler()  # a round is drawn the same whatever was drawn before
    for round_number in range(4):
        used.draw(round_number)
    assert np.array_equal(used.draw(7), sampler().draw(7))
    assert not np.array_equal(used.draw(7), used.draw(8))
    assert not np.array_equal(used.draw(7), sampler(seed=6).draw(7))


@pytest.mark.parametrize("sampling", ["fixed", "poisson"])
def test_every_client_takes_part_equally_often(sampling):
    some = sampler(sampling=sampling)
    drawn = np.concatenate([some.draw(round_number) for round_number in range(ROUNDS)])
    counts = np.bincount(drawn, minlength=ELIGIBLE[-1] + 1)[ELIGIBLE]
    expected = ROUNDS * 20 / 200
    # Inclusion of a client in a round has variance p(1-p), so the plain statistic is scaled by 1/(1-p).
    statistic = float(((counts - expected) ** 2 / expected).sum() / (1 - 20 / 200))
    assert stats.chi2.sf(statistic, 200 - 1) > ALMOST_NEVER
    assert stats.chi2.cdf(statistic, 200 - 1) > ALMOST_NEVER


def test_poisson_sizes_have_the_binomial_mean_and_variance():
    some = sampler(sampling="poisson")
    sizes = np.array([len(some.draw(round_number)) for round_number in range(ROUNDS)])
    total = stats.binomtest(int(sizes.sum()), ROUNDS * 200, 20 / 200)
    assert total.pvalue > ALMOST_NEVER
    spread = float(((sizes - 20.0) ** 2).sum() / (200 * 0.1 * 0.9))
    assert ALMOST_NEVER < stats.chi2.sf(spread, ROUNDS) < 1 - ALMOST_NEVER


def test_availability_and_drop_out_have_their_rates_and_are_independent():
    some = sampler(size=100, available=0.7, drop_out=0.2)
    rounds = [some.draw(round_number) for round_number in range(ROUNDS)]
    reached = sum(len(clients) for clients in rounds)
    assert stats.binomtest(reached, ROUNDS * 100, 0.7).pvalue > ALMOST_NEVER
    arrived = sum(int(some.arrives(number, clients).sum()) for number, clients in enumerate(rounds))
    assert stats.binomtest(arrived, reached, 0.8).pvalue > ALMOST_NEVER


def test_everybody_and_nobody():
    for settings in ({"size": 0, "sampling": "fixed"}, {"size": 0, "sampling": "poisson"}, {"size": 200}):
        everybody = sampler(**settings)
        assert np.array_equal(everybody.draw(0), ELIGIBLE)
        assert np.array_equal(everybody.draw(7), ELIGIBLE)
    few = CohortSampler(CohortSettings(size=1, sampling="poisson", available=0.5), ELIGIBLE, 5)
    assert min(len(few.draw(round_number)) for round_number in range(40)) == 0
    assert len(few.arrives(0, np.empty(0, np.int64))) == 0
    assert len(sampler(available=1e-9).draw(0)) == 0
    for drop_out, arrive in ((0.0, True), (1.0 - 1e-9, False)):
        some = sampler(drop_out=drop_out)
        assert np.all(some.arrives(0, some.draw(0)) == arrive)


def test_settings_that_cannot_work_are_refused():
    chances = [(name, chance) for name in ("available", "drop_out") for chance in (-0.1, 1.1, float("nan"))]
    for settings, line in (
        ({"size": 201}, r"cohort.size is 201.*--set cohort.size=100,.*from 1 to 200"),
        ({"size": -1}, r"cohort.size is -1.*0 for everybody"),
        *(({"seed": seed}, f"seed is {seed}") for seed in (-1, 2**63)),
        *(({name: chance}, f"cohort.{name} is {chance}") for name, chance in chances),
        *(({name: chance}, "is the chance that") for name, chance in (("available", 0.0), ("drop_out", 1.0))),
    ):
        raises(BadInput, line, sampler, **settings)
    raises(BadInput, "no client has anything to learn from", CohortSampler, CohortSettings(), np.empty(0, np.int64), 0)


@pytest.mark.parametrize("sampling", ["fixed", "poisson"])
def test_drawing_from_a_million_clients_does_not_touch_them_all(sampling):
    """A pass over the population would need at least 8 MB (a permutation) or 1 MB (a flag for each)."""
    settings = CohortSettings(sampling=sampling, available=0.9, drop_out=0.1)
    large = CohortSampler(settings, np.arange(1_000_000), 5)
    large.arrives(0, large.draw(0))
    tracemalloc.start()
    try:
        clients = large.draw(1)
        large.arrives(1, clients)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


N_ITEMS = 30
SCHEMA = Schema((Tensor("items", (N_ITEMS, 4), True), Tensor("layer", (5, 4), False)))
KEEP = math.exp(2.0) / (1.0 + math.exp(2.0))


def tally(*counts, reports=100):
    return Tally(np.array(counts, np.float64), reports)


def test_items_above_the_mean_or_above_a_given_threshold_of_equation_8():
    # privacy-math, section 6: epsilon 2, n = 1000
    told = tally(300, 100, reports=1000)
    assert ReportThreshold(keep_probability=KEEP).frequencies(told) == pytest.approx([0.237393, 0.0], abs=1e-6)
    assert ReportThreshold(keep_probability=KEEP, estimate=False).frequencies(told).tolist() == [0.3, 0.1]
    told = tally(90, 10, 50, 49)
    assert ReportThreshold().rows(told).tolist() == [0, 2]  # mean 0.4975
    assert ReportThreshold(threshold=0.2).rows(told).tolist() == [0, 2, 3]
    assert ReportThreshold(threshold=0.0).rows(told).tolist() == [0, 1, 2, 3]
    with pytest.raises(BadInput, match=r"threshold is 0.95: no item .* has frequency 0.9"):
        ReportThreshold(threshold=0.95).rows(tally(90, 10))
    items = ReportedItems(ReportThreshold())
    for nothing in (tally(0, 0, 0), tally(7, 7, 7), None):  # used equally often, or not reported: all are in
        assert items.next(3, {}, nothing).rows is None
    assert FullModelRounds().next(3, {}, None).number == 3
    parts = SeededParts(schema=SCHEMA, public_seed=4, entry_share=0.25, names=("layer",), rows_from=items)
    spec = parts.next(0, {}, told)  # rows that come from elsewhere
    assert spec.rows.tolist() == [0, 2]
    assert dict(spec.shares) == {"layer": 0.25}


def test_a_ballot_counts_good_reports_only():
    response = RandomisedResponse(length=3, epsilon=1.0, change="one bit")
    ballot = Ballot(RandomisedReports(response), 4)
    ballot.receive(messages.encode_report(np.array([True, False, True]), 4))
    ballot.receive(messages.encode_report(np.array([True, False, False]), 4))
    raises(BadMessage, None, ballot.receive, messages.encode_report(np.array([True, True, True]), 5))
    assert ballot.reports == 2
    assert ballot.counts.tolist() == [2, 0, 1]
    few = Ballot(ItemHistogram(length=3, max_items=1, epsilon=1.0, delta=1e-6, adjacency="add-remove"), 4)
    raises(BadUpdate, "at most 1", few.receive, messages.encode_report(np.array([True, False, True]), 4))
    assert (few.reports, few.counts.sum()) == (0, 0)


def test_moved_rows_are_in_and_the_rest_gets_its_chance():
    start = np.zeros((N_ITEMS, 4), np.float32)
    round_planner = MovedRows(start, "items", 0.4, 1)
    weights = start.copy()
    weights[[2, 9]] = 1.0
    seen = set()
    for number in range(20):
        rows = round_planner.next(number, {"items": weights}, None).rows
        assert len(rows) == len(set(rows.tolist())) == 12
        assert {2, 9} <= set(rows.tolist())
        seen |= set(rows.tolist())
    assert seen == set(range(N_ITEMS))
    assert MovedRows(start, "items", 1.0, 1).next(0, {"items": weights}, None).rows is None


def test_seeded_parts_and_directions_are_public():
    round_planner = SeededParts(schema=SCHEMA, public_seed=4, row_share=0.5, entry_share=0.25, names=("layer",))
    one, same, other = round_planner.next(0, {}, None), round_planner.next(0, {}, None), round_planner.next(1, {}, None)
    assert len(one.rows) == 15
    assert np.array_equal(one.rows, same.rows)
    assert not np.array_equal(one.rows, other.rows)
    entries, later = one.entries("layer", 20), other.entries("layer", 20)
    assert len(entries) == 5
    assert not np.array_equal(entries, later)
    assert one.entries("items", 120) is None
    basis = SeededDirections(rank=2, public_seed=1).next(0, {}, None).basis(4)
    assert np.allclose(basis.T @ basis, np.eye(2), atol=1e-6)
