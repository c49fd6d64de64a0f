"""Vectors of the catalogue's own words: the same every time, alike for like texts, and readable without the data."""

from __future__ import annotations

import numpy as np

from veilrec.data.population import ItemTable, Strings
from veilrec.methods.news.text_vectors import TitleAxes, learnt_titles

TOPICS = (
    ("goal match team league", "striker cup"),
    ("court judge law trial", "verdict jury"),
    ("rain storm wind snow", "sun"),
    ("stock bank market bond", "share"),
    ("film actor stage song", "music"),
    ("plane train road ship", "travel"),
)  # a word of more than a fifth of the news says nothing


def catalogue(count: int = 60, *, abstracts: bool = True) -> ItemTable:
    generator = np.random.default_rng(1)
    titles, more = [], []
    for number in range(count):
        words = TOPICS[number % 6]
        titles.append(" ".join(generator.choice(words[0].split(), 3)))
        more.append(words[1])
    names = Strings.of(["news"] * count)
    return ItemTable(Strings.of(titles), names, names, Strings.of(more) if abstracts else None)


def test_news_of_one_topic_are_alike_and_of_two_are_not() -> None:
    vectors, _ = learnt_titles(catalogue(), 6)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-5)
    cosines = vectors @ vectors.T
    assert cosines[0, 6] > 0.9
    assert abs(cosines[0, 1]) < 0.1


def test_the_same_catalogue_gives_the_same_bits_and_is_read_as_it_was_learnt() -> None:
    (first, axes), (second, again) = learnt_titles(catalogue(), 4), learnt_titles(catalogue(), 4)
    assert np.array_equal(first, second)
    assert np.array_equal(axes.axes, again.axes)
    np.testing.assert_allclose(axes.vectors(catalogue()), first, atol=1e-6)


def test_other_news_need_only_what_was_kept() -> None:
    vectors, axes = learnt_titles(catalogue(), 6)
    kept = TitleAxes(axes.words, axes.rarity, axes.axes)
    names = Strings.of(["news"] * 3)
    other = ItemTable(Strings.of(["Match of the TEAM", "", "words nobody knows"]), names)
    found = kept.vectors(other)
    assert found[0] @ vectors[0] > 0.9
    assert not found[1:].any()


def test_fewer_news_than_directions_and_none_that_share_a_word() -> None:
    few, axes = learnt_titles(catalogue(4), 50)
    assert few.shape[1] == axes.axes.shape[1] <= 4
    names = Strings.of(["news"] * 2)
    nothing, axes = learnt_titles(ItemTable(Strings.of(["one", "two"]), names), 8)
    assert nothing.shape == (2, 1)
    assert not nothing.any()
    assert axes.vectors(catalogue(3)).shape == (3, 1)
