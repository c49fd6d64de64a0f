"""veilrec: recommenders that learn from people without watching them.

`load`, `train`, `compare`, `open`, `open_device` and `audit` are the Python surface (docs/python.md); everything behind
them is imported when it is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from veilrec._version import __version__

if TYPE_CHECKING:
    from veilrec.api import Run, compare, load, open, open_device, run_audit, train

__all__ = ["Run", "__version__", "compare", "load", "open", "open_device", "run_audit", "train"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'veilrec' has no attribute {name!r}")
    from veilrec import api

    return getattr(api, name)


def __dir__() -> list[str]:
    return sorted(__all__)
