"""Small populations and a model that is nothing but a table of scores."""

from dataclasses import dataclass, replace

import numpy as np

from veilrec.core.csr import Csr
from veilrec.data.population import Impressions, Interactions, Population, Strings


def csr(rows):
    offsets = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
    return Csr(offsets, np.array([item for row in rows for item in row], np.int32))


def rows_of(packed):
    return [packed.row(r).tolist() for r in range(len(packed))]


def names(prefix, count):
    return Strings.of(f"{prefix}{number}" for number in range(count))


def population(rows, n_items, fixed_test=None):
    used = csr(rows)
    return Population(
        "toy", names("u", len(rows)), names("i", n_items), Interactions(used.offsets, used.items), fixed_test=fixed_test
    )


def random_population(n_users, n_items, shortest, longest, seed):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(shortest, longest + 1, n_users)
    return population([rng.permutation(n_items)[:size].tolist() for size in sizes], n_items)


def impressions(shown, clicked, histories, users=None, history_of=None, times=None):
    every, labels = range(len(shown)), np.array([label for row in clicked for label in row], np.uint8)
    users, history_of = (np.array(every if given is None else given, np.int32) for given in (users, history_of))
    times = np.array(every if times is None else times, np.int64)
    return Impressions(users, times, csr(shown), labels, csr(histories), history_of)


@dataclass
class TableModel:
    """Row r of the table scores all items for user r; folded-in users have a table of their own."""

    table: np.ndarray
    folded_table: np.ndarray | None = None
    folded: Csr | None = None

    @property
    def n_items(self):
        return self.table.shape[1]

    def score_all(self, users):
        return self.table[users]

    def score_some(self, users, items):
        return self.table[users[:, None], items]

    def fold_in(self, histories):
        self.folded = histories
        assert self.folded_table is not None
        return TableModel(self.folded_table)


def table_model(rows):
    table = np.array(rows, np.float32)
    return TableModel(table, table)


def rated_population(rows, n_items):
    """Every use is an item with its stars."""
    base = population([[item for item, _ in row] for row in rows], n_items)
    stars = np.array([rating for row in rows for _, rating in row], np.float32)
    return replace(base, interactions=replace(base.interactions, ratings=stars), rating_scale=(1.0, 5.0))


def random_rated_population(n_users, n_items, shortest, longest, seed):
    base = random_population(n_users, n_items, shortest, longest, seed)
    stars = np.random.default_rng([seed, 1]).integers(1, 6, len(base.interactions)).astype(np.float32)
    return replace(base, interactions=replace(base.interactions, ratings=stars), rating_scale=(1.0, 5.0))
