from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from veilrec.bench import serve, simulate
from veilrec.bench.measure import Result
from veilrec.bench.simulate import TASKS
from veilrec.cli.bench import app
from veilrec.errors import BadInput


@pytest.fixture
def asked(monkeypatch):
    """Tasks answer at once with fixed figures; the options that they got are noted."""
    options = []

    def answer(name, given):
        options.append((name, given))
        rivals = {"plain_loop": 0.15, "flower": 2.5, "numba_limit": 0.001}
        figures = {"total_seconds": 12.5, "ratio_to_10k": 1.0, "seconds_of_400_rounds": 99.0}
        figures |= {"impressions_per_second": 30_000.0, "user_model_ratio": 15.0}
        return Result(name, "toy", 100, 0.002, 321.0, rivals, notes=("pfl was ill",)).to_json() | figures

    monkeypatch.setattr(simulate, "_in_fresh_process", answer)
    return options


def test_json_is_one_object_and_progress_goes_elsewhere(asked):
    done = CliRunner().invoke(app, ["simulate", "--json"])
    assert done.exit_code == 0
    report = json.loads(done.stdout)
    assert [task["name"] for task in report["tasks"]] == [name for name, _ in asked]
    assert len(report["tasks"]) == len(TASKS)
    first = report["tasks"][0]
    assert first["ratios"] == {"plain_loop": 75.0, "pfl": None, "flower": 1250.0, "numba_limit": 0.5}
    assert first["missed"] == ["plain_loop"]
    assert "fedmf-ml-100k:" in done.stderr
    assert report["machine"]["cpu"]


def test_table_shows_seconds_ratios_notes_and_misses(asked):
    done = CliRunner().invoke(app, ["simulate", "--task", "fedmf-ml-100k"])
    assert done.exit_code == 0
    for words in ("2.00 ms", "150.00 ms", "75 x", "2.50 s", "1,250 x", "0.50 x"):
        assert words in done.stdout
    assert "fedmf-ml-100k: data toy, 50,000 devices/s, 321 MB, total_seconds 12.5, ratio_to_10k 1" in done.stdout
    assert "fedmf-ml-100k: pfl was ill" in done.stdout
    assert "fedmf-ml-100k: missed plain_loop >= 100" in done.stdout


def test_options_reach_the_tasks(asked):
    chosen = ["--task", "population-10k", "--task", "fedncf-ml-100k"]
    done = CliRunner().invoke(app, ["simulate", *chosen, "--repeats", "2", "--quick", "--no-peers"])
    assert "not for quoting" in done.stdout
    (first, options), (second, _) = asked
    assert (first, second) == ("population-10k", "fedncf-ml-100k")
    assert (options.repeats, options.quick, options.peers) == (2, True, False)


def test_unknown_task_lists_the_nearest(asked):
    done = CliRunner().invoke(app, ["simulate", "--task", "fedmf-ml-100"])
    assert isinstance(done.exception, BadInput)
    assert "did you mean fedmf-ml-100k" in str(done.exception)
    assert not asked


@pytest.fixture
def served(monkeypatch):
    """`bench serve` answers at once; the options that it got are noted."""
    options = []
    first = {"name": "best-10", "median_us": 17.5, "p99_us": 40.0, "mismatches": 0, "memory_mb": 35.1, "build_s": 2.0}
    first |= {"ratios": {"flat_scan": 110.0, "hnswlib_ef64": 9.5}, "recall": {"hnswlib_ef64": 0.9}}
    second = {"name": "reachable-65k", "median_us": None, "p99_us": None, "mismatches": 0, "memory_mb": None}
    second |= {"build_s": 8.0, "ratios": {}, "items": 750, "share": 0.0115, "build_cpu_s": 7.5}
    tasks = [first | {"missed": ["build_s <= 1"]}, second | {"missed": []}]

    def answer(given, say):
        options.append(given)
        say("measuring")
        machine = {"cpu": "toy", "load_before": 0.1}
        about = {"machine": machine, "items": given.items, "source": "made up", "quick": given.quick}
        return {"tasks": tasks, "notes": ["hnswlib is ill"], **about}

    monkeypatch.setattr(serve, "run", answer)
    return options


def test_serving_is_shown_with_ratios_recall_and_misses(served):
    done = CliRunner().invoke(app, ["serve", "--quick"])
    assert done.exit_code == 0
    for words in ("Exact top 10 of 65,000 items", "17.5", "35.1", "110 x as fast as flat_scan", "hnswlib is ill"):
        assert words in done.stdout
    assert "best-10: 9.50 x as fast as hnswlib_ef64 at a recall of 0.9" in done.stdout
    assert "best-10: missed build_s <= 1" in done.stdout
    assert "reachable-65k: 750 items, 1.1%" in done.stdout or "reachable-65k: 750 items, 1.2%" in done.stdout
    assert "not for quoting" in done.stdout


def test_serving_as_json_and_its_options(served):
    done = CliRunner().invoke(app, ["serve", "--json", "--items", "5000", "--no-peers"])
    report = json.loads(done.stdout)
    assert [task["name"] for task in report["tasks"]] == ["best-10", "reachable-65k"]
    assert done.stderr == "measuring\n"
    CliRunner().invoke(app, ["serve"])
    assert [(given.items, given.quick, given.peers) for given in served] == [
        (5000, False, False),
        (1_000_000, False, True),
    ]
