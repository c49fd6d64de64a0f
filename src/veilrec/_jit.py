"""numba's decorator with types that survive it, and compiled code cached on disk."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., Any])

# forceinline: a function that kernels call becomes part of each of them. Otherwise a process that compiles would call
# the function's own code, and one that reads the cache the kernel's copy of it, whose sums are in another order.
_OPTIONS: dict[str, Any] = {"cache": True, "nogil": True, "fastmath": True, "error_model": "numpy", "forceinline": True}


def jit(function: F) -> F:
    """Compile a kernel: cached, without the interpreter lock, sums in any order (the same in every process)."""
    return cast(F, numba.njit(**_OPTIONS)(function))
