"""The keys by which a link of Flower knows its nodes: EC P-384, beside a device's own.

They open the door of the link and nothing else: who a device is says its own key (`identity`).
"""

from __future__ import annotations

import os
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

KEY = "flower.key"


def node_key(folder: Path) -> Path:
    """The key of a device's folder, made when it is first needed; its public half lies beside it."""
    path = folder / KEY
    if not path.exists():
        key = ec.generate_private_key(ec.SECP384R1())
        public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
        public_half(folder).write_bytes(public)
        secret = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
        )
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as out:
            out.write(secret)
    return path


def public_half(folder: Path) -> Path:
    """What is registered at a link."""
    return folder / f"{KEY}.pub"
