from __future__ import annotations

import subprocess
import sys

import pytest

from veilrec.core import resources
from veilrec.core.errors import BadInput


def test_a_table_may_take_half_of_the_memory_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "machine_memory", lambda: 8_000)
    resources.require_room(10, 100)
    with pytest.raises(BadInput, match="a table of 10 rows of 101 numbers takes"):
        resources.require_room(10, 101)


def test_this_machine_has_memory() -> None:
    assert resources.machine_memory() > 1 << 28


def test_the_peak_is_that_of_the_process_and_not_of_whoever_started_it() -> None:
    size = 256 << 20
    held = bytearray(b"x" * size)  # written, so that it is really held
    mine = resources.peak_rss_mb()
    say = "from veilrec.core.resources import peak_rss_mb; print(peak_rss_mb())"
    child = float(subprocess.run([sys.executable, "-c", say], capture_output=True, text=True, check=True).stdout)
    assert len(held) == size
    assert mine > 256
    assert 5 < child < 200
