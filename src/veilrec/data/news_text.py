"""News as arrays of codes: title and abstract in words, category, subcategory, and the entity at each word.

Words, categories and entities are those of the news that devices may learn from; what occurs elsewhere only
gets the code of the unknown. Nothing here refuses news: `veilrec data check` counts what is odd.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from veilrec._arrays import Bools, Floats, Indices
from veilrec.data.news_entities import Entities, find_entities
from veilrec.data.population import Catalogue, Impressions
from veilrec.data.strings import Strings
from veilrec.data.tokens import tokenise
from veilrec.data.vocabulary import PADDING, UNKNOWN, Vocabulary, make_vocabulary

TITLE_WORDS, ABSTRACT_WORDS = 30, 40


@dataclass(frozen=True)
class NewsNames:
    """What a model knows by a code."""

    words: Vocabulary
    categories: Vocabulary
    subcategories: Vocabulary
    entities: Vocabulary
    abstracts: bool  # whether abstracts are read


@dataclass(frozen=True)
class NewsText:
    """Codes of n news; 0 is padding, 1 unknown."""

    titles: Indices  # [n, 30]
    abstracts: Indices  # [n, 40]
    categories: Indices  # [n]
    subcategories: Indices  # [n]
    entities: Indices  # [n, 30], of the entity that the word of the title belongs to; 0 for none
    names: NewsNames
    entity_vectors: Floats | None  # [len(names.entities), width], where the data set brings them

    def __len__(self) -> int:
        return len(self.titles)


@dataclass(frozen=True)
class _Columns:
    """A catalogue in lists of words and names."""

    titles: pl.Series
    abstracts: pl.Series
    categories: pl.Series
    subcategories: pl.Series
    entities: Entities


def occurring(impressions: Impressions, n_items: int) -> Bools:
    """Which items the impressions show or have in a history."""
    found = np.zeros(n_items, np.bool_)
    found[impressions.shown.items] = True
    found[impressions.histories.items] = True
    return found


def news_text(
    catalogue: Catalogue, learnt: Bools, *, abstracts: bool = False, known_words: pl.Series | None = None
) -> NewsText:
    """Codes of a catalogue; `learnt` marks the news whose words, categories and entities become known.

    Without `abstracts` these are left empty and their words out. `known_words` are the words that public
    vectors know: those of them that occur anywhere are kept as well, which comes to the same as keeping them all.
    """
    columns = _columns(catalogue, abstracts)
    mine = pl.Series(learnt)
    texts = [columns.titles, columns.abstracts]
    also = None if known_words is None else _occurring_words(texts, known_words)
    names = NewsNames(
        words=make_vocabulary(pl.concat([text.filter(mine) for text in texts]), also=also),
        categories=make_vocabulary(columns.categories.filter(mine)),
        subcategories=make_vocabulary(columns.subcategories.filter(mine)),
        entities=make_vocabulary(columns.entities.ids.filter(mine)),
        abstracts=abstracts,
    )
    return _coded(catalogue, columns, names)


def other_news_text(catalogue: Catalogue, names: NewsNames) -> NewsText:
    """Codes of another catalogue for a model that knows these names."""
    return _coded(catalogue, _columns(catalogue, names.abstracts), names)


def _columns(catalogue: Catalogue, abstracts: bool) -> _Columns:
    titles = tokenise(_series(catalogue.titles))
    return _Columns(
        titles=titles,
        abstracts=tokenise(_series(_column(catalogue, "abstracts" if abstracts else None))),
        categories=_lists(_column(catalogue, "categories")),
        subcategories=_lists(_column(catalogue, "subcategories")),
        entities=find_entities(_column(catalogue, "entities"), titles),
    )


def _coded(catalogue: Catalogue, columns: _Columns, names: NewsNames) -> NewsText:
    titles = names.words.rows(columns.titles, TITLE_WORDS)
    titles[columns.titles.list.len().to_numpy() == 0, 0] = UNKNOWN  # a title of one unknown word
    entities = names.entities.rows(columns.entities.at_words, TITLE_WORDS)
    entities[entities == UNKNOWN] = PADDING  # also where a word belongs to no entity
    return NewsText(
        titles=titles,
        abstracts=names.words.rows(columns.abstracts, ABSTRACT_WORDS),
        categories=np.maximum(names.categories.rows(columns.categories, 1)[:, 0], UNKNOWN),
        subcategories=np.maximum(names.subcategories.rows(columns.subcategories, 1)[:, 0], UNKNOWN),
        entities=entities,
        names=names,
        entity_vectors=_vectors_of(catalogue, names.entities),
    )


def _column(catalogue: Catalogue, name: str | None) -> Strings:
    column: Strings | None = None if name is None else getattr(catalogue, name)
    return Strings.of([""] * len(catalogue.titles)) if column is None else column


def _series(texts: Strings) -> pl.Series:
    return pl.Series(list(texts), dtype=pl.String)


def _lists(names: Strings) -> pl.Series:
    """One list per name; empty for an empty name."""
    return pl.Series([[name] if name else [] for name in names], dtype=pl.List(pl.String))


def _occurring_words(texts: list[pl.Series], known: pl.Series) -> pl.Series:
    words = pl.concat([text.explode() for text in texts]).drop_nulls().unique()
    return words.filter(words.is_in(known.implode()))


def _vectors_of(catalogue: Catalogue, names: Vocabulary) -> Floats | None:
    """The given vectors in the order of the codes; zero for entities without one."""
    if catalogue.entity_vectors is None:
        return None
    given, vectors = catalogue.entity_vectors
    out = np.zeros((len(names), vectors.shape[1]), np.float32)
    for number, name in enumerate(names.words):
        position = given.find(name)
        if position is not None:
            out[number + len(names) - len(names.words)] = vectors[position]
    return out
