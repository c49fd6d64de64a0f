"""Entities of news, from MIND's JSON: which there are, and which word of the title belongs to which."""

from __future__ import annotations

import json
from dataclasses import dataclass

import polars as pl

from veilrec.data.strings import Strings
from veilrec.data.tokens import tokenise

_LISTS = pl.List(pl.String)


@dataclass(frozen=True)
class Entities:
    """Entity ids per news, and for each word of the title the id of its entity or ""."""

    ids: pl.Series  # lists of distinct ids
    at_words: pl.Series  # lists as long as the titles; empty where no entity is named
    unreadable: int  # entries that are no such JSON


def find_entities(column: Strings, titles: pl.Series) -> Entities:
    """The entities that a column names, laid over titles that are lists of words."""
    rows, names, forms, unreadable = _read(column)
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
    return Entities(pl.Series(ids, dtype=_LISTS), pl.Series(at_words, dtype=_LISTS), unreadable)


def _read(column: Strings) -> tuple[list[int], list[str], list[str], int]:
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
