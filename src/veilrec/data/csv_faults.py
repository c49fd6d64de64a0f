"""What is wrong with the rows of a delimited file: gathered by kind and told at once, with lines and values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from veilrec._arrays import Offsets
from veilrec._words import counted
from veilrec.errors import BadInput, bad_line

_EXAMPLES = 3  # of a kind of fault, each with another value
_LOOKED_AT = 1000  # faulty rows of a kind, for other values
_SHOWN_CHARACTERS = 40  # of a faulty value


@dataclass(frozen=True)
class Fault:
    """One kind of fault, and the rows that have it."""

    column: str | None  # as the file calls it; None: the line as a whole
    what: str  # "is not a number"
    lines: Offsets  # [rows], 1-based; one at least
    values: pl.Series  # [rows], as they stand in the file; of whole lines, what was found instead
    advice: str = ""

    @property
    def kind(self) -> str:
        """What it is, without any row."""
        return self.what if self.column is None else f"{self.column} {self.what}"

    def told(self) -> str:
        """One line for all rows."""
        few: dict[str | int, str] = {}  # by value, or by line where nothing stands there
        for value, line in zip(self.values[:_LOOKED_AT], self.lines[:_LOOKED_AT].tolist(), strict=True):
            few.setdefault(value or line, f"{self._shown(value)} (line {line})" if value else f"line {line}")
            if len(few) == _EXAMPLES:
                break
        return f"{self.kind}: {counted(len(self.lines), 'row')}, such as {', '.join(few.values())}{self._advice()}"

    def alone(self, path: Path) -> str:
        """The same where only one row has it, and no other fault is in the file."""
        value = self._shown(self.values[0])
        if self.column is None:
            told = f"{self.what}, {value}" if value else self.what
        else:
            told = f"{self.column} {value} {self.what}" if self.values[0] else self.kind
        return str(bad_line(path, int(self.lines[0]), told + self._advice()))

    def _shown(self, value: str) -> str:
        if self.column is None:
            return value[:_SHOWN_CHARACTERS]
        return repr(value[:_SHOWN_CHARACTERS] + ("..." if len(value) > _SHOWN_CHARACTERS else ""))

    def _advice(self) -> str:
        return f"; {self.advice}" if self.advice else ""


@dataclass(frozen=True)
class FaultyFile:
    """A file, what is wrong with it, and how many of its rows are bad or good."""

    path: Path
    faults: Sequence[Fault]
    bad_rows: int
    good_rows: int


def refusal(found: Sequence[FaultyFile]) -> BadInput:
    """The error that tells every fault of every file: a line where there is one, else a line for each kind."""
    leave_out = ", or leave such rows out with --skip-bad (`veilrec data import`)"
    if not any(file.good_rows for file in found):
        leave_out = ": no row is without a fault"
    every = [(file.path, fault) for file in found for fault in file.faults]
    if len(every) == 1 and len(every[0][1].lines) == 1:
        path, fault = every[0]
        return BadInput(f"{fault.alone(path)}; put it right{leave_out}")
    told = []
    for file in found:
        if file.faults:
            told.append(f"{file.path} has faults in {counted(file.bad_rows, 'row')}")
            told += [f"  {fault.told()}" for fault in file.faults]
    return BadInput("\n".join([*told, f"Put them right{leave_out}"]))
