"""News impressions of clients, packed as integer rows, and the training examples drawn from them.

A row is a sequence of blocks, one per impression with both labels, in time order:

    [history length, clicks, others, history items..., clicked items..., other items...]

so that the data of one client, like that of all clients, is a row of a `Csr`. `OwnNews` numbers each client's distinct
news, and batches the examples of many clients, packed or padded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from veilrec.core import rng
from veilrec.core.arrays import Bools, Bytes, Floats, Indices, Offsets
from veilrec.core.csr import Csr
from veilrec.core.errors import BadInput
from veilrec.core.jit import jit
from veilrec.data.population import Impressions

if TYPE_CHECKING:  # a client that only ranks needs no torch
    from torch import Tensor

    from veilrec.models.news_model import Batch

NONE = -1  # no item: padding of histories and candidates
HEAD = 3


@dataclass(frozen=True)
class ClickExamples:
    """One example per click: the click first, then news of the same impression that were not clicked."""

    client: Offsets  # [examples], row of the logs, in rising order
    candidates: Indices  # [examples, 1 + negatives], NONE where the impression has too few others
    history_of: Offsets  # [examples], row of `histories`, in rising order
    histories: Indices  # [distinct, longest], oldest click first, NONE behind the last
    padded: Bools | None = None  # [distinct, longest], clicks that a client replaces by the pad; None: see `noise`
    noise: Floats | None = None  # [distinct, B], on the attention over basis vectors; all of it where `padded` is None

    def __len__(self) -> int:
        return len(self.client)


@dataclass(frozen=True)
class Samples:
    """Clicks with all that was shown beside them: what a client tells a label of."""

    client: Offsets  # [samples], row of the logs, in rising order
    history_of: Offsets  # [samples], row of `histories`, in rising order
    histories: Indices  # [distinct, longest], oldest click first, NONE behind the last
    shown: Csr  # a row for each sample
    clicked: Offsets  # [samples], place in that row

    def __len__(self) -> int:
        return len(self.client)

    def items(self, places: Offsets) -> Indices:
        """What stands at places `[samples, n]` of the rows; NONE at -1."""
        found = self.shown.items[np.maximum(places, 0) + self.shown.offsets[:-1, np.newaxis]]
        return np.where(places >= 0, found, NONE).astype(np.int32)


@dataclass(frozen=True)
class OwnImpressions:
    """What each client's user was shown and clicked, packed as above."""

    rows: Csr  # to learn from
    active_validation: Csr | None = None  # of validation clients: packed alike, empty for the others

    def take(self, clients: Offsets) -> OwnImpressions:
        """The impressions of some clients."""
        active_validation = None if self.active_validation is None else self.active_validation.take(clients)
        return OwnImpressions(self.rows.take(clients), active_validation)

    @property
    def kept(self) -> Mapping[str, NDArray[Any]]:
        """Nothing."""
        return {}

    def inside(self, place: Indices) -> OwnImpressions:
        """Rounds of news models are about all news."""
        raise BadInput("impressions cannot be cut to a part of the items: train on all news")


def pack_logs(impressions: Impressions, n_users: int, longest: int = 50) -> Csr:
    """One row per user; of each history the `longest` latest clicks; users without a usable impression are empty."""
    order = np.lexsort((impressions.times, impressions.users)).astype(np.int64)
    offsets = np.zeros(n_users + 1, np.int64)
    arguments = (
        order,
        impressions.users,
        impressions.shown.offsets,
        impressions.shown.items,
        impressions.clicked,
        impressions.histories.offsets,
        impressions.histories.items,
        impressions.history_of,
        longest,
    )
    _measure(*arguments, offsets)
    np.cumsum(offsets, out=offsets)
    rows = np.empty(offsets[-1], np.int32)
    _pack(*arguments, offsets[:-1].copy(), rows)
    return Csr(offsets, rows)


def count_clicks(logs: Csr) -> Offsets:
    """The number of examples of every row."""
    counts = np.zeros(len(logs), np.int64)
    _count(logs.offsets, logs.items, counts)
    return counts


def draw_examples(
    logs: Csr, clients: Offsets, *, negatives: int, longest: int, seed: int, number: int
) -> ClickExamples:
    """The examples of round (or epoch) `number`; the draws of a row are keyed by its client's number."""
    counts = count_clicks(logs)
    total = int(counts.sum())
    candidates = np.full((total, 1 + negatives), NONE, np.int32)
    history_of = np.empty(total, np.int64)
    histories = np.full((_count_histories(logs.offsets, logs.items), longest), NONE, np.int32)
    _draw(logs.offsets, logs.items, clients, negatives, seed, number, candidates, history_of, histories)
    client = np.repeat(np.arange(len(logs), dtype=np.int64), counts)
    return ClickExamples(client, candidates, history_of, histories)


def every_click(logs: Csr, *, longest: int) -> Samples:
    """A sample of every click, with what was not clicked beside it."""
    counts = count_clicks(logs)
    total = int(counts.sum())
    sizes, places = np.zeros(total, np.int64), np.zeros(total, np.int64)
    history_of = np.empty(total, np.int64)
    histories = np.full((_count_histories(logs.offsets, logs.items), longest), NONE, np.int32)
    _outline(logs.offsets, logs.items, sizes, places, history_of, histories)
    shown = np.empty(int(sizes.sum()), np.int32)
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    _fill_clicks(logs.offsets, logs.items, shown)
    client = np.repeat(np.arange(len(logs), dtype=np.int64), counts)
    return Samples(client, history_of, histories, Csr(offsets, shown), places)


def one_click_of_some(logs: Csr, clients: Offsets, *, most: int, longest: int, seed: int, number: int) -> Samples:
    """One click of at most so many impressions of every client, drawn, with all that was shown, in the order of items.

    Neither how many samples a client has nor their order tells which items were clicked.
    """
    client: list[int] = []
    clicked: list[int] = []
    histories, shown = [], []
    for row, name in enumerate(clients):
        blocks = list(blocks_of(logs.row(row)))
        draws = rng.uniforms(seed, rng.LEARNING, number, np.array([name], np.int64), 2 * len(blocks))[0]
        for block in np.sort(np.argsort(draws[: len(blocks)], kind="stable")[:most]):
            past, clicks, others = blocks[block]
            click = clicks[min(int(draws[len(blocks) + block] * len(clicks)), len(clicks) - 1)]
            offered = np.sort(np.concatenate([clicks, others]))
            kept = np.full(longest, NONE, np.int32)
            latest = past[-longest:]
            kept[: len(latest)] = latest
            client.append(row)
            histories.append(kept)
            shown.append(offered)
            clicked.append(int(np.searchsorted(offered, click)))
    offsets = np.concatenate([[0], np.cumsum([len(row) for row in shown])]).astype(np.int64)
    return Samples(
        np.array(client, np.int64),
        np.arange(len(client), dtype=np.int64),
        np.array(histories, np.int32).reshape(-1, longest),
        Csr(offsets, np.concatenate([np.zeros(0, np.int32), *shown])),
        np.array(clicked, np.int64),
    )


def blocks_of(row: Indices) -> Iterator[tuple[Indices, Indices, Indices]]:
    """History, clicks and other items of every impression of a client."""
    at = 0
    while at < len(row):
        past, clicks, others = (int(size) for size in row[at : at + HEAD])
        first, second = at + HEAD + past, at + HEAD + past + clicks
        yield row[at + HEAD : first], row[first:second], row[second : second + others]
        at = second + others


@jit
def _usable(clicked: Bytes, low: int, high: int) -> bool:
    clicks = 0
    for entry in range(low, high):
        clicks += clicked[entry] > 0
    return 0 < clicks < high - low


@jit
def _measure(  # type: ignore[no-untyped-def]
    order: Offsets,
    users: Indices,
    shown_offsets: Offsets,
    shown: Indices,
    clicked: Bytes,
    history_offsets: Offsets,
    histories: Indices,
    history_of: Indices,
    longest,
    sizes: Offsets,
) -> None:
    for row in order:
        low, high = shown_offsets[row], shown_offsets[row + 1]
        if _usable(clicked, low, high):
            past = history_offsets[history_of[row] + 1] - history_offsets[history_of[row]]
            sizes[users[row] + 1] += HEAD + min(past, longest) + high - low


@jit
def _pack(  # type: ignore[no-untyped-def]
    order: Offsets,
    users: Indices,
    shown_offsets: Offsets,
    shown: Indices,
    clicked: Bytes,
    history_offsets: Offsets,
    histories: Indices,
    history_of: Indices,
    longest,
    at: Offsets,
    out: Indices,
) -> None:
    for row in order:
        low, high = shown_offsets[row], shown_offsets[row + 1]
        if not _usable(clicked, low, high):
            continue
        place = at[users[row]]
        end = history_offsets[history_of[row] + 1]
        past = min(end - history_offsets[history_of[row]], longest)
        clicks = 0
        for entry in range(low, high):
            clicks += clicked[entry] > 0
        out[place], out[place + 1], out[place + 2] = past, clicks, high - low - clicks
        place += HEAD
        for entry in range(end - past, end):
            out[place] = histories[entry]
            place += 1
        for wanted in (True, False):
            for entry in range(low, high):
                if (clicked[entry] > 0) == wanted:
                    out[place] = shown[entry]
                    place += 1
        at[users[row]] = place


@jit
def _count(offsets: Offsets, rows: Indices, counts: Offsets) -> None:
    for client in range(len(counts)):
        at = offsets[client]
        while at < offsets[client + 1]:
            counts[client] += rows[at + 1]
            at += HEAD + rows[at] + rows[at + 1] + rows[at + 2]


@jit
def _same_history(rows: Indices, one: int, other: int) -> bool:
    """Whether the blocks at two places have the same history."""
    for j in range(rows[one] + 1):
        if rows[one + (j + HEAD - 1 if j else 0)] != rows[other + (j + HEAD - 1 if j else 0)]:
            return False
    return True


@jit
def _count_histories(offsets: Offsets, rows: Indices) -> int:
    """Blocks whose history is not that of the block before them on the same device."""
    count = 0
    for client in range(len(offsets) - 1):
        at, before = offsets[client], -1
        while at < offsets[client + 1]:
            count += before < 0 or not _same_history(rows, before, at)
            before = at
            at += HEAD + rows[at] + rows[at + 1] + rows[at + 2]
    return count


@jit
def _outline(
    offsets: Offsets, rows: Indices, sizes: Offsets, places: Offsets, history_of: Offsets, histories: Indices
) -> None:
    """How long the rows of the samples are, and their histories; a click stands first in its row."""
    sample, history = 0, -1
    for client in range(len(offsets) - 1):
        at, before = offsets[client], -1
        while at < offsets[client + 1]:
            past, clicks, others = rows[at], rows[at + 1], rows[at + 2]
            if before < 0 or not _same_history(rows, before, at):
                history += 1
                kept = min(past, histories.shape[1])
                for j in range(kept):
                    histories[history, j] = rows[at + HEAD + past - kept + j]
            for _ in range(clicks):
                history_of[sample], sizes[sample], places[sample] = history, 1 + others, 0
                sample += 1
            before = at
            at += HEAD + past + clicks + others


@jit
def _fill_clicks(offsets: Offsets, rows: Indices, shown: Indices) -> None:
    """A click and what was not clicked beside it, for every sample."""
    entry = 0
    for client in range(len(offsets) - 1):
        at = offsets[client]
        while at < offsets[client + 1]:
            past, clicks, others = rows[at], rows[at + 1], rows[at + 2]
            first = at + HEAD + past
            for click in range(clicks):
                shown[entry] = rows[first + click]
                for j in range(others):
                    shown[entry + 1 + j] = rows[first + clicks + j]
                entry += 1 + others
            at = first + clicks + others


@jit
def _draw(  # type: ignore[no-untyped-def]
    offsets: Offsets,
    rows: Indices,
    clients: Offsets,
    negatives,
    seed,
    number,
    candidates: Indices,
    history_of: Offsets,
    histories: Indices,
) -> None:
    example, history = 0, -1
    for client in range(len(clients)):
        start = rng.stream(seed, rng.LEARNING, number, clients[client])
        at, before, drawn = offsets[client], -1, 0
        while at < offsets[client + 1]:
            past, clicks, others = rows[at], rows[at + 1], rows[at + 2]
            first = at + HEAD
            if before < 0 or not _same_history(rows, before, at):
                history += 1
                kept = min(past, histories.shape[1])
                for j in range(kept):
                    histories[history, j] = rows[first + past - kept + j]
            unclicked = rows[first + past + clicks : first + past + clicks + others].copy()
            for click in range(clicks):
                history_of[example] = history
                candidates[example, 0] = rows[first + past + click]
                for j in range(min(negatives, others)):  # the beginning of a shuffle
                    k = j + rng.below(rng.word(start, drawn), others - j)
                    drawn += 1
                    unclicked[j], unclicked[k] = unclicked[k], unclicked[j]
                    candidates[example, 1 + j] = unclicked[j]
                example += 1
            before = at
            at = first + past + clicks + others


@dataclass(frozen=True)
class OwnNews:
    """Examples of n clients; items are places among the distinct news of their own device.

    They are taken out for some clients: packed, or padded side by side.
    """

    items: Offsets  # [pairs], the distinct news of client 0, then those of client 1, ...
    offsets: Offsets  # [n + 1], into `items`
    owner: Offsets  # [histories], client, in rising order
    histories: Offsets  # [histories, h]; 0 where the mask is False
    history_mask: Bools
    client: Offsets  # [examples], in rising order
    history_of: Offsets  # [examples]
    candidates: Offsets  # [examples, 1 + negatives]
    candidate_mask: Bools
    pads: Bools | None = None  # [histories, h], as in `Examples.padded`
    noise: Floats | None = None  # [histories, B]

    def groups(self, count: int) -> Iterator[Offsets]:
        """Clients with histories of like length, so that little is padded."""
        longest = np.zeros(len(self.offsets) - 1, np.int64)
        np.maximum.at(longest, self.owner, self.history_mask.sum(1))
        order = np.argsort(longest, kind="stable")
        for begin in range(0, len(order), count):
            yield np.sort(order[begin : begin + count])

    def shares(self) -> Floats:
        """What an example counts in the mean of its client: [examples]."""
        counts = np.bincount(self.client, minlength=len(self.offsets) - 1)
        return (1.0 / counts[self.client]).astype(np.float32)

    def packed(self, clients: Offsets) -> tuple[Offsets, Offsets, Batch]:
        """Rows of histories and of examples of some clients, and these with items as places in `batch.news`,
        which are rows of `items`.
        """
        import torch

        from veilrec.models.news_model import Batch

        chosen = np.zeros(len(self.offsets) - 1, np.bool_)
        chosen[clients] = True
        rows, examples = np.flatnonzero(chosen[self.owner]), np.flatnonzero(chosen[self.client])
        width = max(1, int(self.history_mask[rows].any(0).sum()))
        counts = np.diff(self.offsets)
        first = np.cumsum(counts * chosen) - counts * chosen  # place of a client's first item
        arrays = (
            np.flatnonzero(np.repeat(chosen, counts)),
            self.histories[rows, :width] + first[self.owner[rows], np.newaxis],
            self.history_mask[rows, :width],
            np.searchsorted(rows, self.history_of[examples]),
            self.candidates[examples] + first[self.client[examples], np.newaxis],
            self.candidate_mask[examples],
        )
        batch = replace(
            Batch(*map(torch.from_numpy, arrays)),
            padded=None if self.pads is None else torch.from_numpy(self.pads[rows, :width]),
            noise=None if self.noise is None else torch.from_numpy(self.noise[rows]),
        )
        return rows, examples, batch

    def padded(self, clients: Offsets) -> tuple[Tensor, Batch]:
        """Shares and examples of some clients, padded to one length: every tensor begins with the clients."""
        from veilrec.models.news_model import Batch

        rows, examples, _ = self.packed(clients)
        width = max(1, int(self.history_mask[rows].any(0).sum()))
        n = len(clients)
        owner = np.searchsorted(clients, self.owner[rows])
        client = np.searchsorted(clients, self.client[examples])
        first = np.searchsorted(self.owner, clients)[client]
        counts = np.diff(self.offsets)
        own = np.repeat(np.isin(np.arange(len(counts)), clients), counts)
        return _stack(self.shares()[examples], client, n), Batch(
            _stack(self.items[own], np.repeat(np.arange(n), counts[clients]), n),
            _stack(self.histories[rows, :width], owner, n),
            _stack(self.history_mask[rows, :width], owner, n),
            _stack(self.history_of[examples] - first, client, n),
            _stack(self.candidates[examples], client, n),
            _stack(self.candidate_mask[examples], client, n),
            padded=None if self.pads is None else _stack(self.pads[rows, :width], owner, n),
            noise=None if self.noise is None else _stack(self.noise[rows], owner, n),
        )


def own_news(examples: ClickExamples, n: int) -> OwnNews:
    """Number the news of every client."""
    owner = np.zeros(len(examples.histories), np.int64)
    owner[examples.history_of] = examples.client
    history_mask, candidate_mask = examples.histories != NONE, examples.candidates != NONE
    span = 1 + max(int(examples.histories.max(initial=0)), int(examples.candidates.max(initial=0)))
    past = owner[:, np.newaxis] * span + examples.histories
    shown = examples.client[:, np.newaxis] * span + examples.candidates
    pairs, place = np.unique(np.concatenate([past[history_mask], shown[candidate_mask]]), return_inverse=True)
    offsets = np.searchsorted(pairs // span, np.arange(n + 1)).astype(np.int64)
    histories, candidates = np.zeros(past.shape, np.int64), np.zeros(shown.shape, np.int64)
    split = int(history_mask.sum())
    histories[history_mask] = place[:split] - offsets[np.repeat(owner, history_mask.sum(1))]
    candidates[candidate_mask] = place[split:] - offsets[np.repeat(examples.client, candidate_mask.sum(1))]
    return OwnNews(
        pairs % span,
        offsets,
        owner,
        histories,
        history_mask,
        examples.client,
        examples.history_of,
        candidates,
        candidate_mask,
        examples.padded,
        examples.noise,
    )


def _stack(values: NDArray[np.generic], owner: Offsets, n: int) -> Tensor:
    """Rows of the clients, in rising order of their owner, as [n, most, ...]; zero where a client has fewer."""
    import torch

    counts = np.bincount(owner, minlength=n)
    first = np.cumsum(counts) - counts
    out = np.zeros((n, max(1, int(counts.max(initial=0))), *values.shape[1:]), values.dtype)
    out[owner, np.arange(len(owner)) - first[owner]] = values
    return torch.from_numpy(out)
