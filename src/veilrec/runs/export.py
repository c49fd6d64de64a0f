"""Recommendations for every user of a run in one file: a row for every user and rank.

How well every single case was answered, in one file: a row for every test user, or for every impression.
"""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Callable, Iterable, Iterator
from itertools import count, islice
from pathlib import Path
from typing import TypeAlias

from veilrec.core.errors import BadInput
from veilrec.core.files import OWNER_ONLY, replacing
from veilrec.core.resources import require
from veilrec.data.population import Strings
from veilrec.evaluation.evaluator import EvaluationResult
from veilrec.runs.saved import SavedModel

Row: TypeAlias = tuple[str | int | float, ...]
_ROWS_AT_ONCE = 1 << 16


def write_everybody(model: SavedModel, out: Path, k: int) -> int:
    """Write the best items of every user to a .csv, .parquet or .jsonl file, whole or not at all; count the rows."""
    check_file(out)
    columns = ("user", "rank", "item", *(("title",) if model.titles else ()), "score")
    written = count()
    with replacing(out, mode=OWNER_ONLY) as part:
        _WRITERS[out.suffix](part, columns, (row for row, _ in zip(_rows(model, k), written, strict=False)))
    return next(written)


def check_file(out: Path, *, option: str = "--out", endings: Iterable[str] | None = None) -> None:
    """Refuse a file that cannot be written, before any work; `endings` are those that this module writes."""
    allowed = tuple(endings or _WRITERS)
    if out.suffix not in allowed:
        raise BadInput(f"{option} {out} ends in {out.suffix or 'nothing'}: give a name with {', '.join(allowed)}")
    if out.is_dir():
        raise BadInput(f"{option} {out} is a folder: give the name of a file")
    above = next(folder for folder in out.absolute().parents if folder.exists())
    if not above.is_dir() or not os.access(above, os.W_OK):
        raise BadInput(f"{option} {out} cannot be written: give a file in a folder that can")
    if out.suffix == ".parquet":
        require(f"{option} {out}", "polars")


def _rows(model: SavedModel, k: int) -> Iterator[Row]:
    ids, titles = list(model.items), model.titles and list(model.titles)
    users = model.clients.users
    for best in model.recommend_everybody(k):
        user = users[best.user]
        scores = best.scores.tolist()
        for rank, (item, score) in enumerate(zip(best.items.tolist(), scores, strict=True), 1):
            yield (user, rank, ids[item], titles[item], score) if titles else (user, rank, ids[item], score)


def _write_csv(path: Path, columns: tuple[str, ...], rows: Iterable[Row]) -> None:
    with path.open("w", encoding="utf-8", newline="") as out:
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(rows)


def _write_jsonl(path: Path, columns: tuple[str, ...], rows: Iterable[Row]) -> None:
    with path.open("w", encoding="utf-8") as out:
        for row in rows:
            out.write(json.dumps(dict(zip(columns, row, strict=True)), ensure_ascii=False) + "\n")


def _write_parquet(path: Path, columns: tuple[str, ...], rows: Iterable[Row]) -> None:
    import polars as pl

    types = {"rank": pl.Int32, "score": pl.Float32}
    schema = {name: types.get(name, pl.String) for name in columns}
    frames, left = [pl.DataFrame(schema=schema)], iter(rows)
    while some := list(islice(left, _ROWS_AT_ONCE)):
        frames.append(pl.DataFrame(some, schema=schema, orient="row"))
    pl.concat(frames).write_parquet(path)


_WRITERS: dict[str, Callable[[Path, tuple[str, ...], Iterable[Row]], None]] = {
    ".csv": _write_csv,
    ".parquet": _write_parquet,
    ".jsonl": _write_jsonl,
}


_ENDINGS = (".csv", ".parquet")


def check_per_user(path: Path) -> None:
    """Refuse a file that cannot be written, before any work."""
    check_file(path, option="--per-user", endings=_ENDINGS)
    if not path.absolute().parent.is_dir():
        raise BadInput(f"--per-user {path}: there is no folder {path.parent}; make it, or give a file in another one")


def write_per_user(path: Path, result: EvaluationResult, users: Strings) -> None:
    """Write user, case, known_items and every metric to a .csv or .parquet file, whole or not at all."""
    import polars as pl

    from veilrec.data.text_files import unpack

    check_per_user(path)
    columns = {"case": result.cases, "known_items": result.known, **result.values}
    frame = pl.DataFrame({"user": unpack(users).gather(result.users), **columns})
    with replacing(path, mode=OWNER_ONLY) as part:
        (frame.write_parquet if path.suffix == ".parquet" else frame.write_csv)(part)
