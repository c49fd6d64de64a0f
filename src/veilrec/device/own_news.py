"""The examples of many devices, each with its own news: side by side, or one behind the other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from veilrec._arrays import Bools, Floats, Offsets
from veilrec.device.news_log import NONE, Examples
from veilrec.models.news_model import Batch


@dataclass(frozen=True)
class OwnNews:
    """Examples of n devices; items are places among the distinct news of their own device.

    They are taken out for some devices: packed, or padded side by side.
    """

    items: Offsets  # [pairs], the distinct news of device 0, then those of device 1, ...
    offsets: Offsets  # [n + 1], into `items`
    owner: Offsets  # [histories], device, in rising order
    histories: Offsets  # [histories, h]; 0 where the mask is False
    history_mask: Bools
    device: Offsets  # [examples], in rising order
    history_of: Offsets  # [examples]
    candidates: Offsets  # [examples, 1 + negatives]
    candidate_mask: Bools
    pads: Bools | None = None  # [histories, h], as in `Examples.padded`
    noise: Floats | None = None  # [histories, B]

    def groups(self, count: int) -> Iterator[Offsets]:
        """Devices with histories of like length, so that little is padded."""
        longest = np.zeros(len(self.offsets) - 1, np.int64)
        np.maximum.at(longest, self.owner, self.history_mask.sum(1))
        order = np.argsort(longest, kind="stable")
        for begin in range(0, len(order), count):
            yield np.sort(order[begin : begin + count])

    def shares(self) -> Floats:
        """What an example counts in the mean of its device: [examples]."""
        counts = np.bincount(self.device, minlength=len(self.offsets) - 1)
        return (1.0 / counts[self.device]).astype(np.float32)

    def between(self, first: int, last: int) -> OwnNews:
        """Of some devices side by side, numbered anew."""
        low, high = self.offsets[first], self.offsets[last]
        rows = np.flatnonzero((self.owner >= first) & (self.owner < last))
        examples = slice(*np.searchsorted(self.device, [first, last]))
        return OwnNews(
            self.items[low:high],
            self.offsets[first : last + 1] - low,
            self.owner[rows] - first,
            self.histories[rows],
            self.history_mask[rows],
            self.device[examples] - first,
            np.searchsorted(rows, self.history_of[examples]),
            self.candidates[examples],
            self.candidate_mask[examples],
            None if self.pads is None else self.pads[rows],
            None if self.noise is None else self.noise[rows],
        )

    def packed(self, devices: Offsets) -> tuple[Offsets, Offsets, Batch]:
        """Of some devices: the rows of histories and of examples, and these with items as places in `batch.news`,
        which are rows of `items`.
        """
        chosen = np.zeros(len(self.offsets) - 1, np.bool_)
        chosen[devices] = True
        rows, examples = np.flatnonzero(chosen[self.owner]), np.flatnonzero(chosen[self.device])
        width = max(1, int(self.history_mask[rows].any(0).sum()))
        counts = np.diff(self.offsets)
        first = np.cumsum(counts * chosen) - counts * chosen  # place of a device's first item
        arrays = (
            np.flatnonzero(np.repeat(chosen, counts)),
            self.histories[rows, :width] + first[self.owner[rows], np.newaxis],
            self.history_mask[rows, :width],
            np.searchsorted(rows, self.history_of[examples]),
            self.candidates[examples] + first[self.device[examples], np.newaxis],
            self.candidate_mask[examples],
        )
        batch = replace(
            Batch(*map(torch.from_numpy, arrays)),
            padded=None if self.pads is None else torch.from_numpy(self.pads[rows, :width]),
            noise=None if self.noise is None else torch.from_numpy(self.noise[rows]),
        )
        return rows, examples, batch

    def padded(self, devices: Offsets) -> tuple[Tensor, Batch]:
        """The same side by side: shares and examples, every tensor begins with the devices."""
        rows, examples, _ = self.packed(devices)
        width = max(1, int(self.history_mask[rows].any(0).sum()))
        n = len(devices)
        owner = np.searchsorted(devices, self.owner[rows])
        device = np.searchsorted(devices, self.device[examples])
        first = np.searchsorted(self.owner, devices)[device]
        counts = np.diff(self.offsets)
        own = np.repeat(np.isin(np.arange(len(counts)), devices), counts)
        return _stack(self.shares()[examples], device, n), Batch(
            _stack(self.items[own], np.repeat(np.arange(n), counts[devices]), n),
            _stack(self.histories[rows, :width], owner, n),
            _stack(self.history_mask[rows, :width], owner, n),
            _stack(self.history_of[examples] - first, device, n),
            _stack(self.candidates[examples], device, n),
            _stack(self.candidate_mask[examples], device, n),
            padded=None if self.pads is None else _stack(self.pads[rows, :width], owner, n),
            noise=None if self.noise is None else _stack(self.noise[rows], owner, n),
        )


def own_news(examples: Examples, n: int) -> OwnNews:
    """Number the news of every device."""
    owner = np.zeros(len(examples.histories), np.int64)
    owner[examples.history_of] = examples.device
    history_mask, candidate_mask = examples.histories != NONE, examples.candidates != NONE
    span = 1 + max(int(examples.histories.max(initial=0)), int(examples.candidates.max(initial=0)))
    past = owner[:, np.newaxis] * span + examples.histories
    shown = examples.device[:, np.newaxis] * span + examples.candidates
    pairs, place = np.unique(np.concatenate([past[history_mask], shown[candidate_mask]]), return_inverse=True)
    offsets = np.searchsorted(pairs // span, np.arange(n + 1)).astype(np.int64)
    histories, candidates = np.zeros(past.shape, np.int64), np.zeros(shown.shape, np.int64)
    split = int(history_mask.sum())
    histories[history_mask] = place[:split] - offsets[np.repeat(owner, history_mask.sum(1))]
    candidates[candidate_mask] = place[split:] - offsets[np.repeat(examples.device, candidate_mask.sum(1))]
    return OwnNews(
        pairs % span,
        offsets,
        owner,
        histories,
        history_mask,
        examples.device,
        examples.history_of,
        candidates,
        candidate_mask,
        examples.padded,
        examples.noise,
    )


def _stack(values: NDArray[np.generic], owner: Offsets, n: int) -> Tensor:
    """Rows of the devices, in rising order of their owner, as [n, most, ...]; zero where a device has fewer."""
    counts = np.bincount(owner, minlength=n)
    first = np.cumsum(counts) - counts
    out = np.zeros((n, max(1, int(counts.max(initial=0))), *values.shape[1:]), values.dtype)
    out[owner, np.arange(len(owner)) - first[owner]] = values
    return torch.from_numpy(out)
