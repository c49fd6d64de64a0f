from __future__ import annotations

import pytest

from veilrec.bench import flower_peer, peers, simulate
from veilrec.bench.options import Options
from veilrec.bench.results import RIVALS, Result
from veilrec.bench.tasks import TASKS
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


def test_a_worker_that_dies_is_one_line(monkeypatch):
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
    large = Result("population-1m", "toy", 100, 0.002, 7000.0, extra={"ratio_to_10k": 1.1}).to_json()
    assert simulate.missed("population-1m", large) == ["peak_rss_mb"]


def test_a_peer_that_fails_is_a_note_and_null(monkeypatch, capsys):
    pytest.importorskip("pfl", reason="the extra `bench` is not installed")
    pytest.importorskip("flwr", reason="the extra `bench` is not installed")
    from veilrec.bench import pfl_peer

    def fail(*_: object) -> None:
        raise RuntimeError("not today\nsecond line")

    monkeypatch.setattr(pfl_peer, "PflPeer", fail)
    monkeypatch.setattr(flower_peer, "run_flower", fail)
    result = peers.fedmf_own_items("fedmf-ml-100k", Options(repeats=1, quick=True, peers=True)).to_json()
    assert result["ratios"]["pfl"] is None
    assert result["ratios"]["flower"] is None
    assert result["ratios"]["plain_loop"] > 1
    assert result["notes"] == [
        "pfl did not run: RuntimeError: not today",
        "Flower did not run: RuntimeError: not today",
    ]
    assert capsys.readouterr().err.splitlines() == result["notes"]


def test_peers_that_are_not_installed_are_null(monkeypatch):
    monkeypatch.setattr(peers, "installed", lambda _package: None)
    result = peers.fedmf_own_items("fedmf-ml-100k", Options(repeats=1, quick=True, peers=True)).to_json()
    assert result["ratios"]["pfl"] is None
    assert len(result["notes"]) == 2
    assert all("pip install 'veilrec[bench]'" in note for note in result["notes"])


@pytest.mark.parametrize("name", ["fedmf-ml-100k-negatives", "fedncf-ml-100k"])
def test_tasks_against_the_plain_loop_run(name):
    result = TASKS[name].run(name, SMALL).to_json()
    assert result["ratios"]["plain_loop"] > 1
    assert result["ratios"]["numba_limit"] > 0
    assert result["devices_per_round"] == 100


def test_a_large_population_reports_its_ratio(monkeypatch):
    from veilrec.bench import population

    monkeypatch.setattr(population, "_MANY_QUICK", 20_000)
    result = TASKS["population-1m"].run("population-1m", SMALL).to_json()
    assert result["users"] == 20_000
    assert result["ratio_to_10k"] > 0


def test_the_whole_run_reports_its_time_and_quality(monkeypatch):
    from veilrec.bench import whole_run
    from veilrec.data.synthetic_ratings import generate

    monkeypatch.setattr(whole_run, "ml_1m", lambda: ("toy", generate(users=400, items=300, seed=1)))
    result = TASKS["fedmf-ml-1m-400-rounds"].run("fedmf-ml-1m-400-rounds", SMALL).to_json()
    assert result["rounds"] == 40
    assert result["total_seconds"] == pytest.approx(40 * result["seconds_per_round"], abs=0.01)
    assert 0 < result["evaluation_seconds"] < result["total_seconds"]
    assert result["cpu_seconds"] > 0
    assert result["hr@10"] > 0.1


def test_without_the_files_the_whole_run_has_a_population_of_the_same_shape(monkeypatch, tmp_path):
    from veilrec.bench import whole_run

    monkeypatch.delenv("VEILREC_DATA", raising=False)
    monkeypatch.setenv("VEILREC_CACHE", str(tmp_path))
    source, population = whole_run.ml_1m()
    assert source == "synthetic in the shape of ml-1m"
    assert (population.n_users, population.n_items) == (6040, 3706)
    assert len(population.interactions) == pytest.approx(1_000_209, rel=0.1)


def test_flower_that_takes_too_long_or_fails_is_one_line(monkeypatch, tmp_path):
    from tests.bench.toys import LOCAL, contest

    _, workload = contest(LOCAL["mf"])
    monkeypatch.setattr(flower_peer, "_TIMEOUT", 0.01)
    with pytest.raises(VeilrecError, match=r"stopped after 0\.01 s"):
        flower_peer.run_flower(workload, 1, tmp_path)
    monkeypatch.setattr(flower_peer, "_TIMEOUT", 60.0)
    monkeypatch.setattr(flower_peer.sys, "executable", "/bin/false")
    with pytest.raises(VeilrecError, match="ended with code 1: it said nothing"):
        flower_peer.run_flower(workload, 1, tmp_path)
