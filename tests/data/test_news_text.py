"""Words, vocabularies and codes of news."""

import json

import numpy as np
import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from veilrec.data.news_text import (
    PADDING,
    TITLE_WORDS,
    UNKNOWN,
    Vocabulary,
    make_vocabulary,
    news_text,
    other_news_text,
    tokenise,
)
from veilrec.data.population import ItemTable, Strings


def words(*texts):
    return tokenise(pl.Series(texts, dtype=pl.String)).to_list()


def test_words_numbers_and_signs_are_apart_and_in_lower_case():
    assert words("Don't pay $3.50!", "", " \t ") == [["don", "'", "t", "pay", "$", "3", ".", "50", "!"], [], []]
    assert words("Größe", "日本語 ニュース", "x😀y") == [["größe"], ["日本語", "ニュース"], ["x", "😀", "y"]]


@given(st.lists(st.text(max_size=30), max_size=5))
def test_any_text_gives_words_without_blanks(texts):
    for row in words(*texts):
        assert all(word and not any(sign.isspace() for sign in word) for word in row)


def test_a_vocabulary_has_frequent_words_first_and_rows_are_clipped_and_padded():
    texts = pl.Series([["b", "a", "b"], ["c"], []], dtype=pl.List(pl.String))
    assert make_vocabulary(texts).words == ("b", "a", "c")
    assert make_vocabulary(texts, fewest=2).words == ("b",)
    assert make_vocabulary(texts, fewest=2, also=pl.Series(["z", "b", "y"])).words == ("b", "y", "z")
    texts = pl.Series([["a", "x", "b"], [], ["b"]], dtype=pl.List(pl.String))
    assert Vocabulary(("a", "b")).rows(texts, 2).tolist() == [[2, UNKNOWN], [PADDING, PADDING], [3, PADDING]]


def catalogue(titles, entities=None):
    names = ["sport", "", "money"][: len(titles)] + ["sport"] * (len(titles) - 3)
    return ItemTable(Strings.of(titles), Strings.of(names), entities=None if entities is None else Strings.of(entities))


def test_only_news_that_are_learnt_from_make_words_known():
    titles, learnt = catalogue(["new tax", "tax cut", "new war"]), np.array([True, False, False])
    text = news_text(titles, learnt)
    assert set(text.names.words.words) == {"new", "tax"}
    assert text.titles[1, 1] == UNKNOWN
    assert text.categories.tolist() == [2, UNKNOWN, UNKNOWN]  # "money" occurs elsewhere only
    known = news_text(titles, learnt, known_words=pl.Series(["war", "peace"]))
    assert set(known.names.words.words) == {"new", "tax", "war"}
    first = news_text(titles, np.ones(3, np.bool_))  # other news get the codes that are known
    codes = dict(zip(first.names.words.words, range(2, 9), strict=False))
    other = other_news_text(catalogue(["war cut", "peace", ""]), first.names)
    assert other.titles[:, :2].tolist() == [[codes["war"], codes["cut"]], [UNKNOWN, PADDING], [UNKNOWN, PADDING]]
    assert other.categories[0] == first.categories[0]
    assert other.names is first.names


def test_odd_news_are_kept_and_entities_lie_at_their_words_and_bring_their_vectors():
    titles = ["", "One", "w " * (TITLE_WORDS + 5), "one two"]
    entities = ["[]", "{broken", json.dumps([{"SurfaceForms": ["w"]}]), "[" * 100_000]
    text = news_text(catalogue(titles, entities), np.ones(4, np.bool_))
    assert text.titles.shape == (4, TITLE_WORDS)
    assert text.titles[0].tolist() == [UNKNOWN] + [PADDING] * (TITLE_WORDS - 1)
    assert (text.titles[2] > UNKNOWN).all()
    assert not text.entities.any()
    mention = [{"WikidataId": "Q1", "SurfaceForms": ["Los Angeles"]}]
    whole = ItemTable(
        Strings.of(["Fire near Los Angeles", "Rain"]),
        Strings.of(["news", "weather"]),
        entities=Strings.of([json.dumps(mention), "[]"]),
        entity_vectors=(Strings.of(["Q7", "Q1"]), np.array([[7.0, 7.0], [1.0, 2.0]], np.float32)),
    )
    text = news_text(whole, np.ones(2, np.bool_))
    assert text.entities[0, :5].tolist() == [0, 0, 2, 2, 0]
    assert not text.entities[1].any()
    assert text.entity_vectors[2].tolist() == [1.0, 2.0]
