"""HTML that nobody can forget to escape: what is no `Markup` yet is escaped when it becomes part of one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def markup(content: object) -> Markup:
    """Anything as HTML: text is escaped, HTML stays as it is."""
    return content if isinstance(content, Markup) else Markup(escape(str(content)))


def tag(name: str, *content: object, **attributes: str) -> Markup:
    """One element; `class_` stands for the attribute `class`, `aria_label` for `aria-label`."""
    given = "".join(f' {key.rstrip("_").replace("_", "-")}="{escape(value)}"' for key, value in attributes.items())
    return Markup(f"<{name}{given}>{''.join(markup(part) for part in content)}</{name}>")


def join(parts: Iterable[object]) -> Markup:
    """Several parts, one below the other."""
    return Markup("\n".join(markup(part) for part in parts))


def table(head: Sequence[object], rows: Iterable[Sequence[object]], *, numbers: Iterable[int] = ()) -> Markup:
    """A table whose first row and first column are headings; the columns `numbers` are right-aligned."""
    right = set(numbers)

    def cell(name: str, column: int, content: object, **attributes: str) -> Markup:
        return tag(name, content, **attributes, **({"class_": "number"} if column in right else {}))

    body = [
        tag("tr", *(cell("td" if c else "th", c, x, **({} if c else {"scope": "row"})) for c, x in enumerate(row)))
        for row in rows
    ]
    heading = tag("tr", *(cell("th", c, x, scope="col") for c, x in enumerate(head)))
    return tag("div", tag("table", tag("thead", heading), tag("tbody", *body)), class_="scroll")
