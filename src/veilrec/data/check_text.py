"""What is odd about the text of news, and what a model that reads it will make of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import polars as pl

from veilrec._arrays import Bools
from veilrec.data.news_entities import find_entities
from veilrec.data.news_text import TITLE_WORDS
from veilrec.data.population import Catalogue, Population
from veilrec.data.strings import Strings
from veilrec.data.tokens import tokenise

_OTHER_SCRIPT = r"[\p{L}--[\p{Latin}\p{Common}]]"
_EMOJI = r"\p{Emoji_Presentation}"


@dataclass(frozen=True)
class TextReport:
    """Counts of news, except where another thing is named."""

    without_title: int
    without_any_text: int  # neither title nor abstract
    one_word_titles: int
    clipped_titles: int  # longer than a model reads
    titles_in_other_scripts: int  # with a letter that is not Latin
    titles_with_emoji: int
    without_category: int
    entities: int  # distinct ones in titles
    entities_without_vector: int
    unreadable_entities: int
    candidates_without_title: int  # shown items
    history_without_title: int  # clicks of distinct histories

    def odd(self) -> Iterator[str]:
        """What is odd, and what comes of it, in words."""
        found = (
            (self.without_title, "news without a title: read as one unknown word"),
            (self.without_any_text, "news with neither title nor abstract: models of text rank them by their category"),
            (self.one_word_titles, "titles of one word"),
            (self.clipped_titles, f"titles of more than {TITLE_WORDS} words: the rest is cut off"),
            (
                self.titles_in_other_scripts,
                "titles with letters that are not Latin: their words are learnt; GloVe and MiniLM know English alone",
            ),
            (self.titles_with_emoji, "titles with emoji: each is a word"),
            (self.without_category, "news without a category: all share that of the unknown"),
            (self.unreadable_entities, "news whose entities are not MIND's JSON: taken as having none"),
            (
                self.entities_without_vector,
                f"of {self.entities:,} entities without a vector in entity_embedding.vec: dkn learns them",
            ),
        )
        return (f"{count:,} {what}" for count, what in found if count)


def check_text(population: Population) -> TextReport | None:
    """Count the oddities of news; None for a population whose items are no texts to be read."""
    catalogue = population.catalogue
    if catalogue is None or not _is_news(population, catalogue):
        return None
    titles = _series(catalogue.titles)
    words = tokenise(titles)
    lengths = words.list.len().to_numpy()
    untitled: Bools = lengths == 0
    named = find_entities(Strings.of([""] * len(titles)) if catalogue.entities is None else catalogue.entities, words)
    entities = named.ids.explode().drop_nulls().unique()
    parts = population.impressions.values()
    return TextReport(
        without_title=int(untitled.sum()),
        without_any_text=int((untitled & _empty(catalogue.abstracts, len(titles))).sum()),
        one_word_titles=int((lengths == 1).sum()),
        clipped_titles=int((lengths > TITLE_WORDS).sum()),
        titles_in_other_scripts=int(titles.str.contains(_OTHER_SCRIPT).sum()),
        titles_with_emoji=int(titles.str.contains(_EMOJI).sum()),
        without_category=int(_empty(catalogue.categories, len(titles)).sum()),
        entities=len(entities),
        entities_without_vector=_without_vector(catalogue, entities),
        unreadable_entities=named.unreadable,
        candidates_without_title=sum(int(untitled[part.shown.items].sum()) for part in parts),
        history_without_title=sum(int(untitled[part.histories.items].sum()) for part in parts),
    )


def _is_news(population: Population, catalogue: Catalogue) -> bool:
    """Films and apps have titles, too; news come with impressions, or are described by more than that."""
    described = catalogue.subcategories is not None or catalogue.abstracts is not None
    return bool(population.impressions) or described


def _series(texts: Strings) -> pl.Series:
    return pl.Series(list(texts), dtype=pl.String)


def _empty(texts: Strings | None, count: int) -> Bools:
    if texts is None:
        return np.ones(count, np.bool_)
    blank: Bools = (_series(texts).str.strip_chars() == "").to_numpy()
    return blank


def _without_vector(catalogue: Catalogue, entities: pl.Series) -> int:
    if catalogue.entity_vectors is None:
        return len(entities)
    return int((~entities.is_in(_series(catalogue.entity_vectors[0]).implode())).sum())
