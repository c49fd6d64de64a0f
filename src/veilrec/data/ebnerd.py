"""EB-NeRD, news impressions of Ekstra Bladet: two parquet files each in train/ and validation/.

    behaviors: impression_id, user_id, impression_time, article_ids_inview (shown), article_ids_clicked
    history:   user_id, article_id_fixed (read before the split began, oldest first)
    articles:  article_id, title, subtitle, category_str; the file lies beside the folders and may be missing

"validation" becomes "dev".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from veilrec.core.arrays import Indices
from veilrec.core.csr import Csr, offsets_of
from veilrec.core.errors import BadInput
from veilrec.data.impression_logs import count_facts, interactions_of, labels, refuse_unlearnable
from veilrec.data.population import Impressions, ItemTable, Population
from veilrec.data.text_files import encode_together, find_file, find_optional, pack, rows_of

_BEHAVIOURS = ("impression_id", "user_id", "impression_time", "article_ids_inview", "article_ids_clicked")
_HISTORY = ("user_id", "article_id_fixed")
_ARTICLES = ("article_id", "title", "subtitle", "category_str")


@dataclass(frozen=True)
class _Split:
    """The two files of a split, with ids still as they are in the files."""

    behaviours: pl.DataFrame
    histories: pl.Series  # lists, one per distinct history; the first is empty
    history_of: Indices  # [impressions]
    duplicates: int

    def id_columns(self) -> list[pl.Series]:
        """Article ids: shown, clicked, in histories."""
        lists = (self.behaviours["article_ids_inview"], self.behaviours["article_ids_clicked"], self.histories)
        return [column.explode().drop_nulls() for column in lists]

    def impressions(
        self, users: Indices, shown: Indices, clicked: Indices, histories: Indices
    ) -> tuple[Impressions, int]:
        """Impressions with codes in place of ids, and how many clicks went to articles that were not shown."""
        rows = Csr(offsets_of(self.behaviours["article_ids_inview"].list.len()), shown)
        clicks = Csr(offsets_of(self.behaviours["article_ids_clicked"].list.len()), clicked)
        times = self.behaviours["impression_time"].dt.epoch("s").to_numpy()
        past = Csr(offsets_of(self.histories.list.len()), histories)
        part = Impressions(users, times, rows, labels(rows, clicks), past, self.history_of)
        return part, int((labels(clicks, rows) == 0).sum())


def read(folder: Path) -> Population:
    """Read EB-NeRD from a folder with train/ and validation/, or from one with the files of a split."""
    splits = {split: _read_split(path) for split, path in _find_splits(folder).items()}
    articles = _read_articles(folder)
    user_codes, users = encode_together([part.behaviours["user_id"] for part in splits.values()])
    known = [] if articles is None else [articles["article_id"]]
    codes, items = encode_together([*known, *(column for part in splits.values() for column in part.id_columns())])
    codes = codes[len(known) :]
    impressions, not_shown = {}, 0
    for k, (split, part) in enumerate(splits.items()):
        impressions[split], missed = part.impressions(user_codes[k], *codes[3 * k : 3 * k + 3])
        not_shown += missed
    facts = {
        **count_facts(impressions),
        "duplicates_merged": sum(part.duplicates for part in splits.values()),
        "clicks_on_articles_not_shown": not_shown,
    }
    unlisted = len(items) - (0 if articles is None else len(articles))
    if articles is not None:
        facts["news_without_text"] = unlisted
    refuse_unlearnable(folder, items, facts["clicks"])
    catalogue = None if articles is None else _catalogue(rows_of(items, articles, "article_id"))
    log = interactions_of(impressions, len(users))
    return Population("ebnerd", users, items, log, impressions, catalogue, facts, unlisted_items=unlisted)


def _find_splits(folder: Path) -> dict[str, Path]:
    if find_optional(folder, "behaviors.parquet"):
        return {"train": folder}
    validation = folder / "validation"
    return {"train": folder / "train", **({"dev": validation} if validation.is_dir() else {})}


def _read_split(folder: Path) -> _Split:
    path = find_file(folder, "behaviors.parquet")
    behaviours = _read_columns(path, _BEHAVIOURS)
    if not len(behaviours):
        raise BadInput(f"{path} has no rows: at least one impression is needed")
    _refuse_nulls(path, behaviours, ("user_id", "impression_time", "article_ids_inview"))
    _refuse_types(path, behaviours, "impression_time", pl.Datetime, "a timestamp")
    for name in ("article_ids_inview", "article_ids_clicked"):
        _refuse_types(path, behaviours, name, pl.List, "a list")
    distinct = behaviours.unique(["impression_id", "user_id"], keep="first", maintain_order=True)
    distinct = distinct.with_columns(_without_nulls(name) for name in ("article_ids_inview", "article_ids_clicked"))
    if (distinct["article_ids_inview"].list.len() == 0).any():
        row = int((distinct["article_ids_inview"].list.len() == 0).arg_max() or 0)
        raise BadInput(f"{path}: impression {distinct['impression_id'][row]} shows no article")

    history_path = find_file(folder, "history.parquet")
    history = _read_columns(history_path, _HISTORY)
    _refuse_types(history_path, history, "article_id_fixed", pl.List, "a list")
    history = history.unique("user_id", keep="first", maintain_order=True).with_columns(
        _without_nulls("article_id_fixed")
    )
    empty = pl.Series([[]], dtype=history["article_id_fixed"].dtype)
    numbers = history.select("user_id", row=pl.int_range(1, len(history) + 1, dtype=pl.Int32))
    rows = distinct.select("user_id").join(numbers, on="user_id", how="left", maintain_order="left")["row"]
    return _Split(
        distinct,
        pl.concat([empty, history["article_id_fixed"]]),
        rows.fill_null(0).to_numpy(),
        len(behaviours) - len(distinct),
    )


def _without_nulls(name: str) -> pl.Expr:
    return pl.col(name).fill_null([]).list.drop_nulls()


def _read_articles(folder: Path) -> pl.DataFrame | None:
    path = find_optional(folder, "articles.parquet")
    if path is None:
        return None
    articles = _read_columns(path, _ARTICLES)
    _refuse_nulls(path, articles, ("article_id",))
    return articles.unique("article_id", keep="first", maintain_order=True)


def _read_columns(path: Path, names: Sequence[str]) -> pl.DataFrame:
    try:
        found = pl.read_parquet_schema(path)
        missing = [name for name in names if name not in found]
        if missing:
            raise BadInput(
                f"{path} has no column {', '.join(missing)}: expected are {', '.join(names)} "
                "(files without clicks, like the test split, cannot be used)"
            )
        return pl.read_parquet(path, columns=list(names))
    except (pl.exceptions.PolarsError, OSError) as error:
        raise BadInput(f"{path} is not a whole parquet file ({str(error).splitlines()[0]}): get it again") from None


def _refuse_nulls(path: Path, frame: pl.DataFrame, names: Sequence[str]) -> None:
    for name in names:
        if frame[name].has_nulls():
            raise BadInput(f"{path}, row {int(frame[name].is_null().arg_max() or 0) + 1}: {name} is missing")


def _refuse_types(path: Path, frame: pl.DataFrame, name: str, wanted: type[pl.DataType], kind: str) -> None:
    if not isinstance(frame[name].dtype, wanted):
        raise BadInput(f"{path}: {name} must be {kind}, found {frame[name].dtype}")


def _catalogue(articles: pl.DataFrame) -> ItemTable:
    title, subtitle, category = (pack(articles[name]) for name in ("title", "subtitle", "category_str"))
    return ItemTable(title, category, abstracts=subtitle)
