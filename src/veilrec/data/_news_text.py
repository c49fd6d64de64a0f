"""Titles and abstracts of made-up news: words of the topic and the subtopic, and common ones."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from veilrec._arrays import Indices
from veilrec._csr import Csr
from veilrec.data._impression_builder import offsets_of
from veilrec.data._made_up_text import COMMON_WORDS, made_up_words, sentences
from veilrec.data.population import Catalogue
from veilrec.data.strings import Strings
from veilrec.data.text_files import pack

TOPICS = ("politics", "sport", "money", "health", "science", "travel", "culture", "food", "cars", "weather")
SUBTOPICS_PER_TOPIC = 4
N_SUBTOPICS = len(TOPICS) * SUBTOPICS_PER_TOPIC
_TOPIC_WORDS, _SUBTOPIC_WORDS = 40, 30  # the size of a topic's and of a subtopic's own vocabulary
_SHARE_COMMON, _SHARE_TOPIC = 0.3, 0.25  # of the words of a sentence; the rest are the subtopic's


def write_catalogue(subtopics: Indices, generator: np.random.Generator) -> Catalogue:
    """Titles of 6 to 14 words and abstracts of 15 to 30 for news of these subtopics."""
    n_own = len(TOPICS) * _TOPIC_WORDS + N_SUBTOPICS * _SUBTOPIC_WORDS
    words = Strings.of([*COMMON_WORDS, *made_up_words(n_own, generator)])
    names = [f"{topic}{number}" for topic in TOPICS for number in range(1, SUBTOPICS_PER_TOPIC + 1)]
    topics = subtopics // SUBTOPICS_PER_TOPIC
    return Catalogue(
        titles=sentences(words, _draw_words(subtopics, 6, 14, generator)),
        categories=_named(TOPICS, topics),
        subcategories=_named(names, subtopics),
        abstracts=sentences(words, _draw_words(subtopics, 15, 30, generator)),
    )


def _draw_words(subtopics: Indices, shortest: int, longest: int, generator: np.random.Generator) -> Csr:
    """Word numbers of a sentence per news; they run over common, topics' and subtopics' words."""
    offsets = offsets_of(generator.integers(shortest, longest + 1, len(subtopics)))
    subtopic = np.repeat(subtopics.astype(np.int64), np.diff(offsets))
    kind = generator.random(len(subtopic))
    skewed = (
        generator.random(len(subtopic)) ** 2
    )  # low numbers are likelier, with density like 1 / sqrt(number)
    topic_start = len(COMMON_WORDS)
    subtopic_start = topic_start + len(TOPICS) * _TOPIC_WORDS
    common = (skewed * len(COMMON_WORDS)).astype(np.int64)
    of_topic = topic_start + (subtopic // SUBTOPICS_PER_TOPIC + skewed) * _TOPIC_WORDS
    of_subtopic = subtopic_start + (subtopic + skewed) * _SUBTOPIC_WORDS
    own = np.where(kind < _SHARE_COMMON + _SHARE_TOPIC, of_topic, of_subtopic).astype(np.int64)
    return Csr(offsets, np.where(kind < _SHARE_COMMON, common, own).astype(np.int32))


def _named(names: Sequence[str], codes: Indices) -> Strings:
    return pack(pl.Series(names, dtype=pl.String).gather(codes))
