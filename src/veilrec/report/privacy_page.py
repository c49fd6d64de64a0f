"""The privacy statement as one page for a screen, a telephone or paper: loads nothing, dark text on white."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from veilrec._files import write_text
from veilrec._version import __version__
from veilrec.errors import BadInput
from veilrec.privacy.statement import Statement, sentence
from veilrec.report.html import GENERATOR, Markup, join, refuse_foreign, section, tag
from veilrec.report.privacy_picture import Where, draw, flow_of

_CSS = """
:root { color-scheme: only light; }
* { box-sizing: border-box; }
body { margin: 0; background: #ffffff; color: #1c2028; font: 16px/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
main { max-width: 44rem; margin: 0 auto; padding: 1.4rem 1rem 2.5rem; }
h1 { font-size: 1.5rem; line-height: 1.25; margin: 0 0 .8rem; }
h2 { font-size: 1.08rem; margin: 1.5rem 0 .4rem; padding-top: .7rem; border-top: 1px solid #c9ced6; }
p { margin: .4rem 0; }
ul { margin: .3rem 0; padding-left: 1.2rem; }
li { margin: .25rem 0; }
.plain { font-size: 1.2rem; line-height: 1.4; }
.formula { border-left: 4px solid #0b5cad; padding: .2rem 0 .2rem .8rem; }
.warning { border: 2px solid #a33a00; padding: .5rem .8rem; }
figure { margin: 1.2rem 0; }
figure svg { display: block; width: 100%; max-width: 26rem; height: auto; }
figcaption, footer { color: #454d5a; font-size: .9rem; }
dl { display: grid; grid-template-columns: minmax(7rem, 11rem) 1fr; gap: .35rem 1rem; margin: .4rem 0; }
dt { font-weight: 600; }
dd { margin: 0; min-width: 0; }
.sign { display: flex; flex-wrap: wrap; gap: 1.2rem; margin-top: 2.2rem; }
.sign span { flex: 1 1 9rem; border-top: 1px solid #1c2028; padding-top: .2rem; }
@media (max-width: 30rem) { dl { grid-template-columns: 1fr; gap: .1rem; } dd { margin-bottom: .5rem; } }
@page { size: A4; margin: 15mm; }
@media print {
  body { font-size: 10pt; } main { max-width: none; padding: 0; } h1 { font-size: 16pt; } .plain { font-size: 12pt; }
  h2 { margin: .8rem 0 .2rem; padding-top: .4rem; break-after: avoid; } figure, li, dl, .sign { break-inside: avoid; }
  figure svg { max-width: 88mm; }
}
"""
_BASIS = {
    "proven": "the noise is what the statement needs, by a proof",
    "as published": "the noise is what a paper's own formula says, which does not hold as stated",
    "none": "nothing is promised, so there is nothing to believe",
}


def write_page(statement: Statement, path: Path, *, where: Where) -> None:
    """Write the page; a file that is no such page is left alone."""
    refuse_foreign(path)
    try:
        write_text(path, page(statement, where=where))
    except OSError as error:
        raise BadInput(f"{path} cannot be written ({error.strerror}): choose another place") from None


def page(statement: Statement, *, where: Where) -> str:
    """The whole document."""
    parts = statement.to_json()
    of = " on ".join(filter(None, (statement.method, statement.dataset)))
    title = f"Privacy statement{': ' + of if of else ''}"
    body = [
        tag("h1", title),
        tag("p", parts["plain"], class_="plain"),
        tag("p", parts["summary"], class_="formula" if _holds(statement) else "warning"),
        _picture(statement, where),
        _terms(parts),
        _listed("What the numbers mean", parts["meaning"]),
        _listed("What the paper says, and what holds", (parts["published"] or {}).get("words", [])),
        _listed("How", parts["noise"]),
        _listed("What has to be true for this", parts["assumptions"]),
        _listed("What is not protected", parts["not_protected"]),
        _listed("What may be published", parts["publication"]),
        _listed("To be kept in mind", parts["caveats"]),
        tag("p", tag("span", "Read by"), tag("span", "Date"), tag("span", "Accepted, or objected to"), class_="sign"),
        tag("footer", f"Made by veilrec {__version__}; it loads nothing and needs no network."),
    ]
    head = join(
        [
            Markup('<meta charset="utf-8">'),
            Markup(f'<meta name="generator" content="{GENERATOR} {__version__}">'),
            Markup('<meta name="viewport" content="width=device-width, initial-scale=1">'),
            tag("title", title),
            tag("style", Markup(_CSS)),
        ]
    )
    main = tag("main", Markup("\n"), join(body), Markup("\n"))
    return f'<!doctype html>\n<html lang="en">\n<head>\n{head}\n</head>\n<body>\n{main}\n</body>\n</html>\n'


def _holds(statement: Statement) -> bool:
    return statement.guarantee.basis == "proven" and not statement.drawn_again


def _picture(statement: Statement, where: Where) -> Markup:
    caption = "Who sees what."
    if statement.simulated and where == "devices":
        noise = " with secure noise" if statement.drawn_again else ""
        caption = f"Who sees what on real devices{noise}. This run was simulated, where all data was in one place."
    return tag(
        "figure", draw(flow_of(statement.guarantee, where, adds_noise=statement.adds_noise)), tag("figcaption", caption)
    )


def _terms(parts: dict[str, Any]) -> Markup:
    g = parts["guarantee"]
    rows = [("Why to believe it (basis)", f"{g['basis']}: {_BASIS[g['basis']]}")]
    if g["unit"] is not None:
        rows = [
            ("What is protected (unit)", parts["protected"]),
            ("Compared with what (adjacency)", parts["hidden"]),
            ("For how long (scope)", f"{g['scope']}: {parts['per']}"),
            ("Against whom (trust)", parts["against"]),
            *rows,
        ]
    listed = [(tag("dt", name), tag("dd", sentence(words))) for name, words in rows]
    return section("The terms", tag("dl", *(part for pair in listed for part in pair)))


def _listed(title: str, lines: list[str]) -> Markup:
    if not lines:
        return Markup("")
    if len(lines) == 1:
        return section(title, tag("p", sentence(lines[0])))
    return section(title, tag("ul", *(tag("li", sentence(line)) for line in lines)))
