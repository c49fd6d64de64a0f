"""Times in the columns of a log: seconds since 1970 and smaller units, ISO 8601, or a format that is given."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime

import polars as pl

from veilrec.errors import BadInput

_FORMATS = tuple(
    date + time
    for date in ("%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%Y/%m/%d", "%d-%m-%Y", "%d.%m.%y", "%d %b %Y", "%b %d, %Y")
    for time in ("", " %H:%M", " %H:%M:%S", ", %H:%M", ", %H:%M:%S", " %I:%M %p")
)
_FAST_FORMAT = re.compile(r"(?:[^%]|%[dmYHMS])*")  # what polars reads exactly as Python does
# Numbers above which times are in that unit, and how many make a second: as seconds, 1e11 is the year 5138.
_SMALLER_UNITS = ((10**17, "nanoseconds", 10**9), (10**14, "microseconds", 10**6), (10**11, "milliseconds", 10**3))
_LATEST = 1e15  # seconds, either way: beyond, a number is no time
_GUESSED_FROM = 20  # values

Wrong = dict[str, tuple[pl.Series, str]]  # by kind of fault: the rows, and advice


def check_format(given: str) -> None:
    """Refuse a format with no parts, or with one that strptime does not know, which would make every time a bad one."""
    if not re.search("%[a-zA-Z]", given):
        raise BadInput(f"--time-format {given!r} has no parts: give for instance '%d.%m.%Y %H:%M'")
    odd = re.search(r"%(?![aAbBcdfHIjmMpSUwWxXyYzZGuV%])(?:.|$)", given.replace("%%", ""))
    if odd:
        raise BadInput(
            f"--time-format {given!r} is invalid: Python's strptime knows no {odd[0]!r}; give for instance"
            " '%d.%m.%Y %H:%M'"
        )


def with_point(column: pl.Series, decimal: str) -> pl.Series:
    """Numbers as Python writes them; with a decimal comma, one with a point is none."""
    if decimal == ".":
        return column
    return column.str.replace_all(".", "?", literal=True).str.replace_all(",", ".", literal=True)


def read_times(column: pl.Series, given: str | None, decimal: str) -> tuple[pl.Series, Wrong, str]:
    """Seconds since 1970, what is wrong, and the unit that numbers were in if that is another."""
    empty, unit = column == "", ""
    if given is None:
        seconds, unit = _in_seconds(_plain_times(column, decimal))
        what = "is neither seconds since 1970 nor ISO 8601"
    else:
        seconds = _formatted_times(column, given)
        what = f"is not a time in the format {given}"
    bad = seconds.is_null() & ~empty
    wrong = {
        "is empty": (empty, "without times give --time-column none"),
        what: (bad, _guessed_format(column.filter(bad), given) if bad.any() else ""),
    }
    return seconds.fill_null(0), wrong, unit


def _in_seconds(times: pl.Series) -> tuple[pl.Series, str]:
    """Times that are all so large that they can only be in a smaller unit, in seconds; and that unit."""
    least = times.min()
    for low, unit, parts in _SMALLER_UNITS:
        if isinstance(least, int) and least > low:
            return times // parts, unit
    return times, ""


def _plain_times(column: pl.Series, decimal: str) -> pl.Series:
    whole = column.cast(pl.Int64, strict=False)
    if not whole.null_count():
        return whole
    number = with_point(column, decimal).cast(pl.Float64, strict=False)
    number = pl.select(pl.when(number.is_finite() & (number.abs() < _LATEST)).then(number.floor())).to_series()
    seconds = whole.fill_null(number.cast(pl.Int64, strict=False))
    return _filled(column, seconds, iso_seconds)


def _formatted_times(column: pl.Series, given: str) -> pl.Series:
    seconds = pl.Series([None], dtype=pl.Int64).new_from_index(0, len(column))
    if _FAST_FORMAT.fullmatch(given):
        with suppress(pl.exceptions.PolarsError):  # a format without a whole date
            seconds = column.str.strptime(pl.Datetime("us"), given, strict=False).dt.epoch("s")

    def read(text: str) -> int | None:
        try:
            moment = datetime.strptime(text, given)
        except ValueError:
            return None
        except re.error:
            raise BadInput(f"--time-format {given!r} cannot be used: see Python's strptime") from None
        return _seconds_of(moment)

    return _filled(column, seconds, read)


def _filled(column: pl.Series, seconds: pl.Series, read: Callable[[str], int | None]) -> pl.Series:
    """Every distinct text that has no seconds yet, read by itself."""
    left = seconds.is_null() & (column != "")
    if not left.any():
        return seconds
    distinct = column.filter(left).unique()
    known = pl.DataFrame({"text": distinct, "found": pl.Series([read(text) for text in distinct], dtype=pl.Int64)})
    joined = pl.DataFrame({"text": column, "seconds": seconds}).join(
        known, on="text", how="left", maintain_order="left"
    )
    return joined.select(pl.coalesce("seconds", "found")).to_series()


def iso_seconds(text: str) -> int | None:
    """Seconds since 1970 of a moment in ISO 8601, UTC without a zone; None for anything else."""
    try:
        return _seconds_of(datetime.fromisoformat(text))
    except ValueError:
        return None


def _seconds_of(moment: datetime) -> int | None:
    try:
        return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp())
    except (OverflowError, OSError):
        return None


def _guessed_format(bad: pl.Series, given: str | None) -> str:
    """Advice: the formats that fit the first of these texts, other than the given one."""
    texts = bad[: 50 * _GUESSED_FROM].unique(maintain_order=True)[:_GUESSED_FROM].to_list()

    def fits(one: str, text: str) -> bool:
        try:
            datetime.strptime(text, one)
        except ValueError:
            return False
        return True

    for few in (texts, texts[:1]):
        fitting = [one for one in _FORMATS if one != given and few and all(fits(one, text) for text in few)]
        if fitting:
            return "give --time-format " + " or ".join(f"'{one}'" for one in fitting[:2])
    return "give --time-format, such as '%d.%m.%Y %H:%M'" if given is None else ""
