"""Watching changes nothing; a script and a removal change only what they say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from veilrec.audit.method import tiny_plan
from veilrec.audit.observe import norms_of, simulate, watch
from veilrec.core.schema import ClientUpdates, Factors, Rows
from veilrec.methods.base import own_items
from veilrec.methods.registry import get
from veilrec.simulation.simulation import Seeds, Simulation

SECRET = b"a secret of thirty-two bytes...."
WAYS = [Seeds.all_from(4), Seeds.all_from(4, SECRET)]
METHODS = ["dp-fedmf", "dp-fedmf-svd", "priv-fedncf-sub-compress"]


def made(name: str, *settings: str) -> tuple[Any, Any, Any]:
    plan, problem = tiny_plan(get(name), settings)
    return plan, own_items(None, problem), problem.train


@pytest.mark.parametrize("name", [*METHODS, "dp-fedmf calibration=as-published"])
@pytest.mark.parametrize("seeds", WAYS, ids=["seeded", "secret"])
def test_a_run_under_watch_is_the_run(name: str, seeds: Seeds) -> None:
    plan, data, histories = made(*name.split())
    alone = Simulation(plan, data, histories, seeds)
    seen = watch(plan, data, histories, seeds, 3)
    for number in range(3):
        alone.step(number)
        assert all(np.array_equal(alone.server.weights[key], value) for key, value in seen.released[number].items())


@pytest.mark.parametrize("name", METHODS)
def test_a_script_gives_the_same_models_on_other_data(name: str) -> None:
    plan, data, histories = made(name)
    seen = watch(plan, data, histories, WAYS[1], 3)
    other = data.take(np.array([3, 3, 5, 0, 1, 2, 2, 7, 8, 9, 9, 11]))
    again = watch(plan, other, histories, WAYS[0], 3, script=seen)
    free = watch(plan, other, histories, WAYS[1], 3)
    for one, same, different in zip(seen.released, again.released, free.released, strict=True):
        assert all(np.array_equal(one[key], same[key]) for key in one)
        assert not all(np.array_equal(one[key], different[key]) for key in one)


def test_quiet_sums_stay_as_they_are() -> None:
    plan, data, histories = made("dp-fedmf")
    for sums in watch(plan, data, histories, WAYS[1], 2, quiet=True).sums:
        assert all(np.array_equal(sums.before[name], sums.after[name]) for name in sums.before)


@pytest.mark.parametrize("seeds", WAYS, ids=["seeded", "secret"])
def test_a_removed_device_is_missing_and_nobody_else(seeds: Seeds) -> None:
    plan, data, histories = made("dp-fedmf")
    with_all, without = simulate(plan, data, histories, seeds), simulate(plan, data, histories, seeds, removed=4)
    assert len(without.data.rows.row(4)) == 0
    assert np.array_equal(without.data.rows.row(5), data.rows.row(5))
    for number in range(5):
        drawn = with_all.sampler.draw(number)
        assert np.array_equal(without.sampler.draw(number), drawn[drawn != 4])


def test_norms_are_over_all_that_a_device_sends() -> None:
    rows = Rows(np.array([0, 1, 1]), np.array([2], np.int32), np.array([[3.0, 0.0]], np.float32))
    entries = Rows(np.array([0, 0, 1]), np.array([0], np.int32), np.array([[2.0]], np.float32))
    dense = np.array([[4.0], [1.0]], np.float32)
    ones = np.ones((2, 1), np.float32)
    factors = Factors(ones[:, :, np.newaxis] * 2.0, ones, ones[:, np.newaxis])
    sent = ClientUpdates(0, 2, {"table": rows}, {"layer": dense}, entries={"part": entries}, factors={"low": factors})
    assert norms_of(sent) == pytest.approx([np.sqrt(9 + 16 + 4), np.sqrt(4 + 1 + 4)])
