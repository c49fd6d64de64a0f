"""Made-up news with the log-odds of every click known: like MIND, at any size, with the best reachable AUC.

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

from dataclasses import replace

import numpy as np

from veilrec._arrays import Doubles, Indices, Offsets
from veilrec._csr import Csr, csr_from_pairs
from veilrec.data import _news_kernels as kernels
from veilrec.data._impression_builder import chosen_impressions, count_facts, offsets_of, uses
from veilrec.data._made_up_text import numbered
from veilrec.data._news_text import N_SUBTOPICS, draw_tones, write_catalogue
from veilrec.data.population import Impressions, Population
from veilrec.errors import BadInput

FIRST_DAY = 1_767_225_600  # 2026-01-01 00:00 UTC
_DAY = 86_400
_ARCHIVE_DAYS = 7  # of news before the first day
_MEAN_HISTORY = 30.0
_MEASURED = 20_000  # dev impressions that the reachable AUC is measured on, at most


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
            f"cannot make up news of {users} users, {n_news} news, {days} days, seed {seed}: "
            "allowed are 1 to 10000000 users, 200 to 1000000 news, 2 to 1000 days, seed from 0"
        )
    if not 1 <= visits_per_user <= kernels.MOST_VISITS / 4:
        raise BadInput(f"impressions_per_user is {visits_per_user}: allowed is 1 to {kernels.MOST_VISITS // 4}")
    generator = np.random.default_rng([seed, n_news])
    published = np.sort(generator.uniform(-_ARCHIVE_DAYS, days, n_news))
    subtopic = (N_SUBTOPICS * generator.random(n_news) ** 1.2).astype(np.int32)
    tones = draw_tones(n_news, generator)

    histories, visit_offsets = _draw_pasts(seed, users, visits_per_user, published, subtopic, tones)
    drawn = _draw_impressions(seed, days, published, subtopic, tones, visit_offsets, histories)
    last_day = drawn.times >= FIRST_DAY + (days - 1) * _DAY
    train = chosen_impressions(drawn, ~last_day)
    interactions = uses(histories, train)
    dev = replace(chosen_impressions(drawn, last_day), histories=Csr(interactions.offsets, interactions.items))
    impressions = {"train": train, "dev": dev}
    return Population(
        "synthetic-news",
        numbered("U", users),
        numbered("N", n_news),
        interactions,
        impressions,
        write_catalogue(subtopic, tones, generator),
        {**count_facts(impressions), "seed": seed, "days": days, **_reachable(train, dev, n_news)},
    )


def _draw_pasts(
    seed: int, users: int, visits_per_user: float, published: Doubles, subtopic: Indices, tones: Indices
) -> tuple[Csr, Offsets]:
    """Every user's history before the first day, and where his impressions begin in the list of all."""
    n_archive = int(np.searchsorted(published, 0.0))
    archive = csr_from_pairs(subtopic[:n_archive].astype(np.int64), np.arange(n_archive, dtype=np.int32), N_SUBTOPICS)
    lengths, visits = np.empty(users, np.int64), np.empty(users, np.int64)
    longest = min(200, n_archive // 4)
    kernels.draw_lengths(seed, _MEAN_HISTORY, longest, visits_per_user, lengths, visits)
    offsets = offsets_of(lengths)
    items = np.empty(offsets[-1], np.int32)
    kernels.draw_histories(seed, tones, archive.offsets, archive.items, offsets, items)
    return Csr(offsets, items), offsets_of(visits)


def _draw_impressions(
    seed: int, days: int, published: Doubles, subtopic: Indices, tones: Indices, visit_offsets: Offsets, histories: Csr
) -> Impressions:
    n_visits = int(visit_offsets[-1])
    moments, lengths = np.empty(n_visits), np.empty(n_visits, np.int64)
    kernels.draw_visits(seed, days, visit_offsets, moments, lengths)
    shown = Csr(offsets_of(lengths), np.empty(int(lengths.sum()), np.int32))
    clicked, oracle = np.empty(len(shown.items), np.uint8), np.empty(len(shown.items), np.float32)
    kernels.draw_impressions(
        seed, days, published, subtopic, tones, visit_offsets, moments, shown.offsets, shown.items, clicked, oracle
    )
    users = np.repeat(np.arange(len(histories), dtype=np.int32), np.diff(visit_offsets))
    times = FIRST_DAY + (moments * _DAY).astype(np.int64)
    return Impressions(users, times, shown, clicked, histories, users, oracle)


def _reachable(train: Impressions, dev: Impressions, n_news: int) -> dict[str, float]:
    """AUC in "dev" (a sample) of the true log-odds, and of the clicks in "train" counted."""
    offsets = dev.shown.offsets[: _MEASURED + 1]
    items, clicked = dev.shown.items[: offsets[-1]], dev.clicked[: offsets[-1]]
    counts = np.bincount(train.shown.items[train.clicked == 1], minlength=n_news).astype(np.float64)
    oracle = np.zeros(0) if dev.oracle is None else dev.oracle[: offsets[-1]].astype(np.float64)
    return {
        "oracle_auc": round(kernels.mean_auc(oracle, clicked, offsets), 4),
        "popularity_auc": round(kernels.mean_auc(counts[items], clicked, offsets), 4),
    }
