from __future__ import annotations

import pytest

from veilrec import _memory
from veilrec.errors import BadInput


def test_a_table_may_take_half_of_the_memory_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_memory, "machine_memory", lambda: 8_000)
    _memory.require_room(10, 100)
    with pytest.raises(BadInput, match="a table of 10 rows of 101 numbers takes"):
        _memory.require_room(10, 101)


def test_this_machine_has_memory() -> None:
    assert _memory.machine_memory() > 1 << 28
