"""What the shell completes: names that start with what was typed."""

from __future__ import annotations


def method_names(typed: str) -> list[str]:
    """Methods to train."""
    from veilrec.methods.registry import METHODS

    return [name for name in METHODS if name.startswith(typed)]


def data_names(typed: str) -> list[str]:
    """Data sets."""
    from veilrec.data.registry import DATASETS

    return [name for name in DATASETS if name.startswith(typed)]


def protocol_names(typed: str) -> list[str]:
    """Ways to evaluate."""
    from veilrec.evaluate.protocols import PROTOCOLS

    return [name for name in PROTOCOLS if name.startswith(typed)]
