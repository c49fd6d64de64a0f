"""Histories that people give by hand: item ids in a line of CSV, or one a line in a file, and what to say of them."""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from veilrec._quotes import without_blanks_behind
from veilrec._words import counted
from veilrec.errors import BadInput
from veilrec.features import UNKNOWN, Side, is_number
from veilrec.runs.saved import Recommendation

_SHOWN = 5  # unknown items that are named one by one
_NAMED = 25  # values of a feature that are


def read_history(texts: Sequence[str], knows: Callable[[str], bool] = lambda _: False) -> list[str]:
    """Ids with commas between them; one that holds a comma or a double quote stands in double quotes, as in CSV.

    A text that cannot be split into items that the model knows, and that is one itself, is that item.
    """
    ids: list[str] = []
    for text in texts:
        try:
            rows = list(csv.reader([without_blanks_behind(text, ",")], strict=True, skipinitialspace=True))
        except csv.Error as error:
            if knows(text.strip()):
                ids.append(text.strip())
                continue
            raise BadInput(
                f'--history {text!r} cannot be split ({error}): write a,b,c, an id with a comma as "a,b", and a double'
                ' quote in it as ""; or give --history-file'
            ) from None
        parts = [part.strip() for row in rows for part in row if part.strip()]
        ids += [text.strip()] if knows(text.strip()) and not all(map(knows, parts)) else parts
    return ids


def read_history_file(path: Path) -> list[str]:
    """One id a line, the latest last; blank lines are passed over."""
    try:
        content = sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
        text = content.decode("utf-8-sig")
    except OSError as error:
        raise BadInput(f"--history-file {path} cannot be read ({error.strerror}): give a readable file") from None
    except UnicodeDecodeError:
        raise BadInput(f"--history-file {path} is not UTF-8: give a text file with one item id a line") from None
    lines = text.replace("\r\n", "\n").split("\n")
    return [line.strip() for line in lines if line.strip()]


def read_about(texts: Sequence[str]) -> dict[str, str]:
    """What is known of somebody, as NAME=VALUE."""
    said: dict[str, str] = {}
    for text in texts:
        name, equals, value = (part.strip() for part in text.partition("="))
        if not (name and equals and value):
            raise BadInput(f"--about {text!r} says nothing: write NAME=VALUE, such as --about age=25")
        if name in said:
            raise BadInput(f"--about {name} is given twice: give it once, several values with what separates them")
        said[name] = value
    return said


def about_people(people: Side, about: Mapping[str, str]) -> Iterator[str]:
    """What somebody should know of values that the model makes nothing of."""
    for feature in people.features:
        value = about.get(feature.name)
        if value is None:
            continue
        if feature.kind == "number":
            if not is_number(value):
                yield f"{feature.name} {value!r} is no finite number: taken as unknown"
        elif UNKNOWN in feature.codes_of(value):
            few = ", ".join(feature.values[:_NAMED]) + (", ..." if len(feature.values) > _NAMED else "")
            yield f"{feature.name} {value!r} is not among what the model knows ({few}): taken as unknown"


def about_history(
    known: Sequence[str], unknown: Sequence[str], found: Sequence[Recommendation], *, says_more: bool = False
) -> Iterator[str]:
    """What somebody who gave a history should know of the list that came of it; less where the model `says_more`."""
    if unknown:
        named = ", ".join(repr(item) for item in unknown[:_SHOWN]) + (", ..." if len(unknown) > _SHOWN else "")
        rest = "none is left, as in an empty history"
        if known:
            rest = "the other one is used" if len(known) == 1 else f"the other {len(known):,} are used"
        yield f"{counted(len(unknown), 'item')} that the model does not know: {named}; {rest}"
    if not known:
        if len({best.score for best in found}) == 1 and len(found) > 1:
            yield "without a history this method has nothing to rank by: all items have the same score"
        elif not says_more:
            yield "without a history the list is what the method gives to somebody new"
