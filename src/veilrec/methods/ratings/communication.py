"""How the communication paper counts (Xue et al. 2026, Table 2, Figures 9 and 14), and what the counting gives.

One way, numbers about items only, summed over devices and rounds, in millions. The network of NCF, the positions of
sparse entries, and the bits of randomised response are not counted. `up_bytes` and `down_bytes` of a run
count everything, both ways.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from veilrec._csr import Csr
from veilrec.methods.base import Problem
from veilrec.methods.ratings.submodel import SelectionSettings, published_selection

ROUNDS = 400
DEVICES = {"ml-100k": 100, "ml-1m": 200}  # a round
ROWS = {"ml-100k": 1683, "ml-1m": 3706}  # of the item table: one more than the items of ML-100K
WIDTH = {"matrix factorisation": 32, "NeuMF": 160}  # numbers of an item
EPSILON = 2.0  # of a bit; with it and the mean as threshold the paper's numbers of items come out
RANK = 16
HALF = 0.5


@dataclass(frozen=True)
class Counted:
    """One total of the paper, in millions of parameters, beside what its convention gives."""

    method: str
    dataset: str
    printed: float
    counted: float
    how: str

    @property
    def relative_error(self) -> float:
        """Of what we count against what is printed."""
        return self.counted / self.printed - 1.0


def total(numbers_per_message: float, dataset: str) -> float:
    """Millions of parameters of a whole run."""
    return numbers_per_message * DEVICES[dataset] * ROUNDS / 1e6


def selected_items(interactions: Csr, n_items: int, seed: int, *, rounds: int = 5) -> float:
    """How many items DP-SUB chooses as published: everybody's bits, drawn anew every round; the mean of a few."""
    problem = Problem(interactions, n_items, seed, rounds)
    chosen = published_selection(SelectionSettings(epsilon=EPSILON, fresh=True), problem)
    return sum(chosen.size(problem, number) for number in range(rounds)) / rounds


def totals(selected: Mapping[str, float]) -> list[Counted]:
    """Every total that the paper prints; `selected` is the size of the sub-model by data set."""
    mf, ncf = WIDTH["matrix factorisation"], WIDTH["NeuMF"]
    counted = []
    for dataset, items in selected.items():
        rows = ROWS[dataset]
        whole = f"{rows} rows of"
        part = f"{items:.1f} selected rows of"
        counted += [
            Counted("fedmf", dataset, _PRINTED["fedmf"][dataset], total(rows * mf, dataset), f"{whole} {mf}"),
            Counted(
                "priv-fedmf-sub",
                dataset,
                _PRINTED["priv-fedmf-sub"][dataset],
                total(items * mf, dataset),
                f"{part} {mf}",
            ),
            Counted("fedncf", dataset, _PRINTED["fedncf"][dataset], total(rows * ncf, dataset), f"{whole} {ncf}"),
            Counted(
                "priv-fedncf-sub-compress",
                dataset,
                _PRINTED["priv-fedncf-sub-compress"][dataset],
                total(items * ncf, dataset),
                f"{part} {ncf}; the printed number does not come out of this",
            ),
        ]
    if "ml-1m" in selected:
        rows = ROWS["ml-1m"]
        counted += [
            Counted(
                "dp-fedmf-svd",
                "ml-1m",
                4785.93,
                total(RANK * (rows + mf + 1), "ml-1m"),
                f"rank {RANK}: {RANK} ({rows} + {mf} + 1)",
            ),
            Counted(
                "dp-fedmf-topk",
                "ml-1m",
                4943.68,
                total(HALF * rows * mf, "ml-1m"),
                f"half of {rows} rows of {mf}; the printed number is 200 more, and no share gives it",
            ),
        ]
    return counted


_PRINTED: dict[str, dict[str, float]] = {
    "fedmf": {"ml-100k": 2154.24, "ml-1m": 9487.36},
    "priv-fedmf-sub": {"ml-100k": 698.67, "ml-1m": 2907.85},
    "fedncf": {"ml-100k": 10771.2, "ml-1m": 47436.8},
    "priv-fedncf-sub-compress": {"ml-100k": 4200.0, "ml-1m": 4421.2},
}
