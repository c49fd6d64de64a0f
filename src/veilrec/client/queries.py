"""Private queries: serving modes, their encoders and mechanisms, and the client that sends them.

plain       the exact user vector: no formal guarantee
none-sent   nothing: the client downloads all news and ranks locally
attention   noisy attention over the model's basis vectors (PrivateRec, Algorithms 1 and 2)
pooled      a noisy sum of the clicked news along public axes; protects one click
interest    the nearest of a few public interests by randomised response; the client ranks the returned pool
vector      the user vector with noise (PrivateRec's baseline VDP)

`QueryMethod` maps histories to mechanism inputs and releases them, for one client or many. `make_mechanism` builds the
one mechanism that clients run, that is evaluated, and that `veilrec audit serving` attacks. `QueryClient` is one real
client with a ledger; it guarantees
- A query is drawn once per public period, model version, query form and mechanism statement; later requests send the
  same bytes at no charge. It is never redrawn because the history changed: that would reveal a click.
- A client without a history queries like any other: the mechanism runs on the encoding of an empty history. So does
  one on whose history the model overflows, and clicks on unknown news are dropped: a missing query would leak.
- The charge is on disk before the bytes are returned; an exhausted budget raises, and nothing leaves. A refused query
  costs nothing.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, Protocol, get_args

import numpy as np

from veilrec.core.arrays import Bools, Doubles, Floats, Indices
from veilrec.core.csr import Csr, offsets_of
from veilrec.core.errors import BadInput, unknown_name
from veilrec.privacy.checks import positive, probability
from veilrec.privacy.ledger import Ledger
from veilrec.privacy.mechanisms.attention import (
    ClickHistories,
    Noise,
    Normalisation,
    PaddedAttention,
    PrivateAttention,
    Slots,
    decompose,
)
from veilrec.privacy.mechanisms.base import Calibration, Mechanism
from veilrec.privacy.mechanisms.interests import EmbeddingNoise, InterestResponse, PooledInterest
from veilrec.privacy.randomness import SecureSource, Source
from veilrec.wire.queries import QueryShape, encode

_NUMBERS_AT_ONCE = 1 << 22  # of histories in slots: 32 MB


class UserModel(Protocol):
    """What a client needs of a news model."""

    @property
    def longest(self) -> int:
        """The latest clicks that a user is known by."""

    def users(self, histories: Csr) -> Floats:
        """The user vectors that the model ranks with."""

    def users_before_basis(self, histories: Csr) -> Floats:
        """Those that are decomposed over basis vectors, for models that have some."""

    def users_in_slots(self, clicks: Doubles, taken: Bools) -> Doubles:
        """User vectors of clicks in places, some of them perhaps pads: [clients, slots, dim] -> [clients, dim]."""


class Encoder(ABC):
    """What of a history goes into the mechanism."""

    @property
    def at_once(self) -> int | None:
        """How many clients fit into memory together; None: as many as there are."""
        return None

    @abstractmethod
    def inputs(self, histories: Csr) -> Any:
        """One input with all clients in it."""

    def clear(self, histories: Csr) -> Doubles | None:
        """What is sent beside the query without any protection, [clients, numbers]; None: nothing."""
        return None


@dataclass(frozen=True)
class UserVectors(Encoder):
    """The user vector."""

    model: UserModel

    def inputs(self, histories: Csr) -> Doubles:
        """[clients, dim]."""
        return numbers_of(self.model.users(histories))


@dataclass(frozen=True)
class AttentionInput(Encoder):
    """Attention over the model's basis vectors."""

    model: UserModel
    basis: Doubles  # [B, dim]

    def inputs(self, histories: Csr) -> Doubles:
        """[clients, B]."""
        return decompose(numbers_of(self.model.users_before_basis(histories)), self.basis)


@dataclass(frozen=True)
class NearestInterest(Encoder):
    """How near a user vector is to each of some public ones: the mechanism tells which is the nearest."""

    model: UserModel
    interests: Doubles  # [B, dim]

    def inputs(self, histories: Csr) -> Doubles:
        """[clients, B], the higher the nearer."""
        users = numbers_of(self.model.users(histories))
        return np.asarray(users @ self.interests.T - 0.5 * (self.interests**2).sum(axis=1))


@dataclass(frozen=True)
class PlacedInput(Encoder):
    """The news vectors of a history in slots, the latest ones; an absent click is a pad, or its place stays empty."""

    news: Floats  # [items, dim]
    pad: Doubles
    slots: int
    fill: bool  # whether what is absent is a pad

    @property
    def at_once(self) -> int:
        """Few enough for memory."""
        return max(1, _NUMBERS_AT_ONCE // (self.slots * len(self.pad)))

    def inputs(self, histories: Csr) -> Slots:
        """[clients, slots, dim]."""
        rows = latest(histories, self.slots)
        taken = np.arange(self.slots) < rows.lengths()[:, np.newaxis]
        vectors = np.broadcast_to(self.pad, (len(rows), self.slots, len(self.pad))).copy()
        vectors[taken] = self.news[rows.items]
        return Slots(vectors, np.ones_like(taken) if self.fill else taken)


@dataclass(frozen=True)
class PooledInput(Encoder):
    """The clicks on public vectors; with a public list of what is sensitive, the others are summed in plaintext.

    Sensitive and other clicks are cut to the latest ones each by themselves: which clicks in plaintext are still
    there must not depend on how many sensitive ones came after them.
    """

    table: Doubles  # [items, k], within the clip norm
    slots: int
    sensitive: Bools | None = None  # [items]

    def inputs(self, histories: Csr) -> ClickHistories:
        """What is protected: all clicks, or the sensitive ones."""
        rows = histories if self.sensitive is None else kept(histories, self.sensitive)
        recent = latest(rows, self.slots)
        return ClickHistories(self.table, recent.offsets, recent.items)

    def clear(self, histories: Csr) -> Doubles | None:
        """The pooled vector of all other clicks, exactly."""
        if self.sensitive is None:
            return None
        recent = latest(kept(histories, ~self.sensitive), self.slots)
        return ClickHistories(self.table, recent.offsets, recent.items).sums(self.table) / self.slots


def numbers_of(users: Floats | Doubles) -> Doubles:
    """User vectors in double precision, zero where one is no number: a model that overflows tells nothing by it."""
    whole = np.isfinite(users).all(axis=-1, keepdims=True)
    return np.where(whole, users, 0.0).astype(np.float64)


def kept(histories: Csr, wanted: Bools) -> Csr:
    """Only the clicks on wanted items."""
    chosen = wanted[histories.items]
    lengths = np.bincount(histories.row_numbers()[chosen], minlength=len(histories))
    return Csr(offsets_of(lengths), histories.items[chosen])


def latest(histories: Csr, count: int) -> Csr:
    """At most so many clicks of each history, the last ones."""
    lengths = histories.lengths()
    place = np.arange(len(histories.items)) - np.repeat(histories.offsets[:-1], lengths)
    recent = place >= np.repeat(lengths - count, lengths)
    return Csr(offsets_of(np.minimum(lengths, count)), histories.items[recent])


@dataclass(frozen=True)
class QueryMethod:
    """How clients ask: what goes into the mechanism, the mechanism, and the form of the query."""

    encoder: Encoder
    mechanism: Mechanism[Any, Any]
    question: QueryShape
    items: int | None = None  # news that the model knows; None: whatever is asked about

    @property
    def form(self) -> str:
        """What tells this way of asking from others: kind and size of the query, and what leaves beside it."""
        sensitive = getattr(self.encoder, "sensitive", None)
        policy = "" if sensitive is None else hashlib.sha256(np.packbits(sensitive).tobytes()).hexdigest()[:16]
        return f"{self.question.kind} {self.question.size} {policy}".strip()

    def known(self, history: Indices) -> Indices:
        """The clicks of a history on news that the model knows."""
        return history if self.items is None else history[(history >= 0) & (history < self.items)]

    @property
    def sends_in_the_clear(self) -> bool:
        """Whether something of a history leaves beside what the mechanism releases."""
        nobody = Csr(np.zeros(1, np.int64), np.zeros(0, np.int32))
        return self.encoder.clear(nobody) is not None

    def told(self, histories: Csr, source: Source) -> Floats:
        """What every client tells, with noise of its own: [clients, numbers]."""
        parts = [self._told(some, source) for some in self._some(histories)]
        return np.concatenate(parts) if parts else np.zeros((0, self.question.size), np.float32)

    def _told(self, histories: Csr, source: Source) -> Floats:
        released = self.mechanism.release(self.encoder.inputs(histories), source).value
        return self.as_numbers(np.asarray(released), self.encoder.clear(histories))

    def as_numbers(self, released: Any, clear: Doubles | None) -> Floats:
        """Encode the released numbers, and the plaintext sum behind them, as a query."""
        numbers = released.reshape(len(released), -1).astype(np.float32)
        return numbers if clear is None else np.concatenate((numbers, clear.astype(np.float32)), axis=1)

    def _some(self, histories: Csr) -> Iterator[Csr]:
        size = self.encoder.at_once or max(1, len(histories))
        for start in range(0, len(histories), size):
            yield histories.take(np.arange(start, min(start + size, len(histories)), dtype=np.int64))


class QueryClient:
    """One user's device: a history that stays here, and a ledger without which nothing leaves."""

    def __init__(
        self,
        asking: QueryMethod,
        ledger: Ledger,
        *,
        model_version: str,
        history: Indices,
        source: Source | None = None,
        unprotected: bool = False,
    ) -> None:
        if not model_version:
            raise BadInput("the model has no version: a client must know which model a query is for")
        if asking.sends_in_the_clear and not unprotected:
            raise BadInput(
                "clicks outside of the sensitive categories leave in plaintext beside the query, and no budget covers"
                " them: give unprotected=True if the user agrees to that, or protect all clicks"
            )
        self._asking, self._ledger, self._version = asking, ledger, model_version
        self._history = np.ascontiguousarray(history, dtype=np.int32)
        self._source = SecureSource() if source is None else source

    def clicked(self, item: int) -> None:
        """One more click; no query changes because of it before the next public period."""
        self._history = np.append(self._history, np.int32(item))

    def ask(self) -> bytes:
        """The query of this public period: drawn and charged the first time, then the same and free."""
        asking = self._asking
        history = asking.known(self._history)
        histories = Csr(np.array([0, len(history)], np.int64), history)
        clear = asking.encoder.clear(histories)
        answer = self._ledger.message(
            asking.mechanism,
            asking.encoder.inputs(histories),
            self._source,
            model_version=f"{self._version} {asking.form}",
            encode=lambda released: encode(asking.as_numbers(np.asarray(released), clear)[0], asking.question),
        )
        return answer.value


Mode = Literal["plain", "none-sent", "attention", "pooled", "interest", "vector"]
MODES: tuple[Mode, ...] = get_args(Mode)
PRIVATE: tuple[Mode, ...] = ("attention", "pooled", "interest", "vector")  # those that send a private query
_CLIP: dict[str, float] = {"attention": 1.0, "vector": 0.001}  # theta; the paper's for vectors
# Which options mean something in which mode; others are refused there, so that nobody believes that they did something.
OPTIONS: dict[str, tuple[Mode, ...]] = {
    "epsilon": PRIVATE,
    "delta": PRIVATE,
    "calibration": PRIVATE,
    "noise": ("attention", "vector"),
    "normalise": ("attention",),
    "clip": ("attention", "vector"),
    "padding": ("attention",),
    "axes": ("pooled",),
    "interests": ("interest",),
    "pool": ("interest",),
    "sensitive": ("pooled",),
    "queries": PRIVATE,
    "memoised": PRIVATE,
}


@dataclass(frozen=True, kw_only=True)
class Serving:
    """How a model is served; what is None or empty is as usual for the mode."""

    mode: Mode
    epsilon: float | None = None  # of one query
    delta: float | None = None  # of one query; for pure mechanisms, of several together
    calibration: Calibration | None = None
    noise: Noise | None = None  # Gaussian where a delta is given, else Laplace
    normalise: Normalisation | None = None  # as published softplus, else simplex
    clip: float | None = None  # theta: longest attention, or longest user vector
    padding: float | None = None  # p: chance that a click is replaced by the pad
    axes: int | None = None  # principal axes of the news that clicks are pooled along: 16
    interests: int | None = None  # public interests of a model without basis vectors: 8
    pool: int | None = None  # news that come back for an interest: 1000, or all if there are fewer
    sensitive: tuple[str, ...] | None = None  # categories whose clicks alone are protected
    queries: int | None = None  # how many a client asks, for what they give away together
    memoised: bool | None = None  # whether a query is drawn once per public period
    seed: int = 0  # of the noise alone: whatever is public is the same for everybody

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise unknown_name("way of serving", self.mode, MODES)
        for name, modes in OPTIONS.items():
            if getattr(self, name) not in (None, False) and self.mode not in modes:
                raise BadInput(f"{name} means nothing for {self.mode}: leave it out, or serve by {' or '.join(modes)}")
        if self.mode in PRIVATE:
            self._check_private()

    def _check_private(self) -> None:
        if self.epsilon is None:
            raise BadInput(f"serving by {self.mode} needs an epsilon: give --epsilon, of one query")
        positive(epsilon=self.epsilon)
        if self.delta is not None:
            probability(delta=self.delta)
        elif self.mode == "pooled" or self.noise == "gaussian":
            raise BadInput(
                f"serving by {self.mode} with Gaussian noise needs a delta, such as 1e-6: --delta, or the third of"
                " --offer MODE:EPSILON:DELTA"
            )
        if self.calibration == "as-published" and self.mode not in ("attention", "vector"):
            raise BadInput(f"no paper publishes {self.mode}: leave the calibration out, it is proven")
        if self.clip is not None:
            positive(clip=self.clip)
        if self.padding is not None and not 0.0 <= self.padding < 1.0:
            raise BadInput(f"padding is {self.padding}: give a chance from 0 to below 1")
        for name in ("axes", "interests", "pool", "queries"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise BadInput(f"{name} is {value}: give at least 1")

    def check_padding(self, trained: float) -> None:
        """Refuse padding with what nobody learnt; `trained` is the share of clicks that training padded."""
        if self.padding and not trained:
            raise BadInput(
                "the run was trained with padding of 0, so that its pad is nothing that was learnt: leave padding out,"
                " or train privaterec with calibration=as-published and privacy.pad_probability above 0"
            )

    @property
    def calibrated(self) -> Calibration:
        """Proven unless told otherwise."""
        return self.calibration or "proven"

    @property
    def law(self) -> Noise:
        """Distribution of the noise."""
        return self.noise or ("laplace" if self.delta is None else "gaussian")

    @property
    def normalisation(self) -> Normalisation:
        """As in the paper, or the nearest point."""
        return self.normalise or ("softplus" if self.calibrated == "as-published" else "simplex")


@dataclass(frozen=True)
class Padding:
    """What padded attention needs of a model."""

    encode: Callable[[Doubles, Bools], Doubles]  # [clients, slots, dim] and which places are taken -> [clients, dim]
    basis: Doubles
    pad: Doubles


@dataclass(frozen=True)
class Sizes:
    """What a mechanism depends on beside its settings; all public."""

    dim: int = 64  # of a user vector
    basis: int = 5  # basis vectors, or public interests
    slots: int = 50
    axes: int = 16
    pooled_clip: float = 1.0
    padding: Padding | None = None


def make_mechanism(serving: Serving, sizes: Sizes) -> Mechanism[Any, Any]:
    """The mechanism of a mode that sends a private query."""
    epsilon, delta = serving.epsilon or 0.0, serving.delta or 0.0
    clip = serving.clip or _CLIP.get(serving.mode, 1.0)
    noise_delta = delta if serving.law == "gaussian" else 0.0
    match serving.mode:
        case "pooled":
            return PooledInterest(
                projection=np.eye(sizes.axes),
                clip_norm=sizes.pooled_clip,
                slots=sizes.slots,
                epsilon=epsilon,
                delta=delta,
            )
        case "interest":
            return InterestResponse(basis=sizes.basis, epsilon=epsilon)
        case "vector":
            return EmbeddingNoise(
                dimension=sizes.dim,
                clip_norm=clip,
                epsilon=epsilon,
                delta=noise_delta,
                noise=serving.law,
                calibration=serving.calibrated,
            )
        case "attention" if not serving.padding:
            return PrivateAttention(
                basis=sizes.basis,
                clip_norm=clip,
                epsilon=epsilon,
                delta=noise_delta,
                noise=serving.law,
                calibration=serving.calibrated,
            )
        case "attention" if sizes.padding is not None:
            parts = sizes.padding
            return PaddedAttention(
                encode=lambda history: parts.encode(history[np.newaxis], np.ones((1, len(history)), np.bool_))[0],
                encode_many=parts.encode,
                basis_vectors=parts.basis,
                pad=parts.pad,
                slots=sizes.slots,
                clip_norm=clip,
                epsilon=epsilon,
                delta=noise_delta,
                pad_probability=serving.padding or 0.0,
                noise=serving.law,
                calibration=serving.calibrated,
            )
    raise BadInput(f"{serving.mode} sends no private query: there is no mechanism")
