"""`veilrec train`, `evaluate`, `recommend`, as a user runs them: real processes where they are killed."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
import yaml

from veilrec.cli import main

DATA = "synthetic-ratings:users=300,items=400,seed=3"
PROGRAM = [sys.executable, "-c", "from veilrec.cli.main import run; run()"]


def veilrec(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The program from its entry point on, without the seconds that a process takes to import everything."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    with redirect_stdout(out), redirect_stderr(err), pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["veilrec", *arguments])
        try:
            main.run()
        except SystemExit as leaving:
            code = leaving.code or 0
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())


def train(out: Path, *more: str, rounds: int = 12) -> subprocess.CompletedProcess[str]:
    small = ("--set", "cohort.size=40", "--seed", "1", "--rounds", str(rounds), "--out", str(out))
    return veilrec("train", "fedmf", "--data", DATA, *small, *more)


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "run"
    done = train(out, "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)  # nothing else on standard output
    assert result["out"] == str(out)
    return out


def test_result_says_everything(finished):
    result = json.loads((finished / "result.json").read_text())
    assert {
        "method",
        "dataset",
        "seed",
        "rounds",
        "metrics",
        "guarantee",
        "communication",
        "seconds",
        "clients_per_second",
        "peak_rss_mb",
        "baselines",
    } <= set(result)
    assert {"hr@10", "ndcg@10"} <= set(result["metrics"])
    assert set(result["baselines"]) == {"popularity", "random"}
    assert {"down_bytes", "up_bytes", "down_params", "up_params", "paper_params"} <= set(result["communication"])
    assert result["guarantee"]["basis"] == "none"
    assert result["rounds"] == 12
    assert yaml.safe_load((finished / "config.yaml").read_text())["method"] == "fedmf"


def test_the_papers_convention_counts_item_vectors_one_way(finished):
    result = json.loads((finished / "result.json").read_text())
    assert result["communication"]["paper_params"] == 400 * 32 * 40 * 12
    assert result["communication"]["down_params"] == 400 * 32 * 40 * 12  # every device gets every item


def test_evaluate_gives_the_same_numbers_again(finished):
    result = json.loads((finished / "result.json").read_text())
    again = veilrec("evaluate", str(finished), "--json")
    assert json.loads(again.stdout)["metrics"] == result["metrics"]


def test_a_run_keeps_the_settings_that_it_was_trained_with(finished, tmp_path):
    copy = tmp_path / "run"
    shutil.copytree(finished, copy)
    config = yaml.safe_load((copy / "config.yaml").read_text())
    config["config"]["local"]["dim"] = 7  # as if a preset had changed: the model brings its own
    (copy / "config.yaml").write_text(yaml.safe_dump(config))
    again = json.loads(veilrec("evaluate", str(copy), "--json").stdout)
    assert again["metrics"] == json.loads((finished / "result.json").read_text())["metrics"]


def test_half_a_config_is_refused(finished, tmp_path):
    copy = tmp_path / "run"
    shutil.copytree(finished, copy)
    whole = (copy / "config.yaml").read_text()
    (copy / "config.yaml").write_text(whole[: whole.index("seed")])
    refused = veilrec("evaluate", str(copy))
    assert refused.returncode == 2
    assert "is not whole: it says nothing of seed" in refused.stderr


def test_evaluate_refuses_a_protocol_whose_test_items_were_trained_on(finished):
    refused = veilrec("evaluate", str(finished), "--protocol", "ratio-8-2")
    assert refused.returncode == 2
    assert "train again with --protocol ratio-8-2" in refused.stderr


def test_recommends_for_a_known_and_for_a_new_user(finished):
    from veilrec.data.datasets import load

    population = load(DATA)
    user = population.users[5]
    used = {population.items[i] for i in population.interactions.pairs().row(5)}
    known = json.loads(veilrec("recommend", str(finished), "--user", user, "-k", "7", "--json").stdout)
    items = [entry["item"] for entry in known["recommendations"]]
    assert len(set(items)) == 7
    assert not used & set(items)
    history = sorted(used)[:3]
    new = veilrec("recommend", str(finished), "--history", ",".join(history), "--json")
    items = [entry["item"] for entry in json.loads(new.stdout)["recommendations"]]
    assert len(items) == 10
    assert not set(history) & set(items)


@pytest.mark.parametrize(("arguments", "words"), [(["--user", "nobody"], "no user 'nobody'"), ([], "either --user")])
def test_recommend_says_what_is_wrong(finished, arguments, words):
    refused = veilrec("recommend", str(finished), *arguments)
    assert refused.returncode == 2
    assert words in refused.stderr
    assert "Traceback" not in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["fedmff"], "did you mean fedmf"),
        (["fedmf", "--data", "ml-10m"], "unknown data set"),
        (["fedmf", "--data", DATA, "--set", "local.epocs=3"], "local.epochs"),
        (["fedmf", "--data", DATA, "--set", "local.epochs=many"], "local.epochs"),
        (["fedmf", "--data", DATA, "--set", "nonsense"], "name=value"),
        (["fedmf", "--data", DATA, "--preset", "tunde"], "tuned"),
        (["fedmf", "--data", DATA, "--rounds", "0"], "--rounds is 0"),
        (["fedmf", "--data", DATA, "--set", "local.epochs=99999999999999999999"], "give at most 2,147,483,647"),
        (["fedmf", "--data", DATA, "--set", "cohort.drop_out=1"], "cohort.drop_out is 1.0"),
        (["fedmf", "--data", DATA, "--set", "cohort.available=0"], "cohort.available is 0.0"),
        (["fedmf", "--data", DATA, "--set", "adapt_epochs=-1"], "setting adapt_epochs of fedmf is '-1'"),
        (["fedmf", "--data", DATA, "--protocol", "loo"], "loo-99"),
        (["fedmf", "--data", DATA, "--set", "cohort.size=9999"], "cohort.size is 9999"),
        (["fedmf", "--data", DATA, "--log", "mlfow"], "unknown logger"),
        (["fedmf", "--data", DATA, "--resume"], "--resume needs --out"),
    ],
)
def test_bad_input_is_one_clear_line_and_leaves_nothing(arguments, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refused = veilrec("train", *arguments)
    assert refused.returncode == 2
    assert words in refused.stderr
    assert len(refused.stderr.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_small_log_trains_with_everybody_and_says_so(tmp_path):
    log = tmp_path / "log.csv"
    rows = [f"u{user},i{(3 * user + k) % 30}" for user in range(40) for k in range(5)]
    log.write_text("\n".join(["user,item", *rows]))
    options = ("--data", f"csv:{log}", "--protocol", "loo-full", "--rounds", "1")
    done = veilrec("train", "fedmf", *options, "--out", str(tmp_path / "run"))
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("fedmf: every round has all 40 devices instead of the usual 100")
    shown = " ".join(done.stdout.split())
    assert "1 round, down" in shown
    assert "clients/s (compilation included)" in shown


def test_brackets_of_ids_stay(tmp_path):
    log = tmp_path / "log.csv"
    rows = [f"[u{user}],[bold]{(user + k) % 9}[/bold]" for user in range(6) for k in range(4)]
    log.write_text("\n".join(["user,item", *rows]))
    out = tmp_path / "run"
    done = veilrec("train", "popularity", "--data", f"csv:{log}", "--protocol", "loo-full", "--out", str(out))
    assert done.returncode == 0, done.stderr
    shown = veilrec("recommend", str(out), "--user", "[u1]", "-k", "1").stdout
    assert "For user [u1]" in shown
    assert "[bold]" in shown


def test_a_folder_is_never_overwritten_by_accident(finished):
    refused = train(finished)
    assert refused.returncode == 2
    assert "--resume" in refused.stderr


def test_resume_refuses_other_settings(finished):
    refused = train(finished, "--resume", "--set", "local.epochs=2")
    assert refused.returncode == 2
    assert "cannot resume" in refused.stderr


def test_a_run_can_be_made_longer(tmp_path):
    often = ("--evaluate-every", "4", "--json")
    assert train(tmp_path / "longer", *often, rounds=8).returncode == 0
    longer = json.loads(train(tmp_path / "longer", *often, "--resume", rounds=16).stdout)
    straight = json.loads(train(tmp_path / "straight", *often, rounds=16).stdout)
    assert longer["weights_sha256"] == straight["weights_sha256"]
    assert longer["communication"] == straight["communication"]


def wait_for(path: Path, process: subprocess.Popen[bytes], pattern: str) -> None:
    deadline = time.monotonic() + 120
    while not list(path.glob(pattern)):
        assert process.poll() is None, "the run ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_killed_and_resumed_gives_the_same_weights_bit_for_bit(tmp_path):
    straight = json.loads(train(tmp_path / "straight", "--json", rounds=300).stdout)
    out = tmp_path / "killed"
    arguments = [
        "train",
        "fedmf",
        "--data",
        DATA,
        "--set",
        "cohort.size=40",
        "--seed",
        "1",
        "--rounds",
        "300",
        "--out",
        str(out),
        "--checkpoint-every",
        "7",
    ]
    for number in (7, 70):
        resume = ["--resume"] if out.exists() else []
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        process = subprocess.Popen([*PROGRAM, *arguments, *resume], **quiet)
        wait_for(out, process, f"checkpoints/round-*{number:02d}.safetensors")
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        assert not (out / "result.json").exists()
    resumed = veilrec(*arguments, "--resume", "--json")
    assert resumed.returncode == 0, resumed.stderr
    assert json.loads(resumed.stdout)["weights_sha256"] == straight["weights_sha256"]


def test_ctrl_c_says_how_to_go_on(tmp_path):
    out = tmp_path / "run"
    arguments = ["train", "fedmf", "--data", DATA, "--set", "cohort.size=40", "--rounds", "100000", "--out", str(out)]
    process = subprocess.Popen(
        [*PROGRAM, *arguments, "--checkpoint-every", "5"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    wait_for(out, process, "checkpoints/round-*.safetensors")
    process.send_signal(signal.SIGINT)
    _, words = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "--resume" in words
    assert "Traceback" not in words


def test_names_in_any_case_are_recorded_as_they_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VEILREC_RUNS", str(tmp_path))
    data = "Synthetic-Ratings:users=150,items=200,seed=1"
    words = ("train", "FEDMF", "--data", data, "--preset", "Small", "--protocol", "LOO-99", "--rounds", "1")
    done = veilrec(*words, "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["method"], result["preset"], result["protocol"]) == ("fedmf", "small", "loo-99")
    assert result["out"] == str(tmp_path / "fedmf-synthetic-ratings-seed0")
    config = (tmp_path / "fedmf-synthetic-ratings-seed0" / "config.yaml").read_text()
    assert "method: fedmf\n" in config
    assert "data: synthetic-ratings:" in config
