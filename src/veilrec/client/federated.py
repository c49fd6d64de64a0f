"""A federated client: decodes a round's broadcast, trains locally, and returns one charged client update.

State folder
- `key`: 32 random bytes, readable by the owner only; another path keeps the key apart from the folder.
- `ledger` and `ledger.seq`: the privacy ledger (`veilrec.privacy.ledger`). The same database holds, sealed with the
  key: identity and seed of the client's draws, private training state, the last update, the last report.

Guarantees
- An update leaves only after its charge, the new private state and the update itself are on disk, in one transaction.
  A client killed at any time answers the same round with the same bytes, or has not answered it.
- A round is answered once. A repeated request gets the same bytes at no charge; a round before the last answered one
  is refused. So no one obtains two noise draws on the same update.
- A report is drawn and charged once per period. Under secure aggregation a sum of reports is answered once, with the
  same bytes afterwards; another sum gets the same report under other masks, at no further charge.
- A client either trains or is a held-out validation client, never both. A validation client answers once, whichever
  models it is asked to compare.
- A model whose weights are not finite, or larger than the schema states, is declined before any data is looked at
  (`Declined`), and so is a round that is not the plan's: whether a client declines depends on the broadcast alone,
  which is no secret.
- A model within these bounds that overflows on a client's data, or from which it learns more than a sum has room for,
  is answered with an update of zeros (with its noise, if the client adds any): silence would tell what data it has.
  The training state stays as it was, so that one such model does not take a client out of all later rounds.
  `overflown` counts these rounds, for the client alone. Under secure aggregation everybody of a sum has acted on the
  same model (`secagg.terms`), so that a server cannot have all but one overflow by what it tells them. It can choose
  one model that overflows for some data, and those with such data then hide nobody: what bounds what a sum of few tells
  is its noise.
- An exhausted budget, a broadcast that does not belong to this plan, or an untrusted ledger: nothing leaves.
- A plan whose messages no epsilon covers needs `unprotected=True` when the client is created. The ledger counts such
  messages, and states no guarantee from then on.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, TypeVar

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from veilrec.client.local_training import (
    Cohort,
    LocalData,
    OwnSources,
    examples_if_asked,
    is_within,
    nothing_if_overflown,
    nothing_learnt,
    overflown,
    places,
    put_back,
)
from veilrec.core.arrays import Bools, Floats, Offsets
from veilrec.core.errors import BadInput, Diverged, VeilrecError
from veilrec.core.files import Seal, key_in
from veilrec.core.plan import Plan, ReportSpec
from veilrec.core.schema import ClientUpdates, RoundSpec, Schema
from veilrec.privacy.accounting.composition import flattened
from veilrec.privacy.budget import Budget
from veilrec.privacy.events import Event
from veilrec.privacy.guarantee import TRUSTS
from veilrec.privacy.ledger import AccountReport, Ledger, Transaction, statement
from veilrec.privacy.mechanisms.base import Mechanism
from veilrec.privacy.mechanisms.sums import UpdateMechanism
from veilrec.privacy.randomness import SecureSource, Source
from veilrec.wire import messages, rounds
from veilrec.wire.messages import Declined


def check_weights(weights: Mapping[str, Floats], schema: Schema) -> None:
    """Decline a model with a weight that is larger than its schema states."""
    for tensor in schema.tensors:
        values = weights[tensor.name]
        if not is_within(values, tensor.largest):
            raise Declined("beyond the bound", f"{tensor.name} has weights beyond {tensor.largest:g}")


def check_planned(plan: Plan, spec: RoundSpec, weights: Mapping[str, Floats]) -> None:
    """Decline a round that asks for other parts, directions, codings or bounds than the plan, whose noise is for these.

    Only which rows it is about may follow from what clients have reported, and from rows that did not come.
    """
    planner = plan.round_planner
    dense = {tensor.name: weights[tensor.name] for tensor in plan.schema.dense}
    planned = planner.next(spec.number, {**plan.start, **dense}, None)
    if not rounds.is_planned(spec, planned, plan.schema) or (spec.rows is not None and not planner.leaves_out):
        raise Declined("another plan", "the round asks for something else than the plan")


def weights_of(model: ClientUpdates, schema: Schema) -> dict[str, Floats]:
    """The tensors of a model that has every row of `schema`; a kernel must never look up a row that did not come."""
    tables = {name: rows.values for name, rows in model.tables.items()}
    weights = tables | {name: values[0] for name, values in model.dense.items()}
    for tensor in schema.tensors:
        if tensor.name not in weights or weights[tensor.name].shape != tensor.shape:
            raise messages.BadMessage(f"the model that came lacks {tensor.name} or a part of it")
    return weights


NoiseOf = Callable[[int], Source]
"""The source of a message's noise, or of that of its learning, by its round; or of a report's by its period.

A share of the noise on a sum of reports has a source by the period; of the noise on a sum of gains, by 0.
"""

Make = Callable[[ClientUpdates, RoundSpec, Schema, Source], tuple[bytes, Event]]
"""From what was learnt, for a round whose tables have the rows of a schema, to the bytes that leave and their cost."""

CheckSpec = Callable[[RoundSpec], object]
"""Refuses a round that came, before anything is learnt from it."""

Mask = Callable[[Offsets], bytes]
"""From the whole numbers that a report or a gain adds to a sum to the bytes that leave."""

_IDENTITY, _PRIVATE, _OUTBOX, _REPORT, _GAIN = "identity", "private", "outbox", "report", "gain"
_ENTERED = "entered"  # the last round of several trips
_ADDS = "adds"  # the whole numbers that a report or a gain adds to its sum, with the client's noise: drawn once
_MASKED, _ENTERED_SUM = "masked report", "entered report"  # of secure sums of reports or gains, by their numbers
_OVERFLOWN = "overflown"
_NUMBER = struct.Struct("<Q")  # the round of a message, the period of a report
_DAY = 86_400.0  # seconds


class AnotherRole(VeilrecError):
    """A training client that is asked to validate, or the reverse; nothing left it."""


class RoundIsOver(VeilrecError):
    """A round or a period before the last one that the client answered; nothing left it."""


@dataclass(frozen=True)
class _Identity:
    """What a client is made with, for good."""

    number: int
    draws_seed: int
    unprotected: bool
    plan: str  # a digest of what the plan says to clients


Data = TypeVar("Data", bound=LocalData)


class FederatedClient(Generic[Data]):
    """One user's device; use `create` once, when it enrols, and `open` ever after."""

    def __init__(
        self,
        plan: Plan,
        data: Data,
        ledger: Ledger,
        *,
        noise_of_message: NoiseOf,
        noise_of_report: NoiseOf,
        noise_of_learning: NoiseOf,
        noise_of_share: NoiseOf,
    ) -> None:
        if len(data.rows) != 1:
            raise BadInput(f"the data of {len(data.rows)} clients: a client has its own, which is one row")
        self.plan = plan
        self.data = data
        self.ledger = ledger
        self._noise_of_message, self._noise_of_report = noise_of_message, noise_of_report
        self._noise_of_learning, self._noise_of_share = noise_of_learning, noise_of_share
        with ledger.transaction() as kept:
            self._identity = _Identity(**json.loads(_known(kept, _IDENTITY)))
        if self._identity.plan != plan_digest(plan):
            raise BadInput("this device was made for another plan: open it with its own, or make another one")

    @classmethod
    def create(
        cls,
        folder: Path,
        plan: Plan,
        data: Data,
        budgets: Sequence[Budget],
        *,
        key: Path | None = None,
        number: int = 0,
        draws_seed: int | None = None,
        unprotected: bool = False,
        minimum_period_seconds: float = _DAY,
        noise_of_message: NoiseOf | None = None,
        noise_of_report: NoiseOf | None = None,
        noise_of_learning: NoiseOf | None = None,
        noise_of_share: NoiseOf | None = None,
    ) -> FederatedClient[Data]:
        """A client that has never taken part; the seed of its draws is a secret of its own unless told otherwise."""
        _check_statements(plan, budgets, unprotected=unprotected)
        seed = secrets.randbits(63) if draws_seed is None else draws_seed
        identity = _Identity(number, seed, unprotected, plan_digest(plan))
        private = plan.trainer.fresh_private_state(np.array([number], np.int64), seed)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        ledger = Ledger.create(
            folder / "ledger",
            budgets,
            minimum_period_seconds=minimum_period_seconds,
            seal=Seal(key_in(key or folder / "key")),
            keep={_IDENTITY: json.dumps(asdict(identity)).encode(), _PRIVATE: save(private)},
        )
        return cls._with(ledger, plan, data, noise_of_message, noise_of_report, noise_of_learning, noise_of_share)

    @classmethod
    def open(
        cls,
        folder: Path,
        plan: Plan,
        data: Data,
        *,
        key: Path | None = None,
        noise_of_message: NoiseOf | None = None,
        noise_of_report: NoiseOf | None = None,
        noise_of_learning: NoiseOf | None = None,
        noise_of_share: NoiseOf | None = None,
    ) -> FederatedClient[Data]:
        """Go on with a client, whatever happened to the process that had it before."""
        key = key or folder / "key"
        if not key.is_file():
            raise BadInput(f"{key}: there is no key here: give the path of the one that the client was made with")
        ledger = Ledger.open(folder / "ledger", seal=Seal(key_in(key)))
        return cls._with(ledger, plan, data, noise_of_message, noise_of_report, noise_of_learning, noise_of_share)

    @classmethod
    def _with(cls, ledger: Ledger, plan: Plan, data: Data, *noise: NoiseOf | None) -> FederatedClient[Data]:
        message, report, learning, share = (source or _secure for source in noise)
        own = {"noise_of_message": message, "noise_of_report": report}
        try:
            return cls(plan, data, ledger, **own, noise_of_learning=learning, noise_of_share=share)
        except VeilrecError:
            ledger.close()
            raise

    def close(self) -> None:
        """Close the ledger; whatever was charged and kept is on disk already."""
        self.ledger.close()

    def __enter__(self) -> FederatedClient[Data]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def enter(self, round_number: int) -> None:
        """Begin a round of several trips, whose secrets are in memory alone: a client does so once a round, for good.

        Whoever was killed on the way, and has lost them, has left the round. What could not be paid for is not begun.
        """
        with self.ledger.transaction() as kept:
            self._check_trainer(kept)
            _refuse_second(kept, round_number, (_OUTBOX, _ENTERED), "round")
            self._check(kept, self.plan.mechanism, round_number)
            kept.keep(_ENTERED, _NUMBER.pack(round_number))

    def enter_sum(self, number: int) -> None:
        """Begin a secure sum of reports, or of gains by a validation client, likewise; they may be paid for already."""
        asked = self._asked() if self.plan.model_selection is None or not self.validates else self.plan.model_selection
        with self.ledger.transaction() as kept:
            _refuse_second(kept, number, (_MASKED, _ENTERED_SUM), "sum")
            if kept.kept(_GAIN if self.validates else _REPORT) is None:
                self._check(kept, asked.mechanism)
            kept.keep(_ENTERED_SUM, _NUMBER.pack(number))

    def take_part(
        self, broadcast: bytes, round_number: int, *, make: Make | None = None, check: CheckSpec | None = None
    ) -> bytes:
        """Learn from the model of a round, and answer; the bytes that come back may leave, and are paid for.

        `make` makes the message of what was learnt: under masks, where the server must not see it. `check` refuses a
        round that is not what its secure sum is about.
        """
        with self.ledger.transaction() as kept:
            answered = _last(kept, _OUTBOX, round_number, "round")
            if answered is not None:
                return answered
            self._check_trainer(kept)
            self._check(kept, self.plan.mechanism, round_number)
            message, private = self._learn(broadcast, round_number, kept, make or self._message, check)
            kept.keep(_PRIVATE, save(dict(private)))
            kept.keep(_OUTBOX, _NUMBER.pack(round_number) + message)
        return message

    def _learn(
        self, broadcast: bytes, round_number: int, kept: Transaction, make: Make, check: CheckSpec | None
    ) -> tuple[bytes, Mapping[str, Floats]]:
        plan, identity = self.plan, self._identity
        spec, weights = self._decoded(broadcast, round_number)
        check_planned(plan, spec, weights)
        view = spec.view(plan.schema)
        if check is not None:
            check(spec)
        data = self.data
        if spec.rows is not None:
            data = data.inside(places(spec.rows, plan.schema.tables[0].shape[0]))
        private = self._private(kept)
        own = OwnSources(lambda _: _protecting(self._noise_of_learning(round_number)))
        cohort = Cohort(np.array([identity.number], np.int64), data, private, identity.draws_seed, own)
        source = _protecting(self._noise_of_message(round_number))
        try:
            learnt = examples_if_asked(plan.trainer.learn(cohort, weights, spec).updates, plan.sends_examples)
            updates = nothing_if_overflown(learnt)
            put_back(private, self._private(kept), overflown(learnt))
            message, event = make(updates, spec, view, source)
        except (Diverged, np.linalg.LinAlgError):  # learning broke down, or no sum has room for what came out
            learnt, private = None, self._private(kept)
            updates = examples_if_asked(nothing_learnt(spec, view), plan.sends_examples)
            message, event = make(updates, spec, view, source)
        if updates is not learnt:
            kept.keep(_OVERFLOWN, _NUMBER.pack(_count(kept, _OVERFLOWN) + 1))
        mechanism = plan.mechanism
        kept.charge(event, unit=mechanism.unit, adjacency=mechanism.adjacency, unprotected=identity.unprotected)
        return message, private

    def _message(self, updates: ClientUpdates, spec: RoundSpec, view: Schema, source: Source) -> tuple[bytes, Event]:
        released = self.plan.mechanism.message(updates, spec, source)
        return messages.encode_update(released.value, view), released.event

    def _decoded(self, broadcast: bytes, round_number: int) -> tuple[RoundSpec, dict[str, Floats]]:
        """A round spec and its weights, which are finite and no larger than the schema states."""
        try:
            spec, model = rounds.decode(broadcast, self.plan.schema, round_number)
        except messages.NotFinite:
            raise Declined("not finite", "the model has weights that are not finite") from None
        view = spec.view(self.plan.schema)
        weights = weights_of(model, view)
        check_weights(weights, view)
        return spec, weights

    def overflown(self) -> int:
        """Number of rounds that were answered with zeros because learning overflowed; nobody else is told."""
        with self.ledger.transaction() as kept:
            return _count(kept, _OVERFLOWN)

    def validate(
        self,
        start: bytes,
        trained: bytes,
        number: int,
        *,
        mask: Mask | None = None,
        in_sum: int | None = None,
        check: Callable[[], object] | None = None,
    ) -> bytes:
        """Tell how much better the trained model ranks than the start on the device's own data, clipped; once.

        Both come as rounds do, under the number of the round that would follow the last one. Where the server must not
        see gains, `mask` makes the message of what the gain adds to their secure sum, whose number is `in_sum`: the
        same bytes whenever this sum is asked for. `check` refuses a sum before anything is compared for it.
        """
        with self.ledger.transaction() as kept:
            if mask is None or in_sum is None:
                return self._compared(start, trained, number, kept)
            return self._in_sum(kept, in_sum, mask, check, lambda: self._compared(start, trained, number, kept))

    def _in_sum(
        self, kept: Transaction, number: int, mask: Mask, check: Callable[[], object] | None, tell: Callable[[], object]
    ) -> bytes:
        """The message to a secure sum: of numbers that were drawn once, and the same bytes for the same sum."""
        answered = _last(kept, _MASKED, number, "sum")
        if answered is None:
            if check is not None:
                check()
            tell()
            answered = mask(np.frombuffer(_known(kept, _ADDS), "<i8").astype(np.int64))
            kept.keep(_MASKED, _NUMBER.pack(number) + answered)
        return answered

    def _compared(self, start: bytes, trained: bytes, number: int, kept: Transaction) -> bytes:
        asked, identity = self.plan.model_selection, self._identity
        if asked is None:
            raise BadInput("this plan has no validation clients: nothing is sent")
        told = kept.kept(_GAIN)
        if told is not None:
            return told
        if not self.validates or any(kept.kept(name) is not None for name in (_OUTBOX, _REPORT)):
            raise AnotherRole("this client trains: it does not validate")
        mechanism = asked.mechanism
        self._check(kept, mechanism)
        models = [self._whole(one, number) for one in (start, trained)]
        gain = mechanism.bound(asked.validator.gains(self.data, *models))
        message = messages.encode_gain(float(gain[0]))
        kept.charge(
            mechanism.event(), unit=mechanism.unit, adjacency=mechanism.adjacency, unprotected=identity.unprotected
        )
        kept.keep(_GAIN, message)
        adds = mechanism.masked(gain, _protecting(self._noise_of_share(0)))
        kept.keep(_ADDS, adds.astype("<i8").tobytes())
        return message

    def _whole(self, broadcast: bytes, number: int) -> dict[str, Floats]:
        """A whole model."""
        spec, weights = self._decoded(broadcast, number)
        if spec.view(self.plan.schema) != self.plan.schema:
            raise messages.BadMessage("a model that is compared is not whole")
        return weights

    @property
    def validates(self) -> bool:
        """Whether this is a held-out validation client."""
        asked = self.plan.model_selection
        return asked is not None and len(asked.validator.clients(self.data)) > 0

    def _check_trainer(self, kept: Transaction) -> None:
        if self.validates or kept.kept(_GAIN) is not None:
            raise AnotherRole("this is a validation client: it does not train, and sends nothing before")

    def report(self, number: int, period: int, *, mask: Mask | None = None) -> bytes:
        """Tell which items the client has, as the plan allows; drawn and paid for once a period, then repeated.

        `number` is that of the round. Where the server must not see reports it is that of their secure sum, and
        `mask` makes the message of what the report adds to the counts: the same bytes whenever this sum is asked for.
        """
        with self.ledger.transaction() as kept:
            if mask is None:
                return messages.encode_report(self._told(kept, period), number)
            return self._in_sum(kept, number, mask, None, lambda: self._told(kept, period))

    def _asked(self) -> ReportSpec:
        if self.plan.reports is None:
            raise BadInput("this plan asks clients for no reports: nothing is told")
        return self.plan.reports

    def _told(self, kept: Transaction, period: int) -> Bools:
        """The report of a period, which is drawn and charged for when it is first asked for."""
        mechanism = self._asked().mechanism
        known = _last(kept, _REPORT, period, "period")
        if known is not None:
            return _unpacked(known, mechanism.length)
        if period and not self._asked().fresh:
            raise BadInput(f"what this plan asks for is told once, and not for period {period}: nothing is sent")
        self._check_trainer(kept)
        self._check(kept, mechanism)
        source = _protecting(self._noise_of_report(period))
        released = mechanism.report(self._own(mechanism.length), source)
        kept.charge(
            released.event, unit=mechanism.unit, adjacency=mechanism.adjacency, unprotected=self._identity.unprotected
        )
        kept.keep(_REPORT, _NUMBER.pack(period) + np.packbits(released.value).tobytes())
        if mechanism.under_masks:
            adds = mechanism.masked(released.value, _protecting(self._noise_of_share(period)))
            kept.keep(_ADDS, adds.astype("<i8").tobytes())
        return released.value

    def _own(self, length: int) -> Bools:
        items = self.data.rows.row(0)
        if len(items) and not 0 <= int(items.min()) <= int(items.max()) < length:
            raise BadInput(f"item numbers from {items.min()} to {items.max()}: a report is on items 0 to {length - 1}")
        own = np.zeros(length, np.bool_)
        own[items] = True
        return own

    def _check(self, kept: Transaction, mechanism: Mechanism[Any, Any], round_number: int | None = None) -> None:
        """Before any work: a message that could not be paid for is not made."""
        unprotected = self._identity.unprotected
        event = mechanism.event()
        if round_number is not None and isinstance(mechanism, UpdateMechanism):
            event = mechanism.event_in(RoundSpec(round_number))
        kept.check(event, unit=mechanism.unit, adjacency=mechanism.adjacency, unprotected=unprotected)

    @property
    def private(self) -> Mapping[str, Floats]:
        """What the trainer keeps, [1, ...] each: the client ranks with it, and it never leaves."""
        with self.ledger.transaction() as kept:
            return self._private(kept)

    def _private(self, kept: Transaction) -> dict[str, Floats]:
        try:
            private: dict[str, Floats] = load(_known(kept, _PRIVATE))
        except SafetensorError as error:
            raise VeilrecError(f"what the client keeps cannot be read ({error}): nothing leaves it") from None
        return {name: values.copy() for name, values in private.items()}

    def spent(self) -> tuple[AccountReport, ...]:
        """What every account has spent and has left."""
        return self.ledger.report()


def _secure(number: int) -> Source:
    return SecureSource()


def _protecting(source: Source) -> Source:
    if not source.protects:
        raise BadInput("the noise comes from a seeded source, which protects nobody: use a SecureSource")
    return source


def _check_statements(plan: Plan, budgets: Sequence[Budget], *, unprotected: bool) -> None:
    """Refuse what a client could never send, or would send under a false statement."""
    for mechanism in _mechanisms(plan):
        event = mechanism.event()
        if flattened(event).in_plaintext:
            if not unprotected:
                raise BadInput(
                    f"a message of {mechanism.name} leaves in plaintext, and no budget covers it: "
                    "give unprotected=True if the user agrees to that, or use a method that protects"
                )
            continue
        covering = [b for b in budgets if b.cost(event, mechanism.unit, mechanism.adjacency) is not None]
        if not covering:
            raise BadInput(
                f"no budget covers a message that protects one {mechanism.unit} ({mechanism.adjacency}): give one for "
                "that unit and adjacency"
            )
        for budget in covering:
            if TRUSTS.index(budget.trust) < TRUSTS.index(mechanism.trust):
                raise BadInput(
                    f"the {budget.unit} budget says that its messages trust {budget.trust}, but {mechanism.name} "
                    f"trusts the server: give trust={mechanism.trust!r}"
                )


def _mechanisms(plan: Plan) -> tuple[Mechanism[Any, Any], ...]:
    asked = (plan.reports, plan.model_selection)
    return (plan.mechanism, *(one.mechanism for one in asked if one is not None))


def plan_digest(plan: Plan) -> str:
    """Digest of the model's shape and of what is stated about messages; neither may change after consent."""
    stated = tuple(statement(mechanism) for mechanism in _mechanisms(plan))
    return hashlib.sha256(repr((plan.schema, stated, plan.sends_examples)).encode()).hexdigest()


def _known(kept: Transaction, name: str) -> bytes:
    content = kept.kept(name)
    if content is None:
        raise VeilrecError(f"this is not the ledger of a client: it keeps no {name}; create the client in a new folder")
    return content


def _count(kept: Transaction, name: str) -> int:
    """A number that is counted up; 0 before the first."""
    content = kept.kept(name)
    return 0 if content is None else int(_NUMBER.unpack(content)[0])


def _last(kept: Transaction, name: str, number: int, kind: str) -> bytes | None:
    """What was answered last, if it is the answer to this number; None if this one is new."""
    content = kept.kept(name)
    if content is None:
        return None
    (last,) = _NUMBER.unpack_from(content)
    if number < last:
        raise RoundIsOver(f"{kind} {number} is over: the client has answered {kind} {last} already")
    return content[_NUMBER.size :] if number == last else None


def _refuse_second(kept: Transaction, number: int, names: tuple[str, ...], kind: str) -> None:
    """Refuse to begin what was begun or answered before."""
    if any(_last(kept, name, number, kind) is not None for name in names):
        raise RoundIsOver(f"{kind} {number} was begun before: the client has left it")


def _unpacked(content: bytes, length: int) -> Bools:
    return np.unpackbits(np.frombuffer(content, np.uint8))[:length].astype(np.bool_)
