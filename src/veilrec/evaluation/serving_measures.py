"""What a user gets when a model is served privately: scores of what was shown, recall of the best, skew, bytes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from veilrec.client.queries import Serving
from veilrec.core.arrays import Bools, Csr, Doubles, Floats, Indices, Offsets
from veilrec.data.population import Impressions, Strings
from veilrec.evaluation.serving import ServedModel, ServingPlan, make_plan
from veilrec.privacy.randomness import SeededSource
from veilrec.serving.answering import best_of, marked, scores_in_lists
from veilrec.wire.queries import QueryShape

BEST = 100  # of recall@100
_RECALLED = 2000  # queries whose best news are compared: whole catalogues take long


@dataclass(frozen=True)
class ServingResult:
    """How one way of serving answered the impressions."""

    scores: Doubles | Floats  # of everything that was shown
    recall: float
    recalled: int  # queries that it was measured on
    skew: float
    bytes_up: int
    bytes_down: float
    plan: ServingPlan | None  # None where no private query is sent


@dataclass(frozen=True)
class PublicTexts:
    """What a client shows of the news: their ids, and titles where there are any."""

    ids: Strings
    titles: Strings | None

    def sizes(self) -> Offsets:
        """Bytes of every news."""
        lengths: Offsets = np.diff(self.ids.offsets)
        return lengths if self.titles is None else lengths + np.diff(self.titles.offsets)


def serve(
    serving: Serving,
    model: ServedModel,
    impressions: Impressions,
    plain_scores: Floats,
    texts: PublicTexts,
    categories: list[str] | None = None,
) -> ServingResult:
    """Ask once per impression, each with noise of its own, and answer.

    `plain_scores` are what the model itself gives to what was shown. bytes_down is what a device downloads per query:
    the ids and titles of the 100 best news where the server ranks; ids, titles and vectors of the pool where the device
    does; of all news where nothing is sent.
    """
    news, sizes = model.news, texts.sizes()
    vector_bytes = news.nbytes // len(news)
    if serving.mode == "none-sent":
        down = float(sizes.sum() + len(news) * vector_bytes)
        return ServingResult(plain_scores, 1.0, len(impressions), 0.0, 0, down, None)
    best = min(BEST, len(news))
    rows = impressions.history_of.astype(np.int64)
    some = np.unique(np.linspace(0, max(0, len(rows) - 1), min(_RECALLED, len(rows))).astype(np.int64))
    users = model.users(impressions.histories)
    wanted = best_of(users[rows[some]], news, best)
    if serving.mode == "plain":
        sent, down = QueryShape("vector", news.shape[1]).bytes, float(sizes[wanted].sum(axis=1).mean())
        return ServingResult(plain_scores, 1.0, len(some), 0.0, sent, down, None)
    plan = make_plan(serving, model, categories)
    told = plan.asking.told(impressions.histories.take(rows), SeededSource(serving.seed))
    guessed = plan.reads.users(told)
    shown, everybody = impressions.shown, np.arange(len(rows), dtype=np.int64)
    scores: Doubles | Floats = scores_in_lists(guessed, news, everybody, shown)
    if plan.pool is None:
        found = best_of(guessed[some], news, best)
        down = float(sizes[found].sum(axis=1).mean())
    else:
        answers, pool_of = np.unique(told, axis=0, return_inverse=True)
        pool_of = pool_of.reshape(-1)
        pools = marked(best_of(plan.reads.users(answers), news, plan.pool), len(news))  # [answers, items]
        in_pool = pools[pool_of[shown.row_numbers()], shown.items]
        scores = np.where(in_pool, 1.0 + _places(plain_scores), _places(scores))
        found = _best_in_pools(users[rows[some]], news, pools, pool_of[some], best)
        of_pool = pools @ (sizes + vector_bytes).astype(np.float64)
        down = float(of_pool[pool_of].mean())
    return ServingResult(
        scores,
        _recall(found, wanted, len(news)),
        len(some),
        skew(plain_scores, scores, shown),
        plan.asking.question.bytes,
        down,
        plan,
    )


def skew(plain: Doubles | Floats, served: Doubles | Floats, lists: Csr) -> float:
    """tau = 1 - accuracy of ranks (PrivateRec, first version, section 4.4.1), as we read it.

    Both scores rank what a list shows, equal ones in the order of the list. The accuracy of a list is the share of its
    places at which both rankings have the same item; tau is 1 minus its mean over the lists that show something.
    """
    rows = lists.row_numbers()
    same = np.lexsort((-plain.astype(np.float64), rows)) == np.lexsort((-served.astype(np.float64), rows))
    lengths = lists.lengths()
    agreeing = np.bincount(rows[same], minlength=len(lists))[lengths > 0]
    return float(1.0 - np.mean(agreeing / lengths[lengths > 0])) if agreeing.size else 0.0


def _best_in_pools(users: Floats, news: Floats, pools: Bools, pool_of: Offsets, best: int) -> Indices:
    """The best of its own pool for every user; a pool that is smaller is filled with -1."""
    found = np.full((len(users), best), -1, np.int32)
    for pool in np.unique(pool_of):
        mine, members = np.flatnonzero(pool_of == pool), np.flatnonzero(pools[pool])
        count = min(best, len(members))
        found[mine, :count] = members[best_of(users[mine], news[members], count)]
    return found


def _recall(found: Indices, wanted: Indices, n_items: int) -> float:
    """The share of the wanted news that were found, on average."""
    keys = np.arange(len(found))[:, np.newaxis] * np.int64(n_items)
    real = found >= 0
    return float(np.isin((found + keys)[real], (wanted + keys).ravel()).sum() / wanted.size) if wanted.size else 1.0


def _places(scores: Doubles | Floats) -> Doubles:
    """The same order, equal ones still equal, as numbers from 0 to below 1."""
    values, place = np.unique(scores, return_inverse=True)
    return np.asarray(place.reshape(-1) / max(1, len(values)), np.float64)
