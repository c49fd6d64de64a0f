"""`veilrec train`, `evaluate`, `recommend`, as a user runs them: real processes where they are killed."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest
import yaml

from tests.cli.running import refused, says, shown, told, veilrec

DATA = "synthetic-ratings:users=300,items=400,seed=3"
PROGRAM = [sys.executable, "-c", "from veilrec.cli.main import run; run()"]


def words(out, *more, rounds=12):
    """A training, as it is typed."""
    small = ("--set", "cohort.size=40", "--seed", "1", "--rounds", str(rounds), "--out", str(out))
    return ["train", "fedmf", "--data", DATA, *small, *more]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "run"
    assert told(*words(out))["out"] == str(out)
    return out


def test_result_says_everything_and_evaluate_gives_it_again(finished, tmp_path):
    result = json.loads((finished / "result.json").read_text())
    assert {"method", "dataset", "seed", "seconds", "clients_per_second", "peak_rss_mb"} <= set(result)
    assert {"hr@10", "ndcg@10"} <= set(result["metrics"])
    assert set(result["baselines"]) == {"popularity", "random"}
    assert {"down_bytes", "up_bytes", "up_params"} <= set(result["communication"])
    # The paper counts item vectors one way; every client gets every item.
    numbers = result["communication"]
    assert numbers["paper_params"] == numbers["down_params"] == 400 * 32 * 40 * 12
    assert (result["guarantee"]["basis"], result["rounds"]) == ("none", 12)
    config = yaml.safe_load((finished / "config.yaml").read_text())
    assert config["method"] == "fedmf"
    assert told("evaluate", finished)["metrics"] == result["metrics"]
    copy = shutil.copytree(finished, tmp_path / "run")
    config["config"]["local"]["dim"] = 7  # as if a preset had changed: the model brings its own
    (copy / "config.yaml").write_text(yaml.safe_dump(config))
    assert told("evaluate", copy)["metrics"] == result["metrics"]


def test_what_does_not_fit_a_run_is_refused(finished, tmp_path):
    for line, complaint in (
        (["evaluate", finished, "--protocol", "ratio-8-2"], "train again with --protocol ratio-8-2"),
        (["recommend", finished, "--user", "nobody"], "no user 'nobody'"),
        (["recommend", finished], "either --user"),
        (words(finished), "--resume"),
        (words(finished, "--resume", "--set", "local.epochs=2"), "cannot resume"),
    ):
        assert complaint in refused(*line)
    copy = shutil.copytree(finished, tmp_path / "run")
    whole = (copy / "config.yaml").read_text()
    (copy / "config.yaml").write_text(whole[: whole.index("seed")])
    assert "is not whole: it says nothing of seed" in refused("evaluate", copy)


def test_bad_input_is_one_clear_line_and_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "did you mean fedmf" in refused("train", "fedmff")
    assert "unknown data set" in refused("train", "fedmf", "--data", "ml-10m")
    for options, complaint in (
        ("--set local.epocs=3", "local.epochs"),
        ("--set local.epochs=many", "local.epochs"),
        ("--set nonsense", "name=value"),
        ("--preset tunde", "tuned"),
        ("--rounds 0", "--rounds is 0"),
        ("--set local.epochs=99999999999999999999", "give at most 2,147,483,647"),
        ("--set cohort.drop_out=1", "cohort.drop_out is 1.0"),
        ("--set cohort.available=0", "cohort.available is 0.0"),
        ("--set adapt_epochs=-1", "setting adapt_epochs of fedmf is '-1'"),
        ("--protocol loo", "loo-99"),
        ("--set cohort.size=9999", "cohort.size is 9999"),
        ("--log mlfow", "unknown logger"),
        ("--resume", "--resume needs --out"),
    ):
        assert complaint in refused("train", "fedmf", "--data", DATA, *options.split())
        assert list(tmp_path.iterdir()) == [], options


def test_a_small_log_trains_with_everybody_and_says_so(tmp_path):
    rows = [f"u{user},i{(3 * user + k) % 30}" for user in range(40) for k in range(5)]
    (tmp_path / "log.csv").write_text("\n".join(["user,item", *rows]))
    options = ("--data", f"CSV:{tmp_path / 'log.csv'}", "--protocol", "LOO-full", "--preset", "Small", "--rounds", "1")
    done = veilrec("train", "FedMF", *options, "--out", tmp_path / "run")
    assert done.code == 0, done.err
    config = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert [config[name] for name in ("method", "preset", "protocol")] == ["fedmf", "small", "loo-full"]
    assert done.err.startswith("fedmf: every round has all 40 clients instead of the usual 100")
    says(" ".join(done.out.split()), "1 round, down", "clients/s (compilation included)")


def test_brackets_of_ids_stay(tmp_path):
    rows = [f"[u{user}],[bold]{(user + k) % 9}[/bold]" for user in range(6) for k in range(4)]
    (tmp_path / "log.csv").write_text("\n".join(["user,item", *rows]))
    options = ("--data", f"csv:{tmp_path / 'log.csv'}", "--protocol", "loo-full", "--out", tmp_path / "run")
    shown("train", "popularity", *options)
    says(shown("recommend", tmp_path / "run", "--user", "[u1]", "-k", "1"), "For user [u1]", "[bold]")


def test_a_run_can_be_made_longer(tmp_path):
    often = ("--evaluate-every", "4")
    told(*words(tmp_path / "longer", *often, rounds=8))
    longer = told(*words(tmp_path / "longer", *often, "--resume", rounds=16))
    straight = told(*words(tmp_path / "straight", *often, rounds=16))
    assert longer["weights_sha256"] == straight["weights_sha256"]
    assert longer["communication"] == straight["communication"]


def wait_for(path, process, pattern):
    deadline = time.monotonic() + 120
    while not list(path.glob(pattern)):
        assert process.poll() is None, "the run ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_killed_and_resumed_gives_the_same_weights_bit_for_bit(tmp_path):
    straight = told(*words(tmp_path / "straight", rounds=150))
    out = tmp_path / "killed"
    arguments = words(out, "--checkpoint-every", "7", rounds=150)
    for number in (7, 35):
        resume = ["--resume"] if out.exists() else []
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        process = subprocess.Popen([*PROGRAM, *arguments, *resume], **quiet)
        wait_for(out, process, f"checkpoints/round-*{number:02d}.safetensors")
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        assert not (out / "result.json").exists()
    assert told(*arguments, "--resume")["weights_sha256"] == straight["weights_sha256"]


def test_ctrl_c_says_how_to_go_on(tmp_path):
    out = tmp_path / "run"
    command = [*PROGRAM, *words(out, "--checkpoint-every", "5", rounds=100_000)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_for(out, process, "checkpoints/round-*.safetensors")
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "--resume" in said
    assert "Traceback" not in said
