"""`veilrec data`: what it prints for people and for programs, and that bad input leaves nothing behind."""

import errno
import json
from unittest import mock

import pytest
import yaml

from tests.cli.running import says, typed, veilrec
from veilrec.data import packed
from veilrec.data.datasets import DATASETS

LOG = "user,item,rating\nu,a,5\nu,b,4\nv,a,3\nv,a,3\n"
SHOWN = [
    {"user": "u", "time": 1000, "shown": ["a", "b"], "clicked": ["b"]},
    {"user": "v", "time": 2000, "shown": ["a", "c"], "clicked": ["a"]},
]
told, _, refused = typed("data")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """A working folder with two logs, an empty cache, no data."""
    monkeypatch.setenv("VEILREC_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("VEILREC_DATA", raising=False)
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    (work / "log.csv").write_text(LOG)
    (work / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in SHOWN))
    return work


def run(*arguments):
    done = veilrec("data", *arguments)
    assert done.code == 0, done.err
    return done


def test_list_names_every_data_set(tmp_path, monkeypatch):
    (tmp_path / "data" / "ml-100k").mkdir(parents=True)
    (tmp_path / "data" / "ml-100k" / "u.data").write_text("1\t1\t1\t1\n")
    monkeypatch.setenv("VEILREC_DATA", str(tmp_path / "data"))
    rows = {row["name"]: row for row in told("list")["datasets"]}
    assert list(rows) == list(DATASETS)
    assert rows["ml-100k"]["found"] == str(tmp_path / "data" / "ml-100k")
    assert rows["ml-1m"]["found"] is None
    assert "grouplens" in rows["ml-1m"]["how_to_get"]
    says(run("list").out, *DATASETS)


def test_check_counts_and_names_what_is_odd(elsewhere):
    report = told("check", "csv:log.csv")
    assert (report["name"], report["users"], report["items"], report["rows"]) == ("log", 2, 2, 3)
    assert report["facts"]["duplicates_merged"] == 1
    assert "1 row that repeated another exactly and was merged" in report["odd"]
    says(run("check", "csv:log.csv").out, "items per user", "what is odd")
    (elsewhere / "log.csv").rename("adressa.csv")  # whose protocol goes by its name
    assert told("check", "csv:adressa.csv")["name"] == "csv"


def test_import_writes_a_packed_population(elsewhere):
    (elsewhere / "two.csv").write_text("user,item,a,b\nu,x,1,4\nu,y,2,5\n")
    ratings = [told("check", "csv:two.csv", "--rating-column", name)["ratings"] for name in ("a", "b", "a")]
    assert ratings[0] == ratings[2] != ratings[1]  # other options are another entry of the cache
    (elsewhere / "more.csv").write_text("user,item,rating\nw,c,1\n")
    summary = told("import", "log.csv", "more.csv", "--out", "shop", "--name", "my shop")
    counts = {"users": 3, "items": 3, "rows": 4, "duplicates_merged": 1}
    nothing = {"blank_lines": 0, "ids_stripped": 0, "rows_left_out": 0, "left_out": {}}
    columns = {"columns_used": "", "columns_ignored": ""}
    assert summary == {"folder": "shop", "name": "my shop", **counts, **nothing, **columns, "features": {}}
    assert packed.load(elsewhere / "shop").name == "my shop"
    assert told("check", "csv:shop")["users"] == 3
    assert "use it as --data csv:other" in run("import", "log.csv", "--out", "other").out
    (elsewhere / "late.csv").write_text("user,item,time\nu,a,5\nu,b,9000000000\n")
    assert "there are times after the year 2100" in run("import", "late.csv", "--out", "late").err
    assert any("after the year 2100" in line for line in told("check", "csv:late.csv")["odd"])


def test_import_takes_features(elsewhere):
    (elsewhere / "log.csv").write_text("user,item,mood\nu,a,good\nu,b,good\nv,a,bad\n")
    (elsewhere / "f.yaml").write_text("users: {features: {mood: {kind: category}}}")
    summary = told("import", "log.csv", "--features", "f.yaml", "--out", "shop")
    assert summary["features"] == {"users": ["mood"], "items": []}
    says(run("check", "csv:shop").out, "users: mood", "category, 2 values, 0.0% unknown")
    assert told("import", "log.csv", "--out", "plain")["features"] == {}
    (elsewhere / "f.yaml").rename(elsewhere / "log.features.yaml")
    assert told("import", "log.csv", "--out", "beside")["features"]["users"] == ["mood"]
    features = ("import", "log.csv", "--features", "f.yaml", "--out", "none")
    assert "f.yaml cannot be read" in refused(*features)
    assert "--features is for --kind csv" in refused(*features, "--kind", "impressions")
    assert not (elsewhere / "none").exists()


def test_impressions_are_imported_and_asked_for_as_such():
    assert told("import", "log.jsonl", "--out", "news", "--kind", "impressions")["users"] == 2
    assert told("check", "impressions:news")["splits"]["train"]["impressions"] >= 1
    run("import", "log.csv", "--out", "shop")
    for line, fault in (
        ("import log.jsonl log.jsonl --out two --kind impressions", "from one file, got 2"),
        ("check impressions:shop", "write csv:shop"),
        ("check csv:news", "write impressions:news"),
        ("check csv:shop --skip-bad", "what was imported is read as it is"),
        ("check synthetic-ratings:users=50 --decimal ,", "are for csv:FILE"),
        ("import log.csv --out x --kind impressions --time-format %Y", "are for --kind csv"),
    ):
        assert fault in refused(*line.split())


def test_a_log_is_cut_at_a_public_date_and_its_ratings_have_a_scale(elsewhere):
    run("import", "log.jsonl", "--kind", "impressions", "--cut", "1970-01-01T00:25:00Z", "--out", "feed")
    for spec, more in (("impressions:feed", ()), ("impressions:log.jsonl", ("--cut", "1970-01-01T00:25"))):
        report = told("check", spec, *more)
        assert report["facts"]["cut"] == "the public moment 1970-01-01T00:25:00Z"
        assert [report["splits"][part]["impressions"] for part in ("train", "dev")] == [1, 1]
    assert told("check", "csv:log.csv")["facts"]["rating_scale"] == "1 to 5"
    report = told("check", "csv:log.csv", "--rating-scale", "0.5-4")
    assert report["facts"]["rating_scale"] == "0.5 to 4"
    assert any(line.startswith("1 rating beyond the scale of the data") for line in report["odd"])
    assert "rating_scale" not in told("check", "csv:log.csv", "--rating-scale", "none")["facts"]
    for spec, option, fault in (
        ("impressions:log.jsonl", ("--cut", "yesterday"), "--cut 'yesterday' is no date: give a day such as 2026"),
        ("impressions:log.jsonl", ("--cut", "2026-01-31"), "--cut leaves no impression from it on in log.jsonl"),
        ("impressions:feed", ("--cut", "1970-01-01"), "and impressions:feed has its cut: leave it out"),
        ("synthetic-news", ("--cut", "1970-01-01"), "--cut is for a file of your own"),
        ("csv:log.csv", ("--cut", "1970-01-01"), "--cut is a moment, and log.csv has no times"),
        ("csv:log.csv", ("--rating-scale", "5"), "--rating-scale 5 is none: give the lowest and the highest"),
        ("csv:log.csv", ("--rating-column", "none", "--rating-scale", "1-5"), "is for ratings, and log.csv has none"),
    ):
        assert fault in refused("check", spec, *option)


def test_a_run_keeps_its_cut_says_it_and_is_not_measured_by_another(elsewhere):
    rows = [(u, (7 * u + 5 * n) % 60, n * 43_200) for u in range(20) for n in range(8)]
    (elsewhere / "uses.csv").write_text("user,item,time\n" + "".join(f"u{u},i{i},{t}\n" for u, i, t in rows))
    run("import", "uses.csv", "--cut", "1970-01-04", "--out", "shop")
    done = veilrec("train", "private-popularity", "--data", "csv:shop", "--protocol", "last-day-20", "--out", "run")
    assert done.code == 0, done.err
    cut = "the public moment 1970-01-04T00:00:00Z"
    assert yaml.safe_load((elsewhere / "run" / "config.yaml").read_text())["cut"] == cut
    says(" ".join(veilrec("privacy", "show", "run").out.split()), f"by {cut}: nobody else's data decides it")
    assert veilrec("evaluate", "run").code == 0
    run("import", "uses.csv", "--cut", "1970-01-03", "--out", "shop", "--replace")
    done = veilrec("evaluate", "run")
    assert done.code == 2 and "is cut by the public moment 1970-01-03" in done.err and len(done.err.splitlines()) == 1


def test_bad_files_leave_nothing_behind(elsewhere):
    for content, fault in (
        (b"user,item\n", "has no rows"),
        (b"user,item\nu,a\nv,a\n", "at least 2 items"),
        (b"user,item\nu,a\nv,\xff\n", "line 3: not valid UTF-8"),
        (b"user,item\nu,a\nv\n", "line 3: expected 2 fields"),
    ):
        (elsewhere / "bad.csv").write_bytes(content)
        assert fault in refused("import", "bad.csv", "--out", "shop")
        assert fault in refused("check", "csv:bad.csv", "--json")
        assert {path.name for path in elsewhere.iterdir()} == {"bad.csv", "log.csv", "log.jsonl"}


MESSY = "Kunde;Artikel;Note;Datum\nanna;film 7;4,5;01.05.2024\n\n ben ;film 2;3,0;02.05.2024\nben;film 7;gut;heute\n"
OPTIONS = ("--user-column", "kunde", "--item-column", "Artikel", "--rating-column", "Note", "--time-column", "Datum")
HOW = (*OPTIONS, "--time-format", "%d.%m.%Y", "--decimal", ",", "--separator", ";", "--encoding", "cp1252")


def test_a_messy_file_is_imported_and_then_needs_no_options(elsewhere):
    (elsewhere / "log.csv").write_text(MESSY, encoding="cp1252")
    assert veilrec("data", "import", "log.csv", "--out", "shop", *HOW).code == 2
    assert not (elsewhere / "shop").exists()
    summary = told("import", "log.csv", "--out", "shop", *HOW, "--skip-bad")
    assert summary["left_out"] == {"Note is not a number": 1, "Datum is not a time in the format %d.%m.%Y": 1}
    assert (summary["rows"], summary["rows_left_out"], summary["blank_lines"], summary["ids_stripped"]) == (2, 1, 1, 1)
    checked, again = told("check", "csv:log.csv", *HOW, "--skip-bad"), told("check", "csv:shop")
    assert (checked["rows"], checked["last_time"]) == (2, "2024-05-02T00:00:00Z")
    assert "1 blank line passed over" in checked["odd"]
    for key in ("users", "items", "rows", "facts", "odd", "ratings"):
        assert again[key] == checked[key]
    words = run("import", "log.csv", "--out", "other", *HOW, "--skip-bad").err
    assert "1 bad row left out: Note is not a number (1); Datum is not a time" in words


def test_a_full_disk_is_one_line_and_leaves_nothing(elsewhere, monkeypatch):
    real = packed.np.save
    for error in (OSError(errno.ENOSPC, "No space left on device"), OSError("80 requested and 8 written")):  # numpy's
        full = mock.Mock(wraps=real, side_effect=[mock.DEFAULT, mock.DEFAULT, error])
        monkeypatch.setattr(packed.np, "save", full)
        words = "new/shop cannot be written (No space left on device): make room, or give another place"
        assert refused("import", "log.csv", "--out", "new/shop") == f"veilrec: {words}"
        assert full.call_count == 3
        assert {path.name for path in elsewhere.rglob("*") if path.is_file()} == {"log.csv", "log.jsonl"}


def test_only_an_earlier_import_is_replaced_and_only_by_a_whole_one(elsewhere):
    assert told("import", "log.csv", "--out", "shop")["name"] == "shop"
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
    for option in ((), ("--replace",)):
        assert "give another name, or remove it" in refused("import", "log.csv", "--out", "mine", *option)
    assert (elsewhere / "mine" / "mine.txt").read_text() == "precious"


def test_fetch_needs_consent_and_says_where_files_are(tmp_path):
    done = veilrec("data", "fetch", "ml-100k")
    assert (done.code, done.out) == (2, "")
    assert "GroupLens" in done.err
    assert "licence must be accepted" in done.err.splitlines()[-1]
    folder = tmp_path / "cache" / "datasets" / "ml-100k"
    folder.mkdir(parents=True)
    (folder / "u.data").write_text("1\t1\t1\t1\n")
    assert told("fetch", "ml-100k") == {"name": "ml-100k", "folder": str(folder)}
    assert "veilrec data check ml-100k" in run("fetch", "ml-100k", "--accept-licence").out
    for line, words in (
        ("check ml100k", "did you mean ml-100k"),
        ("fetch frape", "did you mean frappe"),
        ("check ml-1m", "$VEILREC_DATA/ml-1m"),
        ("check ml-1m", "veilrec data fetch ml-1m"),
    ):
        assert words in refused(*line.split())
    assert "is no web address" in refused("fetch", "ml-1m", "--accept-licence", "--mirror", "ftp://x")


def test_export_writes_minds_format(elsewhere):
    written = told("export", "synthetic-news:users=100,seed=1", "--format", "mind", "--out", "synthetic")
    assert "train/behaviors.tsv" in written["files"]
    assert (elsewhere / "synthetic" / "train" / "news.tsv").is_file()
    assert told("check", "mind:synthetic")["users"] <= 100
    assert "has no impressions" in refused("export", "synthetic-ratings:users=50,items=60", "--out", "no")
    assert "exists already" in refused("export", "synthetic-news:users=100", "--out", "synthetic")
    assert not (elsewhere / "no").exists()
