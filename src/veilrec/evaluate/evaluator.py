"""Ask a model the cases of a split and turn its scores into metrics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from veilrec._arrays import Bools, Doubles, Floats, Indices, Offsets
from veilrec._csr import Csr
from veilrec.data.population import Impressions
from veilrec.errors import Diverged, VeilrecError
from veilrec.evaluate.impressions import judged
from veilrec.evaluate.lists import Items, ListJudge, top_of_all, top_of_lists
from veilrec.evaluate.metrics import (
    CUTOFFS,
    IMPRESSION_CUTOFFS,
    MAIN_OF_IMPRESSIONS,
    MAIN_OF_LISTS,
    TIES,
    further_metrics,
    further_one_by_one_metrics,
    impression_metrics,
    list_metrics,
    one_by_one_metrics,
    places_among_all,
    places_in_lists,
    places_of_first,
)
from veilrec.evaluate.scorer import ImpressionScorer
from veilrec.evaluate.split import Cases, join_rows, keep_entries
from veilrec.models.scores import Model, Scorer, joined

SCORES_AT_ONCE = 1 << 22  # 16 MB of float32: whatever the size of the data, no more is held


@dataclass(frozen=True)
class Judgement:
    """How well each case was answered, before anything is averaged."""

    cases: Offsets  # [T], which of the questions that were asked: all of them, but for impressions without both labels
    users: Offsets  # [T], index in the population; a user may have several impressions
    known: Offsets  # [T], how many items the model knows of the user: trained on, adapted on, or in the history
    values: Mapping[str, Doubles]  # [T] each, by the name of the metric
    skipped: int | None = None  # impressions that cannot be judged; None where there are no impressions
    whole: Mapping[str, float] = field(default_factory=dict)  # what only all cases together have: coverage@k, gini@k

    def __len__(self) -> int:
        return len(self.users)

    def of(self, chosen: Bools) -> Judgement:
        """Of the chosen cases alone, without what only all of them have."""
        values = {name: values[chosen] for name, values in self.values.items()}
        return Judgement(self.cases[chosen], self.users[chosen], self.known[chosen], values)

    @property
    def main(self) -> dict[str, float]:
        """The means of the main metrics of lists, or of impressions."""
        names = MAIN_OF_IMPRESSIONS if "auc" in self.values else MAIN_OF_LISTS
        return {name: float(np.mean(self.values[name])) for name in names}

    def means(self, *, further: bool = True) -> dict[str, float]:
        """The mean of every metric, or of the main ones, what all cases have together, and how many there are."""
        metrics = {name: float(np.mean(values)) for name, values in self.values.items()} if further else self.main
        metrics |= self.whole
        metrics["cases"] = float(len(self))
        if self.skipped is not None:
            metrics["skipped"] = float(self.skipped)
        return metrics


def evaluate(cases: Cases, train: Csr, model: Model) -> dict[str, float]:
    """The main metrics of the protocol that made the cases, and how many `cases` they are the mean of."""
    return _judge(cases, train, model, further=False)[0].means(further=False)


def judge(cases: Cases, train: Csr, model: Model, items: Items | None = None) -> Judgement:
    """Every metric of every case by itself, in the order of the cases; those of whole lists if `items` are given.

    `train` is the split's: where all items are ranked, a user's own row of it is left out.
    """
    return _judge(cases, train, model, items, further=True)[0]


def judge_ties(cases: Cases, train: Csr, model: Model) -> dict[str, Judgement]:
    """The main metrics of every case by each rule of `TIES`; the first of them is `judge`."""
    return dict(zip(TIES, _judge(cases, train, model, further=False, rules=len(TIES)), strict=True))


def _judge(
    cases: Cases, train: Csr, model: Model, items: Items | None = None, *, further: bool, rules: int = 1
) -> list[Judgement]:
    """By so many rules of `TIES`."""
    if cases.impressions is not None:
        return _judge_impressions(cases.impressions, model, items, further=further, rules=rules)
    offsets = cases.positives.offsets
    lists = None if items is None else ListJudge(items, CUTOFFS, len(cases))
    one_by_one = cases.adapt is not None
    if cases.adapt is not None:
        users = np.arange(len(cases), dtype=np.int64)
        places = _full_places(users, cases, _used(cases, train), joined(model, cases.adapt, cases.people), lists)
    elif cases.candidates is not None:
        places = _sampled_places(cases.users, cases.candidates, model)
        if lists is not None:
            _fill(lists, cases.users, _used(cases, train), model)
    else:
        places = _full_places(cases.users, cases, _used(cases, train), model, lists)
    known = train.lengths()[cases.users] if cases.adapt is None else cases.adapt.lengths()
    numbers = np.arange(len(cases), dtype=np.int64)
    judgements = []
    for ranks in places[:rules]:
        values = (one_by_one_metrics if one_by_one else list_metrics)(ranks, offsets)
        if further:
            values |= (further_one_by_one_metrics if one_by_one else further_metrics)(ranks, offsets, CUTOFFS)
        judgement = Judgement(numbers, cases.users, known, values)
        judgements.append(judgement if lists is None else _with_lists(judgement, lists))
    return judgements


def _with_lists(judgement: Judgement, lists: ListJudge, reachable: Bools | None = None) -> Judgement:
    return replace(judgement, values={**judgement.values, **lists.values()}, whole=lists.whole(reachable))


def _used(cases: Cases, train: Csr) -> Csr:
    """For every case, the items that are no rivals of the held-out ones."""
    used = train.take(cases.users) if cases.adapt is None else cases.adapt
    return used if cases.set_aside is None else join_rows(used, cases.set_aside)


def _sampled_places(users: Offsets, candidates: Indices, scorer: Scorer) -> Doubles:
    places = np.empty((len(TIES), len(users)), np.float64)
    for part in _parts(len(users), candidates.shape[1]):
        chosen = candidates[part]
        places[:, part] = places_of_first(_checked(scorer.score_some(users[part], chosen), chosen.shape))
    return places


def _full_places(users: Offsets, cases: Cases, excluded: Csr, scorer: Scorer, lists: ListJudge | None) -> Doubles:
    """The places of all held-out items among all items; one by one for users who are folded in."""
    positives, one_by_one = cases.positives, cases.adapt is not None
    places = np.empty((len(TIES), len(positives.items)), np.float64)
    for part, scores, left_out in _scores_of_all(users, excluded, scorer):
        own = positives.take(np.arange(part.start, part.stop, dtype=np.int64))
        entries = slice(positives.offsets[part.start], positives.offsets[part.stop])
        places[:, entries] = places_among_all(scores, own, left_out, one_by_one=one_by_one)
        if lists is not None:
            lists.add(part.start, top_of_all(scores, left_out, lists.k))
    return places


def _fill(lists: ListJudge, users: Offsets, excluded: Csr, scorer: Scorer) -> None:
    for part, scores, left_out in _scores_of_all(users, excluded, scorer):
        lists.add(part.start, top_of_all(scores, left_out, lists.k))


def _scores_of_all(users: Offsets, excluded: Csr, scorer: Scorer) -> Iterator[tuple[slice, Floats, Csr]]:
    """The scores of all items, some users at a time, and what is excluded for them."""
    for part in _parts(len(users), scorer.n_items):
        rows = np.arange(part.start, part.stop, dtype=np.int64)
        yield part, _checked(scorer.score_all(users[part]), (len(rows), scorer.n_items)), excluded.take(rows)


def _judge_impressions(
    impressions: Impressions, model: Model, items: Items | None, *, further: bool, rules: int
) -> list[Judgement]:
    shown = impressions.shown
    if isinstance(model, ImpressionScorer):
        scores = _checked(model.score_impressions(impressions), shown.items.shape)
    else:
        scores = _scores_of_shown(impressions, model.fold_in(impressions.histories))
    counted = judged(impressions)
    entries: Bools = np.repeat(counted, shown.lengths())
    asked = np.flatnonzero(counted)
    shown, scores, wanted = shown.take(asked), scores[entries], impressions.clicked[entries]
    clicks = keep_entries(shown, wanted > 0)
    users, known = impressions.users[asked].astype(np.int64), impressions.histories.lengths()
    known = known[impressions.history_of[asked]]
    judgements = []
    for ranks in places_in_lists(scores, shown.offsets, wanted)[:rules]:
        values = impression_metrics(ranks, clicks.offsets, shown.lengths())
        if further:
            values |= further_metrics(ranks, clicks.offsets, IMPRESSION_CUTOFFS)
        judgement = Judgement(asked, users, known, values, len(counted) - len(asked))
        judgements.append(judgement if items is None else _with_lists_of_shown(judgement, shown, scores, items))
    return judgements


def _with_lists_of_shown(judgement: Judgement, shown: Csr, scores: Floats, items: Items) -> Judgement:
    lists = ListJudge(items, IMPRESSION_CUTOFFS, len(shown))
    for part in _parts(len(shown), lists.k):
        rows = np.arange(part.start, part.stop, dtype=np.int64)
        some = scores[shown.offsets[part.start] : shown.offsets[part.stop]]
        lists.add(part.start, top_of_lists(some, shown.take(rows), lists.k))
    reachable = np.zeros(len(items), np.bool_)
    reachable[shown.items] = True
    return _with_lists(judgement, lists, reachable)


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
        raise Diverged(
            "the model is broken: some of its scores are not a number (NaN); its training has diverged,"
            " so lower the learning rate or the noise and train again"
        )
    limits = np.finfo(scores.dtype)
    return np.clip(scores, limits.min, limits.max)
