"""What is wrong with the lines of a file of JSON: gathered and told at once, each with its line."""

from __future__ import annotations

from pathlib import Path

from veilrec._words import counted
from veilrec.errors import BadInput, bad_line

_SHOWN = 10  # lines


class LineFaults:
    """The faults of a file, of each line the first that was found."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._found: dict[int, str] = {}  # by line

    def add(self, line: int, problem: str) -> None:
        """Keep what is wrong with a line."""
        self._found.setdefault(line, problem)

    def refuse(self) -> None:
        """Raise if there are any: a line where there is one, else a line for each of the first."""
        if len(self._found) == 1:
            raise bad_line(self._path, *next(iter(self._found.items())))
        if self._found:
            told = [f"  line {line}: {self._found[line]}" for line in sorted(self._found)[:_SHOWN]]
            more = [f"  and {len(self._found) - _SHOWN:,} more"] if len(self._found) > _SHOWN else []
            raise BadInput("\n".join([f"{self._path} has faults in {counted(len(self._found), 'line')}", *told, *more]))
