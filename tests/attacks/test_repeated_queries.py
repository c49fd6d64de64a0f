from __future__ import annotations

import math

import numpy as np
import pytest

from veilrec.attacks.running import QueryNoise, RecoveryCurve, average_queries, best_guess
from veilrec.core.errors import BadInput

ONE_HOT = np.eye(5)[np.random.default_rng(0).integers(5, size=2000)]


def curves(**settings: object) -> dict[tuple[str, bool], RecoveryCurve]:
    asking = QueryNoise(**settings)  # type: ignore[arg-type]
    return {(curve.mode, curve.memoised): curve for curve in average_queries(ONE_HOT, asking, counts=(1, 10, 100))}


def test_fresh_noise_averages_out_and_memoised_queries_say_nothing_new() -> None:
    found = curves(epsilon=1.0)
    for mode in ("attention", "interest"):
        fresh = [point.found for point in found[mode, False].points]
        assert fresh[0] < fresh[1] < fresh[2]
        assert fresh[2] > 0.95
        same = {(point.found, round(point.error, 12)) for point in found[mode, True].points}
        assert len(same) == 1
    errors = [point.error for point in found["attention", False].points]
    assert errors[0] > errors[1] > errors[2]
    assert [point.epsilon_together for point in found["interest", False].points] == pytest.approx([1.0, 10.0, 100.0])
    assert {point.epsilon_together for point in found["interest", True].points} == {1.0}


def test_one_answer_is_right_as_often_as_its_epsilon_says() -> None:
    # e / (e + 4) of 2,000 devices: further off than 0.05 one time in 10^5.
    first = curves(epsilon=1.0)["interest", False].points[0]
    assert first.found == pytest.approx(math.e / (math.e + 4.0), abs=0.05)


def test_chance_is_to_name_the_most_common_interest() -> None:
    """Not one in five, where nine of ten people have the same."""
    assert best_guess(np.eye(5)[[1] * 9 + [4]]) == pytest.approx(0.9)


def test_as_published_the_claim_stands_beside_what_holds() -> None:
    found = curves(epsilon=1.0, calibration="as-published")
    assert set(found) == {("attention", False), ("attention", True)}  # the k-ary response is ours
    claimed = found["attention", False].claimed
    assert (claimed.basis, claimed.epsilon, claimed.unit, claimed.trust) == ("as published", 1.0, "history", "nobody")
    assert claimed.honest_epsilon == pytest.approx(2.0)


def test_gaussian_noise_has_a_delta() -> None:
    point = curves(epsilon=1.0, delta=1e-6, noise="gaussian")["attention", False].points[0]
    assert point.epsilon_together == pytest.approx(1.0, rel=1e-3)


def test_nonsense_is_refused() -> None:
    with pytest.raises(BadInput, match="from 1 on"):
        average_queries(ONE_HOT, QueryNoise(), counts=(0, 1))
    with pytest.raises(BadInput, match="a row for every device"):
        average_queries(np.zeros((0, 5)), QueryNoise())
    with pytest.raises(BadInput, match="epsilon"):
        average_queries(ONE_HOT, QueryNoise(epsilon=-1.0))
