"""The work of one round, written down once so that every contender does the same."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from veilrec.core.arrays import Floats, Offsets
from veilrec.core.csr import Csr, csr_from_pairs
from veilrec.core.errors import BadInput
from veilrec.data.datasets import load

ModelName = Literal["mf", "ncf"]


@dataclass(frozen=True)
class LocalWork:
    """What a client does with the model that it gets."""

    model: ModelName
    n_items: int
    dim: int = 32  # of a vector; a NeuMF has two, of which the second enters the tower
    layers: tuple[int, ...] = ()  # widths of the tower
    epochs: int = 5
    negatives: int = 0  # unused items per used one, drawn afresh every epoch
    batch: int = 0  # examples per SGD step; 0 = all in one
    rate: float = 0.01  # for every parameter: of SGD (mf) or Adam (ncf)
    reduction: Literal["sum", "mean"] = "sum"  # of the losses in a batch


@dataclass(frozen=True)
class Workload:
    """A population, everybody's starting values, and what a round asks of a client; the server averages."""

    local: LocalWork
    train: Csr  # a row per user: the items that the client learns from
    cohort: int  # clients in a round
    public: Mapping[str, Floats]  # the server's first model
    private: Mapping[str, Floats]  # [users, ...] each: the clients' own first parameters

    def save(self, path: Path) -> None:
        """Write it for another process."""
        arrays: dict[str, NDArray[Any]] = {f"public.{name}": values for name, values in self.public.items()}
        arrays |= {f"private.{name}": values for name, values in self.private.items()}
        facts = np.frombuffer(json.dumps(asdict(self.local) | {"cohort": self.cohort}).encode(), np.uint8)
        save_arrays(path, arrays | {"facts": facts, "offsets": self.train.offsets, "items": self.train.items})


def save_arrays(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write named arrays as an npz file."""
    np.savez(path, **arrays)  # type: ignore[arg-type]  # numpy's stub takes the names for its own option


def read_workload(path: Path) -> Workload:
    """Read what `Workload.save` wrote."""
    with np.load(path, allow_pickle=False) as stored:
        arrays = {name: stored[name] for name in stored.files}
    facts = json.loads(arrays["facts"].tobytes())
    cohort = facts.pop("cohort")
    return Workload(
        LocalWork(**facts | {"layers": tuple(facts["layers"])}),
        Csr(arrays["offsets"], arrays["items"]),
        cohort,
        _named(arrays, "public."),
        _named(arrays, "private."),
    )


def _named(arrays: Mapping[str, Floats], prefix: str) -> dict[str, Floats]:
    return {name.removeprefix(prefix): values for name, values in arrays.items() if name.startswith(prefix)}


@dataclass(frozen=True)
class Ratings:
    """Who used what, and where it comes from."""

    source: str
    train: Csr
    n_items: int


def ml_100k() -> Ratings:
    """All pairs of MovieLens 100K; without its files, synthetic pairs of the same shape."""
    try:
        population = load("ml-100k")
    except BadInput:
        return Ratings("synthetic in the shape of ml-100k", _like_ml_100k(), 1682)
    return Ratings("ml-100k", population.interactions.pairs(), population.n_items)


def _like_ml_100k(seed: int = 1) -> Csr:
    """943 users with 20 items or more each, 1,682 items, 100,000 pairs, some items far more popular."""
    generator = np.random.default_rng(seed)
    users, items, pairs = 943, 1682, 100_000
    shares = generator.lognormal(sigma=1.0, size=users)
    lengths = 20 + np.floor(shares / shares.sum() * (pairs - 20 * users)).astype(np.int64)
    popularity = 1.0 / np.arange(10, items + 10)
    rows: Offsets = np.repeat(np.arange(users), _filled(np.minimum(lengths, 700), pairs))
    # The k best of log p + Gumbel noise are a draw of k items without replacement with chances p.
    keys = np.log(popularity) + generator.gumbel(size=(users, items))
    ranked = np.argsort(-keys, axis=1).astype(np.int32)
    place = np.arange(pairs) - np.repeat(np.searchsorted(rows, np.arange(users)), np.bincount(rows))
    return csr_from_pairs(rows, ranked[rows, place], users)


def _filled(lengths: Offsets, total: int) -> Offsets:
    """The lengths with what is missing of the total spread evenly."""
    missing = total - int(lengths.sum())
    extra = np.full(len(lengths), missing // len(lengths))
    extra[: missing % len(lengths)] += 1
    filled: Offsets = lengths + extra
    return filled
