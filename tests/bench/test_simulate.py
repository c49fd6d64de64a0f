from __future__ import annotations

import pytest

from veilrec.bench import simulate
from veilrec.bench.measure import RIVALS, Options, Result
from veilrec.errors import BadInput, VeilrecError

SMALL = Options(repeats=1, quick=True, peers=False)


def test_a_task_runs_in_a_fresh_process_and_reports():
    said: list[str] = []
    report = simulate.run(["population-10k"], SMALL, said.append)
    (task,) = report["tasks"]
    assert task["name"] == "population-10k"
    assert task["ratios"] == dict.fromkeys(RIVALS)
    assert task["clients_per_second"] == pytest.approx(100 / task["seconds_per_round"], rel=0.01)
    assert 50 < task["peak_rss_mb"] < 2000
    assert report["machine"]["threads"] == 1
    assert said == ["population-10k: a round among 10,000 made-up users"]


def test_unknown_tasks_and_bad_repeats_are_refused_before_anything_runs():
    with pytest.raises(BadInput, match="did you mean population-1m"):
        simulate.run(["population-10k", "population-1M"], SMALL, print)
    with pytest.raises(BadInput, match="--repeats is 0"):
        simulate.run([], Options(repeats=0), print)


def test_a_process_that_dies_is_one_line(monkeypatch):
    monkeypatch.setattr(simulate.sys, "executable", "/bin/false")
    with pytest.raises(VeilrecError, match="population-10k ended with code 1"):
        simulate.run(["population-10k"], SMALL, print)


def test_ratios_say_how_many_times_faster_we_are():
    result = Result("x", "toy", 100, 0.002, 10.0, {"plain_loop": 0.2, "numba_limit": 0.001}).to_json()
    assert result["ratios"] == {"plain_loop": 100.0, "pfl": None, "flower": None, "numba_limit": 0.5}
    assert result["clients_per_second"] == 50_000


def test_missed_promises_are_named_and_absent_peers_are_not():
    name = "fedmf-ml-100k"
    result = Result(name, "toy", 100, 0.002, 10.0, {"plain_loop": 0.1, "pfl": 0.3}).to_json()
    assert simulate.missed(name, result) == ["plain_loop"]
    assert simulate.promised(name) == {"plain_loop": ">= 100", "pfl": ">= 100", "flower": ">= 500"}
    large = Result("population-1m", "toy", 100, 0.002, 7000.0, figures={"ratio_to_10k": 1.1}).to_json()
    assert simulate.missed("population-1m", large) == ["peak_rss_mb"]
