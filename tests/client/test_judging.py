"""Who judges is public and moves nobody else; a judge's gain is the difference of its own mean AUC."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from veilrec.client.news_data import OwnImpressions, pack_logs
from veilrec.client.validation import NewsValidator, is_judge, parted
from veilrec.core.arrays import Csr
from veilrec.data.population import Impressions


def csr(rows: list[list[int]]) -> Csr:
    offsets = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
    return Csr(offsets, np.array([item for row in rows for item in row], np.int32))


def logs() -> Csr:
    """User 0 has two impressions, user 1 none that has both labels, user 2 one."""
    shown = csr([[0, 1, 2], [3, 4], [0, 1], [5, 6, 7, 8]])
    clicked = np.array([1, 0, 0, 0, 1, 0, 0, 1, 0, 1, 0], np.uint8)
    histories = csr([[1, 2], [], [3]])
    users = np.array([0, 0, 1, 2], np.int32)
    times, history_of = np.arange(4, dtype=np.int64), np.array([0, 1, 1, 2], np.int32)
    return pack_logs(Impressions(users, times, shown, clicked, histories, history_of), 3)


@dataclass(frozen=True)
class Fixed:
    """Scores items by a table, whatever the history."""

    kind = "fixed"

    def model(self, weights: Any, private: Any, histories: Csr) -> Any:
        table = weights["scores"]

        class Model:
            def score_impressions(self, asked: Impressions) -> Any:
                assert len(asked.histories) == len(asked)
                return table[asked.shown.items]

        return Model()


def test_adding_or_removing_somebody_moves_nobody_else() -> None:
    everybody = is_judge(np.arange(1000), 0.2, 7)
    assert np.array_equal(is_judge(np.array([3, 500, 17]), 0.2, 7), everybody[[3, 500, 17]])
    assert 120 < everybody.sum() < 280  # beyond 6 standard deviations
    assert not np.array_equal(is_judge(np.arange(1000), 0.2, 8), everybody)


def test_each_device_learns_or_judges() -> None:
    whole = csr([[number, number + 1] for number in range(200)])
    both = parted(whole, 0.3, 1)
    assert both.judging is not None
    assert np.array_equal(both.rows.lengths() + both.judging.lengths(), whole.lengths())
    assert not ((both.rows.lengths() > 0) & (both.judging.lengths() > 0)).any()
    some = both.take(np.array([5, 6, 7]))
    assert some.judging is not None
    assert [len(some.rows.row(i)) + len(some.judging.row(i)) for i in range(3)] == [2, 2, 2]


def test_a_gain_is_the_difference_of_the_mean_auc_of_a_device() -> None:
    nothing = csr([[], [], []])
    data = OwnImpressions(nothing, logs())
    judge = NewsValidator(Fixed())  # type: ignore[arg-type]
    flat, good = np.zeros(9, np.float32), np.zeros(9, np.float32)
    good[[0, 5]] = 1.0  # the click of user 0's first impression, and one of two clicks of user 2
    found = judge.gains(data, {"scores": flat}, {"scores": good})
    # user 0: (1 - 1/2 + 1/2 - 1/2) / 2; user 2: clicks 5 and 7 against 6 and 8: pairs 1, 1, 1/2, 1/2, less 1/2
    np.testing.assert_allclose(found, [0.25, 0.0, 0.25])
    assert judge.devices(data).tolist() == [0, 2]
    assert judge.gains(data, {"scores": good}, {"scores": flat})[0] == -0.25


def test_where_nobody_judges_there_is_nothing() -> None:
    judge = NewsValidator(Fixed())  # type: ignore[arg-type]
    assert not len(judge.devices(OwnImpressions(logs())))
    assert not judge.gains(OwnImpressions(logs()), {}, {}).any()
