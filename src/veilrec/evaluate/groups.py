"""Cases apart by how much the model knows of the user: whom noise and missing data hurt most."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from veilrec._arrays import Doubles
from veilrec.evaluate.evaluator import Judgement

FEWEST = (0, 1, 6, 21, 51, 101)  # known items, at least, of the users in each group
FAIRNESS_METRIC = "hr@10"
_ONE_IN = 5  # of the test users is among the least active


def by_known_items(judgement: Judgement) -> dict[str, Judgement]:
    """The groups 0, 1-5, 6-20, 21-50, 51-100 and 101+ that have any case, by the number of known items."""
    number = np.searchsorted(FEWEST, judgement.known, side="right") - 1
    return {_name(group): judgement.of(number == group) for group in np.unique(number).tolist()}


def _name(group: int) -> str:
    if group + 1 == len(FEWEST):
        return f"{FEWEST[group]}+"
    fewest, most = FEWEST[group], FEWEST[group + 1] - 1
    return str(fewest) if fewest == most else f"{fewest}-{most}"


@dataclass(frozen=True)
class Fairness:
    """What the least active fifth of the test users gets, and what all others get."""

    least_active: float
    rest: float
    error: float | None  # standard error of the spread; None where a group has one user or less
    users: float  # in the fifth
    known_items: int  # of its most active user

    @property
    def spread(self) -> float:
        """The rest beyond the least active: above 0 where these get worse lists."""
        return self.rest - self.least_active


def by_activity(judgement: Judgement, metric: str = FAIRNESS_METRIC) -> Fairness | None:
    """The fifth with the fewest known items beside the rest; None where a metric of lists is not there.

    Of users with equally many items at the border, each belongs to both sides in part: nobody's number decides, and
    where all have the same, there is no spread.
    """
    if metric not in judgement.values:
        return None
    known, share = judgement.known, len(judgement) / _ONE_IN
    border = int(np.sort(known)[int(np.ceil(share)) - 1])
    below, there = np.count_nonzero(known < border), np.count_nonzero(known == border)
    weights = np.where(known < border, 1.0, np.where(known == border, (share - below) / there, 0.0))
    values = judgement.values[metric]
    (least, first), (rest, second) = (_weighted(values, of) for of in (weights, 1.0 - weights))
    error = None if first is None or second is None else float(np.sqrt(first + second))
    return Fairness(least, rest, error, share, border)


def _weighted(values: Doubles, weights: Doubles) -> tuple[float, float | None]:
    """A mean, and the variance of it."""
    total = float(weights.sum())
    mean = float(weights @ values) / total
    return mean, float(weights @ (values - mean) ** 2) / total / (total - 1.0) if total > 1.0 else None
