"""The protocol `last-day-20`: every click of the last day among 20 sampled items (Qi et al. 2020, section 4.1).

For logs of clicks that do not say what was shown, like Adressa. The day before the last is learnt from in the same
form, and a history is everything that the user read before the day of the click. An item counts when a user reads it
for the first time: one that was read before would stand out among negatives, which never were.

As in `loo-99`, the negatives of training are drawn from everything outside the user's training items, so that neither
the test items nor the 20 beside them are left out and nothing can be learnt from who was drawn.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from veilrec._arrays import Bools, Indices, Offsets
from veilrec._csr import Csr, csr_from_pairs
from veilrec.data.population import Impressions, Population
from veilrec.errors import BadInput
from veilrec.evaluate.choices import Purpose, draw_unused
from veilrec.evaluate.impressions import VALID_SHARE, cases_of
from veilrec.evaluate.split import Split

N_SAMPLED = 20
_DAY = 86_400  # seconds; days are those of UTC
_FEWEST_DAYS = 3  # of histories, of training, of test


@dataclass(frozen=True)
class _Reads:
    """First reads of an item by a user, packed by user and in time order within each."""

    users: Offsets
    items: Indices
    times: Offsets

    def rows(self, chosen: Bools, n_users: int) -> Csr:
        """The chosen items of every user."""
        return csr_from_pairs(self.users[chosen], self.items[chosen], n_users)


def split_last_day(population: Population, seed: int, validation: bool) -> Split:
    """The last day to ask, the one before it to learn from, or nine tenths of its clicks with validation."""
    reads = _first_reads(population)
    day = reads.times // _DAY
    days = np.unique(day)
    if len(days) < _FEWEST_DAYS:
        raise BadInput(
            f"last-day-20 needs clicks on {_FEWEST_DAYS} days (for histories, training and test) and {population.name}"
            f" has {len(days)}: bring a longer log, or use the protocol loo-99"
        )
    past, before = day < days[-2], day < days[-1]
    held = _held_out(day == days[-2], seed) if validation else np.zeros(len(day), np.bool_)
    pasts, known = reads.rows(past, population.n_users), reads.rows(before, population.n_users)
    train = reads.rows(before & ~held, population.n_users)

    def impressions(asked: Bools, histories: Csr, used: Csr, purpose: Purpose) -> Impressions:
        return _among_sampled(population, reads, asked, histories, used, seed, purpose)

    everything = reads.rows(np.ones(len(day), np.bool_), population.n_users)
    test = impressions(~before, known, everything, Purpose.TEST_NEGATIVES)
    valid = impressions(held, pasts, known, Purpose.VALID_NEGATIVES) if validation else None
    return Split(
        "last-day-20",
        population.n_users,
        population.n_items,
        train,
        cases_of(population.name, test, "test"),
        None if valid is None else cases_of(population.name, valid, "validation"),
        impressions(before & ~past & ~held, pasts, train, Purpose.TRAIN_NEGATIVES),
    )


def _first_reads(population: Population) -> _Reads:
    log = population.interactions
    if log.times is None:
        raise BadInput(
            f"last-day-20 needs the time of every click, which {population.name} does not have: use the protocol"
            f" {'mind' if population.impressions else 'loo-99'}"
        )
    users = np.repeat(np.arange(population.n_users, dtype=np.int64), np.diff(log.offsets))
    _, first = np.unique(users * population.n_items + log.items, return_index=True)
    first.sort()
    return _Reads(users[first], log.items[first], log.times[first])


def _held_out(candidates: Bools, seed: int) -> Bools:
    held = np.zeros(len(candidates), np.bool_)
    places = np.flatnonzero(candidates)
    rng = np.random.default_rng([seed, Purpose.VALID_IMPRESSIONS])
    held[rng.choice(places, max(1, round(VALID_SHARE * len(places))), replace=False)] = True
    return held


def _among_sampled(
    population: Population, reads: _Reads, asked: Bools, histories: Csr, used: Csr, seed: int, purpose: Purpose
) -> Impressions:
    """An impression a click: the click, then 20 items outside the user's row of `used`."""
    users, items = reads.users[asked], reads.items[asked]
    owned = used.take(users)
    left = population.n_items - owned.lengths()
    if left.min(initial=N_SAMPLED) < N_SAMPLED:
        user = population.users[int(users[left.argmin()])]
        raise BadInput(
            f"last-day-20 needs {N_SAMPLED} items that a user did not use, and user {user} leaves {left.min()}"
            f" of {population.n_items}: use the protocol loo-full"
        )
    clicks = users * population.n_items + items  # a click keys its draws
    sampled = draw_unused(owned, clicks, population.n_items, N_SAMPLED, seed, purpose)
    shown = np.column_stack([items, sampled])
    clicked = np.zeros(shown.shape, np.uint8)
    clicked[:, 0] = 1
    return Impressions(
        users.astype(np.int32),
        reads.times[asked],
        Csr(np.arange(len(users) + 1, dtype=np.int64) * shown.shape[1], shown.ravel()),
        clicked.ravel(),
        histories,
        users.astype(np.int32),
    )
