"""The ledger: what a client has spent of its privacy, and the only way in which a message may leave it.

What is promised
- A message is handed out only after its charge is on disk, and is kept with it. A crash before that costs nothing,
  and nothing has left; after it the message is there to be sent, and is not charged again.
- What was spent never falls. There is no way to lower it, to reset it, or to raise a budget.
- Two threads or processes cannot both take the last of a budget.
- A ledger that is missing, damaged, locked, in a newer format, or at odds with its mirror releases nothing.
- No wall clock is read. Budgets are refilled by the number of a public period, which must be announced with
  a proof and never goes back, at most once per `minimum_period_seconds` of the client's own uptime, however
  many periods were announced. Setting the clock therefore does nothing, and a server that signs periods in a
  hurry gains nothing. Time during which the client is switched off is not counted.
- What is kept in a transaction with a charge (a client's state, the message itself) is on disk with it, or not at
  all. With a seal it is encrypted, and so is what was spent.
- An older copy of the database is noticed by the mirror `NAME.seq` beside it, which holds the newest record:
  what it says was spent stays spent. A mirror that is missing, or older by more than the change that a crash
  cut off, is refused.

What is not
- Restoring database and mirror together, or deleting both and enrolling anew, cannot be seen on the device:
  the server's count of each client's messages, or a counter in hardware, has to. Moving both to a machine
  that has been up for longer can bring one refill early.
- A period announced far ahead of its time stops later refills; the budget then stays spent.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from veilrec.core.errors import BadInput, counted
from veilrec.core.files import Closing, Seal
from veilrec.privacy.accounting.composition import flattened
from veilrec.privacy.budget import Budget, Cost
from veilrec.privacy.checks import positive
from veilrec.privacy.events import Event
from veilrec.privacy.guarantee import Adjacency, Guarantee, Unit, no_guarantee
from veilrec.privacy.ledger_store import BudgetAccount, Change, LedgerError, LedgerStore, Record
from veilrec.privacy.mechanisms.base import Input, Mechanism, Output, Released, require_complete
from veilrec.privacy.randomness import Source


class BudgetExhausted(LedgerError):
    """The message does not fit into what is left of a budget; nothing was released and nothing charged."""


@dataclass(frozen=True)
class PermittedAnswer:
    """What may be sent: drawn from the person's data, or the same for all because the budget is gone."""

    personal: bool
    value: bytes


@dataclass(frozen=True)
class AccountReport:
    """What one account has spent and has left."""

    budget: Budget
    spent: Guarantee  # everything that was ever charged, for costs fixed in advance
    promised: Guarantee | None  # what can ever be spent, however costs are chosen; None without a lifetime budget
    messages: int
    remaining: float  # the share of this period's budget that is left, from 0 to 1


class Transaction:
    """Charges and kept values that become durable together; an error inside undoes them all."""

    def __init__(self, change: Change) -> None:
        self._change = change

    def kept(self, name: str) -> bytes | None:
        """What is kept under a name; None if nothing ever was."""
        return self._change.kept(name)

    def keep(self, name: str, content: bytes) -> None:
        """Keep something under a name, in the place of what was there."""
        self._change.keep(name, content)

    def check(self, event: Event, *, unit: Unit, adjacency: Adjacency, unprotected: bool = False) -> None:
        """Raise what charging a message would raise."""
        _charged(self._change.record, event, unit, adjacency, unprotected=unprotected)

    def charge(self, event: Event, *, unit: Unit, adjacency: Adjacency, unprotected: bool = False) -> None:
        """Charge a message; `unprotected` allows one in plaintext, after which no account states anything any more."""
        self._change.record = _charged(self._change.record, event, unit, adjacency, unprotected=unprotected)


class Ledger(Closing):
    """The accounts of one client in one file; use `create` once per enrolment, and `open` ever after."""

    def __init__(self, store: LedgerStore) -> None:
        self._store = store

    @classmethod
    def create(
        cls,
        path: Path,
        budgets: Sequence[Budget],
        *,
        minimum_period_seconds: float,
        first_period: int = 0,
        simulation: bool = False,
        seal: Seal | None = None,
        keep: Mapping[str, bytes] | None = None,
    ) -> Ledger:
        """Start a ledger with nothing spent; `simulation` allows seeded noise for good, and says so.

        What it is to `keep` from the start is there as soon as the ledger is.
        """
        positive(minimum_period_seconds=minimum_period_seconds)
        _check_period(first_period)
        units = [budget.unit for budget in budgets]
        if not units or len(set(units)) < len(units):
            raise BadInput(f"budgets are given for {units}: give at least one, and one per unit")
        accounts = tuple(BudgetAccount(budget, Cost(), Cost(), 0, 0) for budget in budgets)
        record = Record(0, first_period, 0.0, _uptime(), minimum_period_seconds, simulation, accounts)
        return cls(LedgerStore.create(path, record, seal=seal, keep=keep))

    @staticmethod
    def was_made(path: Path) -> bool:
        """Whether there is a ledger to open; one whose making was cut off is made again."""
        return LedgerStore.was_made(path)

    @classmethod
    def open(cls, path: Path, *, lock_timeout_seconds: float = 10.0, seal: Seal | None = None) -> Ledger:
        """Go on with a ledger; its budgets are those it was created with."""
        return cls(LedgerStore.open(path, lock_timeout_seconds=lock_timeout_seconds, seal=seal))

    def close(self) -> None:
        """Close the file; whatever was charged is on disk already."""
        self._store.close()

    def message(
        self,
        mechanism: Mechanism[Input, Output],
        value: Input,
        source: Source,
        *,
        model_version: str,
        encode: Callable[[Output], bytes],
        otherwise: bytes | None = None,
    ) -> PermittedAnswer:
        """The mechanism's one message for this period and model: drawn and charged once, then repeated free.

        Where the budget is gone, the answer is `otherwise`; without one, `BudgetExhausted` is raised.

        It does not follow the data within a period: a message that changed would say that the data did.
        Message and charge are committed together: a crash leaves both, or none.
        """
        key = hashlib.sha256(repr((model_version, *statement(mechanism))).encode()).hexdigest()
        with self._store.changing() as change:
            known = change.message(key)
        if known is not None:
            return PermittedAnswer(personal=True, value=known)
        try:
            drawn = self._drawn(mechanism, value, source)
            encoded = encode(drawn.value)
            with self._store.changing() as change:
                known = change.message(key)  # another process may have been faster
                if known is None:
                    change.record = _charged(change.record, drawn.event, mechanism.unit, mechanism.adjacency)
                    change.memoise(key, encoded)
        except BudgetExhausted:
            if otherwise is None:
                raise
            return PermittedAnswer(personal=False, value=otherwise)
        return PermittedAnswer(personal=True, value=encoded if known is None else known)

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """Charge and keep several things at once, with nobody else in between: all of it is on disk after, or none.

        A message that is made in here may leave once the transaction has ended, and not before.
        """
        with self._store.changing() as change:
            yield Transaction(change)

    def advance_period(self, number: int, proof: bytes, verify: Callable[[int, bytes], bool]) -> bool:
        """Go on to a later public period and refill the period's budgets; False if it is too early.

        `verify` says whether `proof` is the announcement of period `number` by whoever may announce periods.
        """
        _check_period(number)
        if not verify(number, proof):
            raise LedgerError(f"period {number} is not announced by its proof: the budget is not refilled")
        with self._store.changing() as change:
            now = change.record
            if number < now.period:
                raise LedgerError(f"period {number} is over: the ledger is in period {now.period} and never goes back")
            if number == now.period:
                return False
            change.record = now = _with_time_passed(now)
            if now.run_seconds < now.minimum_period_seconds:
                return False
            refilled = tuple(replace(account, in_period=Cost()) for account in now.accounts)
            change.record = replace(now, period=number, run_seconds=0.0, accounts=refilled)
            return True

    @property
    def period(self) -> int:
        """The public period whose budget is being spent."""
        with self._store.changing() as change:
            return change.record.period

    def report(self) -> tuple[AccountReport, ...]:
        """What every account has spent and has left."""
        with self._store.changing() as change:
            record = change.record
        return tuple(_report(account, simulation=record.simulation) for account in record.accounts)

    def _drawn(self, mechanism: Mechanism[Input, Output], value: Input, source: Source) -> Released[Output]:
        """A draw that stays inside: input that is refused here, or a budget that is gone, costs nothing."""
        require_complete(mechanism)
        with self._store.changing() as change:
            record = change.record
        if not (source.protects or record.simulation):
            raise BadInput("the noise comes from a seeded source, which protects nobody: use a SecureSource")
        _charged(record, mechanism.event(), mechanism.unit, mechanism.adjacency)
        return mechanism.release(value, source)


def _charged(record: Record, event: Event, unit: Unit, adjacency: Adjacency, *, unprotected: bool = False) -> Record:
    """The record after one more message; refuses one that does not fit into an account that it concerns."""
    if unprotected and flattened(event).in_plaintext:
        uncovered = tuple(replace(account, not_covered=account.not_covered + 1) for account in record.accounts)
        return replace(_with_time_passed(record), accounts=uncovered)
    accounts = []
    for account in record.accounts:
        cost = account.budget.cost(event, unit, adjacency)
        if cost is None:
            accounts.append(replace(account, not_covered=account.not_covered + 1))
            continue
        in_period, in_lifetime = account.in_period.plus(cost), account.in_lifetime.plus(cost)
        if not account.budget.allows(in_period, in_lifetime):
            if not account.budget.allows(cost, cost):
                raise BudgetExhausted(
                    f"one such message costs more than the whole {account.budget.unit} budget of a period,"
                    f" ({account.budget.epsilon:g}, {account.budget.delta:g}): it never fits; send the non-personal"
                    " answer, or another message"
                )
            raise BudgetExhausted(
                f"the {account.budget.unit} budget of period {record.period} or of the lifetime is spent: "
                "send the non-personal answer, or wait for the next period"
            )
        accounts.append(replace(account, in_period=in_period, in_lifetime=in_lifetime, messages=account.messages + 1))
    if all(new.messages == old.messages for new, old in zip(accounts, record.accounts, strict=True)):
        raise BadInput(
            f"no account of the ledger covers a message that protects one {unit} ({adjacency}): nothing may be released"
        )
    return replace(_with_time_passed(record), accounts=tuple(accounts))


def _with_time_passed(record: Record) -> Record:
    """The next record, with the uptime since the last one; after a restart, the uptime since then.

    Both are at most the time that really passed: a smaller uptime than before means a restart after the last
    record, and what a larger one has gained is no more than passed since, with or without a restart.
    """
    uptime = _uptime()
    passed = uptime - record.uptime if uptime >= record.uptime else uptime
    return replace(record, sequence=record.sequence + 1, run_seconds=record.run_seconds + passed, uptime=uptime)


def _uptime() -> float:
    """Seconds since the client was started, also asleep where the system counts that; nobody can set it."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


def _check_period(number: int) -> None:
    if not 0 <= number < 2**63:
        raise BadInput(f"period {number}: give a number from 0 to 2^63 - 1")


def statement(mechanism: Mechanism[Any, Any]) -> tuple[Any, ...]:
    """All that a mechanism says of itself: two that say the same are the same to whoever they protect."""
    require_complete(mechanism)
    carried = mechanism.carried
    return (
        mechanism.name,
        mechanism.calibration,
        mechanism.unit,
        mechanism.adjacency,
        mechanism.sensitivity,
        mechanism.claimed_epsilon,
        mechanism.claimed_delta,
        mechanism.event(),
        *(() if carried is None else (carried,)),
    )


def _report(account: BudgetAccount, *, simulation: bool) -> AccountReport:
    budget = account.budget
    epsilon, delta = budget.spent(account.in_lifetime)
    caveats = ["adds up costs that were fixed in advance; if messages chose them, only the budget holds"]
    if simulation:
        caveats.append("the ledger of a simulation: its noise may be seeded and then protects nobody")
    spent = Guarantee("proven", budget.unit, budget.adjacency, epsilon, delta, "lifetime", budget.trust, tuple(caveats))
    promised = None
    if budget.lifetime_epsilon is not None:
        promised = replace(spent, epsilon=budget.lifetime_epsilon, delta=budget.delta, caveats=tuple(caveats[1:]))
    if account.not_covered:
        uncovered = (
            f"{counted(account.not_covered, 'message')} without protection of one {budget.unit} ({budget.adjacency})",
            f"what the other {account.messages} cost: {spent.line()}",
        )
        spent, promised = no_guarantee(*uncovered, *caveats), None
    return AccountReport(budget, spent, promised, account.messages, budget.remaining(account.in_period))
