"""numba's decorator with types that survive it, and compiled code cached on disk."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numba

F = TypeVar("F", bound=Callable[..., Any])


def jit(function: F) -> F:
    """Compile a kernel: cached, without the interpreter lock, free to reorder float sums (never across runs)."""
    compiled: F = numba.njit(cache=True, nogil=True, fastmath=True, error_model="numpy")(function)
    return compiled
