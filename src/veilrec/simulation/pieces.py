"""Local training of a cohort in pieces: groups of clients that train together, in this process or in another.

A piece is determined by its position in the cohort, and every draw is keyed by that position or by a client, so the
outcome does not depend on which process works on it. Workers keep no state: private state travels with the piece.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from veilrec.client.local_training import (
    Cohort,
    LocalData,
    LocalResults,
    OwnSources,
    SharedSource,
    examples_if_asked,
    nothing_if_overflown,
    overflown,
    put_back,
)
from veilrec.core import rng
from veilrec.core.arrays import Bools, Floats, Indices, Offsets
from veilrec.core.plan import Plan
from veilrec.core.schema import ClientUpdates, Factors, RoundSpec, Rows
from veilrec.privacy.mechanisms.distributed import DistributedNoiseSum
from veilrec.privacy.randomness import FastSource, noise_of_client, noise_of_learning
from veilrec.server.aggregation import Aggregator
from veilrec.server.server import Server
from veilrec.wire import messages


@dataclass(frozen=True)
class Seeds:
    """Seeds of a simulation; the public seed is part of the plan.

    With a secret, cohorts, reports and noise are streams of a cipher that only its holder can draw: the same again
    after a restart, so that no round is released with two noises. Without it anybody can reproduce them: no guarantee.
    """

    draws: int  # of what clients draw locally: negatives, orders, starting vectors
    cohorts: int  # of who takes part, is reached, and drops out
    noise: int
    secret: bytes | None = None

    @classmethod
    def all_from(cls, seed: int, secret: bytes | None = None) -> Seeds:
        """The seeds of a run that was asked for with one number."""
        return cls(seed, seed, seed, secret)


@dataclass(frozen=True)
class OpenRound:
    """Round spec and model as clients receive them."""

    spec: RoundSpec
    model: Mapping[str, Floats]
    place: Indices | None  # of every item in the part that the round is about; None: it is about all


@dataclass(frozen=True)
class Piece:
    """Clients of a round that train together."""

    start: int  # the place of the first among all of the round
    clients: Offsets  # their rows
    numbers: Offsets  # of each: the key of its draws
    arrives: Bools  # whose messages reach the server
    private: dict[str, Floats]  # what they keep; changed in place


@dataclass(frozen=True)
class PieceReport:
    """Result of a piece besides the sum of its client updates."""

    up_bytes: int
    up_params: int
    loss: Floats  # of every client
    shares: Floats | None
    weights: Offsets  # how often each message counts
    private: dict[str, Floats]  # what the clients keep from now on


class CohortWorker:
    """Local training of pieces, in any process."""

    def __init__(self, plan: Plan, data: LocalData, seeds: Seeds) -> None:
        self.plan, self.data, self.seeds = plan, data, seeds

    def learn(self, piece: Piece, opened: OpenRound, sums: Server | Aggregator) -> PieceReport:
        """Train the clients of a piece and add up their updates; linear noise is added later, at once."""
        mechanism, secret, spec = self.plan.mechanism, self.seeds.secret, opened.spec
        view, fills = spec.view(self.plan.schema), mechanism.fills_messages
        updates, learned = self._bounded(piece, opened)
        kept = keep(updates, piece.arrives)
        if isinstance(mechanism, DistributedNoiseSum):
            return self._shared(mechanism, piece, kept, learned, spec, sums)
        if secret is not None and mechanism.noise_on == "message":
            sent = self._perturb_alone(kept, piece.clients[piece.arrives], spec, secret)
        else:
            if mechanism.perturbs_each:
                fast = FastSource(self.seeds.noise, rng.NOISE, spec.number, piece.start)
                kept = mechanism.perturb_each(kept, spec, fast)
            sent = [kept]
        up_bytes = up_params = 0
        weights = []
        for some in sent:
            up_bytes += int(messages.sizes(some, view, all_rows=fills).sum())
            up_params += messages.parameters(some, view, all_rows=fills)
            weights.append(np.ones(some.count, np.int64) if some.examples is None else some.examples)
            sums.add(messages.rounded_update(some, view))
        weighed = np.concatenate([np.zeros(0, np.int64), *weights])
        return PieceReport(up_bytes, up_params, learned.loss, learned.shares, weighed, piece.private)

    def _shared(
        self,
        mechanism: DistributedNoiseSum,
        piece: Piece,
        kept: ClientUpdates,
        learned: LocalResults,
        spec: RoundSpec,
        sums: Server | Aggregator,
    ) -> PieceReport:
        """Sum as secure aggregation opens it, with distributed noise where each client draws its own."""
        secret, fixed_point, view = self.seeds.secret, sums.fixed_point, spec.view(self.plan.schema)
        clients = [] if secret is None else piece.clients[piece.arrives].tolist()
        sources = [noise_of_client(secret or b"", spec.number, client) for client in clients]
        total = mechanism.shared(messages.rounded_update(kept, view), spec, fixed_point, sources)
        sums.add_integers(total, clients=kept.count)
        up_bytes, up_params = kept.count * fixed_point.size * (fixed_point.ring // 8), kept.count * fixed_point.size
        ones = np.ones(kept.count, np.int64)
        return PieceReport(up_bytes, up_params, learned.loss, learned.shares, ones, piece.private)

    def _bounded(self, piece: Piece, opened: OpenRound) -> tuple[ClientUpdates, LocalResults]:
        spec, plan = opened.spec, self.plan
        data = self.data.take(piece.clients)
        if opened.place is not None:
            data = data.inside(opened.place)
        noise = self.local_noise(spec.number, piece.start)
        cohort = Cohort(piece.numbers, data, piece.private, self.seeds.draws, noise)
        before = {name: values.copy() for name, values in piece.private.items()}
        learned = plan.trainer.learn(cohort, opened.model, spec)
        lost = overflown(learned.updates)
        put_back(piece.private, before, lost)
        if lost.any():
            learned = replace(learned, loss=np.where(lost, np.float32(np.nan), learned.loss))
        updates = nothing_if_overflown(examples_if_asked(learned.updates, plan.sends_examples))
        return plan.mechanism.bound(updates, spec), learned

    def local_noise(self, number: int, start: int) -> OwnSources:
        """Sources of the noise that clients add to their data before training; `start` keys the first."""
        secret = self.seeds.secret
        if secret is None:
            return SharedSource(FastSource(self.seeds.noise, rng.LOCAL_NOISE, number, start))
        return OwnSources(lambda client: noise_of_learning(secret, number, client))

    def _perturb_alone(
        self, updates: ClientUpdates, clients: Offsets, spec: RoundSpec, secret: bytes
    ) -> list[ClientUpdates]:
        """Perturb every update with the noise of its own client."""
        return [
            self.plan.mechanism.perturb(one_of(updates, i), spec, noise_of_client(secret, spec.number, int(client)))
            for i, client in enumerate(clients)
        ]


def one_of(updates: ClientUpdates, client: int) -> ClientUpdates:
    """Select the update of one client by its position."""

    def rows_of(packed: Mapping[str, Rows]) -> dict[str, Rows]:
        cut = {}
        for name, rows in packed.items():
            part = slice(rows.offsets[client], rows.offsets[client + 1])
            cut[name] = Rows(np.array([0, part.stop - part.start]), rows.index[part], rows.values[part])
        return cut

    one = slice(client, client + 1)
    return replace(
        updates,
        count=1,
        tables=rows_of(updates.tables),
        dense={name: values[one] for name, values in updates.dense.items()},
        examples=None if updates.examples is None else updates.examples[one],
        entries=rows_of(updates.entries),
        factors={n: Factors(f.left[one], f.scales[one], f.right[one]) for n, f in updates.factors.items()},
    )


def keep(updates: ClientUpdates, arrives: Bools) -> ClientUpdates:
    """Select the updates that arrive."""
    if arrives.all():
        return updates
    chosen = np.flatnonzero(arrives)
    return replace(
        updates,
        count=len(chosen),
        tables={name: _keep_rows(rows, arrives, chosen) for name, rows in updates.tables.items()},
        dense={name: values[chosen] for name, values in updates.dense.items()},
        examples=None if updates.examples is None else updates.examples[chosen],
        entries={name: _keep_rows(rows, arrives, chosen) for name, rows in updates.entries.items()},
        factors={n: Factors(f.left[chosen], f.scales[chosen], f.right[chosen]) for n, f in updates.factors.items()},
    )


def _keep_rows(rows: Rows, arrives: Bools, chosen: Offsets) -> Rows:
    entries = np.repeat(arrives, np.diff(rows.offsets))
    offsets = np.zeros(len(chosen) + 1, np.int64)
    np.cumsum(np.diff(rows.offsets)[chosen], out=offsets[1:])
    return Rows(offsets, rows.index[entries], rows.values[entries])
