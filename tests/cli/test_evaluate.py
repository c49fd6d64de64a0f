"""`veilrec evaluate` as a user runs it: every metric, groups of users, a file with every case, a warning."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

from tests.cli.test_recommend import veilrec
from veilrec.cli.evaluate import every_metric

RATINGS = "synthetic-ratings:users=80,items=150,mean_history=8,seed=3"
NEWS = "synthetic-news:users=60,news=200,days=3,seed=3"


@pytest.fixture(scope="module")
def idle(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A run that learns nothing, and what its training says."""
    out = tmp_path_factory.mktemp("runs") / "idle"
    options = ("--rounds", "1", "--set", "cohort.size=20", "--set", "local.item_rate=0.0000001", "--out", str(out))
    code, said, wrong = veilrec("train", "fedmf", "--data", RATINGS, *options)
    assert code == 0, wrong
    return out, said


@pytest.fixture(scope="module")
def news(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "news"
    assert veilrec("train", "popularity", "--data", NEWS, "--out", str(out))[0] == 0
    return out


@pytest.fixture(scope="module")
def newcomers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that meets new people."""
    out = tmp_path_factory.mktemp("runs") / "newcomers"
    options = ("--protocol", "holdout-users-liked", "--out", str(out))
    code, _, wrong = veilrec("train", "ease", "--data", RATINGS.replace("=8,", "=20,"), *options)
    assert code == 0, wrong
    return out


def words(text: str) -> str:
    return " ".join(text.split())


def test_a_run_that_loses_to_popularity_says_so_at_the_end_of_training_and_after(idle: tuple[Path, str]) -> None:
    out, said = idle
    assert "This run ranks no better than popularity (ndcg@10" in words(said)
    assert "This run ranks no better than popularity (ndcg@10" in words(veilrec("evaluate", str(out))[1])


def test_the_usual_table_is_short_and_users_with_little_data_stand_apart(idle: tuple[Path, str]) -> None:
    said = veilrec("evaluate", str(idle[0]))[1]
    assert "ndcg@10" in said
    assert "recall@10" not in said
    assert "fedmf by how much is known of a user" in said
    assert "│ 1-5 " in said
    assert "hr@10 of the least active fifth of the users (16 of them, up to" in words(said)
    assert "recall@10" not in idle[1]


def test_all_metrics_and_every_case(idle: tuple[Path, str], tmp_path: Path) -> None:
    file = tmp_path / "users.parquet"
    code, said, wrong = veilrec("evaluate", str(idle[0]), "--metrics", "all", "--per-user", str(file))
    assert (code, wrong) == (0, "")
    for name in ("hr@5", "precision@20", "map@10", "mrr@30", "coverage@10", "gini@10", "novelty@10", "diversity@10"):
        assert f"│ {name} " in said
    frame = pl.read_parquet(file)
    assert f"{len(frame)} cases in" in words(said)
    assert {"user", "known_items", "ndcg@10", "novelty@10"} <= set(frame.columns)


def test_json_has_it_all_and_nothing_else(news: Path, tmp_path: Path) -> None:
    file = tmp_path / "cases.csv"
    code, said, wrong = veilrec("evaluate", str(news), "--metrics", "all", "--per-user", str(file), "--json")
    assert (code, wrong) == (0, "")
    result = json.loads(said)
    assert result["per_user"] == str(file)
    assert {"auc", "mrr", "ndcg@5", "recall@5", "mrr@5", "coverage@5", "diversity@10"} <= set(result["metrics"])
    assert "recall@20" not in result["metrics"]
    assert sum(group["cases"] for group in result["groups"]) == result["metrics"]["cases"]
    assert result["warnings"] == []
    assert len(file.read_text().splitlines()) == 1 + result["metrics"]["cases"]


def test_groups_of_impressions_show_their_auc(news: Path) -> None:
    said = words(veilrec("evaluate", str(news))[1])
    assert "popularity by how much is known of a user" in said
    assert "auc" in said


def test_personalisation_is_a_table_a_curve_a_page_and_a_list(newcomers: Path, tmp_path: Path) -> None:
    curve, page = tmp_path / "curve.svg", tmp_path / "page.html"
    options = ("--personalisation", "--plot", str(curve), "--html", str(page))
    code, said, wrong = veilrec("evaluate", str(newcomers), *options)
    assert (code, wrong) == (0, "")
    table = said[said.index("ease by how many items of a new user it is given") :]
    rows = [line.split("│")[1:-1] for line in table.splitlines() if line.startswith("│")]
    assert [row[0].strip() for row in rows] == ["0", "1", "2", "5", "10", "20", "half"]
    assert len({tuple(row[4:]) for row in rows}) == 1  # popularity and chance, which look at nobody
    assert "…" not in table
    assert "ease" in curve.read_text()
    assert "How soon does it know a new user?" in page.read_text()
    found = json.loads(veilrec("evaluate", str(newcomers), "--personalisation", "--json")[1])
    points = found["personalisation"]
    assert [point["given"] for point in points] == ["0", "1", "2", "5", "10", "20", "half"]
    assert all(found["metrics"][name] == value for name, value in points[-1]["metrics"].items())
    for name, baseline in points[0]["baselines"].items():
        assert all(found["baselines"][name][metric] == value for metric, value in baseline.items())
    assert f"{points[2]['metrics']['hr@10']:.4f}" == rows[2][2].strip()
    assert (tmp_path / "curve.svg").exists()
    assert "personalisation" not in json.loads(veilrec("evaluate", str(newcomers), "--json")[1])


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--personalisation"], "loo-99 has none: train with --protocol holdout-users"),
        (["--personalisation", "--protocol", "holdout-users"], "train again with --protocol holdout-users"),
        (
            ["--personalisation", "--plot", "curve.pdf"],
            "cannot draw to curve.pdf: give a name that ends in .svg or .png",
        ),
        (["--personalisation", "--html", "."], ". is a folder: give the name of a file"),
        (["--plot", "curve.svg"], "--plot belongs to --personalisation or to --serving: give it as well"),
        (["--html", "page.html"], "--html belongs to --personalisation: give it as well"),
        (["--personalisation", "--serving", "plain"], "--personalisation is not for --serving"),
        (["--per-user", "users.xlsx"], "give a name with .csv, .parquet"),
        (["--per-user", "."], "give a name with .csv, .parquet"),
        (["--per-user", "/proc/nowhere/users.csv"], "there is no folder /proc/nowhere"),
        (["--metrics", "every"], "'every' is not one of"),
    ],
)
def test_what_cannot_be_done_is_said_and_nothing_is_written(
    idle: tuple[Path, str], arguments: list[str], complaint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, said, wrong = veilrec("evaluate", str(idle[0]), *arguments)
    assert (code, said) == (2, "")
    assert complaint in words(wrong)
    assert "Traceback" not in wrong
    assert list(tmp_path.iterdir()) == []


def test_a_table_of_every_metric_has_the_same_metric_at_every_k_together() -> None:
    from rich.console import Console

    metrics = {"hr@5": 0.5, "ndcg@5": 0.25, "hr@10": 0.75, "ndcg@10": 0.125, "cases": 1234.0}
    console = Console(width=60)
    with console.capture() as caught:
        console.print(every_metric("title", {"fedmf": metrics, "random": metrics}))
    rows = [line.split()[1] for line in caught.get().splitlines() if line.startswith("│")]
    assert rows == ["hr@5", "hr@10", "ndcg@5", "ndcg@10", "cases"]
    assert "1,234" in caught.get()
