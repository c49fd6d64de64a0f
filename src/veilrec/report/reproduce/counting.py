"""The communication paper's totals counted again, as it counts: one way, item vectors only, the whole run."""

from __future__ import annotations

import math

from veilrec.data.registry import find_dataset
from veilrec.data.spec import load, whereabouts
from veilrec.methods.communication import DEVICES, ROUNDS, ROWS, WIDTH, Counted, selected_items, totals
from veilrec.report.reproduce.experiment import Extra, Grid

_HEAD = ("method", "data", "printed, M", "counted, M", "off by", "numbers of a message", "in the printed total")
_WORDS = frozenset({0, 1, 5, 6})
_MF = ("fedmf", "priv-fedmf-sub", "dp-fedmf-svd", "dp-fedmf-topk")
_NCF = ("fedncf", "priv-fedncf-sub-compress")
_CLOSE = 0.03  # of the printed total: as near as random bits can be asked to come


def mf_counts() -> Extra:
    """The totals of Table 2 and Fig. 9."""
    return _counts(_MF, WIDTH["matrix factorisation"])


def ncf_counts() -> Extra:
    """The totals of Fig. 14."""
    return _counts(_NCF, WIDTH["NeuMF"])


def _counts(methods: tuple[str, ...], width: int) -> Extra:
    every = totals({dataset: _sub_model(dataset) for dataset in ROWS})
    rows = [_row(counted, width) for counted in every if counted.method in methods]
    return Extra((Grid("The paper's totals, counted again (no training)", _HEAD, rows, _WORDS),))


def _sub_model(dataset: str) -> float:
    """Items that DP-SUB chooses on that data; not a number where there is no such data."""
    if whereabouts(find_dataset(dataset)) is None:
        return math.nan
    population = load(dataset)
    return selected_items(population.interactions.pairs(), population.n_items, seed=0)


def _row(counted: Counted, width: int) -> tuple[str, ...]:
    printed = f"{counted.printed:.2f}"
    if math.isnan(counted.counted):
        missing = f"not counted: {counted.dataset} was not found"
        return counted.method, counted.dataset, printed, "", "", missing, _needed(counted, width)
    return (
        counted.method,
        counted.dataset,
        printed,
        f"{counted.counted:.2f}",
        f"{100 * counted.relative_error:+.2f} %",
        counted.how,
        "" if abs(counted.relative_error) <= _CLOSE else _needed(counted, width),
    )


def _needed(counted: Counted, width: int) -> str:
    """What a message must have held for the printed total to come out."""
    numbers = counted.printed * 1e6 / (DEVICES[counted.dataset] * ROUNDS)
    rows = numbers / width
    share = 100 * rows / ROWS[counted.dataset]
    return f"{numbers:,.0f} numbers, as of {rows:.2f} rows of {width} ({share:.1f} % of the rows)"
