from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from veilrec.bench import simulate
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
