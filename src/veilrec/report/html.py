"""HTML pages from Jinja2 templates: one file each, autoescaped, loading nothing from the network."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from veilrec._version import __version__
from veilrec.core.errors import BadInput, counted
from veilrec.privacy.statement import sentence

GENERATOR = "veilrec report"
_HEAD_BYTES = 600  # the generator stands within the first bytes of every page


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("veilrec.report"),
        autoescape=True,  # for every template, whatever its name ends in
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"counted": counted, "sentence": sentence}
    return environment


def render_template(name: str, **context: object) -> str:
    """Render the template `name`.html.j2 to a whole page; text in `context` is escaped."""
    page = _environment().get_template(f"{name}.html.j2")
    return page.render(generator=f"{GENERATOR} {__version__}", **context) + "\n"


def refuse_foreign(path: Path) -> None:
    """Check that a page may be written to a path.

    Raises:
        BadInput: the path is a folder, or a file that is no page of veilrec.
    """
    if path.is_dir():
        raise BadInput(f"{path} is a folder: give the name of a file for the report, such as {path / 'report.html'}")
    if path.exists():
        with path.open("rb") as source:
            if GENERATOR.encode() not in source.read(_HEAD_BYTES):
                raise BadInput(f"{path} is there and is no report of veilrec: choose another name for the report")
