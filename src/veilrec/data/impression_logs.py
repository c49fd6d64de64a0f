"""What the readers of impression logs share: labels, histories, counts, and uses made of impressions."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from veilrec._arrays import Bools, Bytes, Indices, Offsets
from veilrec._csr import Csr, csr_from_pairs, offsets_of
from veilrec._jit import jit
from veilrec.data.population import Impressions, Interactions, Strings
from veilrec.errors import BadInput


def interactions_of(impressions: Mapping[str, Impressions], n_users: int) -> Interactions:
    """What every user used: the history before his first training impression, then his training clicks.

    Users who only occur in "dev" have the history before their first impression there. Clicks of "dev" are
    never among them.
    """
    history_rows = np.full(n_users, -1, np.int64)
    parts = [impressions[split] for split in ("train", "dev") if split in impressions]
    before = np.cumsum([0, *(len(part.histories) for part in parts)])
    for part, shift in zip(parts, before, strict=False):
        first = _first_impressions(part)
        first = first[history_rows[part.users[first]] < 0]
        history_rows[part.users[first]] = shift + part.history_of[first]
    lengths = np.concatenate([part.histories.lengths() for part in parts])
    stacked = Csr(offsets_of(lengths), np.concatenate([part.histories.items for part in parts]))
    return uses(stacked.take(history_rows), impressions["train"])


def uses(histories: Csr, train: Impressions) -> Interactions:
    """Each user's history (a row per user), then his clicks; an item counts once, at its first use."""
    clickers, clicked = _clicks_in_time(train)
    rows = np.concatenate([histories.row_numbers(), clickers])
    packed = csr_from_pairs(rows, np.concatenate([histories.items, clicked]), len(histories))
    lengths, items = np.zeros(len(packed), np.int64), np.empty(len(packed.items), np.int32)
    n_items = int(packed.items.max(initial=0)) + 1
    kept = _keep_first_uses(packed.offsets, packed.items, np.full(n_items, -1, np.int64), lengths, items)
    return Interactions(offsets_of(lengths), items[:kept].copy())


def count_facts(impressions: Mapping[str, Impressions]) -> dict[str, int]:
    """Counts over all splits that `data check` shows."""
    facts = dict.fromkeys(("rows", "shown", "clicks", "impressions_without_both_labels", "empty_histories"), 0)
    for part in impressions.values():
        clicks = clicks_per_impression(part)
        facts["rows"] += len(part)
        facts["shown"] += len(part.clicked)
        facts["clicks"] += int(clicks.sum())
        facts["impressions_without_both_labels"] += int(((clicks == 0) | (clicks == part.shown.lengths())).sum())
        facts["empty_histories"] += int((part.histories.lengths()[part.history_of] == 0).sum())
    return facts


def refuse_unlearnable(source: Path, items: Strings, clicks: int) -> None:
    """Raise for a log that nothing can be learnt from: fewer than two items, or no click."""
    if len(items) < 2:
        raise BadInput(f"{source}: the only item is {items[0]!r}, and at least 2 items are needed")
    if not clicks:
        raise BadInput(f"{source}: no impression has a click, so there is nothing to learn; give a log with clicks")


def clicks_per_impression(impressions: Impressions) -> Offsets:
    """How many of the shown items were clicked, per impression."""
    running = offsets_of(impressions.clicked.astype(np.int64))
    return np.diff(running[impressions.shown.offsets])


def labels(shown: Csr, clicked: Csr) -> Bytes:
    """1 for every shown item that is among the clicked items of the same row."""
    marked = np.zeros(len(shown.items), np.uint8)
    n_items = int(max(shown.items.max(initial=0), clicked.items.max(initial=0))) + 1
    clicked_in = np.full(n_items, -1, np.int64)
    _mark(shown.offsets, shown.items, clicked.offsets, clicked.items, clicked_in, marked)
    return marked


def chosen_impressions(impressions: Impressions, chosen: Bools) -> Impressions:
    """Some of the impressions, over the same histories."""
    shown = np.repeat(chosen, impressions.shown.lengths())
    return Impressions(
        impressions.users[chosen],
        impressions.times[chosen],
        Csr(offsets_of(impressions.shown.lengths()[chosen]), impressions.shown.items[shown]),
        impressions.clicked[shown],
        impressions.histories,
        impressions.history_of[chosen],
        None if impressions.oracle is None else impressions.oracle[shown],
    )


def _first_impressions(part: Impressions) -> Offsets:
    order = np.lexsort((part.times, part.users))
    users = part.users[order]
    return order[np.concatenate([[True], users[1:] != users[:-1]])] if len(order) else order


def _clicks_in_time(part: Impressions) -> tuple[Indices, Indices]:
    places = np.flatnonzero(part.clicked)
    impression = np.searchsorted(part.shown.offsets, places, side="right") - 1
    users = part.users[impression]
    order = np.lexsort((places, part.times[impression], users))
    return users[order], part.shown.items[places[order]]


@jit
def _mark(
    shown_offsets: Offsets,
    shown: Indices,
    clicked_offsets: Offsets,
    clicked: Indices,
    clicked_in: Offsets,
    marked: Bytes,
) -> None:
    for row in range(len(shown_offsets) - 1):
        for place in range(clicked_offsets[row], clicked_offsets[row + 1]):
            clicked_in[clicked[place]] = row
        for place in range(shown_offsets[row], shown_offsets[row + 1]):
            marked[place] = clicked_in[shown[place]] == row


@jit
def _keep_first_uses(offsets: Offsets, items: Indices, used_by: Offsets, lengths: Offsets, out: Indices) -> int:
    kept = 0
    for row in range(len(offsets) - 1):
        for place in range(offsets[row], offsets[row + 1]):
            if used_by[items[place]] != row:
                used_by[items[place]] = row
                out[kept] = items[place]
                kept += 1
                lengths[row] += 1
    return kept
