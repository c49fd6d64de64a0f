"""`veilrec recommend` with the data gone, `--all`, and `--noise secure`, as a user runs them."""

from __future__ import annotations

import io
import json
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from veilrec.cli import main


def veilrec(*arguments: str) -> tuple[int, str, str]:
    """The program from its entry point on: its exit code, and what it says on either channel."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    with redirect_stdout(out), redirect_stderr(err), pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["veilrec", *arguments])
        try:
            main.run()
        except SystemExit as leaving:
            code = leaving.code if isinstance(leaving.code, int) else 1
    return code, out.getvalue(), err.getvalue()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose data is gone."""
    folder = tmp_path_factory.mktemp("gone")
    log = folder / "log.csv"
    log.write_text("\n".join(["user,item", *(f"u{u},i{(3 * u + k) % 30}" for u in range(60) for k in range(5))]))
    options = ("--data", f"csv:{log}", "--protocol", "loo-full", "--rounds", "2", "--set", "cohort.size=30")
    code, _, words = veilrec("train", "dp-fedmf", *options, "--noise", "secure", "--out", str(folder / "run"))
    assert code == 0, words
    log.unlink()
    return folder / "run"


def test_recommends_without_any_data(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("veilrec.data.datasets.load", None)
    known = json.loads(veilrec("recommend", str(run), "--user", "u1", "-k", "4", "--json")[1])
    assert known["user"] == "u1"
    items = [entry["item"] for entry in known["recommendations"]]
    assert len(set(items) - {f"i{(3 + k) % 30}" for k in range(5)}) == 4
    new = json.loads(veilrec("recommend", str(run / "model"), "--history", "i3,i4", "-k", "4", "--json")[1])
    assert new["user"] is None
    assert len(new["recommendations"]) == 4


def test_one_user_at_a_time(run: Path) -> None:
    code, _, words = veilrec("recommend", str(run), "--user", "u1", "--user", "u2")
    assert (code, words.count("\n")) == (2, 1)
    assert "--user is given 2 times" in words


def test_a_grown_log_is_told_how_to_be_learnt_from(run: Path, tmp_path: Path) -> None:
    grown = tmp_path / "grown.csv"
    grown.write_text("\n".join(["user,item", *(f"u{u},i{(3 * u + k) % 40}" for u in range(60) for k in range(6))]))
    code, _, words = veilrec("evaluate", str(run), "--data", f"csv:{grown}")
    assert code == 2
    assert f"veilrec train dp-fedmf --data csv:{grown} --protocol loo-full --from {run}" in words


def test_evaluating_needs_the_data(run: Path) -> None:
    code, _, words = veilrec("evaluate", str(run))
    assert code == 2
    assert "log.csv" in words


def test_all_users_go_into_a_file(run: Path, tmp_path: Path) -> None:
    code, said, _ = veilrec("recommend", str(run), "--all", "--out", str(tmp_path / "best.csv"), "-k", "3")
    assert (code, said) == (0, f"180 rows in {tmp_path / 'best.csv'}\n")
    rows = (tmp_path / "best.csv").read_text().splitlines()
    assert rows[0] == "user,rank,item,score"
    assert len(rows) == 181
    code, said, _ = veilrec("recommend", str(run), "--all", "--out", str(tmp_path / "best.jsonl"), "--json")
    assert json.loads(said) == {"out": str(tmp_path / "best.jsonl"), "rows": 600}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "give either --user"),
        (["--user", "u1", "--history", "i1"], "give either --user"),
        (["--user", "u1", "--all", "--out", "best.csv"], "give either --user"),
        (["--all"], "--all and --out FILE go together"),
        (["--user", "u1", "--out", "best.csv"], "--all and --out FILE go together"),
        (["--all", "--out", "best.xlsx"], "give a name with .csv, .parquet, .jsonl"),
        (["--all", "--out", "/proc/nowhere/best.csv"], "cannot be"),
        (["--user", "u99"], "no user 'u99'"),
        (["--user", "U1"], "did you mean u1?"),
        (["--history", '"i1'], "cannot be split"),
        (["--history", "i1", "--history-file", "x"], "give either --user"),
        (["--history-file", "/nowhere"], "cannot be read"),
    ],
)
def test_what_cannot_be_done_is_one_line(run: Path, arguments: list[str], words: str) -> None:
    code, said, wrong = veilrec("recommend", str(run), *arguments)
    assert (code, said) == (2, "")
    assert words in wrong
    assert len(wrong.strip().splitlines()) == 1


def test_unknown_items_are_named_and_the_rest_is_used(run: Path, tmp_path: Path) -> None:
    known = json.loads(veilrec("recommend", str(run), "--history", "i3,i4", "--json")[1])
    code, said, words = veilrec("recommend", str(run), "--history", ' i3,"a, b"', "--history", "i4,x", "--json")
    assert code == 0
    assert words == "2 items that the model does not know: 'a, b', 'x'; the other 2 are used\n"
    assert json.loads(said) == known | {"unknown_items": ["a, b", "x"]}
    (tmp_path / "ids.txt").write_text("i3\na, b\n\ni4\n")
    _, said, _ = veilrec("recommend", str(run), "--history-file", str(tmp_path / "ids.txt"), "--json")
    assert json.loads(said) == known | {"unknown_items": ["a, b"]}


def test_somebody_without_a_history_gets_a_list(run: Path) -> None:
    code, said, words = veilrec("recommend", str(run), "--history", "", "-k", "3", "--json")
    assert code == 0
    assert len(json.loads(said)["recommendations"]) == 3
    assert "without a history the list is what the method gives to somebody new" in words
    code, again, words = veilrec("recommend", str(run), "--history", "x", "-k", "3", "--json")
    assert json.loads(again)["recommendations"] == json.loads(said)["recommendations"]
    assert "1 item that the model does not know: 'x'; none is left, as in an empty history" in words


def test_blanks_around_ids_are_nothing(run: Path) -> None:
    plain = json.loads(veilrec("recommend", str(run), "--user", "u1", "--json")[1])
    assert json.loads(veilrec("recommend", str(run), "--user", " u1 ", "--json")[1]) == plain | {"user": " u1 "}


def test_a_run_says_whether_it_may_be_published(run: Path, tmp_path: Path) -> None:
    shown = veilrec("privacy", "show", str(run))[1]
    assert "The folder model/ of the run, and nothing else of it" in shown
    assert json.loads(veilrec("privacy", "show", str(run), "--json")[1])["publishable"] is True
    options = ("--data", "synthetic-ratings:users=60,items=150,seed=3", "--rounds", "1", "--out", str(tmp_path / "run"))
    said = " ".join(veilrec("train", "dp-fedmf", *options, "--set", "cohort.size=30")[1].split())
    assert "Not to be published: whoever knows the seed can draw the noise again" in said
    assert "May be published" not in said
    shown = " ".join(veilrec("privacy", "show", str(tmp_path / "run"))[1].split())
    assert "Nothing of this run: whoever knows the seed can draw the noise again" in shown
    again = veilrec("train", "dp-fedmf", *options, "--set", "cohort.size=30", "--noise", "secure", "--resume")
    assert (again[0], "its noise is 'seeded'" in again[2]) == (2, True)


def test_a_secure_run_goes_on_from_the_command_line(tmp_path: Path) -> None:
    options = ("--data", "synthetic-ratings:users=60,items=150,seed=3", "--rounds", "3", "--set", "cohort.size=30")
    out = ("--noise", "secure", "--out", str(tmp_path / "run"), "--json")
    first = json.loads(veilrec("train", "dp-fedmf", *options, *out)[1])
    (tmp_path / "run" / "result.json").unlink()
    again = json.loads(veilrec("train", "dp-fedmf", *options, *out, "--resume")[1])
    assert again["weights_sha256"] == first["weights_sha256"]
    assert again["publishable"] is True
