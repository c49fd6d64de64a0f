"""What is this machine, and what is not."""

from __future__ import annotations

import pytest

from veilrec.core.errors import BadInput
from veilrec.wire.signing import checked_host, is_loopback


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.3.2.1", "::1"])
def test_this_machine(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["192.168.0.1", "10.0.0.1", "::", "localhost.org", "127.0.0.1.example.org", ""])
def test_others(host: str) -> None:
    assert not is_loopback(host)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "::1", "a-b.example.org", "Coordinator_1", "9to5.example"])
def test_a_host_is_a_name_or_an_address(host: str) -> None:
    assert checked_host(host) == host


@pytest.mark.parametrize(
    "host",
    [
        *("", " ", "foo bar", "http://foo", "foo/", "foo:80", "[::1]", "a..b", "-a", "a-", "1.2.3", "999.1.1.1", "a\n"),
        *("b\u00fccher.example", "x" * 64, "fe80::1%eth0", ".".join(["x" * 60] * 5)),
    ],
)
def test_what_is_no_host_is_refused(host: str) -> None:
    with pytest.raises(BadInput, match="give"):
        checked_host(host)
