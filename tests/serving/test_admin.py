"""The token: a file of its owner's, long enough."""

from __future__ import annotations

from math import inf
from pathlib import Path

import pytest

from veilrec.core.errors import BadInput
from veilrec.serving.app import moment, read_token
from veilrec.serving.requests import RequestRefused


def _file(path: Path, content: bytes, mode: int = 0o600) -> Path:
    path.write_bytes(content)
    path.chmod(mode)
    return path


def test_a_token_is_read(tmp_path: Path) -> None:
    assert read_token(_file(tmp_path / "token", b"0123456789abcdef\n")) == b"0123456789abcdef"


@pytest.mark.parametrize(
    ("content", "mode", "part"),
    [
        (b"0123456789abcdef", 0o640, "chmod 600"),
        (b"0123456789abcdef", 0o604, "chmod 600"),
        (b"0123456789abcde\n", 0o600, "too short"),
        (b"0123456789 abcdef", 0o600, "odd letters"),
        (b"", 0o600, "too short"),
    ],
)
def test_others_are_refused(tmp_path: Path, content: bytes, mode: int, part: str) -> None:
    with pytest.raises(BadInput, match=part):
        read_token(_file(tmp_path / "token", content, mode))


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="cannot be read"):
        read_token(tmp_path / "token")


def test_times() -> None:
    assert moment(None) == inf
    assert moment("1970-01-01T00:01:00Z") == 60.0
    assert moment("1970-01-01T01:01:00+01:00") == 60.0
    for text in ("", "x", "1970-01-01", "1970-01-01T00:00:00", "9999-99-99T00:00:00Z", "0001-01-01T00:00:00+14:00"):
        with pytest.raises(RequestRefused):
            moment(text)
