"""What `data check` counts and finds odd, in a log and in the text of news."""

import io
import json
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from tests.data.test_mind import write_split
from veilrec.core.csr import Csr
from veilrec.data import mind
from veilrec.data.check import _WORDS, check, check_text, render
from veilrec.data.movielens import read_100k
from veilrec.data.population import Impressions, Interactions, ItemTable, Population, Strings


def population(**changes):
    ratings, times = np.array([1, 2, 2, -5], np.float32), np.array([0, 10, 20, 86_400])
    log = Interactions(np.array([0, 3, 4]), np.array([0, 1, 1, 2], np.int32), ratings, times)
    changes = {"facts": {"rows": 6, "duplicates_merged": 2}} | changes
    return Population("small", Strings.of("uv"), Strings.of("abcd"), log, **changes)


def impressions():
    """Three lists: a click among two, no click, clicks only."""
    return Impressions(
        users=np.array([0, 0, 1], np.int32),
        times=np.array([5, 6, 7]),
        shown=Csr(np.array([0, 2, 3, 4]), np.array([0, 1, 2, 3], np.int32)),
        clicked=np.array([1, 0, 0, 1], np.uint8),
        histories=Csr(np.array([0, 0, 1]), np.array([2], np.int32)),
        history_of=np.array([0, 1, 1], np.int32),
    )


def test_counts_and_what_is_odd():
    report = check(population())
    assert (report.users, report.items, report.rows, report.pairs) == (2, 4, 4, 3)
    assert report.density == pytest.approx(3 / 8)
    assert report.history_lengths == {"least": 1, "median": 1.5, "most": 2}
    assert report.ratings == {"low": -5, "high": 2, "mean": 0, "different": 3}
    assert (report.first_time, report.last_time) == ("1970-01-01T00:00:00Z", "1970-01-02T00:00:00Z")
    assert any(line.startswith("1 user with fewer than 2 items") for line in report.odd)
    odd = {"1 item that nobody ever used or was shown", "1 rating below 0"}
    assert odd | {"2 rows that repeated another exactly and were merged"} < set(report.odd)


def test_impressions_are_counted():
    catalogue = ItemTable(titles=Strings.of(["A", "", "C", "D"]), categories=Strings.of([""] * 4))
    facts = {"unknown_candidates": 7, "columns_ignored": "age"}
    report = check(population(impressions={"train": impressions()}, catalogue=catalogue, facts=facts))
    split = report.splits["train"]
    assert (split.impressions, split.shown, split.clicks, split.users) == (3, 4, 2, 2)
    assert (split.without_both_labels, split.empty_histories) == (2, 1)
    assert "2 impressions of train without both a click and a non-click" in report.odd
    assert "7 shown candidates that the catalogue does not know" in report.odd
    assert "1 news without a title: read as one unknown word" in report.odd
    assert "columns that were ignored: age" in report.odd
    assert not any("ever used or was shown" in line for line in report.odd)  # d was shown


def test_milliseconds_a_lonely_user_and_an_empty_log_are_reported():
    log = Interactions(np.array([0, 2]), np.array([0, 1], np.int32), times=np.array([1_714_588_200_000] * 2))
    odd = " ".join(check(Population("one", Strings.of(["u"]), Strings.of(["a", "b"]), log)).odd)
    assert "milliseconds" in odd and "only one user" in odd
    empty = Interactions(np.zeros(1, np.int64), np.zeros(0, np.int32), ratings=np.zeros(0, np.float32))
    report = check(Population("empty", Strings.of([]), Strings.of([]), empty))
    assert (report.users, report.density, report.first_time) == (0, 0.0, None)


def test_report_for_people_and_for_programs():
    report = check(population(impressions={"dev": impressions()}))
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(render(report))
    text = console.export_text()
    for expected in ("small", "37.5000%", "dev impressions", "least 1, median", "what is odd"):
        assert expected in text
    plain = json.loads(json.dumps(report.as_json()))
    assert plain["history_lengths"] == {"least": 1, "median": 1.5, "most": 2}
    assert plain["ratings"] == {"low": -5, "high": 2, "mean": 0, "different": 3}
    assert plain["splits"]["dev"]["clicks"] == 2


LOS_ANGELES = json.dumps([{"WikidataId": "Q65", "SurfaceForms": ["Los Angeles"]}])
ODD_NEWS = [
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


def text_report(folder, news=ODD_NEWS):
    return check(mind.read(write_split(folder, BEHAVIOURS, news)))


def test_every_oddity_of_texts_is_counted_and_told(tmp_path):
    report = text_report(tmp_path / "mind")
    assert report.as_json()["text"] == {
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
    assert {
        "1 shown candidate that the catalogue does not know",
        "1 click in histories that the catalogue does not know",
        "3 shown candidates that are known without a title",
        "1 click in histories on news without a title",
        "4 news without a title: read as one unknown word",
        "1 title of one word",
        "2 titles with emoji: each is a word",
        "1 of 1 entities without a vector in entity_embedding.vec: dkn learns them",
    } < set(report.odd)
    assert report.splits["train"].empty_histories == 1


def test_news_in_order_and_films_have_nothing_odd(tmp_path, real):
    news = [[f"N{k}", "news", "us", "A title of words", "", "", "[]", "[]"] for k in (1, 2, 3, 98, 99)]
    text = check_text(mind.read(write_split(tmp_path / "tidy", BEHAVIOURS, news)))
    assert not any(text[name] for name in _WORDS["odd_texts"])
    write_split(tmp_path / "mind", BEHAVIOURS, ODD_NEWS)
    (tmp_path / "mind" / "entity_embedding.vec").write_text("Q65\t0.5\t-0.5\n")
    assert check_text(mind.read(tmp_path / "mind"))["entities_without_vector"] == 0
    films = check(read_100k(real("ml-100k")))
    assert (films.pairs, films.history_lengths) == (100_000, {"least": 20, "median": 65.0, "most": 737})
    assert (films.text, films.as_json()["text"], films.odd) == (None, None, ())  # titles of films are not judged


@pytest.mark.parametrize(("column", "textless"), [("entities", 3), ("abstracts", 4)])
def test_columns_may_be_missing(tmp_path, column, textless):
    population = mind.read(write_split(tmp_path / "mind", BEHAVIOURS, ODD_NEWS))
    catalogue = replace(population.catalogue, **{column: None})
    text = check_text(replace(population, catalogue=catalogue))
    assert (text["without_title"], text["without_any_text"]) == (4, textless)
