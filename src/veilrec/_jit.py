"""numba's decorator with types that survive it, and compiled code cached on disk; without numba, Python as it is."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

import numpy as np

try:
    import numba
except ModuleNotFoundError:  # a small install: one device, one ranking
    numba = None  # type: ignore[assignment]

F = TypeVar("F", bound=Callable[..., Any])

# forceinline: a function that kernels call becomes part of each of them. Otherwise a process that compiles would call
# the function's own code, and one that reads the cache the kernel's copy of it, whose sums are in another order.
_OPTIONS: dict[str, Any] = {"cache": True, "nogil": True, "fastmath": True, "error_model": "numpy", "forceinline": True}


def jit(function: F) -> F:
    """Compile a kernel: cached, without the interpreter lock, sums in any order (the same in every process).

    Without numba the kernel runs as Python: the same draws, sums in the order written, hundreds of times slower.
    """
    return _plain(function) if numba is None else cast(F, numba.njit(**_OPTIONS)(function))


def exact_jit(function: F) -> F:
    """Compile a kernel whose every operation is rounded as written: for noise and bounds that a proof rests on."""
    return _plain(function) if numba is None else cast(F, numba.njit(**_OPTIONS | {"fastmath": False})(function))


def _plain(function: F) -> F:
    """Words wrap at 64 bits and divisions by zero give infinity without a word, as in compiled code."""

    @wraps(function)
    def call(*arguments: Any) -> Any:
        with np.errstate(all="ignore"):
            return function(*arguments)

    return cast(F, call)
