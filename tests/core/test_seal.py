from __future__ import annotations

from pathlib import Path

import pytest

from veilrec.core.errors import VeilrecError
from veilrec.core.files import Seal, WrongSeal, key_in

KEY = bytes(range(32))


def test_what_is_sealed_opens_as_what_it_is_and_as_nothing_else() -> None:
    seal = Seal(KEY)
    sealed = seal.close(b"content", "outbox")
    assert seal.open(sealed, "outbox") == b"content"
    assert b"content" not in sealed
    changed = sealed[:-1] + bytes([sealed[-1] ^ 1])
    for key, content, what in ((KEY, sealed, "private"), (bytes(32), sealed, "outbox"), (KEY, changed, "outbox")):
        with pytest.raises(WrongSeal, match="does not open with this key"):
            Seal(key).open(content, what)
    for short in (b"", sealed[:11], sealed[:20]):
        with pytest.raises(WrongSeal):
            seal.open(short, "outbox")


def test_nothing_is_sealed_twice_in_the_same_way() -> None:
    seal = Seal(KEY)
    assert len({seal.close(b"content", "outbox") for _ in range(100)}) == 100


def test_a_key_has_32_bytes() -> None:
    with pytest.raises(ValueError, match="a key has 32 bytes, not 16"):
        Seal(bytes(16))


def test_a_key_file_is_made_once_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "key"
    key = key_in(path)
    assert key_in(path) == key
    assert len(key) == 32
    assert key != key_in(tmp_path / "other")
    assert oct(path.stat().st_mode & 0o777) == "0o600"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["key", "other"]


def test_a_key_file_that_is_no_key_or_that_others_can_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "key"
    key_in(path)
    path.chmod(0o644)
    with pytest.raises(VeilrecError, match="others can read this key"):
        key_in(path)
    path.chmod(0o600)
    path.write_bytes(b"x")
    with pytest.raises(VeilrecError, match="it has 1 bytes, a key has 32"):
        key_in(path)
