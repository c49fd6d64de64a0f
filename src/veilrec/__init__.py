"""veilrec: federated recommendation with differential privacy.

The Python API is described in docs/python.md; everything behind it is imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from veilrec._version import __version__

if TYPE_CHECKING:
    from veilrec.api import Run, compare, load, open, open_client, run_audit, train

__all__ = ["Run", "__version__", "compare", "load", "open", "open_client", "run_audit", "train"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'veilrec' has no attribute {name!r}")
    from veilrec import api

    return getattr(api, name)


def __dir__() -> list[str]:
    return sorted(__all__)
