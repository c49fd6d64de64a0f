"""Made-up people who take the place of some devices: what an attacker puts in, to see whether it comes out again."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, cast, get_args

import numpy as np

from veilrec._arrays import Bools, Indices, Offsets
from veilrec._csr import Csr, offsets_of
from veilrec.device.learner import LocalData
from veilrec.device.news_log import HEAD, OwnImpressions
from veilrec.errors import BadInput

Kind = Literal["crafted", "random"]
KINDS: dict[Kind, str] = {
    "crafted": "all that they have are rare items, which move parts of a model that hardly anybody else moves",
    "random": "as many items as somebody else has, any of them",
}
_ITEMS = 20  # of a crafted canary
_IMPRESSIONS, _PAST, _OTHERS = 5, 8, 4  # of a crafted reader: what was shown, read before, and not clicked
_RARE = 0.5  # share of the items, those that fewest devices have


@dataclass(frozen=True)
class Canaries:
    """Who was put in the place of whom, and which of them are there."""

    slots: Offsets  # devices
    inside: Bools  # whether the canary is there; if not, nobody is, or its double
    data: LocalData  # a row for every slot: the canary; then, replace-one, one for every double
    has_doubles: bool  # who is there instead

    def __len__(self) -> int:
        return len(self.slots)

    @property
    def devices(self) -> Offsets:
        """The number of each row of the data."""
        return np.tile(self.slots, 2) if self.has_doubles else self.slots


def plant(
    data: LocalData, n_items: int, count: int, generator: np.random.Generator, *, kind: Kind, doubles: bool
) -> tuple[LocalData, Canaries]:
    """The data with a canary in each of some places, and who they are; half of them are to be taken out again.

    With doubles, what is in a canary's place when it is not there is another one, already put there.
    """
    if kind not in get_args(Kind):
        raise BadInput(f"canaries are {kind!r}: allowed are {', '.join(KINDS)}")
    able = np.flatnonzero(data.rows.lengths() > 0).astype(np.int64)
    if not 2 <= count < len(able):
        raise BadInput(
            f"{count} canaries among {len(able)} devices that can learn: give at least 2, and fewer than there are"
        )
    slots = np.sort(generator.permutation(able)[:count])
    inside = generator.permutation(np.arange(count) % 2 == 0)
    rows = [_rows(data, n_items, slots, generator, kind) for _ in range(2 if doubles else 1)]
    there = rows[0] if len(rows) == 1 else _either(rows[0], rows[1], inside)
    both = rows[0] if len(rows) == 1 else _stacked(*rows)
    own = with_rows(data.take(np.tile(slots, len(rows))), np.arange(len(both)), both)
    return with_rows(data, slots, there), Canaries(slots, inside, own, doubles)


def _either(first: Csr, second: Csr, from_first: Bools) -> Csr:
    n = len(first)
    return _stacked(first, second).take(np.where(from_first, np.arange(n), n + np.arange(n)))


def _stacked(first: Csr, second: Csr) -> Csr:
    return Csr(
        np.concatenate([first.offsets, first.offsets[-1] + second.offsets[1:]]),
        np.concatenate([first.items, second.items]),
    )


def with_rows(data: LocalData, slots: Offsets, rows: Csr) -> LocalData:
    """The same data with other rows in some places; who rates gives everything there full marks."""
    n = len(data.rows)
    chosen = np.arange(n)
    chosen[slots] = n + np.arange(len(slots))
    changed: dict[str, Any] = {"rows": _stacked(data.rows, rows).take(chosen)}
    ratings = getattr(data, "ratings", None)
    if ratings is not None:
        entries = Csr(data.rows.offsets, np.arange(len(data.rows.items), dtype=np.int32))
        full = Csr(rows.offsets, np.full(len(rows.items), len(ratings), np.int32))
        changed["ratings"] = np.append(ratings, np.float32(1.0))[_stacked(entries, full).take(chosen).items]
    return cast(LocalData, replace(cast(Any, data), **changed))


def _rows(data: LocalData, n_items: int, slots: Offsets, generator: np.random.Generator, kind: Kind) -> Csr:
    if isinstance(data, OwnImpressions):
        news = int(data.rows.items.max()) + 1 if n_items < 1 else n_items
        make = _rare_readers if kind == "crafted" else _random_readers
        return make(data, news, len(slots), generator)
    used = np.bincount(data.rows.items, minlength=n_items)
    if kind == "crafted":
        rare = np.argsort(used + generator.random(n_items))[: max(_ITEMS, int(_RARE * n_items))]
        return packed([generator.permutation(rare)[:_ITEMS] for _ in slots])
    lengths = data.rows.lengths()
    sizes = generator.choice(lengths[lengths > 0], len(slots))
    return packed([generator.permutation(n_items)[: min(int(size), n_items - 1)] for size in sizes])


def packed(rows: list[Any]) -> Csr:
    """Rows end to end, each in its order."""
    return Csr(offsets_of([len(row) for row in rows]), np.concatenate(rows).astype(np.int32))


def _rare_readers(data: OwnImpressions, n_news: int, count: int, generator: np.random.Generator) -> Csr:
    """Somebody who read, and then clicks, news that hardly anybody reads."""
    read = np.bincount(in_logs(data), minlength=n_news)
    rare = np.argsort(read + generator.random(n_news))[: max(_PAST + _IMPRESSIONS, int(_RARE * n_news))]
    readers = []
    for _ in range(count):
        own = generator.permutation(rare)[: _PAST + _IMPRESSIONS]
        others = generator.integers(0, n_news, (_IMPRESSIONS, _OTHERS))
        blocks = [impression(own[:_PAST], own[_PAST + i], others[i]) for i in range(_IMPRESSIONS)]
        readers.append(np.concatenate(blocks))
    return packed(readers)


def impression(past: Indices, click: int, others: Indices) -> Indices:
    """One impression with one click, as a log has it."""
    return np.concatenate([[len(past), 1, len(others)], past, [click], others]).astype(np.int32)


def _random_readers(data: OwnImpressions, n_news: int, count: int, generator: np.random.Generator) -> Csr:
    """Somebody with as many impressions as another, about any news."""
    able = np.flatnonzero(data.rows.lengths() > 0)
    readers: list[Indices] = []
    for device in generator.choice(able, count):
        row = data.rows.row(int(device)).copy()
        numbers = _is_news(row)
        row[numbers] = generator.integers(0, n_news, int(numbers.sum()))
        readers.append(row)
    return packed(readers)


def in_logs(data: OwnImpressions) -> Indices:
    """All that stands in anybody's log, as often as it does."""
    rows = data.rows
    return np.concatenate([row[_is_news(row)] for row in (rows.row(r) for r in range(len(rows)))])


def _is_news(row: Indices) -> Bools:
    """Which entries of a log are news and not lengths."""
    news, at = np.ones(len(row), np.bool_), 0
    while at < len(row):
        news[at : at + HEAD] = False
        at += HEAD + int(row[at : at + HEAD].sum())
    return news
