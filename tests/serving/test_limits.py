"""How often one address may ask."""

from __future__ import annotations

from veilrec.serving.middleware import RateLimit


def test_a_burst_then_the_rate() -> None:
    limit = RateLimit(10.0)
    assert [limit.wait("a", 100.0) for _ in range(20)] == [0] * 20
    assert limit.wait("a", 100.0) == 1
    assert limit.wait("b", 100.0) == 0
    assert limit.wait("a", 100.11) == 0
    assert limit.wait("a", 100.11) == 1


def test_a_slow_rate_says_how_long() -> None:
    limit = RateLimit(0.1)
    assert limit.wait("a", 5.0) == 0
    assert limit.wait("a", 5.0) == 10
    assert limit.wait("a", 15.1) == 0


def test_no_limit() -> None:
    limit = RateLimit(0.0)
    assert not any(limit.wait("a", 1.0) for _ in range(1000))
    assert len(limit) == 0


def test_the_table_is_bounded_and_forgets() -> None:
    limit = RateLimit(1.0, most=50)
    for number in range(500):
        limit.wait(f"10.0.0.{number}", 10.0)
        assert len(limit) <= 50
    limit.wait("new", 20.0)
    assert len(limit) == 1


def test_one_household_of_the_new_internet_is_one_address() -> None:
    limit = RateLimit(1.0)
    assert [limit.wait(f"2001:db8::{number:x}", 1.0) for number in range(4)] == [0, 0, 1, 1]
    assert limit.wait("2001:db8:0:1::1", 1.0) == 0
    assert limit.wait("::ffff:192.0.2.1", 1.0) == 0
    assert limit.wait("::ffff:192.0.2.2", 1.0) == 0
