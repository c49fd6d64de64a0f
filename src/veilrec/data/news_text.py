"""What news models read: title and abstract as codes of words, category, subcategory, and the entity at each word.

Words, categories and entities are those of the news that clients may learn from; what occurs elsewhere only
gets the code of the unknown. Nothing here refuses news: `veilrec data check` counts what is odd.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from veilrec.core.arrays import Bools, Floats, Indices
from veilrec.data.population import Impressions, ItemTable, Strings
from veilrec.data.text_files import unpack

TITLE_WORDS, ABSTRACT_WORDS = 30, 40
PADDING, UNKNOWN = 0, 1  # codes of no word and of a word that is not in the vocabulary
_FIRST_WORD = 2
_WORD = r"[\p{L}\p{M}]+|\p{N}+|[^\s\p{C}\p{L}\p{M}\p{N}]"
_WORDS = pl.List(pl.String)


def tokenise(texts: pl.Series) -> pl.Series:
    """The words of every text, as a column of lists; an empty text has none.

    Words are runs of letters, runs of digits, and every other visible sign on its own, all in lower case. So any
    language and any emoji goes through: what is no letter and no digit is a sign, what is invisible is left out.
    """
    if len(texts) == 0:
        return pl.Series(texts.name, [], dtype=_WORDS)
    return texts.fill_null("").str.to_lowercase().str.extract_all(_WORD)


@dataclass(frozen=True)
class Vocabulary:
    """Word number i has the code i + 2."""

    words: tuple[str, ...]

    def __len__(self) -> int:
        """Number of codes: the words, padding, and the unknown word."""
        return len(self.words) + _FIRST_WORD

    def codes(self, words: pl.Series) -> Indices:
        """The code of every word of a column."""
        known = pl.DataFrame(
            {"word": pl.Series(self.words, dtype=pl.String), "code": np.arange(_FIRST_WORD, len(self), dtype=np.int32)}
        )
        found = pl.DataFrame({"word": words}).join(known, on="word", how="left", maintain_order="left")
        return found["code"].fill_null(UNKNOWN).to_numpy().astype(np.int32)

    def rows(self, texts: pl.Series, length: int) -> Indices:
        """Lists of words as codes, [texts, length]: the first `length` words, padding behind the last."""
        clipped = texts.list.head(length)
        lengths = clipped.list.len().to_numpy().astype(np.int64)
        out = np.full((len(texts), length), PADDING, np.int32)
        out[np.arange(length) < lengths[:, None]] = self.codes(clipped.explode().drop_nulls())
        return out


def make_vocabulary(texts: pl.Series, *, fewest: int = 1, also: pl.Series | None = None) -> Vocabulary:
    """The words that occur `fewest` times or more in lists of words, the most frequent first; then those of `also`.

    `also` are words that are known without any text (of public word vectors).
    """
    words = texts.explode().drop_nulls()
    counts = pl.DataFrame({"word": words}).group_by("word").len()
    learnt = counts.filter(pl.col("len") >= fewest).sort(["len", "word"], descending=[True, False])["word"]
    chosen: Sequence[str] = learnt.to_list()
    if also is not None:
        chosen = [*chosen, *also.filter(~also.is_in(learnt.implode())).unique().sort().to_list()]
    return Vocabulary(tuple(chosen))


@dataclass(frozen=True)
class Entities:
    """Entity ids per news, and for each word of the title the id of its entity or ""."""

    ids: pl.Series  # lists of distinct ids
    at_words: pl.Series  # lists as long as the titles; empty where no entity is named
    unreadable: int  # entries that are no such JSON


def find_entities(column: Strings, titles: pl.Series) -> Entities:
    """The entities that a column names, laid over titles that are lists of words."""
    rows, names, forms, unreadable = _read_mentions(column)
    words = tokenise(pl.Series(forms, dtype=pl.String)).to_list()
    entity_of: dict[int, dict[str, str]] = {}  # news -> word of a surface form -> entity id
    for row, name, form in zip(rows, names, words, strict=True):
        mine = entity_of.setdefault(row, {})
        for word in form:
            mine.setdefault(word, name)  # the first entity keeps a word that several share
    ids: list[list[str]] = [[] for _ in range(len(titles))]
    at_words: list[list[str]] = [[] for _ in range(len(titles))]
    for row, mine in entity_of.items():
        ids[row] = list(dict.fromkeys(mine.values()))
        at_words[row] = [mine.get(word, "") for word in titles[row]]
    return Entities(pl.Series(ids, dtype=_WORDS), pl.Series(at_words, dtype=_WORDS), unreadable)


def _read_mentions(column: Strings) -> tuple[list[int], list[str], list[str], int]:
    """News, entity id and surface form of every mention, and how many entries are no such JSON."""
    rows: list[int] = []
    names: list[str] = []
    forms: list[str] = []
    unreadable = 0
    for row, text in enumerate(column):
        if len(text) <= len("[]"):
            continue
        try:
            mentions = [(str(e["WikidataId"]), str(form)) for e in json.loads(text) for form in e["SurfaceForms"]]
        except (ValueError, TypeError, KeyError, RecursionError):
            unreadable += 1
            continue
        for name, form in mentions:
            rows.append(row)
            names.append(name)
            forms.append(form)
    return rows, names, forms, unreadable


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
class _NewsColumns:
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


def all_words(catalogue: ItemTable, *, abstracts: bool = False) -> frozenset[str]:
    """Every word of a catalogue."""
    columns = [catalogue.titles, _column(catalogue, "abstracts" if abstracts else None)]
    return frozenset(pl.concat([tokenise(unpack(column)).explode() for column in columns]).drop_nulls().unique())


def news_text(
    catalogue: ItemTable, learnt: Bools, *, abstracts: bool = False, known_words: pl.Series | None = None
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


def other_news_text(catalogue: ItemTable, names: NewsNames) -> NewsText:
    """Codes of another catalogue for a model that knows these names."""
    return _coded(catalogue, _columns(catalogue, names.abstracts), names)


def _columns(catalogue: ItemTable, abstracts: bool) -> _NewsColumns:
    titles = tokenise(unpack(catalogue.titles))
    return _NewsColumns(
        titles=titles,
        abstracts=tokenise(unpack(_column(catalogue, "abstracts" if abstracts else None))),
        categories=_lists(_column(catalogue, "categories")),
        subcategories=_lists(_column(catalogue, "subcategories")),
        entities=find_entities(_column(catalogue, "entities"), titles),
    )


def _coded(catalogue: ItemTable, columns: _NewsColumns, names: NewsNames) -> NewsText:
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


def _column(catalogue: ItemTable, name: str | None) -> Strings:
    column: Strings | None = None if name is None else getattr(catalogue, name)
    return Strings.of([""] * len(catalogue.titles)) if column is None else column


def _lists(names: Strings) -> pl.Series:
    """One list per name; empty for an empty name."""
    return pl.Series([[name] if name else [] for name in names], dtype=_WORDS)


def _occurring_words(texts: list[pl.Series], known: pl.Series) -> pl.Series:
    words = pl.concat([text.explode() for text in texts]).drop_nulls().unique()
    return words.filter(words.is_in(known.implode()))


def _vectors_of(catalogue: ItemTable, names: Vocabulary) -> Floats | None:
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
