"""The one family of errors, and how they are worded: what was wrong, what is allowed, what to do.

Numbers with the things that they count.

Fields in double quotes, as people write them by hand.

What others say, so that it does nothing to a terminal.
"""

from __future__ import annotations

import difflib
import errno
import re
from collections.abc import Iterable, Sequence

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # the disk, the user's share of it, the shell's limit

_LONGEST_SAID = 300  # letters of what somebody else says
_ACTS = dict.fromkeys(
    (*range(9), *range(11, 32), *range(127, 160), *range(0x202A, 0x202F), *range(0x2066, 0x206A)), "?"
)

_FEW = 10  # names of a list that is too long to read


class VeilrecError(Exception):
    """Base of every error raised on purpose; the command line prints it as one line and exits with its code."""

    exit_code = 2


class BadInput(VeilrecError):
    """Something that the user gave (a name, a file, a value) cannot be used."""


class Diverged(BadInput):
    """Training has left all bounds with the settings that it was given."""

    exit_code = 1


def shown(text: str) -> str:
    """A text for a terminal: signs that would do something to it (all but line ends and tabs) become `?`."""
    return text.translate(_ACTS)


def said(text: object) -> str:
    """What another machine says, as a line of ours."""
    return " ".join(shown(str(text)).split())[:_LONGEST_SAID]


def known_name(kind: str, name: str, allowed: Iterable[str], *, all_by: str = "") -> str:
    """A name of a closed list as the list writes it, whatever its case; any other is refused with the nearest ones."""
    found = written_name(name, names := list(allowed))
    if found is None:
        raise unknown_name(kind, name, names, all_by=all_by)
    return found


def written_name(name: str, allowed: Iterable[str]) -> str | None:
    """A name as the list writes it, or None: FedMF and fedmf are one name, and so are dp_fedmf and dp-fedmf."""
    return next((known for known in allowed if _folded(known) == _folded(name)), None)


def unknown_name(kind: str, name: str, allowed: Iterable[str], *, all_by: str = "") -> BadInput:
    """Error for a name that is not in a closed list, with the nearest valid ones first.

    Of a long list that a command prints, `all_by`, only the first few are named beside it.
    """
    names = sorted(allowed)
    by_fold = {_folded(known): known for known in names}
    near = [by_fold[fold] for fold in difflib.get_close_matches(_folded(name), by_fold, n=3, cutoff=0.5)]
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    more = ""
    if all_by and len(names) > _FEW:
        like = difflib.get_close_matches(_folded(name), by_fold, n=_FEW, cutoff=0.0)
        more = f" and {len(names) - _FEW} more: see `{all_by}`"
        names = sorted(by_fold[fold] for fold in like)
    return BadInput(f"unknown {kind} {name!r}: {hint}known are {', '.join(names)}{more}")


def _folded(name: str) -> str:
    return name.strip().casefold().replace("_", "-")


def bad_line(path: object, line: int, problem: str) -> BadInput:
    """Error for a malformed line of a file."""
    return BadInput(f"{path}, line {line}: {problem}")


def is_full(error: OSError) -> bool:
    """Whether something could not be written for want of space."""
    return error.errno in _NO_SPACE


def file_trouble(error: OSError) -> str:
    """What a disk refused, in a line that says what to do."""
    reason = error.strerror or str(error)
    if is_full(error) and error.filename is None:
        return f"the disk cannot be written ({reason}): make room, or write to another place"
    if is_full(error):
        return (
            f"{error.filename} cannot be written ({reason}): make room, or give another place; nothing is half-written"
        )
    if error.filename is None:
        return f"{reason}: check the files and folders that were given"
    return f"{error.filename} cannot be used ({reason}): give a place that can be read and written"


def counted(count: int, thing: str, things: str | None = None) -> str:
    """1 user, 2,000 users; `things` where the plural is not made with an s."""
    return f"{count:,} {thing if count == 1 else things or thing + 's'}"


def some_of(names: Sequence[str], most: int = 5) -> str:
    """The first names of a list, and how many more there are."""
    more = [f"{len(names) - most:,} more"] if len(names) > most else []
    return ", ".join([*names[:most], *more])


def times(count: int) -> str:
    """How often: once, 2 times."""
    return "once" if count == 1 else f"{count:,} times"


def without_blanks_behind(text: str, separator: str) -> str:
    """Lines of CSV without the blanks between a closing quote and what ends its field."""
    blank, mark = "[ ]" if separator == "\t" else r"[ \t]", re.escape(separator)
    field = rf'((?:^|(?<={mark})){blank}*"[^"]*(?:""[^"]*)*"){blank}*(?={mark}|$)'
    return re.sub(field, r"\1", text, flags=re.MULTILINE)
