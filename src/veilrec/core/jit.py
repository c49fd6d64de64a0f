"""numba's decorator with types that survive it, and compiled code cached on disk; without numba, Python as it is.

numba takes a third of a second to import: a kernel asks for it when it is first called, so that commands which call
none start without it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import update_wrapper
from typing import Any, TypeVar, cast

import numpy as np

F = TypeVar("F", bound=Callable[..., Any])

# forceinline: a function that kernels call becomes part of each of them. Otherwise a process that compiles would call
# the function's own code, and one that reads the cache the kernel's copy of it, whose sums are in another order.
_OPTIONS: dict[str, Any] = {"cache": True, "nogil": True, "fastmath": True, "error_model": "numpy", "forceinline": True}


def jit(function: F) -> F:
    """Compile a kernel: cached, without the interpreter lock, sums in any order (the same in every process).

    Without numba the kernel runs as Python: the same draws, sums in the order written, hundreds of times slower.
    """
    return cast(F, Kernel(function, _OPTIONS))


def exact_jit(function: F) -> F:
    """Compile a kernel whose every operation is rounded as written: for noise and bounds that a proof rests on."""
    return cast(F, Kernel(function, _OPTIONS | {"fastmath": False}))


def compiles() -> bool:
    """Whether kernels are compiled; where they are not, whole arrays at once are faster than a kernel's loops."""
    try:
        import numba  # noqa: F401
    except ModuleNotFoundError:
        return False
    return True


class Kernel:
    """A function that is compiled, or read from the cache, when it is first called."""

    def __init__(self, function: Callable[..., Any], options: dict[str, Any]) -> None:
        update_wrapper(self, function)
        self._function = function
        self.options = options
        self._ready: Callable[..., Any] | None = None

    def __call__(self, *arguments: Any) -> Any:
        """Run the kernel."""
        if self._ready is None:
            self._ready = self._made()
        return self._ready(*arguments)

    def _made(self) -> Callable[..., Any]:
        try:
            import numba
        except ModuleNotFoundError:  # a small install: one client, one ranking
            return _plain(self._function)
        made: Callable[..., Any]
        try:
            made = numba.njit(**self.options)(self._function)
        except RuntimeError:  # neither the package's folder nor the home can be written: every process compiles anew
            made = numba.njit(**self.options | {"cache": False})(self._function)
        return made

    @property
    def _numba_type_(self) -> Any:
        """What another kernel that calls this one is compiled with; numba asks by this name."""
        from numba import types

        if self._ready is None:
            self._ready = self._made()
        return types.Dispatcher(self._ready)


def _plain(function: Callable[..., Any]) -> Callable[..., Any]:
    """Words wrap at 64 bits and divisions by zero give infinity without a word, as in compiled code."""

    def call(*arguments: Any) -> Any:
        with np.errstate(all="ignore"):
            return function(*arguments)

    return call
