"""The states of a round: what is written down in which, and that nobody is locked out while others are waited for."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.server.test_secure_reports import Adding, Killed, answered, hidden, vector, votes
from veilrec.server.coordinator import Coordinator, MessageRefused
from veilrec.server.round_store import RoundState, RunPosition


def unlocked(server: Coordinator) -> None:
    """Fail if a lock or a transaction of the coordinator is held: another thread looks at it meanwhile."""
    assert not server._store._database.in_transaction
    looked = threading.Event()

    def look() -> None:
        server.history()
        server.came("messages")
        looked.set()

    threading.Thread(target=look, daemon=True).start()
    assert looked.wait(5.0)


def watched(secure: Adding, name: str, before: Callable[[], object]) -> None:
    """Call something whenever the coordinator waits for helpers or clients."""
    work = getattr(secure, name)

    def waiting(*arguments: Any) -> Any:
        before()
        return work(*arguments)

    setattr(secure, name, waiting)


def test_every_wait_for_others_is_in_its_own_state_without_a_lock_or_a_transaction(tmp_path: Path) -> None:
    plan, states = votes(), list[RoundState]()
    server, secure = hidden(tmp_path, plan)

    def look() -> None:
        states.append(server.stage)
        unlocked(server)

    watched(secure, "open", look)
    watched(secure, "total", look)
    answered(server, plan)
    assert server.count_reports()
    server.open_round()
    assert server.stage is RoundState.OPEN
    server.close_round()  # void, because nothing came: there is no sum to open
    assert states == [RoundState.REPORTING, RoundState.SUMMING_REPORTS, RoundState.OPENING]
    assert server.stage is RoundState.IDLE


def test_reports_are_refused_until_their_sum_has_begun_and_after_it(tmp_path: Path) -> None:
    plan = votes()
    server, secure = hidden(tmp_path, plan)

    def early() -> None:
        with pytest.raises(MessageRefused, match="no reports are asked for"):
            server.receive_report("device 0", vector(plan, 0))

    watched(secure, "open", early)
    watched(secure, "total", early)
    answered(server, plan)
    assert server.count_reports()


def test_killed_while_a_secure_sum_is_begun_it_begins_the_same_round_again(tmp_path: Path) -> None:
    plan = votes()
    server, secure = hidden(tmp_path, plan)
    answered(server, plan)
    assert server.count_reports()
    server.begin_round()
    assert server.stage is RoundState.OPENING
    cohort, began = server._store.cohort(), secure.open

    def kill(*_: object) -> bytes:
        raise Killed

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(secure, "open", kill)
        with pytest.raises(Killed):
            server.open_sum()
    server.close()
    assert secure.open == began
    with Coordinator(tmp_path, plan, minimum_reports=1, minimum_messages=1, secure=secure) as again:
        assert (again.stage, again.round_number) == (RoundState.OPENING, 0)
        assert again.open_round()[1] == cohort
        assert again.stage is RoundState.OPEN
    assert secure.opened[1] == secure.opened[-1]


def test_states_are_written_as_the_words_of_earlier_databases() -> None:
    found = [state.value for state in RoundState]
    assert found == ["between rounds", "asking", "counting", "opening", "open", "closing", "judged"]
    assert RunPosition.from_json('{"number": 3, "stage": "closing"}') == RunPosition(3, RoundState.CLOSING)
    steps = [RunPosition(0, state).steps for state in RoundState]
    assert steps == [0, 0, 0, 1, 1, 2, 1]
