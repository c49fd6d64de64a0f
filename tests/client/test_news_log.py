"""Impressions packed per device, and the examples drawn from them."""

from __future__ import annotations

import numpy as np

from veilrec.audit.contract_subject import histories_of
from veilrec.client.news_data import NONE, ClickExamples, count_clicks, draw_examples, pack_logs
from veilrec.core.csr import Csr
from veilrec.data.population import Impressions
from veilrec.data.synthetic_news import generate


def impressions() -> Impressions:
    return Impressions(
        users=np.array([1, 1, 0, 2], np.int32),
        times=np.array([20, 10, 5, 1]),
        shown=histories_of([[5, 6, 7], [8, 9], [3, 4], [1, 2]]),
        clicked=np.array([0, 1, 1, 1, 0, 1, 1, 0, 1], np.uint8),  # the third has no news without a click
        histories=histories_of([[1, 2, 3], []]),
        history_of=np.array([0, 0, 0, 1], np.int32),
    )


def draw(logs: Csr, devices: list[int], *, negatives: int = 4, number: int = 0) -> ClickExamples:
    return draw_examples(logs, np.array(devices, np.int64), negatives=negatives, longest=3, seed=7, number=number)


def test_a_log_has_history_clicks_and_others_in_time_order() -> None:
    logs = pack_logs(impressions(), 4, longest=2)
    assert logs.row(0).tolist() == []
    assert logs.row(1).tolist() == [2, 1, 1, 2, 3, 8, 9, 2, 2, 1, 2, 3, 6, 7, 5]
    assert logs.row(2).tolist() == [0, 1, 1, 2, 1]
    assert logs.row(3).tolist() == []
    assert count_clicks(logs).tolist() == [0, 3, 1, 0]


def test_examples_have_the_click_first_and_share_histories() -> None:
    examples = draw(pack_logs(impressions(), 4), [0, 1, 2, 3])
    assert examples.device.tolist() == [1, 1, 1, 2]
    assert examples.candidates[:, 0].tolist() == [8, 6, 7, 2]
    assert examples.candidates[:, 1:].tolist() == [[x, NONE, NONE, NONE] for x in (9, 5, 5, 1)]
    assert examples.history_of.tolist() == [0, 0, 0, 1]
    assert examples.histories.tolist() == [[1, 2, 3], [NONE, NONE, NONE]]


def test_negatives_are_distinct_unclicked_and_keyed_by_device_and_round() -> None:
    train = generate(users=40, news=300, days=3, seed=2).impressions["train"]
    logs = pack_logs(train, 40)
    everyone = list(range(40))
    examples = draw(logs, everyone)
    clicked = {
        (u, i)
        for u, i in zip(
            train.users[train.shown.row_numbers()][train.clicked > 0], train.shown.items[train.clicked > 0], strict=True
        )
    }
    for device, candidates in zip(examples.device, examples.candidates, strict=True):
        real = candidates[candidates != NONE]
        assert len(set(real)) == len(real)
        assert (device, candidates[0]) in clicked
    alone = draw(logs.take(np.array([7])), [7])
    assert np.array_equal(alone.candidates, examples.candidates[examples.device == 7])
    assert not np.array_equal(draw(logs, everyone, number=1).candidates, examples.candidates)


def test_every_unclicked_news_is_drawn_equally_often() -> None:
    log = histories_of([[0, 1, 5, 9, 0, 1, 2, 3, 4]])
    counts = np.zeros(5)
    for number in range(2000):
        counts[draw(log, [0], negatives=2, number=number).candidates[0, 1:]] += 1
    # Each has 800 expected, standard deviation about 22: off by 110 (5 deviations) once in 300,000 runs.
    assert np.abs(counts - 800).max() < 110
