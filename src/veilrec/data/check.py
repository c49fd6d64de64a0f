"""Data report: counts and oddities of a data set, of its news texts and of its features."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import yaml

from veilrec.core.arrays import Bools, Offsets
from veilrec.core.errors import counted
from veilrec.core.features import Kind
from veilrec.data.impression_logs import clicks_per_impression
from veilrec.data.news_text import TITLE_WORDS, find_entities, tokenise
from veilrec.data.own_csv import LEFT_OUT
from veilrec.data.own_features import UNKNOWN_NUMBERS
from veilrec.data.population import Impressions, ItemTable, Population, Strings
from veilrec.data.text_files import unpack


@dataclass(frozen=True)
class FeatureReport:
    """One feature of users or of items."""

    side: str  # "users" or "items"
    name: str
    kind: Kind
    values: int  # of a category, without the unknown one
    low: float  # of a number
    high: float
    unknown: float  # the share of users or items of whom it is not known

    def summary(self) -> str:
        """Describe kind, values or range, and the unknown share."""
        if self.kind == "number":
            what = f"number from {self.low:g} to {self.high:g}"
        else:
            what = f"{self.kind}, {counted(self.values, 'value')}"
        return f"{what}, {self.unknown:.1%} unknown"


def check_features(population: Population) -> tuple[FeatureReport, ...]:
    """Report every feature of users, then of items."""
    if population.features is None:
        return ()
    found = []
    for name, side in (("users", population.features.users), ("items", population.features.items)):
        shares = dict(zip((f.name for f in side.categories), side.unknown().mean(axis=0).tolist(), strict=True))
        for feature in side.features:
            silent = int(population.facts.get(f"{UNKNOWN_NUMBERS}{name}.{feature.name}", 0)) / max(1, len(side))
            share = silent if feature.kind == "number" else float(shares[feature.name])
            count = len(feature.values)
            found.append(FeatureReport(name, feature.name, feature.kind, count, feature.low, feature.high, share))
    return tuple(found)


if TYPE_CHECKING:
    from rich.console import RenderableType

_YEAR_2100 = 4_102_444_800
_OTHER_SCRIPT = r"[\p{L}--[\p{Latin}\p{Common}]]"
_EMOJI = r"\p{Emoji_Presentation}"
_WORDS = yaml.safe_load(Path(__file__).with_name("check.yaml").read_text("utf-8"))


@dataclass(frozen=True)
class SplitReport:
    """The impressions of one split."""

    impressions: int
    shown: int
    clicks: int
    users: int
    without_both_labels: int
    empty_histories: int


def _count_phrase(count: int, what: str) -> str:
    """Return the count and a description that begins with a plural; singular for one."""
    if count == 1:
        what = re.sub(r"^((?:shown |published test )?)(?!news|of)(\w+)s\b", r"\1\2", what)
        what = what.replace("were merged", "was merged").replace("stand among their", "stands among its")
        what = what.replace("are known", "is known")
    return f"{count:,} {what}"


@dataclass(frozen=True)
class DataReport:
    """The result of a check; `odd` is empty for a data set without surprises."""

    name: str
    users: int
    items: int
    rows: int
    pairs: int
    density: float
    history_lengths: Mapping[str, float]
    ratings: Mapping[str, float]  # empty: there are none
    first_time: str | None
    last_time: str | None
    splits: Mapping[str, SplitReport]
    text: Mapping[str, int] | None  # counts of `check_text`; None: no news
    features: tuple[FeatureReport, ...]
    facts: Mapping[str, int | float | str]
    odd: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """Plain values for `--json`."""
        return asdict(self)


def check(population: Population) -> DataReport:
    """Count what a data set holds and name what is odd."""
    log = population.interactions
    lengths = log.pairs().lengths()
    pairs = int(lengths.sum())
    first, last = min((int(column.min()) for column in _times(population)), default=None), last_time(population)
    splits = {name: _check_split(split) for name, split in population.impressions.items()}
    text = check_text(population)
    return DataReport(
        name=population.name,
        users=population.n_users,
        items=population.n_items,
        rows=len(log),
        pairs=pairs,
        density=pairs / max(1, population.n_users * population.n_items),
        history_lengths=_lengths(lengths),
        ratings=_ratings(population),
        first_time=_moment(first),
        last_time=_moment(last),
        splits=splits,
        text=text,
        features=check_features(population),
        facts={**population.facts, **_declared(population)},
        odd=tuple(_odd(population, lengths, last, splits, text)),
    )


def _declared(population: Population) -> dict[str, str]:
    """What was said of the data and not counted in it."""
    declared, scale = {}, population.rating_scale
    if population.cut is not None:
        declared["cut"] = f"the public moment {_moment(population.cut)}"
    if scale is not None:
        declared["rating_scale"] = f"{scale[0]:g} to {scale[1]:g}"
    return declared


def _beyond_scale(population: Population) -> int:
    """How many ratings lie outside of what they are said to."""
    ratings, scale = population.interactions.ratings, population.rating_scale
    if ratings is None or scale is None:
        return 0
    return int(((ratings < scale[0]) | (ratings > scale[1])).sum())


def last_time(population: Population) -> int | None:
    """The latest moment of a log, in seconds since 1970; None: it has no times."""
    return max((int(column.max()) for column in _times(population)), default=None)


def _times(population: Population) -> list[Offsets]:
    log = population.interactions
    times = [log.times] if log.times is not None and len(log.times) else []
    return times + [split.times for split in population.impressions.values() if len(split)]


def _check_split(split: Impressions) -> SplitReport:
    clicks = clicks_per_impression(split)
    one_sided = (clicks == 0) | (clicks == split.shown.lengths())
    return SplitReport(
        impressions=len(split),
        shown=len(split.shown.items),
        clicks=int(clicks.sum()),
        users=len(np.unique(split.users)),
        without_both_labels=int(one_sided.sum()),
        empty_histories=int((split.histories.lengths()[split.history_of] == 0).sum()),
    )


def _odd(
    population: Population,
    lengths: Offsets,
    last: int | None,
    splits: Mapping[str, SplitReport],
    text: Mapping[str, int] | None,
) -> list[str]:
    log, facts = population.interactions, population.facts
    unknown = {part: int(facts.get(f"unknown_{part}", 0)) for part in ("candidates", "in_histories")}
    seen = np.bincount(log.items, minlength=population.n_items) > 0
    for split in population.impressions.values():
        seen |= np.bincount(split.shown.items, minlength=population.n_items) > 0
    found = [
        (int((lengths < 2).sum()), "users with fewer than 2 items: nothing is left to learn from once one is held out"),
        (int((~seen).sum()), "items that nobody ever used or was shown"),
        (int(facts.get("duplicates_merged", 0)), "rows that repeated another exactly and were merged"),
        (0 if log.ratings is None else int((log.ratings < 0).sum()), "ratings below 0"),
        (
            _beyond_scale(population),
            "ratings beyond the scale of the data, without which methods that read ratings refuse it: import it with"
            " --rating-scale",
        ),
        (unknown["candidates"], "shown candidates that the catalogue does not know"),
        (unknown["in_histories"], "clicks in histories that the catalogue does not know"),
        (int(facts.get("test_items_among_negatives", 0)), "published test items that stand among their own negatives"),
    ]
    found += [
        (counts.without_both_labels, f"impressions of {name} without both a click and a non-click")
        for name, counts in splits.items()
    ]
    if text is not None:
        untitled = text["candidates_without_title"] - unknown["candidates"]
        in_histories = text["history_without_title"] - unknown["in_histories"]
        found += [(untitled, "shown candidates that are known without a title")]
        found += [(in_histories, "clicks in histories on news without a title")]
        said = {"title_words": TITLE_WORDS, **text}
        found += [(text[name], what.format(**said)) for name, what in _WORDS["odd_texts"].items()]
    odd = [_count_phrase(count, what) for count, what in found if count] + about_times(last)
    if population.n_users == 1:
        odd.append("there is only one user: a federation needs several")
    return [*odd, *notices(facts)]


def about_times(last: int | None) -> list[str]:
    """What is odd about the last time of a log, in words."""
    late = last is not None and last > _YEAR_2100
    return ["there are times after the year 2100: milliseconds instead of seconds?"] if late else []


def notices(facts: Mapping[str, int | float | str]) -> list[str]:
    """How an own file was read, as far as that is worth saying, in words."""
    kinds = {key.removeprefix(LEFT_OUT): count for key, count in facts.items() if key.startswith(LEFT_OUT)}
    listed = "; ".join(f"{kind} ({count:,})" for kind, count in kinds.items())
    return [
        words.format(counted(int(facts[name]), what) if what else str(facts[name]), kinds=listed)
        for name, (words, what) in _WORDS["notices"].items()
        if name in facts
    ]


def _lengths(lengths: Offsets) -> dict[str, float]:
    """The shortest, the middle and the longest history."""
    if not len(lengths):
        return {}
    return {"least": int(lengths.min()), "median": float(np.median(lengths)), "most": int(lengths.max())}


def _ratings(population: Population) -> dict[str, float]:
    """The range of the ratings, their mean, and how many different ones there are; nothing without ratings."""
    ratings = population.interactions.ratings
    if ratings is None or not len(ratings):
        return {}
    low, high, mean = (float(of(ratings)) for of in (np.min, np.max, np.mean))
    return {"low": low, "high": high, "mean": mean, "different": len(np.unique(ratings))}


def _moment(seconds: int | None) -> str | None:
    if seconds is None:
        return None
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
    except (ValueError, OverflowError, OSError):
        return f"{seconds} s"


def check_text(population: Population) -> dict[str, int] | None:
    """Count the oddities of news; None for a population whose items are no texts to be read."""
    catalogue = population.catalogue
    if catalogue is None or not _is_news(population, catalogue):
        return None
    titles = unpack(catalogue.titles)
    words = tokenise(titles)
    lengths = words.list.len().to_numpy()
    untitled: Bools = lengths == 0
    named = find_entities(Strings.of([""] * len(titles)) if catalogue.entities is None else catalogue.entities, words)
    entities = named.ids.explode().drop_nulls().unique()
    parts = population.impressions.values()
    return {
        "without_title": int(untitled.sum()),
        "without_any_text": int((untitled & _is_blank(catalogue.abstracts, len(titles))).sum()),
        "one_word_titles": int((lengths == 1).sum()),
        "clipped_titles": int((lengths > TITLE_WORDS).sum()),
        "titles_in_other_scripts": int(titles.str.contains(_OTHER_SCRIPT).sum()),
        "titles_with_emoji": int(titles.str.contains(_EMOJI).sum()),
        "without_category": int(_is_blank(catalogue.categories, len(titles)).sum()),
        "entities": len(entities),
        "entities_without_vector": _without_vector(catalogue, entities),
        "unreadable_entities": named.unreadable,
        "candidates_without_title": sum(int(untitled[part.shown.items].sum()) for part in parts),
        "history_without_title": sum(int(untitled[part.histories.items].sum()) for part in parts),
    }


def _is_news(population: Population, catalogue: ItemTable) -> bool:
    """Films and apps have titles, too, and perhaps abstracts; news come with impressions, or have subcategories."""
    return bool(population.impressions) or catalogue.subcategories is not None


def _is_blank(texts: Strings | None, count: int) -> Bools:
    if texts is None:
        return np.ones(count, np.bool_)
    blank: Bools = (unpack(texts).str.strip_chars() == "").to_numpy()
    return blank


def _without_vector(catalogue: ItemTable, entities: pl.Series) -> int:
    if catalogue.entity_vectors is None:
        return len(entities)
    return int((~entities.is_in(unpack(catalogue.entity_vectors[0]).implode())).sum())


def render(report: DataReport) -> RenderableType:
    """The report for people: a table, and what is odd."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(title=f"{report.name}", show_header=False, title_justify="left")
    table.add_column(style="bold")
    table.add_column(justify="right")
    for name, value in _summary(report):
        table.add_row(name, value)
    parts: list[RenderableType] = [table]
    parts.append(Text("what is odd" if report.odd else "nothing is odd", style="bold"))
    parts += [Text(f"  - {line}") for line in report.odd]
    return Group(*parts)


def _summary(report: DataReport) -> list[tuple[str, str]]:
    rows = [
        ("users", f"{report.users:,}"),
        ("items", f"{report.items:,}"),
        ("rows", f"{report.rows:,}"),
        ("distinct pairs", f"{report.pairs:,}"),
        ("density", f"{report.density:.4%}"),
    ]
    told = {"items per user": report.history_lengths, "ratings": report.ratings}
    rows += [(name, ", ".join(f"{what} {n:,g}" for what, n in found.items())) for name, found in told.items() if found]
    if report.first_time is not None:
        rows.append(("time", f"{report.first_time} to {report.last_time}"))
    for name, split in report.splits.items():
        rows.append(
            (f"{name} impressions", f"{split.impressions:,} ({split.shown:,} shown, {counted(split.clicks, 'click')})")
        )
    rows += [(f"{feature.side}: {feature.name}", feature.summary()) for feature in report.features]
    for key, value in report.facts.items():
        if key not in _WORDS["said_already"] and not key.startswith((LEFT_OUT, UNKNOWN_NUMBERS)):
            rows.append((key.replace("_", " "), f"{value:,}" if isinstance(value, int) else str(value)))
    return rows
