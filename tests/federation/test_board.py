"""What is asked of whom: parts of their own, and notes that come late."""

from __future__ import annotations

import hashlib

from veilrec.federation.coordinator.aggregation import TaskBoard


def test_everybody_gets_what_is_for_all_and_behind_it_their_own() -> None:
    board = TaskBoard()
    board.publish("share", 3, ["a", "b"], content=b"all", own={"a": b"first"}, seconds=10.0)
    for name, whole in (("a", b"allfirst"), ("b", b"all")):
        task = board.task_for(name)
        assert task is not None
        assert (task.kind, task.number, task.size) == ("share", 3, len(whole))
        assert task.sha256 == hashlib.sha256(whole).hexdigest()
        assert board.content(name, task.sha256) == whole
    others = hashlib.sha256(b"allfirst").hexdigest()
    assert board.content("b", others) is None
    assert board.content("c", others) is None
    board.withdraw()
    assert board.task_for("a") is None
    assert board.content("a", others) is None


def test_a_task_without_content_has_none() -> None:
    board = TaskBoard()
    board.publish("report", 0, ["a"], seconds=10.0)
    task = board.task_for("a")
    assert task is not None
    assert (task.sha256, task.size) == ("", 0)
    assert board.content("a", "") is None


def test_an_answer_that_is_noted_late_does_not_count_for_the_next_task() -> None:
    board = TaskBoard()
    board.publish("advertise", 0, ["a"], seconds=10.0)
    board.publish("share", 0, ["a"], seconds=10.0)
    board.note("a", "advertise", 0)
    assert board.task_for("a") is not None
    board.note("a", "share", 0)
    assert board.task_for("a") is None
