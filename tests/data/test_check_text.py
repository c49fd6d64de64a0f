"""What `data check` says of the text of news."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from veilrec.data import mind
from veilrec.data.check import check
from veilrec.data.check_text import check_text
from veilrec.data.movielens import read_100k

from .test_mind import write_split

LOS_ANGELES = json.dumps([{"WikidataId": "Q65", "SurfaceForms": ["Los Angeles"]}])
NEWS = [
    ["N1", "news", "us", "Fire near Los Angeles", "It burns", "", LOS_ANGELES, "[]"],
    ["N2", "news", "us", "", "Text without a title", "", "[]", "[]"],
    ["N3", "news", "us", "", "", "", "[]", "[]"],
    ["N4", "news", "us", "Rain", "", "", "{broken", "[]"],
    ["N5", "", "", "Дождь в Москве", "", "", "[]", "[]"],
    ["N6", "news", "us", "Größe zählt 😀 3 µm ©", "", "", "[]", "[]"],
    ["N7", "news", "us", "w " * 31, "", "", "[]", "[]"],
    ["N8", "news", "us", "東京 の 天気 ☔", "", "", "[]", "[]"],
]
BEHAVIOURS = [
    ["1", "U1", "11/13/2019 8:36:57 AM", "N1 N2 N98", "N2-0 N3-1"],
    ["2", "U2", "11/9/2019 12:00:00 PM", "", "N1-1 N99-0 N3-0"],
]


def report(folder: Path, news: list[list[str]] = NEWS) -> Any:
    return check(mind.read(write_split(folder, BEHAVIOURS, news)))


def test_every_oddity_is_counted(tmp_path: Path) -> None:
    text = report(tmp_path / "mind").as_json()["text"]
    assert text == {
        "without_title": 4,  # N2, N3, and the two that only occur in behaviors.tsv
        "without_any_text": 3,
        "one_word_titles": 1,
        "clipped_titles": 1,
        "titles_in_other_scripts": 2,  # a micro sign and umlauts are none
        "titles_with_emoji": 2,
        "without_category": 3,
        "entities": 1,
        "entities_without_vector": 1,
        "unreadable_entities": 1,
        "candidates_without_title": 4,
        "history_without_title": 2,
    }


def test_people_read_what_comes_of_it(tmp_path: Path) -> None:
    odd = report(tmp_path / "mind").odd
    for line in (
        "1 shown candidates that the catalogue does not know",
        "1 clicks in histories that the catalogue does not know",
        "3 shown candidates that are known without a title",
        "1 clicks in histories on news without a title",
        "4 news without a title: read as one unknown word",
        "1 titles of one word",
        "2 titles with emoji: each is a word",
        "1 of 1 entities without a vector in entity_embedding.vec: dkn learns them",
    ):
        assert line in odd
    assert report(tmp_path / "mind2").splits["train"].empty_histories == 1


def test_vectors_of_entities_are_looked_up(tmp_path: Path) -> None:
    write_split(tmp_path / "mind", BEHAVIOURS, NEWS)
    (tmp_path / "mind" / "entity_embedding.vec").write_text("Q65\t0.5\t-0.5\n")
    text = check_text(mind.read(tmp_path / "mind"))
    assert text is not None
    assert text.entities_without_vector == 0


def test_news_in_order_have_nothing_odd(tmp_path: Path) -> None:
    news = [[f"N{k}", "news", "us", "A title of words", "", "", "[]", "[]"] for k in (1, 2, 3, 98, 99)]
    text = check_text(mind.read(write_split(tmp_path / "mind", BEHAVIOURS, news)))
    assert text is not None
    assert list(text.odd()) == []


def test_titles_of_films_are_not_judged(tmp_path: Path) -> None:
    (tmp_path / "u.data").write_text("1\t1\t5\t881250949\n1\t2\t3\t881250950\n")
    genres = "|".join(["0"] * 19)
    (tmp_path / "u.item").write_text("".join(f"{k}|Alien|01-Jan-1979||x|{genres}\n" for k in (1, 2)))
    films = check(read_100k(tmp_path))
    assert films.text is None
    assert films.as_json()["text"] is None


@pytest.mark.parametrize("column", ["entities", "abstracts"])
def test_columns_may_be_missing(tmp_path: Path, column: str) -> None:
    population = mind.read(write_split(tmp_path / "mind", BEHAVIOURS, NEWS))
    assert population.catalogue is not None
    catalogue = replace(population.catalogue, **{column: None})
    text = check_text(replace(population, catalogue=catalogue))
    assert text is not None
    assert text.without_title == 4
    assert np.isin(text.without_any_text, [3, 4])
