"""numba's decorator with types that survive it, and compiled code cached on disk."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., Any])


def jit(function: F) -> F:
    """Compile a kernel: cached, without the interpreter lock, sums in any order (the same every run)."""
    compiled = numba.njit(cache=True, nogil=True, fastmath=True, error_model="numpy")(function)
    return cast(F, compiled)
