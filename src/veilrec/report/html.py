"""HTML pages from Jinja2 templates, each one file that loads nothing, and the page of a privacy statement."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined

from veilrec._version import __version__
from veilrec.core.errors import BadInput, counted
from veilrec.core.files import write_text
from veilrec.privacy.guarantee import Guarantee
from veilrec.privacy.statement import SECTIONS, Statement, sentence

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


Where = Literal["clients", "one place", "nowhere"]
"""Where users' data is processed: on their clients, centrally, or not at all."""

_BASIS = {
    "proven": "the noise is what the statement needs, by a proof",
    "as published": "the noise is what a paper's own formula says, which does not hold as stated",
    "none": "no formal guarantee, so there is nothing to verify",
}


@dataclass(frozen=True)
class FlowActor:
    """One box of the data-flow diagram: a participant and what it does with, or sees of, a user's data."""

    name: str
    lines: tuple[str, ...]
    adds_noise: bool = False
    sees_everything: bool = False


@dataclass(frozen=True)
class DataFlow:
    """Data-flow diagram: actors from the user to the recipient of the model, and the messages between them."""

    actors: tuple[FlowActor, ...]
    messages: tuple[str, ...]  # one fewer than actors

    def words(self) -> str:
        """Describe the diagram in sentences."""
        parts = [f"{actor.name}: {' '.join(actor.lines)}" for actor in self.actors]
        return " ".join(
            f"{part} Sends on: {message}." if message else part
            for part, message in zip(parts, (*self.messages, ""), strict=True)
        )


@cache
def _flows() -> dict[str, DataFlow]:
    """Read the diagrams of `flows.yaml`."""
    parsed = yaml.safe_load(Path(__file__).with_name("flows.yaml").read_text(encoding="utf-8"))
    del parsed["x-shared"]
    return {
        name: DataFlow(
            tuple(FlowActor(**(actor | {"lines": tuple(actor["lines"])})) for actor in flow["actors"]),
            tuple(flow["messages"]),
        )
        for name, flow in parsed.items()
    }


_RECIPIENT = "Whoever gets the model"
_RECIPIENTS = {
    "none": FlowActor(_RECIPIENT, ("No formal guarantee about what the model reveals.",), sees_everything=True),
    "as published": FlowActor(_RECIPIENT, ("May learn far more about a person than the paper claims: see below.",)),
    "proven": FlowActor(_RECIPIENT, ("Learns no more about any one person than the statement allows.",)),
}


def flow_of(guarantee: Guarantee, where: Where, *, adds_noise: bool = False) -> DataFlow:
    """Choose the data-flow diagram of a guarantee.

    Args:
        guarantee: what is promised, and which trust it requires.
        where: where users' data is processed.
        adds_noise: whether a run without a formal guarantee adds noise to its sums nevertheless.
    """
    recipient = _RECIPIENTS[guarantee.basis]
    refuted = guarantee.basis == "as published" and guarantee.honest_epsilon is None
    if where == "nowhere":
        recipient = FlowActor(_RECIPIENT, ("Gets random recommendations, and learns nothing.",))
    if where != "clients":
        flow = _flows()[where]
    elif refuted or (guarantee.basis == "none" and not adds_noise):
        flow = _flows()["plaintext"]
    else:
        flow = _flows()[guarantee.trust or "server"]
        if guarantee.trust == "nobody":  # then the server is an adversary like any recipient
            client, server = flow.actors
            flow = replace(flow, actors=(client, replace(server, lines=server.lines + recipient.lines)))
    return DataFlow((*flow.actors, recipient), flow.messages)


def write_page(statement: Statement, path: Path, *, where: Where) -> None:
    """Write the page of a statement; never replace a file that is no page of veilrec."""
    refuse_foreign(path)
    try:
        write_text(path, render_page(statement, where=where))
    except OSError as error:
        raise BadInput(f"{path} cannot be written ({error.strerror}): choose another place") from None


def render_page(statement: Statement, *, where: Where) -> str:
    """Render the page of a statement."""
    parts = statement.to_json()
    subject = " on ".join(filter(None, (statement.method, statement.dataset)))
    return render_template(
        "privacy",
        title=f"Privacy statement{': ' + subject if subject else ''}",
        statement=parts,
        holds=statement.publishable,
        flow=flow_of(statement.guarantee, where, adds_noise=statement.adds_noise),
        caption=_caption(statement, where),
        terms=_terms(parts),
        sections=[
            ("What the numbers mean", parts["meaning"]),
            ("What the paper says, and what holds", (parts["published"] or {}).get("words", [])),
            *((name, parts[key]) for name, key in SECTIONS),
        ],
    )


def _caption(statement: Statement, where: Where) -> str:
    if not statement.simulated or where != "clients":
        return "Who sees what."
    return "Who sees what on real clients. This run was simulated, where all data was in one place."


def _terms(parts: dict[str, Any]) -> list[tuple[str, str]]:
    g = parts["guarantee"]
    basis = ("Why to believe it (basis)", f"{g['basis']}: {_BASIS[g['basis']]}")
    if g["unit"] is None:
        return [basis]
    return [
        ("What is protected (unit)", parts["protected"]),
        ("Compared with what (adjacency)", parts["hidden"]),
        ("For how long (scope)", f"{g['scope']}: {parts['per']}"),
        ("Against whom (trust)", parts["against"]),
        basis,
    ]
