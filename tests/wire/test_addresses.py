"""What is this machine, and what is not."""

from __future__ import annotations

import pytest

from veilrec.wire.addresses import is_loopback


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.3.2.1", "::1"])
def test_this_machine(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["192.168.0.1", "10.0.0.1", "::", "localhost.org", "127.0.0.1.example.org", ""])
def test_others(host: str) -> None:
    assert not is_loopback(host)
