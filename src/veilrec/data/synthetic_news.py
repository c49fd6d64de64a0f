"""Synthetic news with the log-odds of every click known: like MIND, at any size, with the best reachable AUC.

News have a topic, a subtopic and a tone, all visible in the words of their titles and abstracts, and appear
all the time. A user has three interests (subtopics) whose weights drift over the days. An impression shows 5
to 40 news that are mostly fresh, and each is clicked with the log-odds

    c + a affinity(user, news, time) + b tone(news),

which `Impressions.oracle` keeps. An impression without a click gets one, as MIND has none without. The last
day is "dev". As in MIND, the history of an impression is what the user had read before its split began:
before the first day in "train", and that and his clicks in "train" in "dev". So a reader of text and history
can know all of the score apart from what the history leaves open: a short one says little of the interests,
any one says nothing of the latest drift, and some of it was read without interest. All draws are keyed by
(seed, user).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import polars as pl

from veilrec.core.arrays import Bytes, Doubles, Floats, Indices, Offsets
from veilrec.core.csr import Csr, csr_from_pairs, offsets_of
from veilrec.core.errors import BadInput
from veilrec.core.jit import jit
from veilrec.data import synthetic_draws as draws
from veilrec.data.impression_logs import count_facts, uses
from veilrec.data.population import Impressions, ItemTable, Population, Strings, chosen_impressions
from veilrec.data.synthetic_draws import (
    DAY,
    FIRST_DAY,
    INTERESTS,
    draw_interest,
    draw_interests,
    interest_weight,
    invented_words,
    numbered_ids,
    read_words,
    sentences,
)
from veilrec.data.text_files import pack

_ARCHIVE_DAYS = 7  # of news before the first day
_MEAN_HISTORY = 30.0
_MEASURED = 20_000  # dev impressions that the reachable AUC is measured on, at most

WORDS = read_words("news")  # common, lifting, dull; topics and subtopics by name
_TOPICS = tuple(WORDS["topics"])
_SUBTOPIC_NAMES = tuple(name for topic in _TOPICS for name in WORDS["subtopics"][topic])
_N_SUBTOPICS = len(_SUBTOPIC_NAMES)
_SUBTOPICS_PER_TOPIC = _N_SUBTOPICS // len(_TOPICS)
_TOPIC_WORDS = len(WORDS["topics"][_TOPICS[0]])
_SUBTOPIC_WORDS = len(WORDS["subtopics"][_TOPICS[0]][_SUBTOPIC_NAMES[0]])
_SHARE_COMMON, _SHARE_NAMES, _SHARE_TOPIC = 0.2, 0.05, 0.2  # of all words; the rest: the subtopic's
_TONES, _TONE_SHARES = (-2, -1, 0, 1, 2), (0.1, 0.2, 0.4, 0.2, 0.1)
_ABSTRACT_TONE = 2  # words of tone in an abstract for one in the title

_LENGTH_STREAM, _TRAIT_STREAM, _HISTORY_STREAM, _VISIT_STREAM, _IMPRESSION_STREAM = 1, 2, 3, 4, 5
_MAX_VISITS = 100  # impressions of one user
_FEWEST_SHOWN, _MAX_SHOWN = 5, 40
_MEAN_AGE = 0.8  # days between the publication of a news and its being shown
_PACE = 0.5  # of the way from their first weights to their last ones that interests go in all days
_SAME_TOPIC = 0.5  # affinity to a news of the right topic but another subtopic; 1 with the right subtopic
_INTERCEPT, _AFFINITY_WEIGHT, _TONE_WEIGHT = -3.9, 7.5, 0.4  # of the click's log-odds


def generate(
    *,
    users: int = 5000,
    news: int | None = None,
    days: int = 7,
    impressions_per_user: float | None = None,
    seed: int = 0,
) -> Population:
    """Draw a population; by default news grow with the users' square root, and many users see less each."""
    n_news = max(600, round(40 * users**0.5)) if news is None else news
    visits_per_user = (
        min(10.0, max(1.5, 300_000 / max(users, 1))) if impressions_per_user is None else impressions_per_user
    )
    if not 1 <= users <= 10_000_000 or not 200 <= n_news <= 1_000_000 or not 2 <= days <= 1000 or seed < 0:
        raise BadInput(
            f"cannot generate news of {users} users, {n_news} news, {days} days, seed {seed}: "
            "allowed are 1 to 10000000 users, 200 to 1000000 news, 2 to 1000 days, seed from 0"
        )
    if not 1 <= visits_per_user <= _MAX_VISITS / 4:
        raise BadInput(f"impressions_per_user is {visits_per_user}: allowed is 1 to {_MAX_VISITS // 4}")
    generator = np.random.default_rng([seed, n_news])
    published = np.sort(generator.uniform(-_ARCHIVE_DAYS, days, n_news))
    subtopic = (_N_SUBTOPICS * generator.random(n_news) ** 1.2).astype(np.int32)
    # how many lifting words each title has; below 0: how many dull ones
    tones: Indices = generator.choice(np.array(_TONES, np.int32), n_news, p=_TONE_SHARES)

    histories, visit_offsets = _draw_pasts(seed, users, visits_per_user, published, subtopic, tones)
    drawn = _make_impressions(seed, days, published, subtopic, tones, visit_offsets, histories)
    last_day = drawn.times >= FIRST_DAY + (days - 1) * DAY
    train = chosen_impressions(drawn, ~last_day)
    interactions = uses(histories, train)
    dev = replace(chosen_impressions(drawn, last_day), histories=Csr(interactions.offsets, interactions.items))
    impressions = {"train": train, "dev": dev}
    return Population(
        "synthetic-news",
        numbered_ids("U", users),
        numbered_ids("N", n_news),
        interactions,
        impressions,
        _write_catalogue(subtopic, tones, generator),
        {**count_facts(impressions), "seed": seed, "days": days, **_reachable(train, dev, n_news)},
    )


def _draw_pasts(
    seed: int, users: int, visits_per_user: float, published: Doubles, subtopic: Indices, tones: Indices
) -> tuple[Csr, Offsets]:
    """Draw every user's history before the first day, and where the user's impressions begin."""
    n_archive = int(np.searchsorted(published, 0.0))
    archive = csr_from_pairs(subtopic[:n_archive].astype(np.int64), np.arange(n_archive, dtype=np.int32), _N_SUBTOPICS)
    lengths, visits = np.empty(users, np.int64), np.empty(users, np.int64)
    longest = min(200, n_archive // 4)
    _draw_lengths(seed, _MEAN_HISTORY, longest, visits_per_user, lengths, visits)
    offsets = offsets_of(lengths)
    items = np.empty(offsets[-1], np.int32)
    _draw_histories(seed, tones, archive.offsets, archive.items, offsets, items)
    return Csr(offsets, items), offsets_of(visits)


def _make_impressions(
    seed: int, days: int, published: Doubles, subtopic: Indices, tones: Indices, visit_offsets: Offsets, histories: Csr
) -> Impressions:
    n_visits = int(visit_offsets[-1])
    moments, lengths = np.empty(n_visits), np.empty(n_visits, np.int64)
    _draw_visits(seed, days, visit_offsets, moments, lengths)
    shown = Csr(offsets_of(lengths), np.empty(int(lengths.sum()), np.int32))
    clicked, oracle = np.empty(len(shown.items), np.uint8), np.empty(len(shown.items), np.float32)
    _draw_shown(
        seed, days, published, subtopic, tones, visit_offsets, moments, shown.offsets, shown.items, clicked, oracle
    )
    users = np.repeat(np.arange(len(histories), dtype=np.int32), np.diff(visit_offsets))
    times = FIRST_DAY + (moments * DAY).astype(np.int64)
    return Impressions(users, times, shown, clicked, histories, users, oracle)


def _reachable(train: Impressions, dev: Impressions, n_news: int) -> dict[str, float]:
    """AUC in "dev" (a sample) of the true log-odds, and of the clicks in "train" counted."""
    offsets = dev.shown.offsets[: _MEASURED + 1]
    items, clicked = dev.shown.items[: offsets[-1]], dev.clicked[: offsets[-1]]
    counts = np.bincount(train.shown.items[train.clicked == 1], minlength=n_news).astype(np.float64)
    oracle = np.zeros(0) if dev.oracle is None else dev.oracle[: offsets[-1]].astype(np.float64)
    return {
        "oracle_auc": round(mean_auc(oracle, clicked, offsets), 4),
        "popularity_auc": round(mean_auc(counts[items], clicked, offsets), 4),
    }


class _Kind(NamedTuple):
    """Where the words of a kind begin among all words, and how many they are."""

    start: int
    size: int


def _write_catalogue(subtopics: Indices, tones: Indices, generator: np.random.Generator) -> ItemTable:
    """Titles of 6 to 14 words and abstracts of 15 to 30 for news of these subtopics and tones."""
    words, kinds = _dictionary(len(subtopics), generator)
    titles = _draw_words(subtopics, kinds, 6, 14, generator)
    _set_tone(titles, tones, kinds, generator)
    abstracts = _draw_words(subtopics, kinds, 15, 30, generator)
    _set_tone(abstracts, _ABSTRACT_TONE * tones, kinds, generator)
    return ItemTable(
        titles=sentences(words, titles),
        categories=_named(_TOPICS, subtopics // _SUBTOPICS_PER_TOPIC),
        subcategories=_named(_SUBTOPIC_NAMES, subtopics),
        abstracts=sentences(words, abstracts),
    )


def _dictionary(n_news: int, generator: np.random.Generator) -> tuple[Strings, Mapping[str, _Kind]]:
    """All words and their kinds; there are more names the more news, as in any language."""
    lists: dict[str, Sequence[str]] = {
        "common": WORDS["common"],
        "lifting": WORDS["lifting"],
        "dull": WORDS["dull"],
        "topic": [word for topic in _TOPICS for word in WORDS["topics"][topic]],
        "subtopic": [word for topic in _TOPICS for words in WORDS["subtopics"][topic].values() for word in words],
    }
    known = {word for words in lists.values() for word in words}
    n_names = round(20 * n_news**0.5)
    drawn = invented_words(n_names + len(known), generator)
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
    of_topic = kinds["topic"].start + (subtopic // _SUBTOPICS_PER_TOPIC + skewed) * _TOPIC_WORDS
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


@jit
def _draw_lengths(
    seed: int, mean_history: float, longest: int, mean_visits: float, histories: Offsets, visits: Offsets
) -> None:
    """Draw the lengths of histories before the first day and the numbers of impressions."""
    state = np.empty(1, np.uint64)
    for user in range(len(visits)):
        draws.start(state, seed, _LENGTH_STREAM, user)
        histories[user] = draws.lognormal_length(state, mean_history, 0.8, 0, longest)
        visits[user] = draws.lognormal_length(state, mean_visits, 0.7, 1, _MAX_VISITS)


@jit
def _draw_histories(
    seed: int, tones: Indices, archive_offsets: Offsets, archive_items: Indices, offsets: Offsets, items: Indices
) -> None:
    """Draw histories before the first day: mostly news of the user's interests, the better toned of two."""
    n_archive = len(archive_items)
    state = np.empty(1, np.uint64)
    interests, at_start, at_end = np.empty(INTERESTS, np.int64), np.empty(INTERESTS), np.empty(INTERESTS)
    read_by = np.full(n_archive, -1, np.int64)
    for user in range(len(offsets) - 1):
        draws.start(state, seed, _TRAIT_STREAM, user)
        draw_interests(state, _N_SUBTOPICS, interests, at_start, at_end)
        draws.start(state, seed, _HISTORY_STREAM, user)
        for position in range(offsets[user], offsets[user + 1]):
            wanted = interests[draw_interest(state, 0.0, at_start, at_end)]
            news = _draw_read(state, wanted, tones, archive_offsets, archive_items)
            while read_by[news] == user:
                news = (news + 1) % n_archive
            read_by[news] = user
            items[position] = news


@jit
def _draw_read(
    state: draws.State, wanted: int, tones: Indices, archive_offsets: Offsets, archive_items: Indices
) -> int:
    how = draws.uniform(state)
    if how > 0.7:  # another subtopic of the same topic
        wanted = wanted // _SUBTOPICS_PER_TOPIC * _SUBTOPICS_PER_TOPIC + draws.integer(state, _SUBTOPICS_PER_TOPIC)
    low, high = archive_offsets[wanted], archive_offsets[wanted + 1]
    if how > 0.9 or low == high:  # anything
        low, high = 0, len(archive_items)
    one: int = archive_items[low + draws.integer(state, high - low)]
    other: int = archive_items[low + draws.integer(state, high - low)]
    return one if tones[one] > tones[other] else other


@jit
def _draw_visits(seed: int, days: int, offsets: Offsets, moments: Doubles, shown: Offsets) -> None:
    """When each impression happens (in days from the first, rising per user), how many news it shows."""
    state = np.empty(1, np.uint64)
    for user in range(len(offsets) - 1):
        draws.start(state, seed, _VISIT_STREAM, user)
        low, high = offsets[user], offsets[user + 1]
        draws.rising(state, high - low, moments[low:high])
        for visit in range(low, high):
            moments[visit] *= days
            spread = draws.uniform(state)
            shown[visit] = _FEWEST_SHOWN + int(spread * spread * (_MAX_SHOWN - _FEWEST_SHOWN + 1))


@jit
def _draw_shown(
    seed: int,
    days: int,
    published: Doubles,
    subtopic: Indices,
    tones: Indices,
    visit_offsets: Offsets,
    moments: Doubles,
    shown_offsets: Offsets,
    shown: Indices,
    clicked: Bytes,
    oracle: Floats,
) -> None:
    """Which news each impression shows, the log-odds of a click on each, and the clicks."""
    state = np.empty(1, np.uint64)
    interests, at_start, at_end = np.empty(INTERESTS, np.int64), np.empty(INTERESTS), np.empty(INTERESTS)
    shown_in = np.full(len(published), -1, np.int64)
    for user in range(len(visit_offsets) - 1):
        draws.start(state, seed, _TRAIT_STREAM, user)
        draw_interests(state, _N_SUBTOPICS, interests, at_start, at_end)
        for visit in range(visit_offsets[user], visit_offsets[user + 1]):
            draws.start(state, seed, _IMPRESSION_STREAM, user * _MAX_VISITS + visit - visit_offsets[user])
            moment = moments[visit]
            low, high = shown_offsets[visit], shown_offsets[visit + 1]
            for place in range(low, high):
                news = _draw_fresh(state, moment, published, shown_in, visit)
                affinity = 0.0
                for k in range(INTERESTS):
                    share = interest_weight(k, _PACE * moment / days, at_start, at_end)
                    if subtopic[news] == interests[k]:
                        affinity += share
                    elif subtopic[news] // _SUBTOPICS_PER_TOPIC == interests[k] // _SUBTOPICS_PER_TOPIC:
                        affinity += _SAME_TOPIC * share
                shown[place] = news
                oracle[place] = _INTERCEPT + _AFFINITY_WEIGHT * affinity + _TONE_WEIGHT * tones[news]
            _draw_clicks(state, oracle[low:high], clicked[low:high])


@jit
def _draw_fresh(state: draws.State, moment: float, published: Doubles, shown_in: Offsets, visit: int) -> int:
    """A news that is out at this moment and not yet in this impression; fresh ones are likelier."""
    newest = int(np.searchsorted(published, moment)) - 1
    drawn = int(np.searchsorted(published, moment - _MEAN_AGE * draws.exponential(state)))
    news = max(drawn - 1, 0)
    while shown_in[news] == visit:
        news = news - 1 if news > 0 else newest
    shown_in[news] = visit
    return news


@jit
def _draw_clicks(state: draws.State, log_odds: Floats, clicked: Bytes) -> None:
    """Independent clicks; an impression without any gets one, drawn in proportion to exp(log-odds)."""
    best, best_value, clicks = 0, -1e300, 0  # not -inf: the kernels are compiled for finite numbers
    for place in range(len(log_odds)):
        value = log_odds[place] - np.log(draws.exponential(state))  # the Gumbel trick
        if value > best_value:
            best, best_value = place, value
        clicked[place] = draws.uniform(state) < 1.0 / (1.0 + np.exp(-log_odds[place]))
        clicks += clicked[place]
    if clicks == 0:
        clicked[best] = 1


@jit
def mean_auc(scores: Doubles, clicked: Bytes, offsets: Offsets) -> float:
    """AUC per impression, ties as a half, averaged over the impressions that have both labels."""
    total, counted = 0.0, 0
    for row in range(len(offsets) - 1):
        won, pairs = 0.0, 0
        for one in range(offsets[row], offsets[row + 1]):
            if clicked[one]:
                for other in range(offsets[row], offsets[row + 1]):
                    if not clicked[other]:
                        pairs += 1
                        won += 1.0 * (scores[one] > scores[other]) + 0.5 * (scores[one] == scores[other])
        if pairs:
            total += won / pairs
            counted += 1
    return total / counted if counted else 0.5
