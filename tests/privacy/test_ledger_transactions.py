"""Values kept in the same transaction as a charge, sealed ledgers, and messages in plaintext."""

import sqlite3

import pytest

from tests.privacy.ledger_helpers import CLICK, HALF, ask, charged, spend
from veilrec.core.errors import BadInput
from veilrec.core.files import Seal
from veilrec.privacy.events import NonPrivateEvent
from veilrec.privacy.ledger import BudgetExhausted, Ledger, LedgerError

SEAL = Seal(bytes(32))


@pytest.fixture(params=[None, SEAL], ids=["plain", "sealed"])
def seal(request):
    return request.param


def test_a_charge_and_what_is_kept_with_it_survive_together(path, seal):
    created = Ledger.create(path, [CLICK], minimum_period_seconds=1.0, seal=seal, keep={"first": b"1"})
    with created as ledger, ledger.transaction() as kept:
        assert kept.kept("first") == b"1"
        assert kept.kept("second") is None
        kept.check(HALF, unit="click", adjacency="replace-one")
        kept.charge(HALF, unit="click", adjacency="replace-one")
        kept.keep("first", b"2")
        kept.keep("second", b"3")
    with Ledger.open(path, seal=seal) as again:
        assert charged(again) == 1
        with again.transaction() as kept:
            assert (kept.kept("first"), kept.kept("second")) == (b"2", b"3")


def test_an_error_undoes_the_charge_and_what_was_kept(path, seal):
    with Ledger.create(path, [CLICK], minimum_period_seconds=1.0, seal=seal) as ledger:
        with pytest.raises(KeyError), ledger.transaction() as kept:
            kept.charge(HALF, unit="click", adjacency="replace-one")
            kept.keep("first", b"1")
            raise KeyError
        assert charged(ledger) == 0
        with ledger.transaction() as kept:
            assert kept.kept("first") is None


def test_what_does_not_fit_is_not_kept_either(path):
    with Ledger.create(path, [CLICK], minimum_period_seconds=1.0) as ledger:
        spend(ledger), spend(ledger)
        with pytest.raises(BudgetExhausted), ledger.transaction() as kept:
            kept.keep("first", b"1")
            kept.charge(HALF, unit="click", adjacency="replace-one")
        with ledger.transaction() as kept:
            assert kept.kept("first") is None


def test_a_message_in_the_clear_needs_consent_and_ends_every_statement(path):
    with Ledger.create(path, [CLICK], minimum_period_seconds=1.0) as ledger:
        clear = NonPrivateEvent()
        with pytest.raises(BadInput, match="leaves something in plaintext"), ledger.transaction() as kept:
            kept.charge(clear, unit="user", adjacency="replace-one")
        with ledger.transaction() as kept:
            kept.charge(clear, unit="user", adjacency="replace-one", unprotected=True)
            kept.charge(HALF, unit="click", adjacency="replace-one", unprotected=True)
        (account,) = ledger.report()
        assert account.spent.basis == "none"
        assert account.messages == 1  # consent makes nothing else free
        assert account.remaining < 1.0


def test_a_sealed_ledger_keeps_its_promises_and_needs_its_key(path):
    with Ledger.create(path, [CLICK], minimum_period_seconds=1.0, seal=SEAL) as ledger:
        first = ask(ledger)
        assert ask(ledger) == first
        spend(ledger)
        assert not spend(ledger, otherwise=b"").personal
        for file in path.parent.iterdir():
            assert b"epsilon" not in file.read_bytes()
            assert first.value not in file.read_bytes()
    with Ledger.open(path, seal=SEAL) as again:
        assert ask(again) == first
        assert charged(again) == 2
    for wrong in (None, Seal(bytes(31) + b"1")):
        with pytest.raises(LedgerError, match="cannot be read: nothing may be released"):
            Ledger.open(path, seal=wrong)


def test_a_plain_ledger_is_not_taken_for_a_sealed_one(path):
    Ledger.create(path, [CLICK], minimum_period_seconds=1.0).close()
    with pytest.raises(LedgerError, match="cannot be read"):
        Ledger.open(path, seal=SEAL)


def test_a_memoised_message_is_bound_to_its_period(path):
    with Ledger.create(path, [CLICK], minimum_period_seconds=1.0, seal=SEAL) as ledger:
        ask(ledger, "model 1"), ask(ledger, "model 2")
    database = sqlite3.connect(path)
    with database:
        database.execute("UPDATE memo SET message = (SELECT message FROM memo ORDER BY key LIMIT 1)")
    database.close()
    with Ledger.open(path, seal=SEAL) as again, pytest.raises(LedgerError, match="does not open with this key"):
        ask(again, "model 1"), ask(again, "model 2")
