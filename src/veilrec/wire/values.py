"""Numbers as bytes: single or half precision, or small integers with one scale per row.

A row of integers is `scale * q` with q from -127 to 127 (int8) or -7 to 7 (int4, two in a byte). The scale is the
upper half of a float32, rounded up, so that no q overflows.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from veilrec._arrays import Bytes, Floats
from veilrec.updates import ValueCoding

CODINGS: tuple[ValueCoding, ...] = ("float32", "float16", "int8", "int4")  # their numbers on the wire
_SCALE = 2  # bytes
_LARGEST = {"int8": 127, "int4": 7}
_MOST_HALF = np.float32(65504.0)


def row_size(coding: ValueCoding, width: int) -> int:
    """Bytes of one row."""
    if coding == "float32":
        return 4 * width
    if coding == "float16":
        return 2 * width
    return _SCALE + (width if coding == "int8" else (width + 1) // 2)


def rounded(values: Floats, coding: ValueCoding) -> Floats:
    """The rows `[..., width]` as the other side will read them; values that are not finite stay so."""
    if coding == "float32":
        return values
    if coding == "float16":
        return _to_half(values).astype(np.float32)
    rows = np.ascontiguousarray(values, dtype=np.float32).reshape(-1, values.shape[-1])
    if not rows.size:
        return rows.reshape(values.shape)
    units = _from_half_word(_scales(rows, _LARGEST[coding]))
    steps = _steps(rows, units)
    with np.errstate(over="ignore", invalid="ignore"):
        steps *= units[:, np.newaxis]
    return steps.reshape(values.shape)


def encode(values: Floats, coding: ValueCoding) -> bytes:
    """The rows `[rows, width]`, one after another; the scales of all rows come first."""
    if coding == "float32":
        return np.ascontiguousarray(values, dtype="<f4").tobytes()
    if coding == "float16":
        return _to_half(values).astype("<f2").tobytes()
    if not values.size:
        return b""
    scales = _scales(values, _LARGEST[coding])
    with np.errstate(invalid="ignore"):  # a row that is not finite has a scale that is not: it is refused when read
        steps = _steps(values, _from_half_word(scales)).astype(np.int8)
    packed = steps.tobytes() if coding == "int8" else _pack_nibbles(steps)
    return scales.astype("<u2").tobytes() + packed


def decode(content: memoryview, rows: int, width: int, coding: ValueCoding) -> Floats:
    """What `encode` made; `content` has exactly `rows * row_size` bytes."""
    if coding == "float32":
        return np.frombuffer(content, "<f4").astype(np.float32).reshape(rows, width)
    if coding == "float16":
        return np.frombuffer(content, "<f2").astype(np.float32).reshape(rows, width)
    scales = np.frombuffer(content[: _SCALE * rows], "<u2").astype(np.uint16)
    packed = np.frombuffer(content[_SCALE * rows :], np.uint8)
    steps = packed.view(np.int8).reshape(rows, width) if coding == "int8" else _nibbles(packed, rows, width)
    with np.errstate(invalid="ignore"):  # a made-up scale may be infinite: the caller checks for that
        return steps.astype(np.float32) * _from_half_word(scales)[:, np.newaxis]


def _to_half(values: Floats) -> NDArray[np.float16]:
    return np.clip(values, -_MOST_HALF, _MOST_HALF).astype(np.float16)


def _scales(values: Floats, largest: int) -> NDArray[np.uint16]:
    exact = (np.abs(values).max(axis=-1) / np.float32(largest)).astype(np.float32)
    upper: NDArray[np.uint32] = (exact.view(np.uint32) + np.uint32(0xFFFF)) >> np.uint32(16)
    return upper.astype(np.uint16)


def _from_half_word(scales: NDArray[np.uint16]) -> Floats:
    return (scales.astype(np.uint32) << np.uint32(16)).view(np.float32)


def _steps(rows: Floats, units: Floats) -> Floats:
    """How many units each value is, rounded: times the inverse, for a simulation and for a message alike.

    A unit that is 0, or so small that it has no inverse, makes a row of zeros.
    """
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        inverse = np.float32(1.0) / units
        steps: Floats = rows * inverse[:, np.newaxis]
    np.rint(steps, out=steps)
    steps[np.isinf(inverse)] = 0.0
    return steps


def _pack_nibbles(steps: NDArray[np.int8]) -> bytes:
    nibbles = (steps + np.int8(8)).view(np.uint8)
    if nibbles.shape[1] % 2:
        nibbles = np.pad(nibbles, ((0, 0), (0, 1)), constant_values=8)
    return (nibbles[:, ::2] << 4 | nibbles[:, 1::2]).tobytes()


def _nibbles(packed: Bytes, rows: int, width: int) -> NDArray[np.int8]:
    both = np.stack((packed >> 4, packed & 15), axis=-1).reshape(rows, 2 * ((width + 1) // 2))[:, :width]
    return both.astype(np.int8) - np.int8(8)
