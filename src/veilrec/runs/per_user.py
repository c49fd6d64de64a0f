"""How well every single case was answered, in one file: a row for every test user, or for every impression."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import TYPE_CHECKING

from veilrec._files import replacing
from veilrec.data.population import Strings
from veilrec.errors import BadInput
from veilrec.evaluate.evaluator import Judgement
from veilrec.runs.everybody import check_file

if TYPE_CHECKING:
    import polars as pl

_ENDINGS = (".csv", ".parquet")
_ROWS_AT_ONCE = 1 << 14


def check_per_user(path: Path) -> None:
    """Refuse a file that cannot be written, before any work."""
    check_file(path, option="--per-user", endings=_ENDINGS)
    if not path.absolute().parent.is_dir():
        raise BadInput(f"--per-user {path}: there is no folder {path.parent}; make it, or give a file in another one")


def write_per_user(path: Path, judgement: Judgement, users: Strings) -> None:
    """Write user, case, known_items and every metric to a .csv or .parquet file, whole or not at all."""
    check_per_user(path)
    with replacing(path) as part:
        if path.suffix == ".parquet":
            _frame(judgement, users).write_parquet(part)
        else:
            _write_csv(part, judgement, users)


def _frame(judgement: Judgement, users: Strings) -> pl.DataFrame:
    import polars as pl

    from veilrec.data.text_files import unpack

    columns = {"case": judgement.cases, "known_items": judgement.known, **judgement.values}
    return pl.DataFrame({"user": unpack(users).gather(judgement.users), **columns})


def _write_csv(path: Path, judgement: Judgement, users: Strings) -> None:
    columns = [judgement.cases, judgement.known, *judgement.values.values()]
    with path.open("w", encoding="utf-8", newline="") as out:
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(["user", "case", "known_items", *judgement.values])
        for start in range(0, len(judgement), _ROWS_AT_ONCE):
            rows = slice(start, start + _ROWS_AT_ONCE)
            named = (users[user] for user in judgement.users[rows].tolist())
            writer.writerows(zip(named, *(column[rows].tolist() for column in columns), strict=True))
