"""Ways to send long, sparse updates under masks: bytes, processor time, and what each does to the sum beside its noise.

    dense     every number of the table, as 64-bit or 32-bit words: what secure aggregation does today
    packed    every number, in as few bits as clients and noise need, rounded without bias
    blocks    every client sends a part of the catalogue, which a public seed draws for it
    sketch    a count sketch: rows of the table are hashed to fewer buckets, with signs, once or three times; three are
              read as a median

Updates are those of matrix factorisation on drawn histories, clipped to norm 1, and votes of norm 1. Noise is that of a
Gaussian mechanism at epsilon 1 and 8 (delta 1e-6): of one release for votes, of one of ten for updates. Errors are root
mean square errors of a released number, in units of that noise: 1 is the noise alone.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from veilrec.client.local_training import Cohort, OwnItems
from veilrec.client.mf import ITEMS, MfLocalTrainer, MfSettings
from veilrec.core.arrays import Doubles, Offsets
from veilrec.core.csr import Csr, offsets_of
from veilrec.core.schema import RoundSpec
from veilrec.federation.secagg.terms import MaskStream, Words
from veilrec.privacy.accounting.gaussian import mu_for

EPSILONS, DELTA, ROUNDS = (1.0, 8.0), 1e-6, 10
_HISTORY, _NEGATIVES = 30, 4
_HELPERS = 2
_HEAD = 180  # bytes of a message beside its vector: signed key, session, check
_INVITATION = 500  # bytes that a client gets beside the model
_TIMED = 4  # clients that are timed; all cost the same
_ROUNDING = 0.25  # of a unit squared: the most that unbiased rounding adds to the variance of a number
_TAIL = 8.0  # standard deviations of the noise that a width has room for
_SHARE, _SQUEEZE = 8, 8  # a client's part of the blocks; how much smaller a sketch is
_SKETCHES = (1, 3)  # rows of a sketch


@dataclass(frozen=True)
class SparseLoad:
    """A table and the clients of a round."""

    items: int
    width: int
    clients: int

    @property
    def numbers(self) -> int:
        """Size of the table."""
        return self.items * self.width

    @property
    def mu(self) -> dict[float, float]:
        """Strength of the noise of one release, by epsilon."""
        rounds = ROUNDS if self.width > 1 else 1
        return {epsilon: mu_for(epsilon, DELTA) / math.sqrt(rounds) for epsilon in EPSILONS}


LOADS = tuple(SparseLoad(i, d, n) for i in (4_000, 50_000) for d in (64, 1) for n in (100, 500))
QUICK_LOADS = (SparseLoad(300, 4, 12), SparseLoad(300, 1, 12))


@dataclass(frozen=True)
class _Updates:
    """Rows that clients touch, and how they move them: of norm 1 for each client."""

    offsets: Offsets
    index: Offsets
    values: Doubles  # [entries, width]

    def sum(self, load: SparseLoad, weights: Doubles | None = None) -> Doubles:
        """The table [items, width] that all updates come to, entries times weights."""
        values = self.values if weights is None else self.values * weights[:, np.newaxis]
        total = np.zeros((load.items, load.width))
        np.add.at(total, self.index, values)
        return total

    @property
    def owners(self) -> Offsets:
        """The client of every row."""
        return np.repeat(np.arange(len(self.offsets) - 1), np.diff(self.offsets))


def drawn_updates(load: SparseLoad, seed: int = 0) -> _Updates:
    """Histories by a popularity that falls as one over the rank, and what clients with these send."""
    generator = np.random.default_rng(seed)
    weights = 1.0 / np.arange(1, load.items + 1)
    weights /= weights.sum()
    rows = [np.sort(generator.choice(load.items, _HISTORY, replace=False, p=weights)) for _ in range(load.clients)]
    lengths = offsets_of([_HISTORY] * load.clients)
    index = np.concatenate(rows).astype(np.int32)
    if load.width == 1:
        return _Updates(lengths, index.astype(np.int64), np.full((len(index), 1), 1.0 / math.sqrt(_HISTORY)))
    trainer = MfLocalTrainer(MfSettings(dim=load.width, epochs=2, negatives=_NEGATIVES))
    clients = np.arange(load.clients)
    private = trainer.fresh_private_state(clients, seed)
    table = (0.1 * generator.normal(size=(load.items, load.width))).astype(np.float32)
    cohort: Cohort[OwnItems] = Cohort(clients, OwnItems(Csr(lengths, index)), private, seed)
    found = trainer.learn(cohort, {ITEMS: table}, RoundSpec(0)).updates.tables[ITEMS]
    made = _Updates(found.offsets, found.index.astype(np.int64), found.values.astype(np.float64))
    squares = np.bincount(made.owners, (made.values**2).sum(axis=1), load.clients)
    return _Updates(made.offsets, made.index, made.values / np.sqrt(squares)[made.owners][:, np.newaxis])


def units_of(load: SparseLoad, epsilon: float, bits: int) -> float:
    """Units of one client's share of the noise that a width leaves.

    A sum must not wrap where all clients move one number as far as they can, with the tail of the noise beside that.
    """
    return 2.0 ** (bits - 1) / (load.clients * load.mu[epsilon] + _TAIL) / math.sqrt(load.clients)


def packing_error(load: SparseLoad, epsilon: float, bits: int, touched: int) -> float:
    """Error of a released number with unbiased rounding, in units of the noise.

    Rounding adds to the variance of every number that a client touches; and it makes its update longer, for which the
    noise has to be larger.
    """
    units = units_of(load, epsilon, bits)
    bound = load.mu[epsilon] * units * math.sqrt(load.clients)  # of an update, in units
    return math.sqrt((1.0 + _ROUNDING / units**2) * (1.0 + _ROUNDING * touched / bound**2))


def enough_bits(load: SparseLoad, epsilon: float, touched: int) -> int:
    """The fewest bits that cost no more than 5 % of noise."""
    return next(bits for bits in range(8, 65) if packing_error(load, epsilon, bits, touched) <= 1.05)


def pack(words: Offsets, bits: int) -> bytes:
    """The lowest bits of every word, without gaps; of 20 bits, two words share five bytes."""
    low = words.astype(np.uint32)
    if bits == 16:
        return low.astype("<u2").tobytes()
    if bits == 24:
        return low.astype("<u4").view(np.uint8).reshape(-1, 4)[:, :3].tobytes()
    if len(low) % 2:
        low = np.append(low, np.uint32(0))
    pairs = (low[0::2].astype(np.uint64) & 0xFFFFF) | ((low[1::2].astype(np.uint64) & 0xFFFFF) << np.uint64(20))
    return pairs.astype("<u8").view(np.uint8).reshape(-1, 8)[:, :5].tobytes()


def unpacked(content: bytes, bits: int, count: int) -> Offsets:
    """The words that `pack` wrote."""
    if bits == 16:
        return np.frombuffer(content, "<u2").astype(np.int64)
    size = 3 if bits == 24 else 5
    wide = np.zeros((len(content) // size, 4 if bits == 24 else 8), np.uint8)
    wide[:, :size] = np.frombuffer(content, np.uint8).reshape(-1, size)
    if bits == 24:
        return wide.view("<u4").ravel().astype(np.int64)
    pairs = wide.view("<u8").ravel()
    words = np.stack([pairs & np.uint64(0xFFFFF), pairs >> np.uint64(20)], axis=1).ravel()
    return words[:count].astype(np.int64)


class _Buckets:
    """A count sketch of rows: for every row of the sketch a bucket and a sign of every item, from a public seed."""

    def __init__(self, load: SparseLoad, rows: int, seed: int = 0) -> None:
        generator = np.random.default_rng([seed, load.items])
        self.rows, self.count = rows, max(1, load.items // (_SQUEEZE * rows))
        self.bucket = generator.integers(0, self.count, (rows, load.items))
        self.sign = generator.choice([-1.0, 1.0], (rows, load.items))

    def of(self, table: Doubles) -> Doubles:
        """The sketch [rows, buckets, width] of a table."""
        sketch = np.zeros((self.rows, self.count, table.shape[1]))
        for row in range(self.rows):
            np.add.at(sketch[row], self.bucket[row], table * self.sign[row][:, np.newaxis])
        return sketch

    def read(self, sketch: Doubles) -> Doubles:
        """Estimate the table: the median of the rows."""
        each = [sketch[row][self.bucket[row]] * self.sign[row][:, np.newaxis] for row in range(self.rows)]
        return np.asarray(np.median(each, axis=0))

    def longest(self, updates: _Updates, load: SparseLoad) -> Doubles:
        """How long the sketch of each client's update is: what it would have to be clipped to is the root of rows."""
        squares = np.zeros(load.clients)
        for client in range(load.clients):
            own = slice(*updates.offsets[client : client + 2].tolist())
            for row in range(self.rows):
                part = np.zeros((self.count, load.width))
                items = updates.index[own]
                np.add.at(part, self.bucket[row][items], updates.values[own] * self.sign[row][items][:, np.newaxis])
                squares[client] += float((part**2).sum())
        return np.sqrt(squares)


def measured(load: SparseLoad) -> dict[str, Any]:
    """All ways on one load, and the bits that packing needs."""
    updates = drawn_updates(load)
    exact = updates.sum(load)
    rows = [
        _row(load, "dense, 64-bit words", load.numbers, 64, dict.fromkeys(EPSILONS, 1.0)),
        _row(load, "dense, 32-bit words", load.numbers, 32, dict.fromkeys(EPSILONS, 1.0)),
    ]
    touched = int(np.diff(updates.offsets).max()) * load.width
    for bits in (16, 20, 24):
        errors = {epsilon: packing_error(load, epsilon, bits, touched) for epsilon in EPSILONS}
        rows.append(_row(load, f"packed, {bits} bits", load.numbers, bits, errors))
    rows.append(_row(load, f"blocks, 1/{_SHARE} each", load.numbers // _SHARE, 32, _of_blocks(load, updates, exact)))
    for count in _SKETCHES:
        buckets = _Buckets(load, count)
        size, errors = count * buckets.count * load.width, _of_sketch(load, updates, exact, buckets)
        rows.append(_row(load, f"sketch of {count}, 1/{_SQUEEZE}", size, 32, errors))
    bits_of = {f"{epsilon:g}": enough_bits(load, epsilon, touched) for epsilon in EPSILONS}
    return {**vars(load), "touched": touched, "enough_bits": bits_of, "ways": rows}


def _of_blocks(load: SparseLoad, updates: _Updates, exact: Doubles) -> dict[float, float]:
    """Every client sends one of so many parts of the items; the sum is scaled up, and so is its noise.

    A part is clipped to what a part of an update is long, which the clients find out no better than by a public guess:
    the root of the share. Whose part is longer is cut.
    """
    generator = np.random.default_rng(1)
    part_of_item = generator.integers(0, _SHARE, load.items)
    part_of_client = generator.integers(0, _SHARE, load.clients)
    inside = part_of_item[updates.index] == part_of_client[updates.owners]
    squares = np.bincount(updates.owners, (updates.values**2).sum(axis=1) * inside, load.clients)
    bound = 1.0 / math.sqrt(_SHARE)
    cut = np.minimum(1.0, bound / np.maximum(np.sqrt(squares), 1e-12))
    estimate = _SHARE * updates.sum(load, inside * cut[updates.owners])
    wrong = float(((estimate - exact) ** 2).mean())
    return {epsilon: math.sqrt((_SHARE * bound / mu) ** 2 + wrong) * mu for epsilon, mu in load.mu.items()}


def _of_sketch(load: SparseLoad, updates: _Updates, exact: Doubles, buckets: _Buckets) -> dict[float, float]:
    """The noise is on the sketch, whose updates are longer by the root of its rows; then the median is taken."""
    generator = np.random.default_rng(2)
    bound = math.sqrt(buckets.rows)
    cut = np.minimum(1.0, bound / np.maximum(buckets.longest(updates, load), 1e-12))
    sketch = buckets.of(updates.sum(load, cut[updates.owners]))
    errors = {}
    for epsilon, mu in load.mu.items():
        noisy = sketch + generator.normal(0.0, bound / mu, sketch.shape)
        errors[epsilon] = math.sqrt(float(((buckets.read(noisy) - exact) ** 2).mean())) * mu
    return errors


def _row(load: SparseLoad, name: str, numbers: int, bits: int, errors: dict[float, float]) -> dict[str, Any]:
    """Bytes and processor time of a way that sends so many numbers of so many bits."""
    words: np.dtype[np.unsignedinteger[Any]] = np.dtype("<u8") if bits == 64 else np.dtype("<u4")
    packs = bits < 32
    values = np.random.default_rng(0).integers(-1000, 1000, numbers)
    sent: list[bytes] = []

    def client() -> None:
        own: Words = values.astype(words)
        for helper in range(_HELPERS):
            MaskStream(helper.to_bytes(32, "little")).add_to(own)
        sent.append(pack(own.astype(np.int64), bits) if packs else own.tobytes())

    total: Words = np.zeros(numbers, words)

    def helper() -> None:
        MaskStream(bytes(32)).add_to(total)

    def server() -> None:
        came = unpacked(sent[0], bits, numbers).astype(words) if packs else np.frombuffer(sent[0], words)
        np.add(total, came, out=total)

    times = {name: _seconds(step) for name, step in (("client", client), ("helper", helper), ("server", server))}
    model = 0 if load.width == 1 else 4 * (numbers if name.startswith("blocks") else load.numbers)
    return {
        "way": name,
        "up_bytes": len(sent[0]) + _HEAD,
        "down_bytes": model + _INVITATION,
        "client_cpu_ms": round(1e3 * times["client"], 3),
        "helper_cpu_s": round(load.clients * times["helper"], 3),
        "server_cpu_s": round(load.clients * times["server"], 3),
        "error": {f"{epsilon:g}": round(error, 3) for epsilon, error in errors.items()},
    }


def _seconds(step: Callable[[], None]) -> float:
    """Processor time of a step: the median of some."""
    times = []
    for _ in range(_TIMED):
        start = time.thread_time()
        step()
        times.append(time.thread_time() - start)
    return float(np.median(times))
