"""Parts of work, and who does them."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from veilrec.core import resources


@pytest.mark.parametrize(("asked", "threads"), [("1", 1), ("3", 3), ("0", None), ("many", None), ("", None)])
def test_the_environment_says_how_many(monkeypatch, asked, threads):
    monkeypatch.setenv("OMP_NUM_THREADS", asked)
    assert resources.available() >= 1 if threads is None else resources.available() == threads


@pytest.mark.parametrize(
    ("work", "count", "parts"),
    [
        ([], 3, []),
        ([5], 3, [(0, 1)]),
        ([1, 1, 1, 1], 1, [(0, 4)]),
        ([1, 1, 1, 1], 2, [(0, 2), (2, 4)]),
        ([9, 1, 1, 1], 2, [(0, 1), (1, 4)]),
        ([1, 1, 1, 9], 2, [(0, 3), (3, 4)]),
        ([0, 0], 2, [(0, 2)]),
    ],
)
def test_parts_are_even(work, count, parts):
    assert resources.even_parts(np.array(work, np.int64), count) == parts


def test_several_tasks_run_at_once():
    both = threading.Barrier(2, timeout=10)
    resources.run_all([both.wait, both.wait])
    resources.run_all([])


def test_an_error_of_a_task_arrives():
    def fail():
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        resources.run_all([fail, lambda: None])
