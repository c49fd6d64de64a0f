"""`veilrec release` and `veilrec query` as they are typed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from veilrec.cli.main import app
from veilrec.core.errors import BadInput
from veilrec.runs.request import RunRequest, prepare
from veilrec.runs.training import train

RATINGS = "synthetic-ratings:users=80,items=60,mean_history=8,seed=3"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    train(prepare(RunRequest("private-popularity", RATINGS, seed=1, protocol="loo-full", noise="secure")), folder)
    return folder


def typed(*words: str | Path) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)


def test_a_run_is_released_checked_and_asked(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "films"
    made = json.loads(typed("release", run, "--out", out, "--json").stdout)
    assert made["protected"] is True
    assert (tmp_path / "films.key").stat().st_mode & 0o777 == 0o600
    checked = json.loads(typed("release", "verify", out, "--key", tmp_path / "films.key.pub", "--json").stdout)
    assert checked == made
    assert "yes" in typed("release", "verify", out).stdout
    answer = json.loads(typed("query", out, "-k", "3", "--json").stdout)
    assert (answer["mode"], answer["sent_bytes"], len(answer["items"])) == ("none-sent", 0, 3)
    read = ",".join(item["id"] for item in answer["items"])
    after = json.loads(typed("query", out, "-k", "3", "--history", read, "--json").stdout)
    assert not {item["id"] for item in after["items"]} & set(read.split(","))


def test_the_second_release_is_version_2_and_follows_the_first(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "films"
    typed("release", run, "--out", out)
    (tmp_path / "first").mkdir()
    for path in out.rglob("*"):
        if path.is_file():
            copy = tmp_path / "first" / path.relative_to(out)
            copy.parent.mkdir(exist_ok=True)
            copy.write_bytes(path.read_bytes())
    assert json.loads(typed("release", "make", run, "--out", out, "--json").stdout)["version"] == 2
    assert json.loads(typed("release", "verify", out, "--after", tmp_path / "first", "--json").stdout)["version"] == 2
    with pytest.raises(BadInput, match="never goes back"):
        typed("release", "verify", tmp_path / "first", "--after", out)


def test_keys_are_made_and_hand_over(run: Path, tmp_path: Path) -> None:
    old, new, out = tmp_path / "old.key", tmp_path / "new.key", tmp_path / "films"
    typed("release", "keygen", old)
    made = json.loads(typed("release", "keygen", new, "--rotates", old, "--json").stdout)
    typed("release", run, "--out", out, "--key", old)
    typed("release", run, "--out", out, "--key", new, "--rotation", made["rotation"])
    checked = json.loads(typed("release", "verify", out, "--key", f"{old}.pub", "--json").stdout)
    assert checked["key"] == made["key"]
    (tmp_path / "odd").write_text("[]")
    with pytest.raises(BadInput, match="rotation"):
        typed("release", run, "--out", out, "--key", new, "--rotation", tmp_path / "odd")


def test_a_release_whose_noise_is_seeded_promises_nothing_and_says_so_first(tmp_path: Path) -> None:
    train(prepare(RunRequest("private-popularity", RATINGS, seed=1, protocol="loo-full")), tmp_path / "run")
    made = json.loads(typed("release", tmp_path / "run", "--out", tmp_path / "out", "--unprotected", "--json").stdout)
    assert made["guarantee"].startswith("nothing as it lies here (whoever knows the seed can draw the noise again")
    assert "with secure noise it would be (" in made["guarantee"]
    assert "nothing as it lies here" in (tmp_path / "out" / "model-card.md").read_text()
    for folder in ("run", "out"):
        shown = json.loads(typed("privacy", "show", tmp_path / folder, "--json").stdout)
        assert shown["plain"].startswith("As it lies here this protects nobody: whoever knows the seed can draw")
        assert "there would be: (" in shown["summary"]


def test_what_is_not_publishable_is_refused_before_a_key_is_made(tmp_path: Path) -> None:
    train(prepare(RunRequest("popularity", RATINGS, seed=1, protocol="loo-full")), tmp_path / "run")
    with pytest.raises(BadInput, match="--unprotected"):
        typed("release", tmp_path / "run", "--out", tmp_path / "out")
    assert not (tmp_path / "out.key").exists()
    done = typed("release", tmp_path / "run", "--out", tmp_path / "out", "--unprotected")
    assert "NO" in done.stdout
    assert "UNPROTECTED" in typed("query", tmp_path / "out").stderr


def test_a_history_is_a_file_or_ids_and_unknown_ones_are_said(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "films"
    typed("release", run, "--out", out)
    ids = [item["id"] for item in json.loads(typed("query", out, "--json").stdout)["items"]]
    (tmp_path / "read.txt").write_text(f"{ids[0]}\n\n{ids[1]}\nnobody-knows\n")
    done = typed("query", out, "--history", tmp_path / "read.txt", "--json")
    assert "nobody-knows" in done.stderr
    assert not {ids[0], ids[1]} & {item["id"] for item in json.loads(done.stdout)["items"]}


def test_a_device_keeps_its_history_and_can_forget_it(run: Path, tmp_path: Path) -> None:
    out, me = tmp_path / "films", tmp_path / "me"
    typed("release", run, "--out", out)
    first = [item["id"] for item in json.loads(typed("query", out, "--json").stdout)["items"]]
    typed("query", out, "--state", me, "--history", first[0], "--budget", "2")
    second = [item["id"] for item in json.loads(typed("query", out, "--state", me, "--json").stdout)["items"]]
    assert first[0] not in second
    third = [
        item["id"] for item in json.loads(typed("query", out, "--state", me, "--forget", "--json").stdout)["items"]
    ]
    assert third == first


def test_folders_that_are_no_release_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no release"):
        typed("query", tmp_path)
    with pytest.raises(BadInput, match="no run"):
        typed("release", tmp_path / "none", "--out", tmp_path / "out")


def test_the_statement_of_a_release_is_that_of_its_run(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "films"
    typed("release", run, "--out", out)
    ours, theirs = (json.loads(typed("privacy", "show", place, "--json").stdout) for place in (out, run))
    assert ours["summary"] == theirs["summary"]
    assert ours["publishable"] is True
    typed("privacy", "show", out, "--html", tmp_path / "privacy.html")
    assert "private-popularity" in (tmp_path / "privacy.html").read_text()
    assert ours["guarantee"]["epsilon"] == theirs["guarantee"]["epsilon"]
