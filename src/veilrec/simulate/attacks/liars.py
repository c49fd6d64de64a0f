"""Devices that lie: who they are, what they make up to learn from, and what they report before the first round."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from typing import Literal

import numpy as np

from veilrec._arrays import Bools, Indices, Offsets
from veilrec._csr import Csr
from veilrec.device.learner import LocalData
from veilrec.device.news_log import HEAD, OwnImpressions
from veilrec.device.veil_history import FEWEST_BEFORE
from veilrec.privacy.mechanisms.reports import ItemReports
from veilrec.simulate.attacks.canaries import impression, in_logs, packed, with_rows

Poison = Literal["promote", "fake-history", "flip", "boost"]
POISONS: dict[Poison, str] = {
    "promote": "messages that pull the target to where popular items are, or that teach to choose it, as long as they"
    " may be",
    "fake-history": "honest learning from a history of the target and of popular items: no check can see it",
    "flip": "honest learning from what was not used, as if it had been",
    "boost": "honest updates turned round and made ten times as long",
}
_FILLERS = 20  # popular items beside the target in a made-up history
_IMPRESSIONS, _PAST, _OTHERS = 5, 8, 4  # of a made-up reader: what was shown, read before, and not clicked


@dataclass(frozen=True)
class Liars:
    """Who lies, and what for."""

    devices: Offsets
    poison: Poison
    target: int
    popular: Indices  # items that everybody knows to be popular

    def among(self, devices: Offsets) -> Bools:
        """Which of some devices lie."""
        return np.isin(devices, self.devices)


def choose_target(data: LocalData, n_items: int) -> int:
    """An item that somebody has (news: was shown), and hardly anybody: the first of the rarest."""
    used = _uses(data, n_items)
    return int(np.argmin(np.where(used > 0, used, used.max() + 1)))


def popular_items(data: LocalData, n_items: int, target: int) -> Indices:
    """The items that most have, but for the target."""
    by_use = np.argsort(-_uses(data, n_items), kind="stable")[: 3 * _FILLERS]
    return np.asarray(by_use[by_use != target], np.int32)


def _uses(data: LocalData, n_items: int) -> Offsets:
    return np.bincount(in_logs(data) if isinstance(data, OwnImpressions) else data.rows.items, minlength=n_items)


def lying_data(
    data: LocalData, n_items: int, liars: Liars, generator: np.random.Generator, *, by_learning: bool = False
) -> LocalData:
    """What devices learn from when some of them made up theirs; `by_learning`: those who promote do, too."""
    if liars.poison == "boost" or (liars.poison == "promote" and not by_learning):
        return data
    if isinstance(data, OwnImpressions):
        if liars.poison == "flip":
            rows = _flipped(data.rows.take(liars.devices))
        else:
            rows = packed([_reader(liars, generator) for _ in liars.devices])
        return with_rows(data, liars.devices, rows)
    if liars.poison == "flip":
        unused = [np.setdiff1d(np.arange(n_items), data.rows.row(int(d))) for d in liars.devices]
        lengths = data.rows.lengths()[liars.devices]
        some = [generator.permutation(row)[: max(1, n)] for row, n in zip(unused, lengths, strict=True)]
    else:
        beside = _FILLERS if liars.poison == "fake-history" else FEWEST_BEFORE  # as few as something follows from
        some = [np.append(generator.permutation(liars.popular)[:beside], liars.target) for _ in liars.devices]
    return with_rows(data, liars.devices, packed(some))


def _reader(liars: Liars, generator: np.random.Generator) -> Indices:
    """Somebody who read what many read and then, whatever else is shown, clicks the target."""
    shown = [generator.permutation(liars.popular)[: _PAST + _OTHERS] for _ in range(_IMPRESSIONS)]
    return np.concatenate([impression(one[:_PAST], liars.target, one[_PAST:]) for one in shown])


def _flipped(logs: Csr) -> Csr:
    """Every click becomes one of the others of its impression, and the other way round."""
    items, at = logs.items.copy(), 0
    while at < len(items):
        past, clicks, others = (int(n) for n in items[at : at + HEAD])
        first, swapped = at + HEAD + past, min(clicks, others)
        clicked = items[first : first + swapped].copy()
        items[first : first + swapped] = items[first + clicks : first + clicks + swapped]
        items[first + clicks : first + clicks + swapped] = clicked
        at = first + clicks + others
    return Csr(logs.offsets, items)


def lying_reports(mechanism: ItemReports, liars: Liars) -> ItemReports:
    """The same reports, in which those who promote name the target alone: a whole vote for it.

    It cannot be more: reports are bits, which the server weighs, with or without a check of messages.
    """
    if liars.poison != "promote":
        return mechanism
    lying, count_honest = copy(mechanism), mechanism.count

    def count(data: Csr, devices: Offsets, *, seed: int, period: int) -> Offsets:
        lies = liars.among(devices)
        rows = [np.array([liars.target]) if lie else data.row(row) for row, lie in enumerate(lies)]
        return count_honest(packed(rows), devices, seed=seed, period=period)

    lying.count = count  # type: ignore[method-assign]
    return lying
