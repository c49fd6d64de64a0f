"""Noise from a secret: kept, used again, and needed before anything may be published."""

from __future__ import annotations

import json
import os
import stat
from dataclasses import replace

import pytest

from veilrec.core.errors import BadInput
from veilrec.privacy.guarantee import Guarantee, no_guarantee
from veilrec.runs.loop import Interrupted
from veilrec.runs.noise import kept_secret, obstacle, stated
from veilrec.runs.request import RunRequest, prepare
from veilrec.runs.saved import open_model
from veilrec.runs.training import train

DATA = "synthetic-ratings:users=80,items=60,mean_history=8,seed=3"
SECURE = RunRequest("dp-fedmf", DATA, protocol="loo-full", settings=("cohort.size=30",), rounds=4, noise="secure")


class Stop:
    """Somebody who presses Ctrl-C in the second round."""

    def on_round(self, progress, report) -> None:
        if progress.rounds_done == 2:
            os.kill(os.getpid(), 2)

    def on_metrics(self, progress, metrics) -> None:
        pass


def test_a_secret_is_kept_for_its_owner_alone_and_decides_the_run(tmp_path):
    first, second = train(prepare(SECURE), tmp_path / "first"), train(prepare(SECURE), tmp_path / "second")
    assert first["weights_sha256"] != second["weights_sha256"]
    path = tmp_path / "first" / "private" / "secret.key"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    secret = kept_secret(tmp_path / "first")
    assert len(secret) == 32
    again = train(prepare(SECURE, secret=secret), tmp_path / "again")
    assert again["weights_sha256"] == first["weights_sha256"]


def test_a_run_that_was_stopped_goes_on_with_its_own_noise(tmp_path):
    out = tmp_path / "run"
    with pytest.raises(Interrupted):
        train(prepare(SECURE), out, listeners=(Stop(),))
    secret = kept_secret(out)
    straight = train(prepare(SECURE, secret=secret), tmp_path / "straight")
    with pytest.raises(BadInput, match="another secret"):
        train(prepare(SECURE), out, resume=True)
    with pytest.raises(BadInput, match="its noise is 'secure', now asked for 'seeded'"):
        train(prepare(replace(SECURE, noise="seeded")), out, resume=True)
    assert train(prepare(SECURE, secret=secret), out, resume=True)["weights_sha256"] == straight["weights_sha256"]


def test_a_lost_or_damaged_secret_is_refused(tmp_path):
    train(prepare(SECURE), tmp_path / "run")
    path = tmp_path / "run" / "private" / "secret.key"
    path.write_bytes(b"short")
    with pytest.raises(BadInput, match="5 bytes instead of 32"):
        kept_secret(tmp_path / "run")
    path.unlink()
    with pytest.raises(BadInput, match="secret.key cannot be read"):
        kept_secret(tmp_path / "run")


def test_only_proven_runs_with_secure_noise_may_be_published(tmp_path):
    secure = train(prepare(SECURE), tmp_path / "secure")
    seeded = train(prepare(replace(SECURE, noise="seeded")), tmp_path / "seeded")
    assert (secure["publishable"], seeded["publishable"]) == (True, False)
    words = open_model(tmp_path / "seeded").guarantee.caveats[-1]
    assert words == (
        "Not to be published: whoever knows the seed can draw the noise again and take it off;"
        " train with --noise secure."
    )
    assert not any("protects nobody" in words for words in open_model(tmp_path / "secure").guarantee.caveats)
    published = replace(
        SECURE, preset="paper", settings=("cohort.size=30", "calibration=as-published"), rounds=1, noise="secure"
    )
    result = train(prepare(published), tmp_path / "published")
    assert not result["publishable"]
    assert any("a paper's claim" in words for words in result["guarantee"]["caveats"])
    assert obstacle(no_guarantee(), "secure") is not None
    assert not (tmp_path / "seeded" / "private" / "secret.key").exists()


@pytest.mark.parametrize("method", ["mf", "popularity", "ease"])
def test_methods_that_add_no_noise_have_no_secret(method):
    with pytest.raises(BadInput, match=f"--noise secure is for methods that add noise, and {method} "):
        prepare(RunRequest(method, DATA, noise="secure"))


def test_the_secret_is_in_no_file_but_its_own(tmp_path):
    prepared = prepare(SECURE)
    train(prepared, tmp_path / "run")
    assert repr(prepared.secret) not in repr(prepared)
    holding = [
        path.name for path in (tmp_path / "run").rglob("*") if path.is_file() and prepared.secret in path.read_bytes()
    ]
    assert holding == ["secret.key"]
    assert prepared.secret.hex() not in json.dumps(prepared.description())


@pytest.mark.parametrize(
    ("trust", "by_coordinator"),
    [("server", True), ("server sees only sums", True), ("server sees only noisy sums", False)],
)
def test_who_draws_the_noise_of_a_sum_is_said_of_real_devices(trust, by_coordinator):
    promise = Guarantee("proven", "user", "add-remove", 1.0, 1e-6, "whole run", trust)
    words = stated(promise, "secure", None, "devices").caveats[-1]
    assert ("is drawn by the coordinator" in words) == by_coordinator
    assert ("the coordinator adds none" in words) != by_coordinator
