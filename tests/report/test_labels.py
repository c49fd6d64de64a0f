from __future__ import annotations

import pytest

from veilrec.report.labels import byte_scale, human_bytes, human_seconds, meaning, spelt


@pytest.mark.parametrize(
    ("count", "said"), [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (2_500_000, "2.5 MB"), (7e12, "7.0 TB")]
)
def test_bytes_as_people_say_them(count: float, said: str) -> None:
    assert human_bytes(count) == said


@pytest.mark.parametrize(("count", "said"), [(0.4, "0 s"), (99, "99 s"), (720, "12 min"), (12_600, "3.5 h")])
def test_times_as_people_say_them(count: float, said: str) -> None:
    assert human_seconds(count) == said


def test_axis_units_keep_numbers_short() -> None:
    assert byte_scale(4.8e9) == (1e9, "GB")
    assert byte_scale(12) == (1.0, "bytes")


def test_metrics_are_spelt_and_explained() -> None:
    assert spelt("ndcg@10") == "nDCG@10"
    assert "first 10" in meaning("hr@10")
    assert meaning("unheard-of") == ""
