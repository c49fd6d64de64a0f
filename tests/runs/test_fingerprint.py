"""Noise that was drawn for some data is never put on other data, nor used by a run that starts from another."""

import json
import os
import stat
from dataclasses import replace

import pytest

from tests.runs.test_noise import Stop
from veilrec.core.errors import BadInput
from veilrec.federation.client.folder import arrays_of, filled
from veilrec.runs.fingerprint import _of_data
from veilrec.runs.loop import Interrupted
from veilrec.runs.noise import kept_secret
from veilrec.runs.request import RunRequest, prepare
from veilrec.runs.training import train

ROWS = [f"u{user},i{(user + 2 * k) % 40:02},{1 + k % 5}" for user in range(40) for k in range(6)]


def written(path, rows):
    path.write_text("\n".join(["user,item,rating", *rows]))
    return f"csv:{path}"


def asked(data, **more):
    fixed = {"protocol": "loo-full", "settings": ("cohort.size=30",), "rounds": 4, "noise": "secure"}
    return RunRequest("dp-fedmf", data, **{**fixed, **more})


@pytest.fixture
def stopped(tmp_path):
    """A run with secure noise that was stopped in its second round, and its data."""
    data, out = tmp_path / "log.csv", tmp_path / "run"
    with pytest.raises(Interrupted):
        train(prepare(asked(written(data, ROWS))), out, listeners=(Stop(),))
    return data, out


def resume(data, out):
    return train(prepare(asked(f"csv:{data}"), secret=kept_secret(out)), out, resume=True)


@pytest.mark.parametrize("row", ["u7,i01,1", "u7,i07,2"], ids=["another item", "another rating"])
def test_a_run_does_not_go_on_with_its_noise_on_other_data(stopped, row):
    """Same users, items and rows, but for one of one person: the two models would differ by that alone."""
    data, out = stopped
    assert ROWS[42] == "u7,i07,1"
    written(data, [*ROWS[:42], row, *ROWS[43:]])
    with pytest.raises(BadInput, match="its data, or how they are read, have changed since it began"):
        resume(data, out)
    written(data, ROWS)
    assert resume(data, out)["rounds"] == 4


def test_the_fingerprint_is_private_keyed_and_in_nothing_that_is_shared(stopped, tmp_path):
    data, out = stopped
    path = out / "private" / "fingerprint.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    content = json.loads(path.read_text())
    train(prepare(asked(f"csv:{data}"), secret=kept_secret(out)), tmp_path / "twin")
    twin = json.loads((tmp_path / "twin" / "private" / "fingerprint.json").read_text())
    assert not {*content.values()} & {*twin.values()}  # of the same data and secret
    resume(data, out)
    for file in (file for file in out.rglob("*") if file.is_file() and file != path):
        assert not any(value.encode() in file.read_bytes() for value in content.values()), file
    path.write_text(json.dumps(twin | {"secret": content["secret"]}))
    with pytest.raises(BadInput, match="with another secret than its own"):
        resume(data, out)
    path.write_text("{}")
    with pytest.raises(BadInput, match="is damaged"):
        resume(data, out)


@pytest.mark.parametrize(
    ("method", "data"),
    [
        ("dpals-features", "synthetic-ratings:users=80,items=150,mean_history=8"),
        ("veil", "synthetic-news:users=60,news=200,days=3"),
    ],
)
def test_every_array_that_training_reads_is_in_the_fingerprint(method, data):
    prepared = prepare(RunRequest(method, data, rounds=1))
    changed = [replace(prepared, secret=os.urandom(32))]
    for part in ("population", "split", "problem"):
        whole = getattr(prepared, part)
        arrays = arrays_of(whole)
        for name, array in arrays.items():
            if array.size:
                moved = array.copy()
                moved.reshape(-1)[-1] = ~moved.reshape(-1)[-1] if array.dtype.kind == "b" else moved.reshape(-1)[-1] + 1
                changed.append(replace(prepared, **{part: filled(whole, {**arrays, name: moved})}))
    people, of_items = prepared.population.users, prepared.population.items
    others = {"users": of_items, "items": people, "catalogue": None, "features": None, "impressions": {}}
    whole = prepared.population
    others = {name: other for name, other in others.items() if getattr(whole, name) not in (None, {})}
    changed += [replace(prepared, population=replace(whole, **{name: other})) for name, other in others.items()]
    prints = [_of_data(one, bytes(32)) for one in (prepared, replace(prepared), *changed)]
    assert prints[0] == prints[1]
    assert len(changed) > 8
    assert len({*prints}) == len(changed) + 1


def test_a_run_that_starts_from_another_never_draws_from_its_secret(stopped, tmp_path):
    data, out = stopped
    resume(data, out)
    request = asked(f"csv:{data}", start_from=out)
    with pytest.raises(BadInput, match="cannot draw its noise from the same secret"):
        prepare(request, secret=kept_secret(out))
    train(prepare(request), tmp_path / "next")
    train(prepare(replace(request, start_from=tmp_path / "next")), tmp_path / "third")
    assert len({kept_secret(folder) for folder in (out, tmp_path / "next", tmp_path / "third")}) == 3
