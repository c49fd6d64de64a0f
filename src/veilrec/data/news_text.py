"""News as arrays of codes: title and abstract in words, category, subcategory, and the entity at each word.

Words, categories and entities are those of the news that devices may learn from; what occurs elsewhere only
gets the code of the unknown. Nothing here refuses news: what is odd is counted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl

from veilrec._arrays import Bools, Floats, Indices
from veilrec.data.population import Catalogue, Impressions
from veilrec.data.strings import Strings
from veilrec.data.tokens import tokenise
from veilrec.data.vocabulary import PADDING, UNKNOWN, Vocabulary, make_vocabulary

TITLE_WORDS, ABSTRACT_WORDS = 30, 40


@dataclass(frozen=True)
class NewsText:
    """Codes of n news; 0 is padding, 1 unknown."""

    titles: Indices  # [n, 30]
    abstracts: Indices  # [n, 40]
    categories: Indices  # [n]
    subcategories: Indices  # [n]
    entities: Indices  # [n, 30], of the entity that the word of the title belongs to; 0 for none
    words: Vocabulary
    category_names: Vocabulary
    subcategory_names: Vocabulary
    entity_names: Vocabulary
    entity_vectors: Floats | None  # [len(entity_names), width], where the data set brings them
    oddities: Mapping[str, int]

    def __len__(self) -> int:
        return len(self.titles)


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
    titles = _tokens(catalogue.titles)
    bodies = _tokens(_column(catalogue, "abstracts" if abstracts else None))
    mine = pl.Series(learnt)
    also = None if known_words is None else _occurring_words(titles, bodies, known_words)
    words = make_vocabulary(pl.concat([titles.filter(mine), bodies.filter(mine)]), also=also)
    columns = {name: _lists(_column(catalogue, name)) for name in ("categories", "subcategories")}
    names = {name: make_vocabulary(column.filter(mine)) for name, column in columns.items()}
    found = _entities(_column(catalogue, "entities"), titles)
    entity_names = make_vocabulary(found.ids.filter(mine))
    title_codes = words.rows(titles, TITLE_WORDS)
    without_title = titles.list.len().to_numpy() == 0
    title_codes[without_title, 0] = UNKNOWN  # a title of one unknown word
    category_codes = names["categories"].rows(columns["categories"], 1)[:, 0]
    return NewsText(
        titles=title_codes,
        abstracts=words.rows(bodies, ABSTRACT_WORDS),
        categories=np.maximum(category_codes, UNKNOWN),
        subcategories=np.maximum(names["subcategories"].rows(columns["subcategories"], 1)[:, 0], UNKNOWN),
        entities=_entity_rows(found, entity_names),
        words=words,
        category_names=names["categories"],
        subcategory_names=names["subcategories"],
        entity_names=entity_names,
        entity_vectors=_vectors_of(catalogue, entity_names),
        oddities={
            "empty_titles": int(without_title.sum()),
            "one_word_titles": int((titles.list.len() == 1).sum()),
            "clipped_titles": int((titles.list.len() > TITLE_WORDS).sum()),
            "titles_of_unknown_words": int(
                ((title_codes == UNKNOWN) | (title_codes == PADDING)).all(1).sum()
            ),
            "news_without_category": int((category_codes == PADDING).sum()),
            "unreadable_entities": found.unreadable,
        },
    )


def _column(catalogue: Catalogue, name: str | None) -> Strings:
    column: Strings | None = None if name is None else getattr(catalogue, name)
    return Strings.of([""] * len(catalogue.titles)) if column is None else column


def _tokens(texts: Strings) -> pl.Series:
    return tokenise(pl.Series(list(texts), dtype=pl.String))


def _lists(names: Strings) -> pl.Series:
    """One list per name; empty for an empty name."""
    return pl.Series([[name] if name else [] for name in names], dtype=pl.List(pl.String))


def _occurring_words(titles: pl.Series, bodies: pl.Series, known: pl.Series) -> pl.Series:
    words = pl.concat([titles.explode(), bodies.explode()]).drop_nulls().unique()
    return words.filter(words.is_in(known.implode()))


@dataclass(frozen=True)
class _Entities:
    """Entity ids per news, and for each word of the title the id of its entity or ""."""

    ids: pl.Series  # lists of distinct ids
    at_words: pl.Series  # lists as long as the titles
    unreadable: int


def _entities(column: Strings, titles: pl.Series) -> _Entities:
    rows, names, forms, unreadable = _read_entities(column)
    words = tokenise(pl.Series(forms, dtype=pl.String)).to_list()
    entity_of: dict[int, dict[str, str]] = {}  # news -> word of a surface form -> entity id
    for row, name, form in zip(rows, names, words, strict=True):
        mine = entity_of.setdefault(row, {})
        for word in form:
            mine.setdefault(word, name)  # the first entity keeps a word that several share
    empty: dict[str, str] = {}
    ids = [list(dict.fromkeys(entity_of.get(row, empty).values())) for row in range(len(titles))]
    at_words = [
        [entity_of.get(row, empty).get(word, "") for word in title]
        for row, title in enumerate(titles.to_list())
    ]
    lists = pl.List(pl.String)
    return _Entities(pl.Series(ids, dtype=lists), pl.Series(at_words, dtype=lists), unreadable)


def _read_entities(column: Strings) -> tuple[list[int], list[str], list[str], int]:
    """News, entity id and surface form of every mention, and how many entries are no such JSON."""
    rows: list[int] = []
    names: list[str] = []
    forms: list[str] = []
    unreadable = 0
    for row, text in enumerate(column):
        if len(text) <= len("[]"):
            continue
        try:
            mentions = [
                (str(e["WikidataId"]), str(form)) for e in json.loads(text) for form in e["SurfaceForms"]
            ]
        except (ValueError, TypeError, KeyError):
            unreadable += 1
            continue
        for name, form in mentions:
            rows.append(row)
            names.append(name)
            forms.append(form)
    return rows, names, forms, unreadable


def _entity_rows(found: _Entities, names: Vocabulary) -> Indices:
    rows = names.rows(found.at_words, TITLE_WORDS)
    rows[rows == UNKNOWN] = PADDING  # also where a word belongs to no entity
    return rows


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
