"""Ask a model the cases of a split and turn its scores into metrics.

Cases apart by how much the model knows of the user: whom noise and missing data hurt most.

How well a model ranks for a new person by how much it has been given of that person.

The questions stay the same: the same users, the same held-out items, and the same rivals. What is withheld from the
model is set aside, since a rival that the user has used would only be a second thing that changes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veilrec.core.arrays import Bools, Doubles, Floats, Indices, Offsets
from veilrec.core.csr import Csr, offsets_of
from veilrec.core.errors import BadInput, Diverged, VeilrecError
from veilrec.core.jit import jit
from veilrec.core.rng import stream, word
from veilrec.data.population import Impressions
from veilrec.evaluation.lists import ListEvaluator, ListItems, top_of_all, top_of_lists
from veilrec.evaluation.metrics import (
    CUTOFFS,
    IMPRESSION_CUTOFFS,
    MAIN_OF_IMPRESSIONS,
    MAIN_OF_LISTS,
    further_metrics,
    further_one_by_one_metrics,
    impression_metrics,
    list_metrics,
    one_by_one_metrics,
    places_among_all,
    places_in_lists,
    places_of_first,
)
from veilrec.evaluation.split import (
    Cases,
    ImpressionScorer,
    Purpose,
    Rated,
    Split,
    distinct_rows,
    has_both_labels,
    join_rows,
    keep_entries,
)
from veilrec.models.scores import Model, ReadsRatings, Scorer, joined

SCORES_AT_ONCE = 1 << 22  # 16 MB of float32: whatever the size of the data, no more is held


@dataclass(frozen=True)
class EvaluationResult:
    """How well each case was answered, before anything is averaged."""

    cases: Offsets  # [T], which of the questions that were asked: all of them, but for impressions without both labels
    users: Offsets  # [T], index in the population; a user may have several impressions
    known: Offsets  # [T], how many items the model knows of the user: trained on, adapted on, or in the history
    values: Mapping[str, Doubles]  # [T] each, by the name of the metric
    skipped: int | None = None  # impressions that cannot be judged; None where there are no impressions
    whole: Mapping[str, float] = field(default_factory=dict)  # what only all cases together have: coverage@k, gini@k

    def __len__(self) -> int:
        return len(self.users)

    def of(self, chosen: Bools) -> EvaluationResult:
        """Keep the chosen cases alone, without what only all of them have."""
        values = {name: values[chosen] for name, values in self.values.items()}
        return EvaluationResult(self.cases[chosen], self.users[chosen], self.known[chosen], values)

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
    return evaluate_cases(cases, train, model, further=False).means(further=False)


def evaluate_cases(
    cases: Cases, train: Csr, model: Model, items: ListItems | None = None, *, further: bool = True
) -> EvaluationResult:
    """Measure every case by itself, in the order of the cases; also whole lists if `items` are given.

    `train` is the split's: where all items are ranked, a user's own row of it is left out. Without `further`, the main
    metrics alone.
    """
    if cases.impressions is not None:
        scores = _scores_of_impressions(cases.impressions, model)
        return validator_impressions(cases.impressions, scores, items, further=further)
    offsets = cases.positives.offsets
    lists = None if items is None else ListEvaluator(items, CUTOFFS, len(cases))
    one_by_one = cases.adapt is not None
    if cases.adapt is not None:
        users = np.arange(len(cases), dtype=np.int64)
        used, scorer = _used(cases, train), _scorer_of(cases, cases.adapt, model)
        if cases.repeats is not None:
            used = distinct_rows(used, scorer.n_items, without=cases.positives)
        ranks = _full_places(users, cases, used, scorer, lists)
        if cases.repeats is not None:
            ranks = np.repeat(ranks, cases.repeats)
            offsets = offsets_of(cases.repeats)[offsets]
    elif cases.candidates is not None:
        ranks = _sampled_places(cases.users, cases.candidates, model)
        if lists is not None:
            for part, scores, left_out in _scores_of_all(cases.users, _used(cases, train), model):
                lists.add(part.start, top_of_all(scores, left_out, lists.k))
    else:
        ranks = _full_places(cases.users, cases, _used(cases, train), model, lists)
    known = train.lengths()[cases.users] if cases.adapt is None else cases.adapt.lengths()
    values = (one_by_one_metrics if one_by_one else list_metrics)(ranks, offsets)
    if further:
        values |= (further_one_by_one_metrics if one_by_one else further_metrics)(ranks, offsets, CUTOFFS)
    result = EvaluationResult(np.arange(len(cases), dtype=np.int64), cases.users, known, values)
    if further and cases.rated is not None and isinstance(model, ReadsRatings) and model.predicts_ratings:
        result = replace(result, whole=_rating_errors(cases, cases.rated, scorer))
    return result if lists is None else _with_lists(result, lists)


def _scorer_of(cases: Cases, adapt: Csr, model: Model) -> Scorer:
    """A model for the people of the cases, by what they adapt on and, where it reads them, by their ratings."""
    if cases.rated is not None and isinstance(model, ReadsRatings) and model.reads_ratings:
        people = model.people.strangers(len(cases)) if cases.people is None else cases.people
        return model.fold_in_rated(cases.rated.rows, people, cases.rated.known)
    return joined(model, adapt, cases.people)


def _rating_errors(cases: Cases, rated: Rated, scorer: Scorer) -> dict[str, float]:
    """Errors of predicted ratings over all that are asked, and of the mean of a user's known ones beside them."""
    owners, (low, high) = cases.positives.row_numbers(), rated.scale
    told = scorer.score_some(owners, cases.positives.items[:, np.newaxis])[:, 0]
    sums = np.bincount(rated.rows.row_numbers(), rated.known, minlength=len(cases))
    means = (sums / np.maximum(rated.rows.lengths(), 1))[owners]
    errors: dict[str, float] = {}
    for name, found in (("", np.asarray(told, np.float64)), ("_of_mean", means)):
        off = np.clip(found * high, low, high) - rated.asked.astype(np.float64) * high
        errors |= {f"rmse{name}": math.sqrt(np.mean(off**2)), f"mae{name}": float(np.mean(np.abs(off)))}
    return errors


def _with_lists(result: EvaluationResult, lists: ListEvaluator, reachable: Bools | None = None) -> EvaluationResult:
    whole = {**result.whole, **lists.whole(reachable)}
    return replace(result, values={**result.values, **lists.values()}, whole=whole)


def _used(cases: Cases, train: Csr) -> Csr:
    """For every case, the items that are no rivals of the held-out ones."""
    used = train.take(cases.users) if cases.adapt is None else cases.adapt
    return used if cases.set_aside is None else join_rows(used, cases.set_aside)


def _sampled_places(users: Offsets, candidates: Indices, scorer: Scorer) -> Doubles:
    places = np.empty(len(users), np.float64)
    for part in _parts(len(users), candidates.shape[1]):
        chosen = candidates[part]
        places[part] = places_of_first(_checked(scorer.score_some(users[part], chosen), chosen.shape))
    return places


def _full_places(users: Offsets, cases: Cases, excluded: Csr, scorer: Scorer, lists: ListEvaluator | None) -> Doubles:
    """The places of all held-out items among all items; one by one for users who are folded in."""
    positives, one_by_one = cases.positives, cases.adapt is not None
    places = np.empty(len(positives.items), np.float64)
    for part, scores, left_out in _scores_of_all(users, excluded, scorer):
        own = positives.take(np.arange(part.start, part.stop, dtype=np.int64))
        entries = slice(positives.offsets[part.start], positives.offsets[part.stop])
        places[entries] = places_among_all(scores, own, left_out, one_by_one=one_by_one)
        if lists is not None:
            lists.add(part.start, top_of_all(scores, left_out, lists.k))
    return places


def _scores_of_all(users: Offsets, excluded: Csr, scorer: Scorer) -> Iterator[tuple[slice, Floats, Csr]]:
    """The scores of all items, some users at a time, and what is excluded for them."""
    for part in _parts(len(users), scorer.n_items):
        rows = np.arange(part.start, part.stop, dtype=np.int64)
        yield part, _checked(scorer.score_all(users[part]), (len(rows), scorer.n_items)), excluded.take(rows)


def _scores_of_impressions(impressions: Impressions, model: Model) -> Floats:
    if isinstance(model, ImpressionScorer):
        return model.score_impressions(impressions)
    return scores_of_shown(impressions, model.fold_in(impressions.histories))


def validator_impressions(
    impressions: Impressions, scores: Doubles | Floats, items: ListItems | None = None, *, further: bool = True
) -> EvaluationResult:
    """Measure the impressions that have both labels by the scores of everything that was shown."""
    shown = impressions.shown
    ranked, counted = _checked(scores, shown.items.shape), has_both_labels(impressions)
    entries: Bools = np.repeat(counted, shown.lengths())
    asked = np.flatnonzero(counted)
    shown, ranked, wanted = shown.take(asked), ranked[entries], impressions.clicked[entries]
    clicks = keep_entries(shown, wanted > 0)
    users, known = impressions.users[asked].astype(np.int64), impressions.histories.lengths()
    known = known[impressions.history_of[asked]]
    ranks = places_in_lists(ranked, shown.offsets, wanted)
    values = impression_metrics(ranks, clicks.offsets, shown.lengths())
    if further:
        values |= further_metrics(ranks, clicks.offsets, IMPRESSION_CUTOFFS)
    result = EvaluationResult(asked, users, known, values, len(counted) - len(asked))
    return result if items is None else _with_lists_of_shown(result, shown, ranked, items)


def _with_lists_of_shown(result: EvaluationResult, shown: Csr, scores: Floats, items: ListItems) -> EvaluationResult:
    lists = ListEvaluator(items, IMPRESSION_CUTOFFS, len(shown))
    for part in _parts(len(shown), lists.k):
        rows = np.arange(part.start, part.stop, dtype=np.int64)
        some = scores[shown.offsets[part.start] : shown.offsets[part.stop]]
        lists.add(part.start, top_of_lists(some, shown.take(rows), lists.k))
    reachable = np.zeros(len(items), np.bool_)
    reachable[shown.items] = True
    return _with_lists(result, lists, reachable)


def scores_of_shown(impressions: Impressions, scorer: Scorer) -> Floats:
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


def _checked(scores: Any, shape: tuple[int, ...]) -> Any:
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


FEWEST = (0, 1, 6, 21, 51, 101)  # known items, at least, of the users in each group


def by_known_items(result: EvaluationResult) -> dict[str, EvaluationResult]:
    """The groups 0, 1-5, 6-20, 21-50, 51-100 and 101+ that have any case, by the number of known items."""
    number = np.searchsorted(FEWEST, result.known, side="right") - 1
    return {_name(group): result.of(number == group) for group in np.unique(number).tolist()}


def _name(group: int) -> str:
    if group + 1 == len(FEWEST):
        return f"{FEWEST[group]}+"
    fewest, most = FEWEST[group], FEWEST[group + 1] - 1
    return str(fewest) if fewest == most else f"{fewest}-{most}"


COUNTS = (0, 1, 2, 5, 10, 20, None)  # items that the model is given; None: all of the half that is for adapting


@dataclass(frozen=True)
class PersonalisationPoint:
    """The test cases answered by a model that was given so many items of each user."""

    count: int | None  # at most; None: the whole half
    result: EvaluationResult

    @property
    def label(self) -> str:
        """As tables and pictures have it."""
        return "half" if self.count is None else str(self.count)

    @property
    def mean_items(self) -> float:
        """What the model was really given, since some have fewer."""
        return float(self.result.known.mean())


def personalisation(split: Split, model: Model, seed: int) -> list[PersonalisationPoint]:
    """Answer the test cases by each of `COUNTS`; the last one is the protocol's own evaluation."""
    refuse_without_halves(split.protocol, adapts=split.test.adapt is not None)
    return [
        PersonalisationPoint(count, evaluate_cases(given_first(split.test, count, seed), split.train, model))
        for count in COUNTS
    ]


def refuse_without_halves(protocol: str, *, adapts: bool) -> None:
    """Refuse a protocol that does not adapt to new people."""
    if not adapts:
        raise BadInput(
            f"--personalisation is about people whom the model meets after training, and {protocol} has none: train"
            " with --protocol holdout-users, holdout-users-liked or holdout-records"
        )


def given_first(cases: Cases, count: int | None, seed: int) -> Cases:
    """Give the first `count` items of the half for adapting, in a random order that is always the same.

    Whoever has fewer gives all of them. What is given stays in the order of its use, and the rest is set aside.
    """
    if cases.adapt is None:
        raise ValueError("these cases have nothing to adapt on")
    if count is None:
        return cases
    given = _turns(cases.adapt, cases.users, seed) < count
    withheld = keep_entries(cases.adapt, ~given)
    aside = withheld if cases.set_aside is None else join_rows(cases.set_aside, withheld)
    return replace(cases, adapt=keep_entries(cases.adapt, given), set_aside=aside)


def _turns(rows: Csr, users: Offsets, seed: int) -> Offsets:
    """For every entry, how many of its row are given before it; keyed by (seed, user)."""
    keys = np.empty(len(rows.items), np.uint64)
    _draw_keys(rows.offsets, users, seed, Purpose.ADAPT_ORDER, keys)
    order = np.lexsort((keys, rows.row_numbers()))
    turns = np.empty(len(keys), np.int64)
    turns[order] = np.arange(len(keys)) - np.repeat(rows.offsets[:-1], rows.lengths())
    return turns


@jit
def _draw_keys(offsets: Offsets, users: Offsets, seed: int, purpose: int, keys: NDArray[np.uint64]) -> None:
    for r in range(len(users)):
        start = stream(seed, purpose, 0, users[r])
        for entry in range(offsets[r], offsets[r + 1]):
            keys[entry] = word(start, entry - offsets[r])
