import sqlite3
import time
from contextlib import suppress

import pytest

from tests.privacy.ledger_helpers import CLICK, HALF, Noisy, ask, charged, spend
from veilrec.core.errors import BadInput
from veilrec.privacy import ledger as ledger_module
from veilrec.privacy.events import NonPrivateEvent, PureEvent
from veilrec.privacy.guarantee import Guarantee
from veilrec.privacy.ledger import Budget, BudgetExhausted, Ledger, LedgerError, PermittedAnswer
from veilrec.privacy.randomness import SecureSource, SeededSource

HISTORY = Budget(unit="history", adjacency="replace-one", epsilon=2.0, delta=1e-6, lifetime_epsilon=3.0)
DAY = 86400.0


class Clock:
    """The client's uptime, and the wall clock, in the hands of the test."""

    uptime = 1000.0
    wall = 1.8e9


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(ledger_module, "_uptime", lambda: clock.uptime)
    monkeypatch.setattr(time, "time", lambda: clock.wall)
    return clock


@pytest.fixture
def ledger(path, clock):
    return Ledger.create(path, [CLICK], minimum_period_seconds=DAY, first_period=7)


def announced(number, proof):
    return proof == b"period %d" % number


def advance(ledger, number):
    return ledger.advance_period(number, b"period %d" % number, announced)


def test_a_message_is_charged_and_then_handed_out(ledger):
    answer = spend(ledger)
    assert answer.personal
    assert 5.0 <= float.fromhex(answer.value.decode()) < 6.0
    (report,) = ledger.report()
    assert report.messages == 1
    assert report.remaining == pytest.approx(0.5)
    assert report.promised is None
    assert (report.spent.epsilon, report.spent.delta) == (1.0, 0.0)
    assert (report.spent.unit, report.spent.adjacency, report.spent.scope) == ("click", "replace-one", "lifetime")
    assert (report.spent.trust, report.spent.basis) == ("nobody", "proven")


def test_a_spent_budget_gives_the_answer_that_is_the_same_for_all(ledger):
    assert [spend(ledger, otherwise=b"").personal for _ in range(4)] == [True, True, False, False]
    assert ask(ledger, otherwise=b"popular") == PermittedAnswer(personal=False, value=b"popular")
    with pytest.raises(BudgetExhausted, match=r"click budget of period 7 .* is spent: send the non-personal"):
        spend(ledger)
    with pytest.raises(BudgetExhausted):
        ask(ledger)
    assert charged(ledger) == 2
    assert ledger.report()[0].remaining == 0.0


def send(ledger, mechanism=None, value=5.0, source=None):
    told = (mechanism or Noisy(), value, source or SecureSource())
    return ledger.message(*told, model_version="1", encode=lambda value: value.hex().encode())


class Incomplete(Noisy):
    def __init__(self):
        super().__init__()
        self.sensitivity = None


def test_bad_input_costs_nothing(ledger):
    for attempt, message in [
        (lambda ledger: send(ledger, Incomplete()), "does not state its sensitivity"),
        (lambda ledger: send(ledger, value=float("nan")), "value is NaN"),
        (lambda ledger: send(ledger, source=SeededSource(1)), "seeded source, which protects nobody"),
        (lambda ledger: spend(ledger, NonPrivateEvent()), "in plaintext"),
    ]:
        with pytest.raises(BadInput, match=message):
            attempt(ledger)
        assert charged(ledger) == 0


def test_simulations_may_use_seeded_noise_and_say_so_for_good(path):
    Ledger.create(path, [CLICK], minimum_period_seconds=1.0, simulation=True).close()
    with Ledger.open(path) as ledger:
        assert send(ledger, source=SeededSource(1)).personal
        assert "protects nobody" in ledger.report()[0].spent.caveats[-1]


def charge(ledger, unit):
    with ledger.transaction() as kept:
        kept.charge(HALF, unit=unit, adjacency="replace-one")


def test_what_protects_a_history_is_charged_to_its_clicks(path):
    ledger = Ledger.create(path, [CLICK, HISTORY], minimum_period_seconds=1.0)
    charge(ledger, "history")
    assert [report.messages for report in ledger.report()] == [1, 1]
    charge(ledger, "click")
    click, history = ledger.report()
    assert click.spent.epsilon == 2.0
    assert history.spent == Guarantee(basis="none", caveats=history.spent.caveats)
    assert history.promised is None
    assert "1 message without protection of one history" in history.spent.caveats[0]
    assert "(1, 0)-DP per history" in history.spent.caveats[1]
    with pytest.raises(BudgetExhausted):  # history has room, its clicks have none
        charge(ledger, "history")
    assert [report.messages for report in ledger.report()] == [2, 1]


def test_a_lifetime_budget_is_promised_and_kept(path, clock):
    ledger = Ledger.create(path, [HISTORY], minimum_period_seconds=DAY)
    (report,) = ledger.report()
    assert (report.promised.epsilon, report.promised.delta, report.promised.caveats) == (3.0, 1e-6, ())
    sent = 0
    for period in range(1, 4):
        with suppress(BudgetExhausted):
            while True:
                charge(ledger, "history")
                sent += 1
        clock.uptime += DAY
        assert advance(ledger, period)
    assert sent == 3


def test_a_new_period_refills_once_enough_time_has_passed(ledger, clock):
    spend(ledger), spend(ledger)
    clock.uptime += DAY - 1.0
    assert not advance(ledger, 8)
    assert not spend(ledger, otherwise=b"").personal
    clock.uptime += 1.0
    assert advance(ledger, 8)
    assert ledger.period == 8
    assert ledger.report()[0].remaining == 1.0
    assert ledger.report()[0].spent.epsilon == 2.0
    assert spend(ledger).personal


def test_neither_the_wall_clock_nor_many_announcements_refill(ledger, clock):
    spend(ledger), spend(ledger)
    for jump in (DAY, 400 * DAY, -800 * DAY):
        clock.wall += jump
        assert not advance(ledger, 8)
        assert not spend(ledger, otherwise=b"").personal
    clock.uptime += 10 * DAY
    assert advance(ledger, 8)
    spend(ledger), spend(ledger)
    assert [advance(ledger, number) for number in (8, 9, 10, 2**62)] == [False] * 4
    assert not spend(ledger, otherwise=b"").personal


def test_restarts_count_only_the_time_since(ledger, clock):
    for uptime, enough in ((60.0, False), (30.0, False), (DAY / 2, False), (60.0, False), (DAY / 2, True)):
        clock.uptime = uptime
        assert advance(ledger, 8) == enough


def test_periods_that_are_refused(ledger, clock):
    for number, proof, error, message in [
        (6, b"period 6", LedgerError, "period 6 is over: the ledger is in period 7"),
        (8, b"period 9", LedgerError, "period 8 is not announced by its proof"),
        (-1, b"period -1", BadInput, "give a number from 0"),
        (2**63, b"", BadInput, "give a number from 0"),
    ]:
        clock.uptime += 10 * DAY
        with pytest.raises(error, match=message):
            ledger.advance_period(number, proof, announced)
        assert ledger.period == 7


def test_a_message_is_repeated_for_free(ledger, path):
    first = ask(ledger)
    assert [ask(ledger) for _ in range(3)] == [first] * 3
    assert charged(ledger) == 1
    assert ask(ledger, "model 2") != first
    assert charged(ledger) == 2
    ledger.close()
    with Ledger.open(path) as again:
        assert ask(again) == first  # also when the budget is gone
        assert not ask(again, "model 3", otherwise=b"").personal
        assert not ask(again, "model 1", PureEvent(0.5), otherwise=b"").personal  # other parameters: another message


def test_a_new_period_has_a_new_message(ledger, path, clock):
    first = ask(ledger)
    clock.uptime += DAY
    advance(ledger, 8)
    assert ask(ledger) != first
    assert charged(ledger) == 2
    ledger.close()
    with sqlite3.connect(path) as database:
        assert database.execute("SELECT period FROM memo").fetchall() == [(8,)]


def test_the_first_of_two_processes_draws_for_both(ledger, path):
    other = Ledger.open(path)
    faster = []

    def encode(value):
        faster.append(ask(other))
        return value.hex().encode()

    slower = ledger.message(Noisy(HALF), 5.0, SecureSource(), model_version="model 1", encode=encode)
    assert [slower] == faster
    assert charged(ledger) == 1
