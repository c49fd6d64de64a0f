from __future__ import annotations

from veilrec.core.errors import counted, times


def test_one_is_not_many() -> None:
    assert [counted(n, "user") for n in (0, 1, 2, 12_000)] == ["0 users", "1 user", "2 users", "12,000 users"]
    assert [counted(n, "entry", "entries") for n in (1, 2)] == ["1 entry", "2 entries"]
    assert [times(n) for n in (1, 2, 1500)] == ["once", "2 times", "1,500 times"]
