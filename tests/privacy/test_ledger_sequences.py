"""Any sequence of use and abuse: what was spent never falls and never exceeds a budget."""

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from veilrec.privacy import ledger as ledger_module
from veilrec.privacy.budget import Cost
from veilrec.privacy.events import GaussianEvent, PureEvent, repeated
from veilrec.privacy.ledger import Budget, BudgetExhausted, Ledger

BUDGETS = (
    Budget(unit="click", adjacency="replace-one", epsilon=2.0, delta=1e-6, accounting="gaussian"),
    Budget(unit="history", adjacency="replace-one", epsilon=1.0, delta=1e-5, lifetime_epsilon=3.0),
)
WEEK = 7 * 86400.0
EVENTS = st.one_of(
    st.floats(0.01, 0.6).map(GaussianEvent),
    st.floats(0.01, 1.2).map(PureEvent),
    st.integers(1, 5).map(lambda count: repeated(PureEvent(0.1), count)),
)


class UseAndAbuse(RuleBasedStateMachine):
    """The ledger, beside a model of it that adds up what really left."""

    @initialize()
    def start(self):
        self.patch = pytest.MonkeyPatch()
        self.uptime = 50.0
        self.patch.setattr(ledger_module, "_uptime", lambda: self.uptime)
        self.folder = Path(tempfile.mkdtemp())
        self.path = self.folder / "ledger"
        self.ledger = Ledger.create(self.path, BUDGETS, minimum_period_seconds=WEEK)
        self.sent_in_period = [Cost(), Cost()]
        self.sent_ever = [Cost(), Cost()]
        self.since_refill = 0.0
        self.record = self.read()
        self.old_copy = None

    def read(self):
        with self.ledger._store.changing() as change:
            return change.record

    @rule(
        event=EVENTS,
        unit=st.sampled_from(["click", "history", "user"]),
        adjacency=st.sampled_from(["replace-one", "add-remove"]),
    )
    def send(self, event, unit, adjacency):
        try:
            with self.ledger.transaction() as kept:
                kept.charge(event, unit=unit, adjacency=adjacency)
        except BudgetExhausted:
            return
        for number, budget in enumerate(BUDGETS):
            cost = budget.cost(event, unit, adjacency)
            if cost is not None:
                self.sent_in_period[number] = self.sent_in_period[number].plus(cost)
                self.sent_ever[number] = self.sent_ever[number].plus(cost)

    @rule(seconds=st.floats(0.0, 2 * WEEK))
    def wait(self, seconds):
        self.uptime += seconds
        self.since_refill += seconds

    @rule(off=st.floats(0.0, 10 * WEEK), seconds=st.floats(0.0, WEEK))
    def restart(self, off, seconds):
        self.uptime = seconds
        self.since_refill += off + seconds

    @rule(ahead=st.integers(1, 50))
    def announce(self, ahead):
        if self.ledger.advance_period(self.record.period + ahead, b"", lambda *_: True):
            assert self.since_refill >= WEEK * (1 - 1e-12)
            self.since_refill = 0.0
            self.sent_in_period = [Cost(), Cost()]

    @rule()
    def reopen(self):
        self.ledger.close()
        self.ledger = Ledger.open(self.path)

    @rule()
    def copy(self):
        self.ledger.close()
        self.old_copy = self.path.read_bytes()
        self.ledger = Ledger.open(self.path)

    @rule()
    def put_the_copy_back(self):
        if self.old_copy is not None:
            self.ledger.close()
            self.path.write_bytes(self.old_copy)
            self.ledger = Ledger.open(self.path)

    @invariant()
    def nothing_is_forgotten_and_no_budget_exceeded(self):
        before, self.record = self.record, self.read()
        assert self.record.sequence >= before.sequence
        assert self.record.period >= before.period
        for number, (old, new) in enumerate(zip(before.accounts, self.record.accounts, strict=True)):
            assert new.in_lifetime.loss >= old.in_lifetime.loss
            assert new.in_lifetime.pure >= old.in_lifetime.pure
            assert new.messages >= old.messages
            assert (new.in_period, new.in_lifetime) == (self.sent_in_period[number], self.sent_ever[number])
            assert new.budget.allows(new.in_period, new.in_lifetime)

    def teardown(self):
        if hasattr(self, "ledger"):
            self.ledger.close()
            self.patch.undo()
            shutil.rmtree(self.folder)


UseAndAbuse.TestCase.settings = settings(
    max_examples=20, stateful_step_count=20, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
TestUseAndAbuse = UseAndAbuse.TestCase
