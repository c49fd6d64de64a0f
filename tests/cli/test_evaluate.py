"""`veilrec evaluate` as a user runs it: every metric, groups of users, a file with every case, a warning."""

from __future__ import annotations

import itertools
from pathlib import Path

import polars as pl
import pytest

from tests.cli.running import shown, told, veilrec

RATINGS = "synthetic-ratings:users=80,items=150,mean_history=8,seed=3"
NEWS = "synthetic-news:users=60,news=200,days=3,seed=3"


@pytest.fixture(scope="module")
def idle(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A run that learns nothing, and what its training says."""
    out = tmp_path_factory.mktemp("runs") / "idle"
    options = ("--rounds", "1", "--set", "cohort.size=20", "--set", "local.item_rate=0.0000001", "--out", out)
    return out, shown("train", "fedmf", "--data", RATINGS, *options)


@pytest.fixture(scope="module")
def newcomers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that meets new people."""
    out = tmp_path_factory.mktemp("runs") / "newcomers"
    data = RATINGS.replace("=8,", "=20,")
    shown("train", "ease", "--data", data, "--protocol", "holdout-users-liked", "--out", out)
    return out


def test_the_usual_table_is_short_and_a_run_that_loses_to_popularity_says_so(idle: tuple[Path, str]) -> None:
    out, trained = idle
    said = shown("evaluate", out)
    for words in (said, trained):
        assert "This run ranks no better than popularity (ndcg@10" in words
        assert "recall@10" not in words
    assert "ndcg@10" in said
    assert "fedmf by how much is known of a user" in said
    assert "│ 1-5 " in said
    assert "hr@10 of the least active fifth of the users (16 of them, up to" in said


def test_all_metrics_and_every_case(idle: tuple[Path, str], tmp_path: Path) -> None:
    file = tmp_path / "users.parquet"
    code, said, wrong = veilrec("evaluate", idle[0], "--metrics", "all", "--per-user", file)
    assert (code, wrong) == (0, "")
    for name in ("hr@5", "precision@20", "map@10", "mrr@30", "coverage@10", "gini@10", "novelty@10", "diversity@10"):
        assert f"│ {name} " in said
    families = [line.split()[1].partition("@")[0] for line in said.splitlines() if "@" in line and line[0] == "│"]
    assert [name for name, _ in itertools.groupby(families)] == list(dict.fromkeys(families))  # every k together
    frame = pl.read_parquet(file)
    assert f"{len(frame)} cases in" in " ".join(said.split())
    assert {"user", "known_items", "ndcg@10", "novelty@10"} <= set(frame.columns)


def test_impressions_in_json_and_in_groups(tmp_path: Path) -> None:
    file, news = tmp_path / "cases.csv", tmp_path / "news"
    shown("train", "popularity", "--data", NEWS, "--out", news)
    result = told("evaluate", news, "--metrics", "all", "--per-user", file)
    assert result["per_user"] == str(file)
    assert {"auc", "mrr", "ndcg@5", "recall@5", "mrr@5", "coverage@5", "diversity@10"} <= set(result["metrics"])
    assert "recall@20" not in result["metrics"]
    assert sum(group["cases"] for group in result["groups"]) == result["metrics"]["cases"]
    assert result["warnings"] == []
    assert len(file.read_text().splitlines()) == 1 + result["metrics"]["cases"]
    said = shown("evaluate", news)
    assert "popularity by how much is known of a user" in said
    assert "auc" in said


def test_personalisation_is_a_table_a_curve_a_page_and_a_list(newcomers: Path, tmp_path: Path) -> None:
    curve, page = tmp_path / "curve.svg", tmp_path / "page.html"
    code, said, wrong = veilrec("evaluate", newcomers, "--personalisation", "--plot", curve, "--html", page)
    assert (code, wrong) == (0, "")
    table = said[said.index("ease by how many items of a new user it is given") :]
    rows = [line.split("│")[1:-1] for line in table.splitlines() if line.startswith("│")]
    assert [row[0].strip() for row in rows] == ["0", "1", "2", "5", "10", "20", "half"]
    assert len({tuple(row[4:]) for row in rows}) == 1  # popularity and chance, which look at nobody
    assert "…" not in table
    assert "ease" in curve.read_text()
    assert "How soon does it know a new user?" in page.read_text()
    found = told("evaluate", newcomers, "--personalisation")
    points = found["personalisation"]
    assert [point["given"] for point in points] == ["0", "1", "2", "5", "10", "20", "half"]
    assert all(found["metrics"][name] == value for name, value in points[-1]["metrics"].items())
    for name, baseline in points[0]["baselines"].items():
        assert all(found["baselines"][name][metric] == value for metric, value in baseline.items())
    assert f"{points[2]['metrics']['hr@10']:.4f}" == rows[2][2].strip()
    assert "personalisation" not in told("evaluate", newcomers)


def test_what_cannot_be_done_is_said_and_nothing_is_written(
    idle: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for options, complaint in (
        ("--personalisation", "loo-99 has none: train with --protocol holdout-users"),
        ("--personalisation --protocol holdout-users", "train again with --protocol holdout-users"),
        ("--personalisation --plot curve.pdf", "cannot draw to curve.pdf: give a name that ends in .svg or .png"),
        ("--personalisation --html .", ". is a folder: give the name of a file"),
        ("--plot curve.svg", "--plot belongs to --personalisation or to --serving: give it as well"),
        ("--html page.html", "--html belongs to --personalisation: give it as well"),
        ("--personalisation --serving plain", "--personalisation is not for --serving"),
        ("--per-user users.xlsx", "give a name with .csv, .parquet"),
        ("--per-user .", "give a name with .csv, .parquet"),
        ("--per-user /proc/nowhere/users.csv", "there is no folder /proc/nowhere"),
        ("--metrics every", "'every' is not one of"),
    ):
        code, said, wrong = veilrec("evaluate", idle[0], *options.split())
        assert (code, said) == (2, "")
        assert complaint in " ".join(wrong.split())
        assert "Traceback" not in wrong
        assert list(tmp_path.iterdir()) == []
