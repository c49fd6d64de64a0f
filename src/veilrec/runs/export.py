"""Recommendations for every user of a run in one file: a row for every user and rank.

How well every single case was answered, in one file: a row for every test user, or for every impression.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

from veilrec.core.errors import BadInput
from veilrec.core.files import OWNER_ONLY, replacing
from veilrec.core.resources import require
from veilrec.data.population import Strings
from veilrec.evaluation.evaluator import EvaluationResult
from veilrec.runs.saved import SavedModel

_ROWS_AT_ONCE = 1 << 16
_WRITERS = {".csv": "write_csv", ".parquet": "write_parquet", ".jsonl": "write_ndjson"}  # of a data frame


def write_everybody(model: SavedModel, out: Path, k: int) -> int:
    """Write the best items of every user to a .csv, .parquet or .jsonl file, whole or not at all; count the rows."""
    import polars as pl

    check_file(out)
    types = {"rank": pl.Int32, "score": pl.Float64}
    columns = ("user", "rank", "item", *(("title",) if model.titles else ()), "score")
    schema = {name: types.get(name, pl.String) for name in columns}
    frames, rows = [pl.DataFrame(schema=schema)], _rows(model, k)
    while some := list(islice(rows, _ROWS_AT_ONCE)):
        frames.append(pl.DataFrame(some, schema=schema, orient="row"))
    frame = pl.concat(frames)
    with replacing(out, mode=OWNER_ONLY) as part:
        getattr(frame, _WRITERS[out.suffix])(part)
    return len(frame)


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
    require(f"{option} {out}", "polars")


def _rows(model: SavedModel, k: int) -> Iterator[tuple[str | int | float, ...]]:
    ids, titles = list(model.items), model.titles and list(model.titles)
    users = model.clients.users
    for best in model.recommend_everybody(k):
        user = users[best.user]
        scores = best.scores.tolist()
        for rank, (item, score) in enumerate(zip(best.items.tolist(), scores, strict=True), 1):
            yield (user, rank, ids[item], titles[item], score) if titles else (user, rank, ids[item], score)


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
        getattr(frame, _WRITERS[path.suffix])(part)
