"""Arrays in a safetensors file, read one by one and into their place: a state may be gigabytes.

The library's own functions map the whole file and copy every array out of it: three times the memory.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open

from veilrec.core.errors import BadInput

_PIECE = 1 << 16  # bytes that are read at once
State = Mapping[str, NDArray[Any]]
SAFETENSORS_TYPES = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "|i1",
    "U64": "<u8",
    "U32": "<u4",
    "U16": "<u2",
    "U8": "|u1",
    "BOOL": "|b1",
}


@dataclass(frozen=True)
class _Part:
    """Where an array lies."""

    path: Path
    start: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]


class StoredState(Mapping[str, NDArray[Any]]):
    """The arrays of a file, each read when it is asked for, and its metadata."""

    def __init__(self, path: Path) -> None:
        with safe_open(path, framework="numpy") as checked:  # refuses a header that does not fit the file
            self.metadata: dict[str, str] = checked.metadata() or {}
        self._parts = _parts_of(path)

    def __getitem__(self, name: str) -> NDArray[Any]:
        part = self._parts[name]
        array = np.empty(part.shape, part.dtype)
        self.read_into(name, array)
        return array

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)

    def read_into(self, name: str, target: NDArray[Any]) -> None:
        """Fill a contiguous array of the same type and shape."""
        part = self._parts[name]
        if (target.shape, target.dtype) != (part.shape, part.dtype):
            raise ValueError(
                f"{name} has shape {part.shape} of {part.dtype} there, and {target.shape} of {target.dtype} here"
            )
        with part.path.open("rb") as source:
            source.seek(part.start)
            if source.readinto(target.reshape(-1).view(np.uint8).data) != target.nbytes:
                raise BadInput(f"{part.path} became shorter while it was read: remove it and resume again")

    def in_pieces(self, name: str) -> tuple[np.dtype[Any], tuple[int, ...], Iterator[bytes]]:
        """Type, shape and bytes of an array, some at a time."""
        part = self._parts[name]
        return part.dtype, part.shape, self._pieces(part)

    def _pieces(self, part: _Part) -> Iterator[bytes]:
        left = part.dtype.itemsize * math.prod(part.shape)
        with part.path.open("rb") as source:
            source.seek(part.start)
            while left > 0 and (piece := source.read(min(left, _PIECE))):
                left -= len(piece)
                yield piece


def fill(target: NDArray[Any], state: State, name: str) -> None:
    """Copy an array of a state into its place; straight from the file where the state is stored."""
    if isinstance(state, StoredState) and target.flags.c_contiguous:
        state.read_into(name, target)
    else:
        target[...] = state[name]


def in_pieces(state: State, name: str) -> tuple[np.dtype[Any], tuple[int, ...], Iterator[bytes | memoryview]]:
    """Type, shape and bytes of an array of a state; from a file some at a time."""
    if isinstance(state, StoredState):
        return state.in_pieces(name)
    array = np.ascontiguousarray(state[name])
    return array.dtype, array.shape, iter((array.reshape(-1).data,))


def _parts_of(path: Path) -> dict[str, _Part]:
    with path.open("rb") as source:
        header = json.loads(source.read(int.from_bytes(source.read(8), "little")))
        start = source.tell()
    header.pop("__metadata__", None)
    return {
        name: _Part(
            path, start + part["data_offsets"][0], tuple(part["shape"]), np.dtype(SAFETENSORS_TYPES[part["dtype"]])
        )
        for name, part in header.items()
    }
