"""Noise from a secret: kept, used again, and needed before anything may be published."""

import json
import os
import re
import stat
from dataclasses import replace

import numpy as np
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
    """Ctrl-C in the second round."""

    def on_round(self, progress, report):
        if progress.rounds_done == 2:
            os.kill(os.getpid(), 2)

    def on_metrics(self, progress, metrics):
        pass


@pytest.fixture(scope="module")
def secure(tmp_path_factory):
    """A finished run with secure noise."""
    out = tmp_path_factory.mktemp("secure") / "run"
    train(prepare(SECURE), out)
    return out


def result_of(out):
    return json.loads((out / "result.json").read_text())


def test_a_secret_is_kept_for_its_owner_alone_and_decides_the_run(secure, tmp_path):
    prepared = prepare(SECURE)
    assert train(prepared, tmp_path / "other")["weights_sha256"] != result_of(secure)["weights_sha256"]
    path = secure / "private" / "secret.key"
    assert [stat.S_IMODE(of.stat().st_mode) for of in (path, path.parent)] == [0o600, 0o700]
    secret = kept_secret(secure)
    assert len(secret) == 32
    again = train(prepare(SECURE, secret=secret), tmp_path / "again")
    assert again["weights_sha256"] == result_of(secure)["weights_sha256"]
    # and it is in no file but its own
    assert repr(prepared.secret) not in repr(prepared)
    assert prepared.secret.hex() not in json.dumps(prepared.description())
    files = [path for path in (tmp_path / "other").rglob("*") if path.is_file()]
    assert [path.name for path in files if prepared.secret in path.read_bytes()] == ["secret.key"]


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
    path = out / "private" / "secret.key"
    path.write_bytes(b"short")
    with pytest.raises(BadInput, match="it has 5 bytes, a key has 32"):
        kept_secret(out)
    path.write_bytes(bytes(32))
    with pytest.raises(BadInput, match="nothing but zeros"):
        kept_secret(out)
    path.unlink()
    with pytest.raises(BadInput, match="secret.key cannot be read"):
        kept_secret(out)


OUTSIDE = """
from dataclasses import replace
from veilrec.methods.registry import get
METHOD = replace(get("dp-fedmf"), name="outside", rounds_are_fixed=False)
"""


def test_a_proven_run_gets_no_rounds_that_its_noise_was_not_chosen_for(tmp_path):
    (tmp_path / "outside.py").write_text(OUTSIDE)
    two = replace(SECURE, method=str(tmp_path / "outside.py"), rounds=2)
    train(prepare(two), tmp_path / "run")
    longer = prepare(replace(two, rounds=4), secret=kept_secret(tmp_path / "run"))
    with pytest.raises(BadInput, match="cannot resume .* its rounds is 2, now asked for 4"):
        train(longer, tmp_path / "run", resume=True)


def test_only_proven_runs_with_secure_noise_may_be_published(secure, tmp_path):
    seeded = train(prepare(replace(SECURE, noise="seeded")), tmp_path / "seeded")
    assert (result_of(secure)["publishable"], seeded["publishable"]) == (True, False)
    stated = open_model(tmp_path / "seeded").guarantee
    assert re.match(
        "Not to be published: whoever knows the seed can .* train with --noise secure", stated.remarks()[-1]
    )
    assert stated.promise().startswith("no guarantee as it is; without what stands in its way it would be (")
    assert "simulated" in stated.disclosure.simulated and stated.disclosure.fields == ("items",)
    assert not (tmp_path / "seeded" / "private" / "secret.key").exists()
    assert open_model(secure).guarantee.promise() == open_model(secure).guarantee.line()
    assert not any("Not to be published" in words for words in open_model(secure).guarantee.remarks())
    settings = ("cohort.size=30", "calibration=as-published")
    result = train(prepare(replace(SECURE, preset="paper", settings=settings, rounds=1)), tmp_path / "published")
    assert not result["publishable"]
    assert "a paper's claim" in result["guarantee"]["obstacle"]
    assert obstacle(no_guarantee(), "secure") is not None


def test_methods_without_noise_have_no_secret_and_who_draws_the_noise_is_said():
    for method in ("mf", "popularity", "ease"):
        with pytest.raises(BadInput, match=f"--noise secure is for methods that add noise, and {method} "):
            prepare(RunRequest(method, DATA, noise="secure"))
    for trust, by_coordinator in (
        ("server", True),
        ("server sees only sums", True),
        ("server sees only noisy sums", False),
    ):
        promise = Guarantee("proven", "user", "add-remove", 1.0, 1e-6, "whole run", trust)
        words = stated(promise, "secure", None, "clients").caveats[-1]
        assert ("is drawn by the coordinator" in words) == by_coordinator
        assert ("the coordinator adds none" in words) != by_coordinator


def test_a_run_that_goes_on_counts_nominal_people_as_before(tmp_path):
    """Which items a sub-model has depends on how many reported; the exact number is nobody's to know."""
    wanted = replace(SECURE, method="priv-fedmf-sub", settings=("selection.threshold=0.02",), people=300)
    runs = [prepare(wanted, secret=bytes(range(32))).trainer for _ in range(2)]
    for number in range(3):
        runs[0].step(number)
        if number == 0:
            runs[1].load_state({name: values.copy() for name, values in runs[0].state().items()}, 1)
        else:
            runs[1].step(number)
    assert all(np.array_equal(values, runs[1].state()[name]) for name, values in runs[0].state().items())
