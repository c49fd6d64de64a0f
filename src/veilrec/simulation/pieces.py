"""Local training of a cohort in pieces: groups of clients that train together, in this process or in another.

A piece is determined by its position in the cohort, and every draw is keyed by that position or by a client, so the
outcome does not depend on which process works on it. Workers keep no state: private state travels with the piece.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from veilrec.client.federated import examples_if_asked
from veilrec.client.local_training import Cohort, LocalData, LocalResults, OwnSources, SharedSource
from veilrec.core import rng
from veilrec.core.arrays import Bools, Floats, Indices, Offsets
from veilrec.core.plan import Plan
from veilrec.core.schema import ClientUpdates, Factors, RoundSpec, Rows
from veilrec.privacy.mechanisms.distributed import DistributedNoiseSum
from veilrec.privacy.randomness import FastSource, noise_of_device, noise_of_learning
from veilrec.server.aggregation import Aggregator
from veilrec.server.server import Server
from veilrec.wire import messages


@dataclass(frozen=True)
class Seeds:
    """Seeds of a simulation; the public seed is part of the plan.

    With a secret, cohorts, reports and noise are streams of a cipher that only its holder can draw: the same again
    after a restart, so that no round is released with two noises. Without it anybody can reproduce them: no guarantee.
    """

    draws: int  # of what devices draw locally: negatives, orders, starting vectors
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

    about: RoundSpec
    model: Mapping[str, Floats]
    place: Indices | None  # of every item in the part that the round is about; None: it is about all


@dataclass(frozen=True)
class Piece:
    """Clients of a round that train together."""

    start: int  # the place of the first among all of the round
    devices: Offsets
    arrives: Bools  # whose messages reach the server
    private: dict[str, Floats]  # what they keep; changed in place


@dataclass(frozen=True)
class PieceReport:
    """Result of a piece besides the sum of its client updates."""

    up_bytes: int
    up_params: int
    loss: Floats  # of every device
    shares: Floats | None
    weights: Offsets  # how often each message counts
    private: dict[str, Floats]  # what the devices keep from now on


class CohortWorker:
    """Local training of pieces, in any process."""

    def __init__(self, plan: Plan, data: LocalData, seeds: Seeds) -> None:
        self.plan, self.data, self.seeds = plan, data, seeds

    def learn(self, piece: Piece, opened: OpenRound, sums: Server | Aggregator) -> PieceReport:
        """Train the clients of a piece and add up their updates; linear noise is added later, at once."""
        mechanism, secret, about = self.plan.mechanism, self.seeds.secret, opened.about
        view, fills = about.view(self.plan.schema), mechanism.fills_messages
        uploads, learned = self._bounded(piece, opened)
        kept = keep(uploads, piece.arrives)
        if isinstance(mechanism, DistributedNoiseSum):
            return self._shared(mechanism, piece, kept, learned, about, sums)
        if secret is not None and mechanism.noise_on == "message":
            sent = self._perturb_alone(kept, piece.devices[piece.arrives], about, secret)
        else:
            if mechanism.perturbs_each:
                fast = FastSource(self.seeds.noise, rng.NOISE, about.number, piece.start)
                kept = mechanism.perturb_each(kept, about, fast)
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
        about: RoundSpec,
        sums: Server | Aggregator,
    ) -> PieceReport:
        """Sum as secure aggregation opens it, with distributed noise where each client draws its own."""
        secret, lattice, view = self.seeds.secret, sums.lattice, about.view(self.plan.schema)
        devices = [] if secret is None else piece.devices[piece.arrives].tolist()
        sources = [noise_of_device(secret or b"", about.number, device) for device in devices]
        total = mechanism.shared(messages.rounded_update(kept, view), about, lattice, sources)
        sums.add_integers(total, devices=kept.count)
        up_bytes, up_params = kept.count * lattice.size * (lattice.ring // 8), kept.count * lattice.size
        ones = np.ones(kept.count, np.int64)
        return PieceReport(up_bytes, up_params, learned.loss, learned.shares, ones, piece.private)

    def _bounded(self, piece: Piece, opened: OpenRound) -> tuple[ClientUpdates, LocalResults]:
        about, plan = opened.about, self.plan
        data = self.data.take(piece.devices)
        if opened.place is not None:
            data = data.inside(opened.place)
        noise = self.local_noise(about.number, piece.start)
        cohort = Cohort(piece.devices, data, piece.private, self.seeds.draws, noise)
        learned = plan.learner.learn(cohort, opened.model, about)
        return plan.mechanism.bound(examples_if_asked(learned.uploads, plan.tells_examples), about), learned

    def local_noise(self, number: int, start: int) -> OwnSources:
        """Sources of the noise that clients add to their data before training; `start` keys the first."""
        secret = self.seeds.secret
        if secret is None:
            return SharedSource(FastSource(self.seeds.noise, rng.LOCAL_NOISE, number, start))
        return OwnSources(lambda device: noise_of_learning(secret, number, device))

    def _perturb_alone(
        self, uploads: ClientUpdates, devices: Offsets, about: RoundSpec, secret: bytes
    ) -> list[ClientUpdates]:
        """Perturb every update with the noise of its own client."""
        return [
            self.plan.mechanism.perturb(one_of(uploads, i), about, noise_of_device(secret, about.number, int(device)))
            for i, device in enumerate(devices)
        ]


def one_of(uploads: ClientUpdates, device: int) -> ClientUpdates:
    """Select the update of one client by its position."""

    def rows_of(packed: Mapping[str, Rows]) -> dict[str, Rows]:
        cut = {}
        for name, rows in packed.items():
            part = slice(rows.offsets[device], rows.offsets[device + 1])
            cut[name] = Rows(np.array([0, part.stop - part.start]), rows.index[part], rows.values[part])
        return cut

    one = slice(device, device + 1)
    return replace(
        uploads,
        count=1,
        tables=rows_of(uploads.tables),
        dense={name: values[one] for name, values in uploads.dense.items()},
        examples=None if uploads.examples is None else uploads.examples[one],
        entries=rows_of(uploads.entries),
        factors={n: Factors(f.left[one], f.scales[one], f.right[one]) for n, f in uploads.factors.items()},
    )


def keep(uploads: ClientUpdates, arrives: Bools) -> ClientUpdates:
    """Select the updates that arrive."""
    if arrives.all():
        return uploads
    chosen = np.flatnonzero(arrives)
    return replace(
        uploads,
        count=len(chosen),
        tables={name: _keep_rows(rows, arrives, chosen) for name, rows in uploads.tables.items()},
        dense={name: values[chosen] for name, values in uploads.dense.items()},
        examples=None if uploads.examples is None else uploads.examples[chosen],
        entries={name: _keep_rows(rows, arrives, chosen) for name, rows in uploads.entries.items()},
        factors={n: Factors(f.left[chosen], f.scales[chosen], f.right[chosen]) for n, f in uploads.factors.items()},
    )


def _keep_rows(rows: Rows, arrives: Bools, chosen: Offsets) -> Rows:
    entries = np.repeat(arrives, np.diff(rows.offsets))
    offsets = np.zeros(len(chosen) + 1, np.int64)
    np.cumsum(np.diff(rows.offsets)[chosen], out=offsets[1:])
    return Rows(offsets, rows.index[entries], rows.values[entries])
