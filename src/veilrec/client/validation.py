"""Held-out validation clients: compare two models on local data, for private model selection.

Membership is drawn by the public seed from a client's own number, independently of all other clients: adding or
removing a client does not move any other between the groups.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, cast

import numpy as np

from veilrec.client.local_training import LocalData
from veilrec.client.news_data import HEAD, OwnImpressions
from veilrec.client.rankers import Ranker
from veilrec.core import rng
from veilrec.core.arrays import Bools, Bytes, Doubles, Floats, Indices, Offsets
from veilrec.core.csr import Csr, offsets_of
from veilrec.core.jit import jit
from veilrec.data.population import Impressions

Judged_contra = TypeVar("Judged_contra", bound=LocalData, contravariant=True)


class Validator(Protocol[Judged_contra]):
    """How clients compare two models."""

    def clients(self, data: Judged_contra) -> Offsets:
        """Rows of the validation clients that have data: they never train."""

    def gains(self, data: Judged_contra, start: Mapping[str, Floats], trained: Mapping[str, Floats]) -> Doubles:
        """How much better the trained model ranks than the start on each client's own data; not yet clipped."""


def is_validator(clients: Offsets, share: float, public_seed: int) -> Bools:
    """Validation clients, by number."""
    return rng.uniforms(public_seed, rng.VALIDATORS, 0, clients)[:, 0] < share


def parted(logs: Csr, share: float, public_seed: int, numbers: Offsets | None = None) -> OwnImpressions:
    """Logs of everybody as those of clients that train and of validation clients: each client has one of them.

    `numbers` has that of every client; None: its row.
    """
    known = np.arange(len(logs), dtype=np.int64) if numbers is None else numbers
    validators = is_validator(known, share, public_seed)
    return OwnImpressions(_only(logs, ~validators), _only(logs, validators))


def _only(logs: Csr, chosen: Bools) -> Csr:
    """The rows of some clients, the others empty."""
    lengths = logs.lengths()
    return Csr(offsets_of(np.where(chosen, lengths, 0)), logs.items[np.repeat(chosen, lengths)])


@dataclass(frozen=True)
class NewsValidator:
    """The difference of the mean AUC over a client's impressions."""

    ranker: Ranker

    def clients(self, data: OwnImpressions) -> Offsets:
        """Clients with impressions to validate on; each has a click and something that was not clicked."""
        if data.active_validation is None:
            return np.zeros(0, np.int64)
        return np.flatnonzero(data.active_validation.lengths() > 0).astype(np.int64)

    def gains(self, data: OwnImpressions, start: Mapping[str, Floats], trained: Mapping[str, Floats]) -> Doubles:
        """Gain of every client of the data: 0 for one without impressions."""
        logs = data.active_validation
        if logs is None or not len(logs.items):
            return np.zeros(len(data.rows))
        asked = _impressions(logs)
        first, second = (self._ranked(asked, weights) for weights in (start, trained))
        counts = np.maximum(np.bincount(asked.users, minlength=len(logs)), 1)
        return np.bincount(asked.users, second - first, len(logs)) / counts

    def _ranked(self, asked: Impressions, weights: Mapping[str, Floats]) -> Doubles:
        """AUC of every impression."""
        model: Any = self.ranker.model(weights, {}, asked.histories)
        scores = cast(Floats, model.score_impressions(asked))
        out = np.zeros(len(asked))
        _auc(asked.shown.offsets, scores, asked.clicked, out)
        return out


def _impressions(logs: Csr) -> Impressions:
    """The impressions that the logs of clients hold; the client is the user."""
    blocks = np.zeros(len(logs.items), np.int64)
    owners = np.zeros(len(logs.items), np.int32)
    count = _blocks(logs.offsets, logs.items, blocks, owners)
    at, users = blocks[:count], owners[:count]
    past, clicks, others = (logs.items[at + j].astype(np.int64) for j in range(HEAD))
    histories = Csr(offsets_of(past), _gathered(logs.items, at + HEAD, past))
    shown = Csr(offsets_of(clicks + others), _gathered(logs.items, at + HEAD + past, clicks + others))
    place = np.arange(len(shown.items)) - np.repeat(shown.offsets[:-1], clicks + others)
    clicked = (place < np.repeat(clicks, clicks + others)).astype(np.uint8)
    return Impressions(users, np.zeros(count, np.int64), shown, clicked, histories, np.arange(count, dtype=np.int32))


def _gathered(items: Indices, first: Offsets, lengths: Offsets) -> Indices:
    """Pieces of an array, end to end."""
    offsets = offsets_of(lengths)
    chosen: Indices = items[np.repeat(first - offsets[:-1], lengths) + np.arange(offsets[-1])]
    return chosen


@jit
def _blocks(offsets: Offsets, rows: Indices, blocks: Offsets, owners: Indices) -> int:
    """Where every impression begins, and whose it is."""
    count = 0
    for client in range(len(offsets) - 1):
        at = offsets[client]
        while at < offsets[client + 1]:
            blocks[count], owners[count] = at, client
            count += 1
            at += HEAD + rows[at] + rows[at + 1] + rows[at + 2]
    return count


@jit
def _auc(offsets: Offsets, scores: Floats, clicked: Bytes, out: Doubles) -> None:
    """The share of pairs of a click and a non-click in the right order; ties are half right."""
    for row in range(len(out)):
        right, pairs = 0.0, 0
        for i in range(offsets[row], offsets[row + 1]):
            for j in range(offsets[row], offsets[row + 1]):
                if clicked[i] > 0 and clicked[j] == 0:
                    pairs += 1
                    right += 1.0 if scores[i] > scores[j] else 0.5 if scores[i] == scores[j] else 0.0
        out[row] = right / pairs
