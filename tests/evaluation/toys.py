"""Small populations and a model that is nothing but a table of scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from veilrec.core.arrays import Bytes, Csr, Floats, Indices, Offsets
from veilrec.data.population import Impressions, Interactions, Population, Strings


def csr(rows: Sequence[Sequence[int]]) -> Csr:
    offsets = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
    return Csr(offsets, np.array([item for row in rows for item in row], np.int32))


def rows_of(packed: Csr) -> list[list[int]]:
    return [packed.row(r).tolist() for r in range(len(packed))]


def names(prefix: str, count: int) -> Strings:
    return Strings.of(f"{prefix}{number}" for number in range(count))


def population(
    rows: Sequence[Sequence[int]], n_items: int, fixed_test: tuple[Indices, Indices] | None = None
) -> Population:
    used = csr(rows)
    return Population(
        "toy", names("u", len(rows)), names("i", n_items), Interactions(used.offsets, used.items), fixed_test=fixed_test
    )


def random_population(n_users: int, n_items: int, shortest: int, longest: int, seed: int) -> Population:
    rng = np.random.default_rng(seed)
    sizes = rng.integers(shortest, longest + 1, n_users)
    return population([rng.permutation(n_items)[:size].tolist() for size in sizes], n_items)


def impressions(
    shown: Sequence[Sequence[int]],
    clicked: Sequence[Sequence[int]],
    histories: Sequence[Sequence[int]],
    users: Sequence[int] | None = None,
    history_of: Sequence[int] | None = None,
    times: Sequence[int] | None = None,
) -> Impressions:
    count = len(shown)
    labels: Bytes = np.array([label for row in clicked for label in row], np.uint8)
    return Impressions(
        np.array(range(count) if users is None else users, np.int32),
        np.array(range(count) if times is None else times, np.int64),
        csr(shown),
        labels,
        csr(histories),
        np.array(range(count) if history_of is None else history_of, np.int32),
    )


@dataclass
class TableModel:
    """Row r of the table scores all items for user r; folded-in users have a table of their own."""

    table: Floats
    folded_table: Floats | None = None
    folded: Csr | None = None

    @property
    def n_items(self) -> int:
        return self.table.shape[1]

    def score_all(self, users: Offsets) -> Floats:
        return self.table[users]

    def score_some(self, users: Offsets, items: Indices) -> Floats:
        return self.table[users[:, None], items]

    def fold_in(self, histories: Csr) -> TableModel:
        self.folded = histories
        assert self.folded_table is not None
        return TableModel(self.folded_table)


def table_model(rows: Sequence[Sequence[float]]) -> TableModel:
    table = np.array(rows, np.float32)
    return TableModel(table, table)


def rated_population(rows: Sequence[Sequence[tuple[int, float]]], n_items: int) -> Population:
    """Every use is an item with its stars."""
    base = population([[item for item, _ in row] for row in rows], n_items)
    stars = np.array([rating for row in rows for _, rating in row], np.float32)
    return replace(base, interactions=replace(base.interactions, ratings=stars))


def random_rated_population(n_users: int, n_items: int, shortest: int, longest: int, seed: int) -> Population:
    base = random_population(n_users, n_items, shortest, longest, seed)
    stars = np.random.default_rng([seed, 1]).integers(1, 6, len(base.interactions)).astype(np.float32)
    return replace(base, interactions=replace(base.interactions, ratings=stars))
