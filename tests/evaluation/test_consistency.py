"""What no ranking can have is found, and what a ranking has is never called impossible."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from veilrec.core.errors import BadInput
from veilrec.evaluation.metrics import CUTOFFS, impossible, one_by_one_metrics

PLACES = st.lists(st.integers(1, 45), min_size=1, max_size=40)
HALF_PLACES = st.lists(st.integers(2, 90).map(lambda doubled: doubled / 2), min_size=1, max_size=40)


def figures(places, digits):
    """Hits and nDCG of lists with these places, as a table prints them."""
    values = one_by_one_metrics(np.array(places, np.float64), np.arange(len(places) + 1))
    rounded = {name: round(float(np.mean(of)), digits) for name, of in values.items()}
    return {k: rounded[f"hr@{k}"] for k in CUTOFFS}, {k: rounded[f"ndcg@{k}"] for k in CUTOFFS}


@given(PLACES, st.integers(1, 6))
def test_what_a_ranking_has_is_possible_however_it_is_rounded(places, digits):
    hits, ndcg = figures([float(place) for place in places], digits)
    assert impossible(hits, ndcg, digits=digits) == []


@given(HALF_PLACES, st.integers(1, 6))
def test_our_own_figures_with_ties_are_possible(places, digits):
    assert impossible(*figures(places, digits), digits=digits, half_places=True) == []


def test_shared_places_rounding_and_figures_at_other_k():
    # gains 1 / log2(6.5), and 1 / log2(7) is the most that a whole place beyond 5 has
    assert [step.rule for step in impossible(*figures([5.5], 6), digits=6)] == ["ndcg rises too much"]
    hits, ndcg = {5: 0.5, 10: 0.6}, {5: 0.3, 10: 0.336}
    assert impossible(hits, ndcg, digits=3) == []  # rounding alone
    assert [step.rule for step in impossible(hits, ndcg, digits=6)] == ["ndcg rises too much"]
    for hits, ndcg in (({5: 0.1}, {10: 0.1}), ({0: 0.1}, {0: 0.1})):
        with pytest.raises(BadInput, match="give both at the same k"):
            impossible(hits, ndcg, digits=3)


def test_each_rule_finds_what_breaks_it():
    for hits, ndcg, rule, words in (
        ({5: 0.5, 10: 0.4}, {5: 0.3, 10: 0.27}, "hits fall", "hits fall, @5 to @10: -0.1000, at least -0.0010"),
        # 0.1 more hits, all at place 6, gain 0.1 / log2(7) = 0.0356; all at place 10, 0.1 / log2(11) = 0.0289
        ({5: 0.5, 10: 0.6}, {5: 0.3, 10: 0.338}, "ndcg rises too much", "@5 to @10: 0.0380, at most 0.0370"),
        ({5: 0.5, 10: 0.6}, {5: 0.3, 10: 0.327}, "ndcg rises too little", "@5 to @10: 0.0270, at least 0.0276"),
        ({10: 0.5}, {10: 0.502}, "ndcg above hits", "@10: 0.5020, at most 0.5010"),
        ({10: 0.5}, {10: 0.143}, "ndcg too low for hits", "@10: 0.1430, at least 0.1439"),
    ):
        first, *more = impossible(hits, ndcg, digits=3)
        assert first.rule == rule
        assert words in str(first)
        assert bool(more) == (rule == "hits fall")  # where hits fall, no step of nDCG is right
