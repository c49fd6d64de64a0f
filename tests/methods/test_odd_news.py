"""News with every oddity that `data check` counts: training goes through or refuses at once, never in between."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.methods.tiny_news import SMALL, method
from veilrec.core.errors import BadInput
from veilrec.data.datasets import load
from veilrec.evaluation.evaluator import evaluate
from veilrec.evaluation.protocols import make_split
from veilrec.methods.base import Problem, configure, make_trainer
from veilrec.runs.request import news_data

METHODS = ("nrms", "naml", "dkn", "lstur-con", "npa", "fednewsrec")
CITY = json.dumps([{"WikidataId": "Q65", "SurfaceForms": ["city"]}])
TITLES = ("Rain over the city", "Sun", "A long day of news", "The city votes", "Snow", "More rain")
PLAIN = [[f"N{k}", "news", "us", title, f"About {title}", "", "[]", "[]"] for k, title in enumerate(TITLES)]


def impressions(*changed: tuple[str, str], first: int = 1) -> list[str]:
    """Rows of behaviors.tsv for six users; some history and candidates are replaced."""
    rows = []
    for k in range(6):
        past, shown = changed[k] if k < len(changed) else (f"N{k} N{(k + 1) % 6}", "N2-1 N3-0 N4-0 N5-0")
        rows.append(f"{first + k}\tU{k}\t11/{10 + k}/2019 8:00:00 AM\t{past}\t{shown}")
    return rows


ODD = ("N1 N2", "N0-1 N3-0")
CASES: dict[str, tuple[list[list[str]], list[str]]] = {
    "no title": ([[*row[:3], "" if k % 2 else row[3], *row[4:]] for k, row in enumerate(PLAIN)], impressions()),
    "no text": ([[*row[:3], "" if k % 2 else row[3], "", *row[5:]] for k, row in enumerate(PLAIN)], impressions()),
    "one word": ([[*row[:3], "Rain", *row[4:]] for row in PLAIN], impressions()),
    "no category": ([[row[0], "", "", *row[3:]] for row in PLAIN], impressions()),
    "other scripts": ([[*row[:3], "東京 の 天気 😀 Дождь", *row[4:]] for row in PLAIN], impressions()),
    "invisible": ([[*row[:3], "\u200b\u200d", *row[4:]] for row in PLAIN[:3]] + PLAIN[3:], impressions()),
    "very long": ([[*row[:3], "word " * 400, "word " * 900, *row[5:]] for row in PLAIN], impressions()),
    "broken entities": ([[*row[:6], "{broken", "[]"] for row in PLAIN], impressions()),
    "no vectors": ([[*row[:6], CITY, "[]"] for row in PLAIN], impressions()),
    "empty histories": (PLAIN, impressions(*[("", shown) for _, shown in [ODD] * 6])),
    "some empty histories": (PLAIN, impressions(("", ODD[1]))),
    "unknown in histories": (PLAIN, impressions(*[("X1 X2", ODD[1])] * 6)),
    "unknown candidates": (PLAIN, impressions(*[(ODD[0], "X1-1 X2-0 N1-0")] * 6)),
    "one label": (PLAIN, impressions((ODD[0], "N1-1"), (ODD[0], "N1-0 N2-0"))),
}


def write(folder: Path, news: list[list[str]], rows: list[str]) -> Path:
    for split in ("train", "dev"):
        (folder / split).mkdir(parents=True)
        (folder / split / "news.tsv").write_text("".join("\t".join(row) + "\n" for row in news))
        (folder / split / "behaviors.tsv").write_text("\n".join(rows) + "\n")
    return folder


def learn(folder: Path, name: str) -> dict[str, float]:
    """Two steps, and what the model then says."""
    population = load(f"mind:{folder}")
    split = make_split(population, "mind", seed=1)
    chosen = method(name)
    kind = ("cohort.size=3", "calibration=none") if chosen.kind == "federated" else ()
    config, _ = configure(chosen, preset="tuned", dataset="mind", settings=[*SMALL, *kind])
    problem = Problem(split.train, split.n_items, 1, 2, news_data(population, split))
    trainer = make_trainer(chosen, config, problem)
    for step in range(2):
        trainer.step(step)
    assert all(np.isfinite(values).all() for values in trainer.state().values())
    return evaluate(split.test, split.train, trainer.model())


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    monkeypatch.setenv("VEILREC_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("case", CASES)
def test_odd_news_are_learnt_from(case: str, name: str, tmp_path: Path) -> None:
    metrics = learn(write(tmp_path / "mind", *CASES[case]), name)
    assert 0.0 <= metrics["auc"] <= 1.0


def test_given_vectors_of_entities_may_be_few(tmp_path: Path) -> None:
    folder = write(tmp_path / "mind", *CASES["no vectors"])
    (folder / "train" / "entity_embedding.vec").write_text("Q1\t0.5\t-0.5\nQ2\t1\t2\n")
    assert 0.0 <= learn(folder, "dkn")["auc"] <= 1.0


@pytest.mark.parametrize("name", ["nrms", "fednewsrec"])
def test_news_without_any_title_are_refused_before_training(name: str, tmp_path: Path) -> None:
    untitled = [[*row[:3], "", *row[4:]] for row in PLAIN]
    with pytest.raises(BadInput, match=f"{name} reads titles, and no news of this data has one"):
        learn(write(tmp_path / "mind", untitled, impressions()), name)


def test_training_without_a_usable_impression_is_refused(tmp_path: Path) -> None:
    folder = write(tmp_path / "mind", PLAIN, impressions())
    one_sided = impressions(*[(ODD[0], "N1-1 N2-1")] * 6)
    (folder / "train" / "behaviors.tsv").write_text("\n".join(one_sided) + "\n")
    for name in ("nrms", "fednewsrec"):
        with pytest.raises(BadInput, match=f"{name} has nothing to learn from"):
            learn(folder, name)
