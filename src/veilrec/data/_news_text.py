"""Titles and abstracts of made-up news: words of the topic and the subtopic, names, common words, and a tone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import polars as pl

from veilrec._arrays import Indices, Offsets
from veilrec._csr import Csr
from veilrec.data import _news_words as vocabulary
from veilrec.data._impression_builder import offsets_of
from veilrec.data._made_up_text import made_up_words, sentences
from veilrec.data.population import Catalogue
from veilrec.data.strings import Strings
from veilrec.data.text_files import pack

TOPICS = tuple(vocabulary.TOPICS)
SUBTOPIC_NAMES = tuple(name for topic in TOPICS for name in vocabulary.SUBTOPICS[topic])
N_SUBTOPICS = len(SUBTOPIC_NAMES)
SUBTOPICS_PER_TOPIC = N_SUBTOPICS // len(TOPICS)
_TOPIC_WORDS = len(vocabulary.TOPICS[TOPICS[0]])
_SUBTOPIC_WORDS = len(vocabulary.SUBTOPICS[TOPICS[0]][SUBTOPIC_NAMES[0]])
_SHARE_COMMON, _SHARE_NAMES, _SHARE_TOPIC = 0.2, 0.05, 0.2  # of all words; the rest: the subtopic's
_TONES, _TONE_SHARES = (-2, -1, 0, 1, 2), (0.1, 0.2, 0.4, 0.2, 0.1)
_ABSTRACT_TONE = 2  # words of tone in an abstract for one in the title


class _Kind(NamedTuple):
    """Where the words of a kind begin among all words, and how many they are."""

    start: int
    size: int


def draw_tones(count: int, generator: np.random.Generator) -> Indices:
    """How many lifting words the title of each news has; below 0: how many dull ones."""
    tones: Indices = generator.choice(np.array(_TONES, np.int32), count, p=_TONE_SHARES)
    return tones


def write_catalogue(subtopics: Indices, tones: Indices, generator: np.random.Generator) -> Catalogue:
    """Titles of 6 to 14 words and abstracts of 15 to 30 for news of these subtopics and tones."""
    words, kinds = _dictionary(len(subtopics), generator)
    titles = _draw_words(subtopics, kinds, 6, 14, generator)
    _set_tone(titles, tones, kinds, generator)
    abstracts = _draw_words(subtopics, kinds, 15, 30, generator)
    _set_tone(abstracts, _ABSTRACT_TONE * tones, kinds, generator)
    return Catalogue(
        titles=sentences(words, titles),
        categories=_named(TOPICS, subtopics // SUBTOPICS_PER_TOPIC),
        subcategories=_named(SUBTOPIC_NAMES, subtopics),
        abstracts=sentences(words, abstracts),
    )


def _dictionary(n_news: int, generator: np.random.Generator) -> tuple[Strings, Mapping[str, _Kind]]:
    """All words and their kinds; there are more names the more news, as in any language."""
    lists: dict[str, Sequence[str]] = {
        "common": vocabulary.COMMON,
        "lifting": vocabulary.LIFTING,
        "dull": vocabulary.DULL,
        "topic": [word for topic in TOPICS for word in vocabulary.TOPICS[topic]],
        "subtopic": [word for topic in TOPICS for words in vocabulary.SUBTOPICS[topic].values() for word in words],
    }
    known = {word for words in lists.values() for word in words}
    n_names = round(20 * n_news**0.5)
    drawn = made_up_words(n_names + len(known), generator)
    lists["name"] = [word for word in drawn if word not in known][:n_names]
    kinds, start = {}, 0
    for kind, words in lists.items():
        kinds[kind] = _Kind(start, len(words))
        start += len(words)
    return Strings.of([word for words in lists.values() for word in words]), kinds


def _draw_words(
    subtopics: Indices, kinds: Mapping[str, _Kind], shortest: int, longest: int, generator: np.random.Generator
) -> Csr:
    """Word numbers of a sentence per news, without its tone."""
    offsets = offsets_of(generator.integers(shortest, longest + 1, len(subtopics)))
    subtopic = np.repeat(subtopics.astype(np.int64), np.diff(offsets))
    kind = generator.random(len(subtopic))
    skewed = generator.random(len(subtopic)) ** 2  # low numbers are likelier: density like 1 / sqrt(number)
    common, name = (kinds[k].start + skewed * kinds[k].size for k in ("common", "name"))
    of_topic = kinds["topic"].start + (subtopic // SUBTOPICS_PER_TOPIC + skewed) * _TOPIC_WORDS
    of_subtopic = kinds["subtopic"].start + (subtopic + skewed) * _SUBTOPIC_WORDS
    limits = np.cumsum([_SHARE_COMMON, _SHARE_NAMES, _SHARE_TOPIC])
    chosen = np.select([kind < limit for limit in limits], [common, name, of_topic], of_subtopic)
    return Csr(offsets, chosen.astype(np.int32))


def _set_tone(texts: Csr, tones: Indices, kinds: Mapping[str, _Kind], generator: np.random.Generator) -> None:
    """Put words of tone, side by side at a random place, where other words were."""
    lengths: Offsets = texts.lengths()
    first = (generator.random(len(tones)) * lengths).astype(np.int64)
    for number in range(int(np.abs(tones).max(initial=0))):
        news = np.flatnonzero(np.abs(tones) > number)
        places = texts.offsets[news] + (first[news] + number) % lengths[news]
        start = np.where(tones[news] > 0, kinds["lifting"].start, kinds["dull"].start)
        texts.items[places] = start + generator.integers(0, kinds["dull"].size, len(news))


def _named(names: Sequence[str], codes: Indices) -> Strings:
    return pack(pl.Series(names, dtype=pl.String).gather(codes))
