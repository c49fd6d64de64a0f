"""HTML that loads nothing: elements that nobody can forget to escape, their look, and a whole document."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from veilrec._version import __version__
from veilrec.errors import BadInput

GENERATOR = "veilrec report"
_HEAD_BYTES = 600  # the generator stands within the first bytes of every document

# One column, light or dark as the reader's system is, and fit for paper.
_CSS = """
:root {
  color-scheme: light dark;
  --ink: #1c2028; --soft: #5b6472; --paper: #ffffff; --line: #d9dde3; --mark: #eef3f8;
}
@media (prefers-color-scheme: dark) {
  :root { --ink: #e7eaef; --soft: #a3acb9; --paper: #15181d; --line: #363c46; --mark: #1f2630; }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }
main { max-width: 56rem; margin: 0 auto; padding: 2rem 1.2rem 4rem; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0 0 .6rem; }
h2 { font-size: 1.3rem; margin: 2.4rem 0 .6rem; padding-top: .8rem; border-top: 1px solid var(--line); }
h3 { font-size: 1.05rem; margin: 1.8rem 0 .5rem; }
h4 { font-size: 1rem; margin: 0 0 .3rem; }
.lead { font-size: 1.08rem; }
.note, figcaption { color: var(--soft); font-size: .9rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .3rem .55rem; border-bottom: 1px solid var(--line); white-space: nowrap; }
thead th { color: var(--soft); font-weight: 600; white-space: normal; vertical-align: bottom; }
.number { text-align: right; }
tbody tr:first-child { background: var(--mark); }
figure { margin: 1.4rem 0 2rem; }
figure svg { width: 100%; max-width: 36rem; height: auto; color: var(--ink); }
.columns { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(16rem, 100%), 1fr)); gap: 1.5rem; }
.small { display: block; color: var(--soft); font-size: .85rem; font-weight: 400; }
.fits { font-weight: 600; }
ol { margin: 0; padding-left: 2.2rem; }
code { font: .88em ui-monospace, monospace; overflow-wrap: anywhere; }
dt { margin-top: .7rem; }
dd { margin: 0; color: var(--soft); }
dd p { margin: .1rem 0; }
.facts { display: grid; grid-template-columns: minmax(8rem, auto) 1fr; gap: .3rem 1.2rem; }
.facts dt { margin: 0; color: var(--soft); }
.facts dd { color: var(--ink); min-width: 0; overflow-wrap: anywhere; }
@media (max-width: 32rem) {
  main { padding: 1.2rem .9rem 3rem; }
  table { font-size: .85rem; }
  th, td { padding: .3rem .2rem; white-space: normal; }
  td.number { white-space: nowrap; }
  table .small { white-space: normal; }
  .facts { grid-template-columns: 1fr; gap: 0; }
  .facts dd { margin-bottom: .5rem; }
}
@media print { body { font-size: 11pt; } section { break-inside: avoid; } }
"""


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


def section(title: str, *content: object, level: int = 2) -> Markup:
    """A part of a page with its heading."""
    return tag("section", tag(f"h{level}", title), *content)


def document(title: str, parts: Iterable[object]) -> str:
    """A whole file: a heading and the parts below it."""
    head = join(
        [
            tag("title", title),
            Markup('<meta name="viewport" content="width=device-width, initial-scale=1">'),
            tag("style", Markup(_CSS)),
        ]
    )
    body = join([tag("h1", title), *parts])
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="generator" content="{GENERATOR} {__version__}">\n{head}\n</head>\n'
        f"<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


def refuse_foreign(path: Path) -> None:
    """Refuse a path where something else than such a document lies, before any long work."""
    if path.is_dir():
        raise BadInput(f"{path} is a folder: give the name of a file for the report, such as {path / 'report.html'}")
    if path.exists():
        with path.open("rb") as source:
            if GENERATOR.encode() not in source.read(_HEAD_BYTES):
                raise BadInput(f"{path} is there and is no report of veilrec: choose another name for the report")
