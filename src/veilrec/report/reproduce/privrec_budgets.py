"""What can be said of PrivRec's tables without any training: which figures no ranking has, and what epsilons hold."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from itertools import pairwise

from veilrec.evaluate.consistency import Impossible, impossible
from veilrec.privacy.accounting.accountant import Rounds, epsilon_for
from veilrec.privacy.accounting.published import (
    DELTAS,
    FRAPPE_TABLE,
    MOVIELENS_TABLE,
    NOISE_MULTIPLIER,
    ROUNDS,
    Compared,
    compared,
)
from veilrec.report.plots import Curve
from veilrec.report.reproduce.experiment import Calculated, Grid
from veilrec.report.reproduce.privrec_printed import CUTOFFS, DIGITS, FRAPPE, METHODS, MOVIELENS, TABLES, numbers

_TOO_MUCH = "ndcg rises too much"
_NUMBER = {MOVIELENS: 1, FRAPPE: 2}
_DRAWN = DELTAS[1]
_TERMS = f"per user, whole run of {ROUNDS} rounds, trusting the server"


def wrong(data: str, method: str) -> list[Impossible]:
    """What no ranking has of a line of Table 1 or 2."""
    printed = numbers(TABLES[data, method])
    hits, ndcg = ({k: printed[f"{name}@{k}"].value for k in CUTOFFS} for name in ("hr", "ndcg"))
    return impossible(hits, ndcg, digits=DIGITS)


def impossible_steps(data: str) -> Calculated:
    """Line by line, the steps from one k to the next in which nDCG gains more than its Hits allow."""
    steps = len(list(pairwise(CUTOFFS)))
    rows = [(method, f"{_steps(data, method)} of {steps}", _which(data, method)) for method in METHODS]
    both = sum(_steps(*line) for line in TABLES)
    rows.append(("Tables 1 and 2", f"{both} of {steps * len(TABLES)}", ""))
    title = (
        f"Table {_NUMBER[data]} as printed, against itself: with one positive in a list, nDCG@k2 - nDCG@k1 is at most"
        " (Hits@k2 - Hits@k1) / log2(k1 + 2), rounding allowed for"
    )
    return Calculated((Grid(title, ("method", "steps of nDCG that cannot be", "which"), rows, frozenset({0, 2})),))


def _which(data: str, method: str) -> str:
    return "; ".join(str(found).removeprefix(f"{_TOO_MUCH}, ") for found in wrong(data, method))


def _steps(data: str, method: str) -> int:
    return sum(found.rule == _TOO_MUCH for found in wrong(data, method))


def poisson(population: int, cohort: int, delta: float) -> float:
    """What the same rounds spend where everybody is drawn by a coin of their own (add-remove)."""
    rounds = Rounds(rounds=ROUNDS, sampling="poisson", population=population, cohort=cohort)
    return epsilon_for(NOISE_MULTIPLIER, delta, rounds)


def privacy_losses() -> Calculated:
    """Tables 3 and 4: as printed, as they came about, and what holds."""
    tables = {3: (MOVIELENS, MOVIELENS_TABLE), 4: (FRAPPE, FRAPPE_TABLE)}
    return Calculated(
        [_losses(number, data, table) for number, (data, table) in tables.items()],
        [curve for data, table in tables.values() for curve in _curves(data, table)],
        "M, devices in a round",
        f"epsilon per user, whole run,\ntrusting the server, delta {_DRAWN:g}",
    )


def _losses(number: int, data: str, table: Mapping[tuple[int, int], object]) -> Grid:
    head = (
        "q = M / N",
        "delta",
        "printed: replace-one, as published",
        "its count again: a release per device",
        "holds: replace-one, cohorts of M, proven",
        "printed / holds",
        "holds: add-remove, Poisson cohorts, proven",
    )
    rows = []
    for population, cohort in table:
        for delta in DELTAS:
            found = compared(population, cohort, delta)
            rows.append(
                (
                    f"{cohort} / {population}",
                    f"{delta:g}",
                    f"{found.paper:.4f}",
                    f"{found.paper_convention:.4f}",
                    f"{found.honest:.4f}",
                    f"{found.paper / found.honest:.1f}",
                    f"{poisson(population, cohort, delta):.4f}",
                )
            )
    return Grid(f"Table {number}, {data}, z = {NOISE_MULTIPLIER:g}: every epsilon is {_TERMS}", head, rows)


def _curves(data: str, table: Mapping[tuple[int, int], object]) -> list[Curve]:
    cohorts = [float(cohort) for _, cohort in table]
    entries: list[Compared] = [compared(*key, _DRAWN) for key in table]
    curve = partial(Curve, x=cohorts)
    return [
        curve(f"{data}, printed (replace-one)", y=[one.paper for one in entries]),
        curve(f"{data}, holds (replace-one)", y=[one.honest for one in entries]),
        curve(f"{data}, holds (add-remove, Poisson)", y=[poisson(*key, _DRAWN) for key in table]),
    ]
