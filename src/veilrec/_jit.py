"""numba's decorator with types that survive it, and compiled code cached on disk."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., Any])

_OPTIONS: dict[str, Any] = {"cache": True, "nogil": True, "fastmath": True, "error_model": "numpy"}


def jit(function: F) -> F:
    """Compile a kernel: cached, without the interpreter lock, sums in any order (the same every run)."""
    return cast(F, numba.njit(**_OPTIONS)(function))


def jit_inline(function: F) -> F:
    """The same for a few lines of an inner loop: they become part of whatever kernel calls them."""
    return cast(F, numba.njit(forceinline=True, **_OPTIONS)(function))
