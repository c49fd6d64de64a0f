from __future__ import annotations

from collections import Counter

import numpy as np

from veilrec.data.synthetic_ratings_words import GENRES, film_titles


def _titles(genres: list[int], seed: int = 0) -> list[str]:
    return film_titles(np.array(genres, np.int32), np.random.default_rng(seed))


def test_a_title_is_words_with_its_genre_behind_them() -> None:
    titles = _titles(list(range(len(GENRES))))
    for title, genre in zip(titles, GENRES, strict=True):
        name, _, behind = title.partition(" (")
        assert behind == f"{genre})"
        assert name.startswith("The ")
        assert name.isascii() and len(name.split()) == 3


def test_no_two_genres_share_a_noun() -> None:
    """So that a noun tells the genre: of 500 titles each, all nouns of a genre are seen."""
    nouns = {genre: {title.split()[2] for title in _titles([genre] * 500)} for genre in range(len(GENRES))}
    counts = Counter(noun for own in nouns.values() for noun in own)
    assert max(counts.values()) == 1
    assert {len(own) for own in nouns.values()} == {10}


def test_titles_are_distinct_by_the_numbers_of_sequels() -> None:
    titles = _titles([3] * 3000)
    assert len(set(titles)) == 3000
    sequels = [title for title in titles if " 2 (" in title]
    assert sequels
    for second in sequels:
        assert second.replace(" 2 (", " (") in titles[: titles.index(second)]


def test_titles_depend_on_the_seed_alone() -> None:
    assert _titles([1, 2, 3]) == _titles([1, 2, 3])
    assert _titles([1, 2, 3]) != _titles([1, 2, 3], seed=1)
    assert _titles([]) == []
