"""The compiled loops over the users of made-up news; every user draws from streams of his own."""

from __future__ import annotations

import numpy as np

from veilrec._arrays import Bytes, Doubles, Floats, Indices, Offsets
from veilrec._jit import jit
from veilrec.data import _draws as draws
from veilrec.data._interests import INTERESTS, draw_interest, draw_interests, weight
from veilrec.data._news_text import N_SUBTOPICS, SUBTOPICS_PER_TOPIC

_LENGTHS, _TRAITS, _HISTORY, _VISITS, _IMPRESSION = 1, 2, 3, 4, 5  # streams
MOST_VISITS = 100  # impressions of one user
FEWEST_SHOWN, MOST_SHOWN = 5, 40
_MEAN_AGE = 0.8  # days between the publication of a news and its being shown
_PACE = 0.5  # of the way from their first weights to their last ones that interests go in all days
_SAME_TOPIC = 0.5  # affinity to a news of the right topic but another subtopic; 1 with the right subtopic
_INTERCEPT, _AFFINITY, _TONE = -3.9, 7.5, 0.4  # of the click's log-odds


@jit
def draw_lengths(
    seed: int, mean_history: float, longest: int, mean_visits: float, histories: Offsets, visits: Offsets
) -> None:
    """How many news each user has read before the first day, and how many impressions he gets."""
    state = np.empty(1, np.uint64)
    for user in range(len(visits)):
        draws.start(state, seed, _LENGTHS, user)
        histories[user] = draws.lognormal_length(state, mean_history, 0.8, 0, longest)
        visits[user] = draws.lognormal_length(state, mean_visits, 0.7, 1, MOST_VISITS)


@jit
def draw_histories(
    seed: int, tones: Indices, archive_offsets: Offsets, archive_items: Indices, offsets: Offsets, items: Indices
) -> None:
    """What each user read before the first day: mostly news of his interests, the better toned of two."""
    n_archive = len(archive_items)
    state = np.empty(1, np.uint64)
    interests, at_start, at_end = np.empty(INTERESTS, np.int64), np.empty(INTERESTS), np.empty(INTERESTS)
    read_by = np.full(n_archive, -1, np.int64)
    for user in range(len(offsets) - 1):
        draws.start(state, seed, _TRAITS, user)
        draw_interests(state, N_SUBTOPICS, interests, at_start, at_end)
        draws.start(state, seed, _HISTORY, user)
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
        wanted = wanted // SUBTOPICS_PER_TOPIC * SUBTOPICS_PER_TOPIC + draws.below(state, SUBTOPICS_PER_TOPIC)
    low, high = archive_offsets[wanted], archive_offsets[wanted + 1]
    if how > 0.9 or low == high:  # anything
        low, high = 0, len(archive_items)
    one: int = archive_items[low + draws.below(state, high - low)]
    other: int = archive_items[low + draws.below(state, high - low)]
    return one if tones[one] > tones[other] else other


@jit
def draw_visits(seed: int, days: int, offsets: Offsets, moments: Doubles, shown: Offsets) -> None:
    """When each impression happens (in days from the first, rising per user), how many news it shows."""
    state = np.empty(1, np.uint64)
    for user in range(len(offsets) - 1):
        draws.start(state, seed, _VISITS, user)
        low, high = offsets[user], offsets[user + 1]
        draws.rising(state, high - low, moments[low:high])
        for visit in range(low, high):
            moments[visit] *= days
            spread = draws.uniform(state)
            shown[visit] = FEWEST_SHOWN + int(spread * spread * (MOST_SHOWN - FEWEST_SHOWN + 1))


@jit
def draw_impressions(
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
        draws.start(state, seed, _TRAITS, user)
        draw_interests(state, N_SUBTOPICS, interests, at_start, at_end)
        for visit in range(visit_offsets[user], visit_offsets[user + 1]):
            draws.start(state, seed, _IMPRESSION, user * MOST_VISITS + visit - visit_offsets[user])
            moment = moments[visit]
            low, high = shown_offsets[visit], shown_offsets[visit + 1]
            for place in range(low, high):
                news = _draw_fresh(state, moment, published, shown_in, visit)
                affinity = 0.0
                for k in range(INTERESTS):
                    share = weight(k, _PACE * moment / days, at_start, at_end)
                    if subtopic[news] == interests[k]:
                        affinity += share
                    elif subtopic[news] // SUBTOPICS_PER_TOPIC == interests[k] // SUBTOPICS_PER_TOPIC:
                        affinity += _SAME_TOPIC * share
                shown[place] = news
                oracle[place] = _INTERCEPT + _AFFINITY * affinity + _TONE * tones[news]
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
