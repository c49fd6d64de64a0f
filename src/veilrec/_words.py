"""Numbers with the things that they count."""

from __future__ import annotations


def counted(count: int, thing: str, things: str | None = None) -> str:
    """1 user, 2,000 users; `things` where the plural is not made with an s."""
    return f"{count:,} {thing if count == 1 else things or thing + 's'}"


def times(count: int) -> str:
    """How often: once, 2 times."""
    return "once" if count == 1 else f"{count:,} times"
