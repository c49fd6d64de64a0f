"""Ask a model the cases of a split and turn its scores into metrics."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from veilrec._arrays import Bools, Doubles, Floats, Indices, Offsets
from veilrec._csr import Csr
from veilrec.data.population import Impressions
from veilrec.errors import VeilrecError
from veilrec.evaluate.impressions import judged
from veilrec.evaluate.metrics import (
    impression_metrics,
    list_metrics,
    one_by_one_metrics,
    ranks_among_all,
    ranks_in_lists,
    ranks_of_first,
)
from veilrec.evaluate.scorer import ImpressionScorer
from veilrec.evaluate.split import Cases, join_rows, keep_entries
from veilrec.models.scores import Model, Scorer

SCORES_AT_ONCE = 1 << 22  # 16 MB of float32: whatever the size of the data, no more is held


def evaluate(cases: Cases, train: Csr, model: Model) -> dict[str, float]:
    """The metrics of the protocol that made the cases, and how many `cases` they are the mean of.

    `train` is the split's: where all items are ranked, a user's own row of it is left out.
    """
    if cases.impressions is not None:
        return _evaluate_impressions(cases.impressions, model)
    positives = cases.positives
    if cases.candidates is not None:
        ranks = _sampled_ranks(cases.users, cases.candidates, model)
        metrics = list_metrics(ranks, positives.offsets)
    elif cases.adapt is not None:
        users = np.arange(len(cases), dtype=np.int64)
        ranks = _full_ranks(users, positives, cases.adapt, model.fold_in(cases.adapt), one_by_one=True)
        metrics = one_by_one_metrics(ranks, positives.offsets)
    else:
        used = train.take(cases.users)
        if cases.set_aside is not None:
            used = join_rows(used, cases.set_aside)
        ranks = _full_ranks(cases.users, positives, used, model, one_by_one=False)
        metrics = list_metrics(ranks, positives.offsets)
    return metrics | {"cases": float(len(cases))}


def _sampled_ranks(users: Offsets, candidates: Indices, scorer: Scorer) -> Doubles:
    ranks = np.empty(len(users), np.float64)
    for part in _parts(len(users), candidates.shape[1]):
        chosen = candidates[part]
        ranks[part] = ranks_of_first(_checked(scorer.score_some(users[part], chosen), chosen.shape))
    return ranks


def _full_ranks(users: Offsets, positives: Csr, excluded: Csr, scorer: Scorer, *, one_by_one: bool) -> Doubles:
    ranks = np.empty(len(positives.items), np.float64)
    for part in _parts(len(users), scorer.n_items):
        rows = np.arange(part.start, part.stop, dtype=np.int64)
        scores = _checked(scorer.score_all(users[part]), (len(rows), scorer.n_items))
        ranks[positives.offsets[part.start] : positives.offsets[part.stop]] = ranks_among_all(
            scores, positives.take(rows), excluded.take(rows), one_by_one=one_by_one
        )
    return ranks


def _evaluate_impressions(impressions: Impressions, model: Model) -> dict[str, float]:
    shown = impressions.shown
    if isinstance(model, ImpressionScorer):
        scores = _checked(model.score_impressions(impressions), shown.items.shape)
    else:
        scores = _scores_of_shown(impressions, model.fold_in(impressions.histories))
    counted = judged(impressions)
    entries: Bools = np.repeat(counted, shown.lengths())
    lists = keep_entries(shown, entries)
    offsets = np.concatenate([[0], np.cumsum(shown.lengths()[counted])])
    wanted = impressions.clicked[entries]
    clicks = keep_entries(Csr(offsets, lists.items), wanted > 0)
    metrics = impression_metrics(ranks_in_lists(scores[entries], offsets, wanted), clicks.offsets, np.diff(offsets))
    return metrics | {"cases": float(counted.sum()), "skipped": float((~counted).sum())}


def _scores_of_shown(impressions: Impressions, scorer: Scorer) -> Floats:
    """A score for every shown item, asked for in rectangles of impressions of like length."""
    shown = impressions.shown
    lengths = shown.lengths()
    by_length = np.argsort(lengths, kind="stable")
    scores = np.empty(len(shown.items), np.float32)
    for part in _parts(len(by_length), max(1, int(lengths.max()))):
        rows = by_length[part]
        columns = np.arange(max(1, int(lengths[rows].max())))
        real = columns < lengths[rows, None]  # [T, C]; the rest is padding and is scored in vain
        entries = np.where(real, shown.offsets[rows, None] + columns, 0)
        users = impressions.history_of[rows].astype(np.int64)
        rectangle = _checked(scorer.score_some(users, shown.items[entries]), real.shape)
        scores[entries[real]] = rectangle[real]
    return scores


def _parts(rows: int, width: int) -> Iterator[slice]:
    """Slices of the rows such that no more than `SCORES_AT_ONCE` scores are asked for at a time."""
    size = max(1, SCORES_AT_ONCE // width)
    for start in range(0, rows, size):
        yield slice(start, min(start + size, rows))


def _checked(scores: Floats, shape: tuple[int, ...]) -> Floats:
    """The scores, if they can be ranked; infinite ones become the largest finite ones."""
    if scores.shape != shape:
        raise VeilrecError(f"the model is broken: it gave scores of shape {scores.shape} where {shape} was asked for")
    if np.isfinite(scores).all():
        return scores
    if np.isnan(scores).any():
        raise VeilrecError(
            "the model is broken: some of its scores are not a number (NaN); its training has diverged,"
            " so lower the learning rate or the noise and train again"
        )
    limits = np.finfo(scores.dtype)
    return np.clip(scores, limits.min, limits.max)
