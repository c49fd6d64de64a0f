"""The one family of errors, and how they are worded: what was wrong, what is allowed, what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class VeilrecError(Exception):
    """Base of every error raised on purpose; the command line prints it as one line and exits with its code."""

    exit_code = 2


class BadInput(VeilrecError):
    """Something that the user gave (a name, a file, a value) cannot be used."""


def unknown_name(kind: str, name: str, allowed: Iterable[str]) -> BadInput:
    """Error for a name that is not in a closed list, with the nearest valid ones first."""
    names = sorted(allowed)
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    return BadInput(f"unknown {kind} {name!r}: {hint}known are {', '.join(names)}")


def bad_line(path: object, line: int, problem: str) -> BadInput:
    """Error for a malformed line of a file."""
    return BadInput(f"{path}, line {line}: {problem}")
