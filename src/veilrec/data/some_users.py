"""A data set with some of its users only: the items, and whatever is public, stay as they are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from veilrec._arrays import Offsets
from veilrec._csr import Csr
from veilrec.data.population import Impressions, Interactions, Population, Strings
from veilrec.features import Features


def some_users(population: Population, users: Offsets) -> Population:
    """The population of these users, given in rising order; they are numbered anew."""
    features, fixed = population.features, population.fixed_test
    return replace(
        population,
        users=Strings.of(population.users[int(user)] for user in users),
        interactions=_interactions(population.interactions, users),
        impressions={name: _impressions(split, users) for name, split in population.impressions.items()},
        features=None if features is None else Features(features.users.take(users), features.items),
        fixed_test=None if fixed is None else (fixed[0][users], fixed[1][users]),
    )


def _interactions(log: Interactions, users: Offsets) -> Interactions:
    rows = Csr(log.offsets, np.arange(len(log.items), dtype=np.int32)).take(users)
    chosen = rows.items
    return Interactions(
        rows.offsets,
        log.items[chosen],
        None if log.ratings is None else log.ratings[chosen],
        None if log.times is None else log.times[chosen],
        {name: codes[chosen] for name, codes in log.context.items()},
        log.context_values,
    )


def _impressions(split: Impressions, users: Offsets) -> Impressions:
    """Histories that nobody is left for go too."""
    chosen = np.flatnonzero(np.isin(split.users, users))
    entries = Csr(split.shown.offsets, np.arange(len(split.shown.items), dtype=np.int32)).take(chosen)
    kept, history_of = np.unique(split.history_of[chosen], return_inverse=True)
    return Impressions(
        np.searchsorted(users, split.users[chosen]).astype(np.int32),
        split.times[chosen],
        Csr(entries.offsets, split.shown.items[entries.items]),
        split.clicked[entries.items],
        split.histories.take(kept.astype(np.int64)),
        history_of.astype(np.int32),
        None if split.oracle is None else split.oracle[entries.items],
    )
