"""What a device or a coordinator keeps on disk for itself alone: key files, and what is encrypted with them."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from veilrec.core.errors import VeilrecError
from veilrec.core.files import sync

KEY_BYTES = 32
_NONCE_BYTES = 12


class WrongSeal(VeilrecError):
    """Something kept does not open: another key, other content, or the content of another place."""


class Seal:
    """AES-256-GCM with a new random nonce for everything; nobody without the key can read or change it unnoticed."""

    def __init__(self, key: bytes) -> None:
        if len(key) != KEY_BYTES:
            raise ValueError(f"a key has {KEY_BYTES} bytes, not {len(key)}")
        self._cipher = AESGCM(key)

    def close(self, content: bytes, what: str) -> bytes:
        """Encrypt; `what` it is goes into the seal, so that it cannot be passed off as something else."""
        nonce = os.urandom(_NONCE_BYTES)
        return nonce + self._cipher.encrypt(nonce, content, what.encode())

    def open(self, sealed: bytes, what: str) -> bytes:
        """What was sealed as this, unchanged."""
        try:
            return self._cipher.decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], what.encode())
        except (InvalidTag, ValueError):
            raise WrongSeal(f"{what} does not open with this key: it was changed, or belongs to another key") from None


def key_in(path: Path) -> bytes:
    """The key of a file that only its owner can read; made at random where there is none yet."""
    if not path.exists():
        _write_new(path, os.urandom(KEY_BYTES))
    if path.stat().st_mode & 0o077 and os.name == "posix":
        raise VeilrecError(f"{path}: others can read this key: nothing is done with it; chmod 600 it, if nobody has")
    key = path.read_bytes()
    if len(key) != KEY_BYTES:
        raise VeilrecError(f"{path}: this is not a key: it has {len(key)} bytes, a key has {KEY_BYTES}")
    return key


def _write_new(path: Path, content: bytes) -> None:
    """Whole or not there; if somebody else was faster, theirs stays."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")  # mode 0600
    part = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileExistsError):
            os.link(part, path)
        sync(path.parent)
    finally:
        part.unlink(missing_ok=True)
