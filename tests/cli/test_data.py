"""`veilrec data`: what it prints for people and for programs, and that bad input leaves nothing behind."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from veilrec.cli.data import app
from veilrec.core.errors import BadInput
from veilrec.data import packed
from veilrec.data.datasets import DATASETS

LOG = "user,item,rating\nu,a,5\nu,b,4\nv,a,3\nv,a,3\n"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch) -> Path:
    """An empty working folder, an empty cache, no data."""
    monkeypatch.setenv("VEILREC_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("VEILREC_DATA", raising=False)
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    return work


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == 0, result.output
    return result.stdout


def run_json(*arguments: str) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(run(*arguments, "--json"))
    return value


def refused(*arguments: str) -> str:
    """The one line of a refusal; the main program prints it and exits 2."""
    result = CliRunner().invoke(app, list(arguments))
    assert isinstance(result.exception, BadInput), result.output
    assert result.stdout == ""
    assert "\n" not in str(result.exception)
    return str(result.exception)


def test_list_names_every_data_set(tmp_path, monkeypatch):
    (tmp_path / "data" / "ml-100k").mkdir(parents=True)
    (tmp_path / "data" / "ml-100k" / "u.data").write_text("1\t1\t1\t1\n")
    monkeypatch.setenv("VEILREC_DATA", str(tmp_path / "data"))
    rows = {row["name"]: row for row in run_json("list")["datasets"]}
    assert list(rows) == list(DATASETS)
    assert rows["ml-100k"]["found"] == str(tmp_path / "data" / "ml-100k")
    assert rows["ml-1m"]["found"] is None
    assert "grouplens" in rows["ml-1m"]["how_to_get"]
    text = run("list")
    assert all(name in text for name in DATASETS)


def test_check_counts_and_names_what_is_odd(elsewhere):
    (elsewhere / "log.csv").write_text(LOG)
    report = run_json("check", "csv:log.csv")
    assert (report["users"], report["items"], report["rows"]) == (2, 2, 3)
    assert report["facts"]["duplicates_merged"] == 1
    assert "1 row that repeated another exactly and was merged" in report["odd"]
    text = run("check", "csv:log.csv")
    assert "items per user" in text
    assert "what is odd" in text


def test_import_writes_a_packed_population(elsewhere):
    (elsewhere / "log.csv").write_text(LOG)
    (elsewhere / "more.csv").write_text("user,item,rating\nw,c,1\n")
    summary = run_json("import", "log.csv", "more.csv", "--out", "shop", "--name", "my shop")
    counts = {"users": 3, "items": 3, "rows": 4, "duplicates_merged": 1}
    nothing = {"blank_lines": 0, "ids_stripped": 0, "rows_left_out": 0, "left_out": {}}
    columns = {"columns_used": "", "columns_ignored": ""}
    assert summary == {"folder": "shop", "name": "my shop", **counts, **nothing, **columns, "features": {}}
    assert packed.load(elsewhere / "shop").name == "my shop"
    assert run_json("check", "csv:shop")["users"] == 3
    assert "use it as --data csv:other" in run("import", "log.csv", "--out", "other")


def test_import_takes_features(elsewhere):
    (elsewhere / "log.csv").write_text("user,item,mood\nu,a,good\nu,b,good\nv,a,bad\n")
    (elsewhere / "f.yaml").write_text("users: {features: {mood: {kind: category}}}")
    summary = run_json("import", "log.csv", "--features", "f.yaml", "--out", "shop")
    assert summary["features"] == {"users": ["mood"], "items": []}
    assert "users: mood" in run("check", "csv:shop")
    assert "category, 2 values, 0.0% unknown" in run("check", "csv:shop")
    assert run_json("import", "log.csv", "--out", "plain")["features"] == {}
    (elsewhere / "f.yaml").rename(elsewhere / "log.features.yaml")
    assert run_json("import", "log.csv", "--out", "beside")["features"]["users"] == ["mood"]
    assert "f.yaml cannot be read" in refused("import", "log.csv", "--features", "f.yaml", "--out", "none")
    assert "--features is for --kind csv" in refused(
        "import", "log.csv", "--features", "f.yaml", "--kind", "impressions", "--out", "none"
    )
    assert not (elsewhere / "none").exists()


def test_import_reads_impressions(elsewhere):
    lines = [
        {"user": "u", "time": 1000, "shown": ["a", "b"], "clicked": ["b"]},
        {"user": "v", "time": 2000, "shown": ["a", "c"], "clicked": ["a"]},
    ]
    (elsewhere / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert run_json("import", "log.jsonl", "--out", "news", "--kind", "impressions")["users"] == 2
    assert run_json("check", "impressions:news")["splits"]["train"]["impressions"] >= 1
    assert "from one file, got 2" in refused(
        "import", "log.jsonl", "log.jsonl", "--out", "two", "--kind", "impressions"
    )


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"user,item\n", "has no rows"),
        (b"user,item\nu,a\nv,a\n", "at least 2 items"),
        (b"user,item\nu,a\nv,\xff\n", "line 3: not valid UTF-8"),
        (b"user,item\nu,a\nv\n", "line 3: expected 2 fields"),
    ],
)
def test_bad_files_leave_nothing_behind(elsewhere, content, fault):
    (elsewhere / "log.csv").write_bytes(content)
    assert fault in refused("import", "log.csv", "--out", "shop")
    assert fault in refused("check", "csv:log.csv", "--json")
    assert [path.name for path in elsewhere.iterdir()] == ["log.csv"]


MESSY = "Kunde;Artikel;Note;Datum\nanna;film 7;4,5;01.05.2024\n\n ben ;film 2;3,0;02.05.2024\nben;film 7;gut;heute\n"
OPTIONS = ("--user-column", "kunde", "--item-column", "Artikel", "--rating-column", "Note", "--time-column", "Datum")
HOW = (*OPTIONS, "--time-format", "%d.%m.%Y", "--decimal", ",", "--separator", ";", "--encoding", "cp1252")


def test_a_messy_file_is_imported_and_then_needs_no_options(elsewhere):
    (elsewhere / "log.csv").write_text(MESSY, encoding="cp1252")
    with pytest.raises(AssertionError):
        refused("import", "log.csv", "--out", "shop", *HOW)  # has more than one line
    assert not (elsewhere / "shop").exists()
    summary = run_json("import", "log.csv", "--out", "shop", *HOW, "--skip-bad")
    assert summary["left_out"] == {"Note is not a number": 1, "Datum is not a time in the format %d.%m.%Y": 1}
    assert (summary["rows"], summary["rows_left_out"], summary["blank_lines"], summary["ids_stripped"]) == (2, 1, 1, 1)
    checked = run_json("check", "csv:log.csv", *HOW, "--skip-bad")
    assert (checked["rows"], checked["last_time"]) == (2, "2024-05-02T00:00:00Z")
    assert "1 blank line passed over" in checked["odd"]
    again = run_json("check", "csv:shop")
    assert {key: again[key] for key in ("users", "items", "rows", "facts", "odd", "ratings")} == {
        key: checked[key] for key in ("users", "items", "rows", "facts", "odd", "ratings")
    }
    result = CliRunner().invoke(app, ["import", "log.csv", "--out", "other", *HOW, "--skip-bad"])
    assert "1 bad row left out: Note is not a number (1); Datum is not a time" in result.stderr
    assert "use it as --data csv:other" in result.stdout


def test_other_options_are_another_entry_of_the_cache(elsewhere):
    (elsewhere / "log.csv").write_text("user,item,a,b\nu,x,1,4\nu,y,2,5\n")
    ratings = [run_json("check", "csv:log.csv", "--rating-column", name)["ratings"] for name in ("a", "b", "a")]
    assert ratings[0] == ratings[2] != ratings[1]
    assert run_json("check", "csv:log.csv")["ratings"] == []


def test_options_for_files_go_with_csv_files_only(elsewhere):
    (elsewhere / "log.csv").write_text(LOG)
    run("import", "log.csv", "--out", "shop")
    assert "what was imported is read as it is" in refused("check", "csv:shop", "--skip-bad")
    assert "are for csv:FILE" in refused("check", "synthetic-ratings:users=50", "--decimal", ",")
    assert "are for --kind csv" in refused(
        "import", "log.csv", "--out", "x", "--kind", "impressions", "--time-format", "%Y"
    )


FULL = (OSError(errno.ENOSPC, "No space left on device"), OSError("80 requested and 8 written"))  # numpy's own words


@pytest.mark.parametrize("error", FULL)
def test_a_full_disk_is_one_line_and_leaves_nothing(elsewhere, monkeypatch, error):
    (elsewhere / "log.csv").write_text(LOG)
    real, calls = np.save, []

    def full(path, array, **options):
        calls.append(path)
        if len(calls) == 3:
            Path(path).write_bytes(b"half of it")
            raise error
        real(path, array, **options)

    monkeypatch.setattr(packed.np, "save", full)
    assert refused("import", "log.csv", "--out", "new/shop") == (
        "new/shop cannot be written (No space left on device): make room, or give another place"
    )
    assert len(calls) == 3
    assert [path.name for path in elsewhere.rglob("*") if path.is_file()] == ["log.csv"]


def test_import_refuses_to_overwrite(elsewhere):
    (elsewhere / "log.csv").write_text(LOG)
    (elsewhere / "shop").mkdir()
    (elsewhere / "shop" / "mine.txt").write_text("precious")
    assert "exists already: give another name, or remove it" in refused("import", "log.csv", "--out", "shop")
    assert (elsewhere / "shop" / "mine.txt").read_text() == "precious"


def test_a_grown_log_replaces_an_earlier_import_and_nothing_else(elsewhere):
    (elsewhere / "log.csv").write_text(LOG)
    assert run_json("import", "log.csv", "--out", "shop")["name"] == "shop"
    (elsewhere / "log.csv").write_text(LOG + "new,z,1\n")
    assert "exists already: give another name, or add --replace" in refused("import", "log.csv", "--out", "shop")
    run("import", "log.csv", "--out", "shop", "--replace", "--kind", "CSV")
    assert "new" in list(packed.load(elsewhere / "shop").users)
    (elsewhere / "log.csv").write_text("user,item\n")
    refused("import", "log.csv", "--out", "shop", "--replace")
    assert "new" in list(packed.load(elsewhere / "shop").users)
    (elsewhere / "mine").mkdir()
    (elsewhere / "mine" / "mine.txt").write_text("precious")
    (elsewhere / "log.csv").write_text(LOG)
    told = refused("import", "log.csv", "--out", "mine", "--replace")
    assert "exists already: give another name, or remove it" in told


def test_a_packed_folder_is_asked_for_by_what_it_holds(elsewhere):
    (elsewhere / "log.csv").write_text(LOG)
    run("import", "log.csv", "--out", "shop")
    assert "write csv:shop" in refused("check", "impressions:shop")
    line = {"user": "u", "time": 1000, "shown": ["a", "b"], "clicked": ["b"]}
    (elsewhere / "log.jsonl").write_text(json.dumps(line))
    run("import", "log.jsonl", "--out", "feed", "--kind", "impressions")
    assert "write impressions:feed" in refused("check", "csv:feed")


def test_own_logs_are_called_as_their_files(elsewhere):
    (elsewhere / "log.csv").write_text(LOG)
    assert run_json("check", "csv:log.csv")["name"] == "log"
    (elsewhere / "adressa.csv").write_text(LOG)  # whose protocol goes by its name
    assert run_json("check", "csv:adressa.csv")["name"] == "csv"


def test_times_after_2100_are_said_by_import_as_by_check(elsewhere):
    (elsewhere / "log.csv").write_text("user,item,time\nu,a,5\nu,b,9000000000\n")
    result = CliRunner().invoke(app, ["import", "log.csv", "--out", "shop"])
    assert "there are times after the year 2100" in result.stderr
    assert any("after the year 2100" in line for line in run_json("check", "csv:log.csv")["odd"])


def test_unknown_names_list_the_nearest():
    assert "did you mean ml-100k" in refused("check", "ml100k")
    assert "did you mean frappe" in refused("fetch", "frape")


def test_a_missing_folder_says_where_and_how():
    line = refused("check", "ml-1m")
    assert "$VEILREC_DATA/ml-1m" in line
    assert "veilrec data fetch ml-1m" in line


def test_fetch_shows_the_licence_and_needs_consent():
    result = CliRunner().invoke(app, ["fetch", "ml-100k"])
    assert isinstance(result.exception, BadInput)
    assert "licence must be accepted" in str(result.exception)
    assert "GroupLens" in result.stderr
    assert result.stdout == ""


def test_fetch_says_where_files_are(tmp_path):
    folder = tmp_path / "cache" / "datasets" / "ml-100k"
    folder.mkdir(parents=True)
    (folder / "u.data").write_text("1\t1\t1\t1\n")
    assert run_json("fetch", "ml-100k") == {"name": "ml-100k", "folder": str(folder)}
    assert "veilrec data check ml-100k" in run("fetch", "ml-100k", "--accept-licence")
    assert "is no web address" in refused("fetch", "ml-1m", "--accept-licence", "--mirror", "ftp://x")


def test_export_writes_minds_format(elsewhere):
    written = run_json("export", "synthetic-news:users=100,seed=1", "--format", "mind", "--out", "made-up")
    assert "train/behaviors.tsv" in written["files"]
    assert (elsewhere / "made-up" / "train" / "news.tsv").is_file()
    assert run_json("check", "mind:made-up")["users"] <= 100
    assert "has no impressions" in refused("export", "synthetic-ratings:users=50,items=60", "--out", "no")
    assert "exists already" in refused("export", "synthetic-news:users=100", "--out", "made-up")
    assert sorted(path.name for path in elsewhere.iterdir()) == ["made-up"]


@pytest.mark.parametrize("command", ["list", "check", "import", "fetch", "export"])
def test_help_teaches_by_example(command):
    assert f"veilrec data {command}" in run(command, "--help")
