"""Who may change items: whoever knows the token in a file that only its owner can read."""

from __future__ import annotations

import hashlib
import hmac
import os
import stat
from datetime import UTC, datetime
from math import inf
from pathlib import Path

from starlette.requests import Request

from veilrec.errors import BadInput
from veilrec.server.http.receiving import Refused

_SHORTEST, _LARGEST = 16, 4096  # characters of a token; bytes of its file
_MOMENT = "expires is no time: write it as 2026-11-17T06:40:00Z, with its zone"


def read_token(path: Path) -> bytes:
    """The token in a file, which nobody but its owner may read."""
    try:
        with path.open("rb") as opened:
            mode, token = os.fstat(opened.fileno()).st_mode, opened.read(_LARGEST).strip()
    except OSError as error:
        raise BadInput(f"{path} cannot be read ({error.strerror}): give a file with the admin token") from None
    if stat.S_IMODE(mode) & 0o077:
        raise BadInput(f"{path} can be read by others: run chmod 600 {path}")
    if len(token) < _SHORTEST or not token.isascii() or any(byte <= 32 for byte in token):
        raise BadInput(f"the token in {path} is too short or has odd letters: give {_SHORTEST} or more, without spaces")
    return token


def check_token(request: Request, token: bytes | None) -> None:
    """Refuse whoever does not know the token; how long that takes tells nothing of it."""
    if token is None:
        raise Refused(403, "items cannot be changed here: start the server with --admin-token-file")
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    # Digests are of one length, so that not even the length of the token shows.
    right, told = (hashlib.sha256(text).digest() for text in (token, given.strip().encode("utf-8", "replace")))
    if not hmac.compare_digest(right, told) or scheme.lower() != "bearer":
        raise Refused(
            401, "the admin token is missing or wrong: send it as a Bearer token", [(b"www-authenticate", b"Bearer")]
        )


def check_id(name: str) -> str:
    """The id of an item: a line of text that is not too long."""
    if not 1 <= len(name) <= 200 or not name.isprintable() or name != name.strip():
        raise Refused(400, "the id of the item is not as it should be: 1 to 200 letters, no control characters")
    return name


def moment(text: str | None) -> float:
    """Seconds since 1970 of a time in RFC 3339; infinity for none."""
    if text is None:
        return inf
    try:
        when = datetime.fromisoformat(text)
        if when.tzinfo is None or "T" not in text.upper():
            raise Refused(400, _MOMENT)
        return when.astimezone(UTC).timestamp()
    except (ValueError, OverflowError):
        raise Refused(400, _MOMENT) from None
