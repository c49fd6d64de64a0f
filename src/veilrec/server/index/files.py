"""Named arrays in one file that is mapped into memory: it opens in the time that its header takes.

The file: 8 bytes `VRINDEX1`, the SHA-256 of the header, the header's length as 8 bytes, the header as JSON, then the
arrays, each from a multiple of 64 bytes on. The header says names, types, shapes, where each begins, its SHA-256, and
how long the file is. Opening checks the header and the length; `check` also reads every array.
"""

from __future__ import annotations

import hashlib
import json
import mmap
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veilrec._files import replacing
from veilrec.errors import BadInput, file_trouble

_MAGIC = b"VRINDEX1"
_START = len(_MAGIC) + 32 + 8
_ALIGNED = 64
_LONGEST_HEADER = 1 << 20
_TYPES = ("float32", "float64", "int16", "int32", "int64", "uint8", "uint32", "uint64")

Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Stored:
    """What a file holds; arrays are read from disk when they are looked at, and changes to them are never written."""

    facts: Mapping[str, Any]
    arrays: Arrays


def write_arrays(path: Path, arrays: Arrays, facts: Mapping[str, Any]) -> None:
    """Write a file that is either whole or not there."""
    listed, offset = {}, 0
    for name, array in arrays.items():
        content = np.ascontiguousarray(array)
        digest = hashlib.sha256(content.reshape(-1).view(np.uint8).data).hexdigest()
        listed[name] = {"type": str(array.dtype), "shape": array.shape, "begin": offset, "sha256": digest}
        offset = _aligned(offset + content.nbytes)
    header = json.dumps({"facts": dict(facts), "arrays": listed, "bytes": offset}, sort_keys=True).encode()
    header += b" " * (_aligned(_START + len(header)) - _START - len(header))
    with replacing(path) as part, part.open("wb") as out:
        out.write(_MAGIC + hashlib.sha256(header).digest() + len(header).to_bytes(8, "little") + header)
        for array in arrays.values():
            np.ascontiguousarray(array).tofile(out)
            out.write(bytes(_aligned(array.nbytes) - array.nbytes))


def open_arrays(path: Path, *, check: bool = False) -> Stored:
    """Map a file into memory; refused if its header or length is not what was written, with `check` any byte of it."""
    try:
        with path.open("rb") as source:
            header = _header(source.read(_START), source.read(_LONGEST_HEADER))
            size = path.stat().st_size
            begin = _START + header["length"]
            if size != begin + header["bytes"]:
                raise _damaged(path, f"{size} bytes long, {begin + header['bytes']} were written")
            memory = mmap.mmap(source.fileno(), 0, access=mmap.ACCESS_COPY)
        found = {name: _array(memory, begin, about) for name, about in header["arrays"].items()}
    except OSError as error:
        raise BadInput(file_trouble(error)) from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise _damaged(path, "its header is not what was written") from None
    for name, about in header["arrays"].items() if check else ():
        if hashlib.sha256(found[name].reshape(-1).view(np.uint8).data).hexdigest() != about["sha256"]:
            raise _damaged(path, f"{name} is not what was written")
    return Stored(header["facts"], found)


def _header(start: bytes, following: bytes) -> dict[str, Any]:
    length = int.from_bytes(start[-8:], "little")
    text = following[:length]
    digest = start[len(_MAGIC) : len(_MAGIC) + 32]
    if start[: len(_MAGIC)] != _MAGIC or len(text) != length or hashlib.sha256(text).digest() != digest:
        raise ValueError
    return {**json.loads(text), "length": length}


def _array(memory: mmap.mmap, begin: int, about: Mapping[str, Any]) -> NDArray[Any]:
    if about["type"] not in _TYPES:
        raise ValueError
    shape = tuple(about["shape"])
    return np.frombuffer(memory, about["type"], prod(shape), begin + about["begin"]).reshape(shape)


def _aligned(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED


def _damaged(path: Path, what: str) -> BadInput:
    return BadInput(f"{path} is damaged ({what}): remove it, and it is built again from the release")
