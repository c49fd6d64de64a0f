"""MIND, the Microsoft News data set: `behaviors.tsv` and `news.tsv`, in one folder for train and one for dev.

    behaviors: impression id, user, time, history (ids), candidates (ids with -1 clicked or -0 not)
    news:      id, category, subcategory, title, abstract, URL, title entities, abstract entities (JSON)

Columns are separated by tabs. `entity_embedding.vec` (an entity id and its vector) is read where it is there.
What is written is the same, without vectors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from veilrec.core.arrays import Bytes, Floats, Indices, Offsets
from veilrec.core.csr import Csr, offsets_of
from veilrec.core.errors import BadInput, bad_line
from veilrec.core.files import new_folder
from veilrec.data.impression_logs import count_facts, interactions_of, refuse_unlearnable
from veilrec.data.population import Impressions, ItemTable, Population, Strings
from veilrec.data.text_files import (
    TextTable,
    blanks,
    encode_together,
    find_file,
    find_optional,
    pack,
    read_table,
    read_text,
    rows_of,
    unpack,
)

_BEHAVIOUR_COLUMNS = ("impression_id", "user", "time", "history", "candidates")
_NEWS_COLUMNS = ("id", "category", "subcategory", "title", "abstract", "url", "title_entities", "abstract_entities")
_READ_TIME = "%m/%d/%Y %I:%M:%S %p"
_SPLITS = ("train", "dev")
_ROWS_AT_ONCE = 50_000  # impressions in memory as text
_WRITTEN_TIME = "%-m/%-d/%Y %-I:%M:%S %p"


@dataclass(frozen=True)
class _Behaviours:
    """One behaviors.tsv, with ids still in text."""

    users: pl.Series  # [impressions]
    times: Offsets  # [impressions]
    shown_offsets: Offsets  # [impressions + 1]
    shown: pl.Series  # [shown]
    clicked: Bytes  # [shown]
    history_offsets: Offsets  # [distinct histories + 1]
    histories: pl.Series  # [items of distinct histories]
    history_of: Indices  # [impressions]
    duplicates: int

    def impressions(self, users: Indices, shown: Indices, histories: Indices) -> Impressions:
        """Impressions with codes in place of ids."""
        return Impressions(
            users,
            self.times,
            Csr(self.shown_offsets, shown),
            self.clicked,
            Csr(self.history_offsets, histories),
            self.history_of,
        )


def read(folder: Path) -> Population:
    """Read MIND from a folder with train/ and dev/ (or names that end so), or from one with both files."""
    folders = _find_splits(folder)
    behaviours = {split: _read_behaviours(find_file(path, "behaviors.tsv")) for split, path in folders.items()}
    news = pl.concat([_read_news(find_file(path, "news.tsv")) for path in folders.values()])
    news = news.unique("id", keep="first", maintain_order=True)

    user_codes, users = encode_together([part.users for part in behaviours.values()])
    shown = [part.shown for part in behaviours.values()]
    histories = [part.histories for part in behaviours.values()]
    (_, *item_codes), items = encode_together([news["id"], *shown, *histories])
    impressions = {
        split: part.impressions(user_codes[k], item_codes[k], item_codes[len(behaviours) + k])
        for k, (split, part) in enumerate(behaviours.items())
    }
    parts = impressions.values()
    unknown = ~unpack(items).is_in(news["id"].implode()).to_numpy()
    facts = {
        **count_facts(impressions),
        "news_without_text": int(unknown.sum()),
        "unknown_candidates": sum(int(unknown[part.shown.items].sum()) for part in parts),
        "unknown_in_histories": sum(int(unknown[part.histories.items].sum()) for part in parts),
        "duplicates_merged": sum(part.duplicates for part in behaviours.values()),
    }
    refuse_unlearnable(folder, items, facts["clicks"])
    return Population(
        "mind",
        users,
        items,
        interactions_of(impressions, len(users)),
        impressions,
        _catalogue(rows_of(items, news, "id"), _read_entity_vectors(folders)),
        facts,
        unlisted_items=facts["news_without_text"],
    )


def _find_splits(folder: Path) -> dict[str, Path]:
    """The folders of "train" and "dev" in or below a folder; exactly one data set must be there."""
    found = _data_sets(folder)
    if not found and folder.is_dir():
        for child in sorted(path for path in folder.iterdir() if path.is_dir()):
            found |= _data_sets(child)
    if not found:
        find_file(folder, "behaviors.tsv")  # raises, and says what is expected where
    if len(found) > 1:
        raise BadInput(f"{folder} holds {len(found)} data sets: name one of {', '.join(sorted(found))}")
    ((name, splits),) = found.items()
    if "train" not in splits:
        raise BadInput(f"{name} has dev but no train: put a folder train/ with behaviors.tsv and news.tsv beside it")
    return {split: splits[split] for split in _SPLITS if split in splits}


def _data_sets(folder: Path) -> dict[str, dict[str, Path]]:
    """Data sets right in a folder: both files, or children whose names are or end in train and dev."""
    if find_optional(folder, "behaviors.tsv"):
        return {str(folder): {"train": folder}}
    found: dict[str, dict[str, Path]] = {}
    for child in sorted(folder.iterdir()) if folder.is_dir() else ():
        for split in _SPLITS:
            named = child.name == split or child.name.endswith(f"_{split}")
            if named and find_optional(child, "behaviors.tsv"):
                stem = child.name.removesuffix(split).removesuffix("_")
                found.setdefault(str(folder / stem), {})[split] = child
    return found


def _read_behaviours(path: Path) -> _Behaviours:
    table = read_table(path, _BEHAVIOUR_COLUMNS, separator="\t")
    times = _read_times(table)
    table.text("user")
    table.text("candidates")
    frame = table.frame.with_columns(time=times, row=np.arange(len(table), dtype=np.int64))
    frame = frame.unique(["user", "time", "history", "candidates"], keep="first", maintain_order=True)

    shown_lists = frame["candidates"].str.split(" ")
    marked = shown_lists.explode()
    offsets = offsets_of(shown_lists.list.len())
    clicked = marked.str.ends_with("-1") & (marked.str.len_bytes() > 2)
    faulty = ~clicked & ~(marked.str.ends_with("-0") & (marked.str.len_bytes() > 2))
    if faulty.any():
        place = int(faulty.arg_max() or 0)
        row = int(np.searchsorted(offsets, place, side="right")) - 1
        raise table.error(int(frame["row"][row]), _label_fault(marked[place]))

    histories = frame["history"].unique(maintain_order=True)
    numbers = pl.DataFrame({"history": histories, "code": np.arange(len(histories), dtype=np.int32)})
    history_of = frame.join(numbers, on="history", how="left", maintain_order="left")["code"]
    clicks_before = histories.str.split(" ").list.eval(pl.element().filter(pl.element() != ""))
    return _Behaviours(
        frame["user"],
        frame["time"].to_numpy(),
        offsets,
        marked.str.head(-2),
        clicked.cast(pl.UInt8).to_numpy(),
        offsets_of(clicks_before.list.len()),
        clicks_before.explode().drop_nulls(),
        history_of.to_numpy(),
        len(table) - len(frame),
    )


def _read_times(table: TextTable) -> Offsets:
    moments = table.frame["time"].str.to_datetime(_READ_TIME, time_unit="ms", strict=False)
    if moments.has_nulls():
        row = int(moments.is_null().arg_max() or 0)
        value = table.frame["time"][row]
        raise table.error(row, f"time {value!r} is not like '11/13/2019 8:36:57 AM'")
    return moments.dt.epoch("s").to_numpy()


def _label_fault(candidate: str) -> str:
    if candidate == "":
        return "a stray blank among the candidates"
    return (
        f"candidate {candidate!r} does not end in -0 (not clicked) or -1 (clicked); "
        "files without labels, like MIND's test split, cannot be used"
    )


def _read_news(path: Path) -> pl.DataFrame:
    table = read_table(path, _NEWS_COLUMNS, separator="\t")
    table.text("id")
    return table.frame.drop("url", "abstract_entities")


def _catalogue(news: pl.DataFrame, entity_vectors: tuple[Strings, Floats] | None) -> ItemTable:
    columns = {name: pack(news[name]) for name in news.columns if name != "id"}
    return ItemTable(
        titles=columns["title"],
        categories=columns["category"],
        subcategories=columns["subcategory"],
        abstracts=columns["abstract"],
        entities=columns["title_entities"],
        entity_vectors=entity_vectors,
    )


def _read_entity_vectors(folders: Mapping[str, Path]) -> tuple[Strings, Floats] | None:
    """The vectors of all splits; of an entity that occurs in both, the first."""
    paths = [find_optional(folder, "entity_embedding.vec") for folder in folders.values()]
    frames = [_read_vectors(path) for path in paths if path is not None]
    if not frames:
        return None
    if len({frame["vector"].dtype for frame in frames}) > 1:
        raise BadInput(f"{', '.join(map(str, paths))}: entity vectors differ in length between the splits")
    frame = pl.concat(frames).unique("id", keep="first", maintain_order=True)
    return pack(frame["id"]), np.ascontiguousarray(frame["vector"].to_numpy(), dtype=np.float32)


def _read_vectors(path: Path) -> pl.DataFrame:
    lines = pl.Series(read_text(path).rstrip("\n").split("\n"), dtype=pl.String)
    fields = lines.str.strip_chars_end("\t").str.split("\t")
    widths = fields.list.len()
    width = int(widths[0])
    values = fields.list.slice(1).list.eval(pl.element().cast(pl.Float32, strict=False))
    faulty = (widths != width) | (widths < 2) | values.list.eval(pl.element().is_null()).list.any()
    if faulty.any():
        row = int(faulty.arg_max() or 0)
        raise bad_line(path, row + 1, f"expected an entity id and {max(width - 1, 1)} numbers, separated by tabs")
    return pl.DataFrame({"id": fields.list.first(), "vector": values.list.to_array(width - 1)})


def write(population: Population, folder: Path) -> None:
    """Write a new folder, whole or not at all; `read` reads the same impressions back."""
    if "train" not in population.impressions:
        raise BadInput(f"{population.name} has no impressions: MIND's format is for logs of what was shown")
    users, items = _plain_ids("user", population.users), _plain_ids("item", population.items)
    news = _news_rows(population, items)
    first = 1
    with new_folder(folder, private=True) as part:
        for split, impressions in population.impressions.items():
            (part / split).mkdir()
            _write_rows(part / split / "news.tsv", iter([news]))
            _write_rows(part / split / "behaviors.tsv", _behaviour_rows(impressions, users, items, first))
            first += len(impressions)


def _plain_ids(kind: str, ids: Strings) -> pl.Series:
    column = unpack(ids)
    faulty = column.str.contains(r"\s") | (column == "")
    if faulty.any():
        value = column[int(faulty.arg_max() or 0)]
        raise BadInput(f"{kind} id {value!r} cannot be written in MIND's format: ids there have no blanks")
    return column


def _news_rows(population: Population, items: pl.Series) -> pl.DataFrame:
    catalogue = population.catalogue
    columns = {"id": items}
    for name in ("categories", "subcategories", "titles", "abstracts"):
        strings: Strings | None = getattr(catalogue, name, None)
        columns[name] = blanks(len(items)) if strings is None else unpack(strings).str.replace_all(r"[\t\r\n]", " ")
    columns["url"] = blanks(len(items))
    given = None if catalogue is None else catalogue.entities
    entities = blanks(len(items)) if given is None else unpack(given)
    columns["title_entities"] = entities.replace("", "[]")
    columns["abstract_entities"] = blanks(len(items)).replace("", "[]")
    return pl.DataFrame(columns)


def _behaviour_rows(impressions: Impressions, users: pl.Series, items: pl.Series, first: int) -> Iterator[pl.DataFrame]:
    for low in range(0, len(impressions), _ROWS_AT_ONCE):
        rows = np.arange(low, min(low + _ROWS_AT_ONCE, len(impressions)))
        shown = impressions.shown.take(rows)
        begin = impressions.shown.offsets[low]
        clicked = pl.Series(impressions.clicked[begin : begin + len(shown.items)])
        candidates = items.gather(shown.items) + "-" + clicked.cast(pl.String)
        histories = impressions.histories.take(impressions.history_of[rows].astype(np.int64))
        moments = pl.from_epoch(pl.Series(impressions.times[rows]), time_unit="s")
        yield pl.DataFrame(
            {
                "id": rows + first,
                "user": users.gather(impressions.users[rows]),
                "time": moments.dt.strftime(_WRITTEN_TIME),
                "history": _joined(histories, items.gather(histories.items)),
                "candidates": _joined(shown, candidates),
            }
        )


def _joined(rows: Csr, words: pl.Series) -> pl.Series:
    """The words of each row with blanks between them; "" for an empty row."""
    grouped = pl.DataFrame({"row": rows.row_numbers(), "word": words}).group_by("row").agg(pl.col("word").str.join(" "))
    every = pl.DataFrame({"row": np.arange(len(rows), dtype=np.int64)})
    return every.join(grouped, on="row", how="left", maintain_order="left")["word"].fill_null("")


def _write_rows(path: Path, frames: Iterator[pl.DataFrame]) -> None:
    with path.open("wb") as target:
        for frame in frames:
            frame.write_csv(target, separator="\t", include_header=False, quote_style="never")
