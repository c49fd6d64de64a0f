"""Every script runs on a load that takes seconds, and prints what its `--json` says."""

import json
import subprocess
import sys

import numpy as np
import pytest

import _sparse_sums
import secagg
import serve
import serve_http
import simulate
from _measure import Options

SMALL = Options(repeats=1, quick=True, peers=False)


def test_secagg_gives_the_exact_sum(monkeypatch, capsys):
    monkeypatch.setattr(secagg, "QUICK", secagg.Load(clients=12, length=300, helpers=2))
    assert secagg.main(["--quick", "--json"]) == 0
    helpers, pairs = json.loads(capsys.readouterr().out)["tasks"]
    assert helpers["exact"] and pairs["exact"]
    assert helpers["client_up_bytes"] == 100 + 32 + 8 + 4 * 300  # signed key, session, check, vector
    assert secagg.main(["--quick"]) == 0 and "helpers, 2 helpers: exact sum of 9" in capsys.readouterr().out


def test_ways_to_send_sparse_updates_are_compared(capsys):
    assert secagg.main(["--sparse", "--quick", "--json"]) == 0
    updates, votes = json.loads(capsys.readouterr().out)["sparse"]
    up = {way["way"]: way["up_bytes"] for way in updates["ways"]}
    assert up["dense, 32-bit words"] == 180 + 4 * 300 * 4
    assert up["packed, 20 bits"] == 180 + 300 * 4 * 5 // 2
    assert up["sketch of 3, 1/8"] < up["blocks, 1/8 each"] < up["packed, 16 bits"] < up["packed, 24 bits"]
    dense, blocks, sketch = (votes["ways"][place]["error"] for place in (0, -3, -1))
    assert dense["8"] == 1.0 < sketch["8"] < blocks["8"]
    assert secagg.main(["--sparse", "--quick"]) == 0 and "bits that are enough" in capsys.readouterr().out
    words = np.random.default_rng(0).integers(0, 2**16, 7)
    for bits in (16, 20, 24):
        np.testing.assert_array_equal(_sparse_sums.unpacked(_sparse_sums.pack(words, bits), bits, 7), words)


def test_serve_http_answers_without_errors(monkeypatch, capsys):
    small = serve_http.Load(connections=4, seconds=0.5, warm_up_seconds=0.1, items=300)
    monkeypatch.setattr(serve_http, "QUICK", small)
    assert serve_http.main(["--quick", "--json"]) == 0
    (task,) = json.loads(capsys.readouterr().out)["tasks"]
    assert task["errors"] == 0 and task["requests"] > 10


def test_simulate_runs_a_task_in_a_process_of_its_own(capsys):
    """Also that a script finds its helpers, and the standard library, from wherever it is called."""
    command = [sys.executable, simulate.__file__, "--quick", "--json", "--repeats", "1", "--no-peers"]
    done = subprocess.run([*command, "--task", "fedmf-ml-100k"], capture_output=True, text=True, check=True)
    (task,) = json.loads(done.stdout)["tasks"]
    assert task["ratios"]["plain_loop"] > 1
    simulate.show({"tasks": [task], "machine": {"cpu": "toy", "load_before": 0.1}})
    assert "fedmf-ml-100k: data" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("script", "arguments", "said"),
    [
        (simulate, ["--task", "fedmf-ml-100"], "did you mean fedmf-ml-100k"),
        (simulate, ["--repeats", "0"], "--repeats is 0"),
        (serve, ["--items", "999"], "--items is 999"),
    ],
)
def test_bad_input_is_one_line(script, arguments, said, capsys):
    assert script.main(arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
