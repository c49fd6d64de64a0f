"""Asking a finished model about a data set that it has not learnt from."""

from __future__ import annotations

import numpy as np
import polars as pl

from veilrec.data.population import Impressions, Population
from veilrec.errors import BadInput
from veilrec.evaluate.impressions import cases_of, known_items
from veilrec.evaluate.protocols import default_protocol, make_split
from veilrec.evaluate.split import Split


def ask_elsewhere(population: Population, protocol: str | None, *, seed: int) -> Split:
    """The usual cut of a data set; of one that has a single part, all of it is asked.

    `Split.train` is then what stands in the histories, for popularity to count.
    """
    if protocol in (None, "mind") and set(population.impressions) == {"train"}:
        asked = population.impressions["train"]
        known = known_items(asked, population.n_users, population.n_items, clicks=False)
        cases = cases_of(population.name, asked, "given")
        return Split("mind", population.n_users, population.n_items, known, cases)
    split = make_split(population, protocol or default_protocol(population), seed=seed)
    if split.test.impressions is None:
        raise BadInput(
            f"{split.protocol} on {population.name} asks about users of its own training: a saved model can be measured"
            " elsewhere with --protocol mind or last-day-20"
        )
    return split


def count_common(one: Population, these: Impressions, other: Population, those: Impressions) -> int:
    """How many of these impressions are also among those: same user, time, number of items and first of them."""
    mine, theirs = _marks(one, these), _marks(other, those)
    return len(mine.join(theirs, on=mine.columns, how="semi"))


def _marks(population: Population, impressions: Impressions) -> pl.DataFrame:
    users, items = (pl.Series(list(ids), dtype=pl.String) for ids in (population.users, population.items))
    lengths = impressions.shown.lengths()
    rows = np.flatnonzero(lengths)
    return pl.DataFrame(
        {
            "user": users.gather(impressions.users[rows]),
            "time": impressions.times[rows],
            "length": lengths[rows],
            "first": items.gather(impressions.shown.items[impressions.shown.offsets[rows]]),
        }
    )
