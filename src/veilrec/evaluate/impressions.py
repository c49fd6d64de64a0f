"""The protocol `mind`: rank what was shown in the dev impressions.

Devices learn from the train impressions alone: `Split.train` holds, for each user, the histories before those
impressions and their clicks. Nothing of the dev part is in it; the model gets a dev history only to answer.
"""

from __future__ import annotations

import numpy as np

from veilrec._arrays import Bools, Indices, Offsets
from veilrec._csr import Csr, csr_from_pairs
from veilrec.data.population import Impressions, Interactions, Population
from veilrec.errors import BadInput
from veilrec.evaluate.choices import Purpose
from veilrec.evaluate.split import Cases, Split, keep_entries

VALID_SHARE = 0.1  # of the train impressions


def split_impressions(population: Population, seed: int, validation: bool) -> Split:
    """Train impressions to learn from, dev impressions to ask; a seeded tenth of the former for validation.

    A click of a validation impression is not in training at all, not even where a later history repeats it.
    """
    for part in ("train", "dev"):
        if part not in population.impressions:
            raise BadInput(
                f"the protocol mind needs train and dev impressions and {population.name} has no {part} part:"
                " add it, or use the protocol loo-99"
            )
    learnt, test = population.impressions["train"], population.impressions["dev"]
    hidden, valid = None, None
    if validation:
        count = max(1, round(VALID_SHARE * len(learnt)))
        held = np.zeros(len(learnt), np.bool_)
        rng = np.random.default_rng([seed, Purpose.VALID_IMPRESSIONS])
        held[rng.choice(len(learnt), count, replace=False)] = True
        valid, learnt = take_impressions(learnt, held), take_impressions(learnt, ~held)
        users, items = _clicks(valid)
        hidden = users * population.n_items + items
    return Split(
        "mind",
        population.n_users,
        population.n_items,
        known_items(learnt, population.n_users, population.n_items, hidden),
        cases_of(population.name, test, "dev"),
        None if valid is None else cases_of(population.name, valid, "validation"),
        learnt,
    )


def judged(impressions: Impressions) -> Bools:
    """Which impressions have both labels, a click and none; only these can be ranked well or badly."""
    clicks = keep_entries(impressions.shown, impressions.clicked > 0).lengths()
    judgeable: Bools = (clicks > 0) & (clicks < impressions.shown.lengths())
    return judgeable


def take_impressions(impressions: Impressions, kept: Bools) -> Impressions:
    """The marked impressions with only the histories that they need."""
    entries = np.repeat(kept, impressions.shown.lengths())
    rows, history_of = np.unique(impressions.history_of[kept], return_inverse=True)
    return Impressions(
        users=impressions.users[kept],
        times=impressions.times[kept],
        shown=impressions.shown.take(np.flatnonzero(kept)),
        clicked=impressions.clicked[entries],
        histories=impressions.histories.take(rows.astype(np.int64)),
        history_of=history_of.astype(np.int32),
        oracle=None if impressions.oracle is None else impressions.oracle[entries],
    )


def cases_of(name: str, impressions: Impressions, part: str) -> Cases:
    """Impressions as questions; `part` says which ones where they cannot be asked."""
    if not judged(impressions).any():
        raise BadInput(
            f"no {part} impression of {name} has both a click and an item without one, so there is nothing"
            " to rank: bring impressions with both, or use the protocol loo-99"
        )
    return Cases(
        impressions.users.astype(np.int64),
        keep_entries(impressions.shown, impressions.clicked > 0),
        impressions=impressions,
    )


def _clicks(impressions: Impressions) -> tuple[Offsets, Indices]:
    """Users and items of all clicks, oldest first."""
    by_time = np.argsort(impressions.times, kind="stable")
    clicked = keep_entries(impressions.shown, impressions.clicked > 0).take(by_time)
    return impressions.users[by_time].astype(np.int64)[clicked.row_numbers()], clicked.items


def known_items(
    impressions: Impressions, n_users: int, n_items: int, hidden: Offsets | None = None, *, clicks: bool = True
) -> Csr:
    """The distinct items of each user's histories, then clicks unless told otherwise, in time order.

    `hidden` lists what must not be among them, as user * n_items + item.
    """
    by_time = np.argsort(impressions.times, kind="stable")
    owners = impressions.users[by_time].astype(np.int64)
    rows = impressions.history_of[by_time].astype(np.int64)
    _, first = np.unique(owners * len(impressions.histories) + rows, return_index=True)
    first.sort()
    histories = impressions.histories.take(rows[first])
    users, items = owners[first][histories.row_numbers()], histories.items
    if clicks:
        clickers, clicked = _clicks(impressions)
        users, items = np.concatenate([users, clickers]), np.concatenate([items, clicked])
    if hidden is not None:
        known = np.isin(users * n_items + items, hidden, invert=True)
        users, items = users[known], items[known]
    uses = csr_from_pairs(users, items, n_users)
    return Interactions(uses.offsets, uses.items).pairs()
