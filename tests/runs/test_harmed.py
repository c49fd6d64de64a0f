"""Every file of a run, emptied, torn, zeroed, removed or put back: one line or the same model; and who reads what."""

import os
import shutil
import stat

import numpy as np
import pytest

from tests.harm import harmed, refused
from tests.runs.test_noise import SECURE, Stop
from veilrec.runs.checkpoint import read_result
from veilrec.runs.export import write_everybody
from veilrec.runs.loop import Interrupted
from veilrec.runs.noise import kept_secret
from veilrec.runs.request import prepare
from veilrec.runs.saved import open_model
from veilrec.runs.training import train

PUBLIC = {"config.yaml", "result.json", "metrics.jsonl", "model"}
"""What a run folder shows: settings, metrics, and what may be shared. All else is of people."""


@pytest.fixture
def stopped(tmp_path):
    """A run with secure noise that was stopped in its second round; beside it, as it began."""
    out, older = tmp_path / "run", tmp_path / "older"
    before = os.umask(0o022)
    with pytest.raises(Interrupted):
        train(prepare(SECURE), out, listeners=(Stop(),))
    os.umask(before)
    shutil.copytree(out, older)
    return out, older


def go_on(work):
    return train(prepare(SECURE, secret=kept_secret(work)), work, resume=True)["weights_sha256"]


def test_a_run_that_was_stopped_goes_on_to_the_same_model_or_not_at_all(stopped, tmp_path):
    out, older = stopped
    wanted = go_on(shutil.copytree(out, tmp_path / "whole"))
    (older / "private" / "secret.key").write_bytes(os.urandom(32))  # put back: that of another run
    lines = {}
    for name, harm, work in harmed(out, older, tmp_path / "work"):
        line, digest = refused(lambda work=work: go_on(work))
        assert line is not None or digest == wanted, (name, harm)
        lines[name, harm] = line
    noticed = {name for name, line in lines if lines[name, line] is not None}
    assert noticed >= {"config.yaml", "private/secret.key", "private/fingerprint.json"}
    checkpoint = next(name for name, _ in lines if name.startswith("checkpoints/"))
    assert all(lines[checkpoint, harm] for harm in ("emptied", "torn", "zeroed"))  # without one it begins again


def test_one_bit_of_a_checkpoint_is_noticed(stopped):
    out, _ = stopped
    (path,) = (out / "checkpoints").iterdir()
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    line, _ = refused(lambda: go_on(out))
    assert "another checksum" in line


def test_a_finished_run_answers_as_before_or_says_what_is_wrong(stopped, tmp_path):
    out, older = stopped
    go_on(out)

    def ask(folder):
        model = open_model(folder)
        lists = model.recommend_user(model.clients.users[3]), model.recommend(list(model.items)[:2])
        return lists, read_result(folder)["weights_sha256"], model.guarantee

    wanted = ask(out)
    for name, harm, work in harmed(out, older, tmp_path / "work"):
        line, answer = refused(lambda work=work: ask(work))
        assert line is not None or answer == wanted, (name, harm)


def test_only_the_owner_can_read_what_a_run_has_of_people(stopped, tmp_path):
    out, _ = stopped
    before = os.umask(0o022)
    go_on(out)
    write_everybody(open_model(out), tmp_path / "best.csv", 3)
    os.umask(before)
    of_people = [path for path in out.rglob("*") if path.relative_to(out).parts[0] not in PUBLIC]
    assert {"checkpoints", "private"} <= {path.name for path in of_people}
    for path in (*of_people, tmp_path / "best.csv"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path
    vectors = open_model(out).clients.states
    (users,) = (values for values in vectors.values() if values.ndim == 2)
    one = np.ascontiguousarray(users[3]).tobytes()
    readable = [path for path in out.rglob("*") if path.is_file() and path.stat().st_mode & 0o044]
    assert readable and not any(one in path.read_bytes() for path in readable)
