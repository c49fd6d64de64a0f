"""A keyed fingerprint of what a run trains on: noise that was drawn for some data is never put on other data.

A run that goes on draws the noise of its rounds again. On data that differ by one person, the same noise would leave
two models that differ by that person's items and by nothing else. The fingerprint is over all that training reads: the
population with its ids, features, catalogue and impressions, the split, what clients hold, the first weights, and
the file of a method that is not installed. Settings are compared by `config.yaml`.

It is itself a statement about the data. So it is keyed with random bytes and with the secret of the run's noise, lies
in the folder `private/`, for its owner alone, and is in nothing that is ever shared.
"""

from __future__ import annotations

import hmac
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from veilrec.core.errors import BadInput
from veilrec.core.files import KEY_BYTES, OWNER_ONLY, write_text
from veilrec.data.population import Strings
from veilrec.methods.registry import code_of
from veilrec.runs.checkpoint import PRIVATE
from veilrec.simulation.simulation import Simulation

if TYPE_CHECKING:
    from veilrec.runs.request import PreparedRun

_FILE = "fingerprint.json"
_DEEPEST = 12  # objects within objects; data is far shallower


def keep_fingerprint(folder: Path, prepared: PreparedRun) -> None:
    """Write the fingerprint of a new run."""
    salt = os.urandom(KEY_BYTES)
    content = {"salt": salt.hex(), "secret": _of_secret(prepared, salt), "data": _of_data(prepared, salt)}
    write_text(folder / PRIVATE / _FILE, json.dumps(content) + "\n", mode=OWNER_ONLY)


def check_fingerprint(folder: Path, prepared: PreparedRun) -> None:
    """Refuse to go on with a run on other data, or with another secret, than it began with."""
    path = folder / PRIVATE / _FILE
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        salt, secret, data = bytes.fromhex(content["salt"]), str(content["secret"]), str(content["data"])
    except OSError as error:
        raise BadInput(f"{path} cannot be read ({error.strerror}): bring it back, or train into a new folder") from None
    except (ValueError, KeyError, TypeError):
        raise BadInput(f"{path} is damaged: bring it back, or train into a new folder") from None
    if not hmac.compare_digest(_of_secret(prepared, salt), secret):
        raise BadInput(f"cannot resume {folder} with another secret than its own: its noise would be drawn twice")
    if not hmac.compare_digest(_of_data(prepared, salt), data):
        raise BadInput(
            f"cannot resume {folder}: its data, or how they are read, have changed since it began, and the same noise"
            " on other data would give away the difference; bring the data back, or train into a new folder"
        )


def _of_secret(prepared: PreparedRun, salt: bytes) -> str:
    return hmac.digest(salt, b"secret\n" + (prepared.secret or b""), "sha256").hex()


def _of_data(prepared: PreparedRun, salt: bytes) -> str:
    """Fingerprint of all that training reads."""
    total = hmac.new(salt + (prepared.secret or b""), b"data\n", "sha256")
    read: list[Any] = [
        prepared.population,
        prepared.split,
        replace(prepared.problem, rounds=0),  # a run may be made longer where its noise does not depend on that
        None if prepared.plan is None else prepared.plan.start,
        prepared.trainer.data if isinstance(prepared.trainer, Simulation) else None,
        code_of(prepared.request.method),
    ]
    for piece in _pieces(read):
        total.update(piece)
    return total.hexdigest()


def _pieces(value: Any, depth: int = 0) -> Iterator[bytes | memoryview]:
    """Bytes that are others for another value: its kind and size come before what it holds."""
    if isinstance(value, np.ndarray):
        whole = np.ascontiguousarray(value)
        yield f"array:{whole.dtype.str}:{whole.shape};".encode()
        yield whole.reshape(-1).view(np.uint8).data
    elif isinstance(value, Strings):
        yield from _pieces([value.offsets, value.data], depth + 1)
    elif isinstance(value, str | bytes):
        content = value.encode() if isinstance(value, str) else value
        yield f"{type(value).__name__}:{len(content)};".encode()
        yield content
    elif isinstance(value, Mapping):
        yield f"mapping:{len(value)};".encode()
        for key in value:
            yield from _pieces([key, value[key]], depth + 1)
    elif isinstance(value, Sequence):
        yield f"sequence:{len(value)};".encode()
        for part in value:
            yield from _pieces(part, depth + 1)
    elif is_dataclass(value) and depth < _DEEPEST:
        parts = {field.name: getattr(value, field.name) for field in fields(value)}
        yield f"{type(value).__qualname__};".encode()
        yield from _pieces(parts, depth + 1)
    elif value is None or isinstance(value, bool | int | float | np.generic):
        yield f"{type(value).__name__}:{value!r};".encode()
    else:
        yield f"object:{type(value).__qualname__};".encode()
