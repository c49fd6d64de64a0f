import json
import shutil
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.privacy.ledger_helpers import CLICK, ask, charged, spend
from veilrec.core.errors import BadInput
from veilrec.privacy import ledger_store
from veilrec.privacy.events import PureEvent
from veilrec.privacy.ledger import Ledger, LedgerError


@pytest.fixture
def ledger(path):
    return Ledger.create(path, [CLICK], minimum_period_seconds=1.0)


def test_files_are_private(ledger, path):
    spend(ledger)
    assert {file.name: oct(file.stat().st_mode & 0o777) for file in path.parent.iterdir()} == dict.fromkeys(
        ("ledger", "ledger.seq", "ledger-wal", "ledger-shm"), "0o600"
    )


def copies(path, *names):
    """Keep files as they are, and give a function that puts them back."""
    kept = {path.with_name(name): path.with_name(name).read_bytes() for name in names}

    def restore():
        for file, content in kept.items():
            file.write_bytes(content)

    return restore


def test_a_lost_journal_changes_nothing(ledger, path, tmp_path):
    ledger.close()
    ledger = Ledger.open(path)
    spend(ledger), spend(ledger)
    copied = tmp_path / "copy"
    copied.mkdir()
    for name in ("ledger", "ledger.seq"):  # but not ledger-wal, where both charges are
        shutil.copy(path.with_name(name), copied)
    with Ledger.open(copied / "ledger") as copy:
        assert not spend(copy, otherwise=b"").personal


def overwrite(path, start, content):
    with path.open("r+b") as file:
        file.seek(start)
        file.write(content)


def change(path, statement):
    with sqlite3.connect(path) as database:
        database.execute(statement)
    database.close()


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (lambda path: path.unlink(), "there is no ledger here"),
        (lambda path: path.write_bytes(b"garbage" * 1000), "cannot be used"),
        (lambda path: path.write_bytes(b""), "not a ledger"),
        (lambda path: overwrite(path, 4096, bytes(4096)), "ledger"),
        (lambda path: path.write_bytes(path.read_bytes()[:6000]), "ledger"),
        (lambda path: change(path, "PRAGMA user_version=2"), "format 2 is not the 1 that this veilrec knows"),
        (lambda path: change(path, "PRAGMA application_id=5"), "this is not a ledger"),
        (
            lambda path: change(path, """UPDATE ledger SET record = replace(record, '"messages":1', '"messages":0')"""),
            "do not belong together",
        ),
        (lambda path: path.with_name("ledger.seq").unlink(), "cannot be used"),
        (lambda path: path.with_name("ledger.seq").write_bytes(b"x" * 16384), "mirror is damaged"),
        (lambda path: path.with_name("ledger.seq").write_bytes(b""), "mirror is damaged"),
    ],
)
def test_harm_is_noticed(ledger, path, harm, message):
    spend(ledger)
    ledger.close()
    harm(path)
    with pytest.raises(LedgerError, match=message) as caught:
        Ledger.open(path)
    assert "\n" not in str(caught.value)


def test_an_older_mirror_is_refused(ledger, path):
    restore = copies(path, "ledger.seq")
    spend(ledger), spend(ledger)
    restore()
    with pytest.raises(LedgerError, match="do not belong together"):
        spend(ledger, otherwise=b"")


def test_a_mirror_that_is_one_change_behind_hides_nothing_of_what_was_spent(ledger, path):
    spend(ledger)
    restore = copies(path, "ledger.seq")
    spend(ledger)
    restore()  # as if the process had died between commit and mirror
    ledger.close()
    older = copies(path, "ledger")
    with Ledger.open(path) as again:
        assert charged(again) == 2
        assert not spend(again, otherwise=b"").personal
    older()
    with Ledger.open(path) as again:  # it is up to date, and notices an older database again
        assert charged(again) == 2


def test_a_torn_mirror_is_no_harm(ledger, path):
    spend(ledger)  # sequence 1 is in the second slot; a torn write of sequence 2 hits the first
    overwrite(path.with_name("ledger.seq"), 100, b"torn")
    assert charged(ledger) == 1
    assert spend(ledger).personal


def test_what_an_older_database_has_lost_counts_as_spent(ledger, path):
    ledger.close()
    restore = copies(path, "ledger")
    with Ledger.open(path) as other:
        ask(other)
    restore()
    with Ledger.open(path) as again:
        assert charged(again) == 1
        assert ask(again).personal  # the message was lost with the newer database: a new one is a new charge
        assert charged(again) == 2


def test_a_database_or_disk_that_cannot_be_written_releases_nothing(ledger, monkeypatch):
    def full(*_):
        raise sqlite3.OperationalError("database or disk is full")

    with monkeypatch.context() as broken:
        broken.setattr(ledger_store.Change, "memoise", full)
        with pytest.raises(LedgerError, match="disk is full"):
            ask(ledger)
    assert charged(ledger) == 0

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(ledger_store._Mirror, "write", full)
        for _ in range(2):  # as long as the mirror cannot be written
            with pytest.raises(LedgerError, match="No space left on device"):
                ask(ledger)
    first = ask(ledger)  # what was kept with its charge leaves now
    assert first.personal
    assert ask(ledger) == first
    assert charged(ledger) == 1
    assert spend(ledger).personal


def test_a_locked_ledger_releases_nothing(ledger, path):
    ledger.close()
    impatient = Ledger.open(path, lock_timeout_seconds=0.01)
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with pytest.raises(LedgerError, match="locked"):
        spend(impatient, otherwise=b"")
    holder.close()
    assert spend(impatient).personal


def test_a_ledger_is_not_carried_over_a_fork(ledger, monkeypatch):
    monkeypatch.setattr(ledger_store.os, "getpid", lambda: -1)
    with pytest.raises(LedgerError, match="opened by another process"):
        spend(ledger)


def test_creating_is_not_resetting(ledger, path):
    spend(ledger)
    with pytest.raises(LedgerError, match="there is a ledger already"):
        Ledger.create(path, [CLICK], minimum_period_seconds=1.0)
    ledger.close()
    for lose in (lambda: path.write_bytes(b""), path.unlink):
        lose()
        with pytest.raises(LedgerError, match="is gone, but what it spent stays spent"):
            Ledger.create(path, [CLICK], minimum_period_seconds=1.0)
    assert not path.exists()


def test_creating_goes_on_where_a_crash_cut_it_off(path):
    Ledger.create(path, [CLICK], minimum_period_seconds=1.0).close()
    path.unlink()  # only the mirror, with nothing spent
    assert spend(Ledger.create(path, [CLICK], minimum_period_seconds=1.0)).personal


def test_bad_ledgers(path):
    for budgets, seconds, message in (
        ([], 1.0, "give at least one"),
        ([CLICK, CLICK], 1.0, "one per unit"),
        ([CLICK], 0.0, "minimum_period_seconds"),
    ):
        with pytest.raises(BadInput, match=message):
            Ledger.create(path, budgets, minimum_period_seconds=seconds)
    assert list(path.parent.iterdir()) == []
    with pytest.raises(LedgerError, match="No such file"):
        Ledger.create(path / "ledger", [CLICK], minimum_period_seconds=1.0)


def run_program(*arguments):
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "tests.privacy.ledger_crash", *arguments]
    done = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True, timeout=300)
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_threads_share_a_budget(path):
    ledger = Ledger.create(path, [CLICK], minimum_period_seconds=1.0)
    sent = []

    def use():
        sent.extend(spend(ledger, PureEvent(0.25), otherwise=b"").personal for _ in range(4))

    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(sent) == [False] * 8 + [True] * 8


def test_processes_share_a_budget(path):
    Ledger.create(path, [CLICK], minimum_period_seconds=1.0).close()
    (result,) = run_program("race", str(path.parent), "0", "0")
    assert result["codes"] == [0] * 4
    assert sum(result["sent"]) == int(CLICK.limit / (0.05**2 / 2)) == 70


@pytest.mark.slow
def test_killed_at_random_points(path):
    trials = run_program("kill", str(path.parent), "20", "120")
    assert len(trials) == 120
    assert sum(trial["killed"] for trial in trials) >= 114
    excess = [trial["charged"] - trial["sent"] for trial in trials]
    assert min(excess) == 0, "a message left that was not charged"
    assert max(excess) == 1, "a crash cost more than one message, or none hit the gap between charge and message"
    assert all(trial["repeated"] for trial in trials), "a memoised message was drawn twice or charged twice"


def test_killed_at_any_line_a_message_that_is_kept_is_charged_once(tmp_path):
    (found,) = run_program("sweep", str(tmp_path), "0", "0")
    assert found["deaths"] > 50
    assert found["wrong"] == []
