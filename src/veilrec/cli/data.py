"""`veilrec data`: which data sets there are, what is in them, and how to bring your own."""

from __future__ import annotations

import sys
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from veilrec._words import counted
from veilrec.cli.output import Json, print_json

if TYPE_CHECKING:
    from veilrec.data.datasets import Dataset
    from veilrec.data.population import Population

app = typer.Typer(
    name="data",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Data sets: list them, check them, fetch them, import your own.",
)


class OwnKind(StrEnum):
    """What an own file holds."""

    csv = "csv"
    impressions = "impressions"


class ExportFormat(StrEnum):
    """A public format that a population can be written in."""

    mind = "mind"


@app.command("list")
def list_datasets(as_json: Json = False) -> None:
    """Every data set: what it is, where its files were found, whose it is and how to get it.

    A data set is named NAME, NAME:PATH, or NAME:key=value,... where it is made up. Without PATH its files are
    looked for in $VEILREC_DATA/NAME, then where `veilrec data fetch` puts them.

    Example: veilrec data list
    """
    from veilrec.data.datasets import DATASETS

    rows = [_listed(dataset) for dataset in DATASETS.values()]
    if as_json:
        print_json({"datasets": rows})
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table("name", "what it is, where it is or how to get it, and its licence", show_lines=True)
    for row in rows:
        place = f"found in {row['found']}" if row["found"] else f"to get it: {row['how_to_get']}"
        about = Text(overflow="fold").append(row["title"], "bold").append(f"\n{place}\n")
        table.add_row(row["name"], about.append(f"licence: {row['licence']}", "dim"))
    Console().print(table)


@app.command()
def check(
    spec: Annotated[str, typer.Argument(metavar="NAME[:PATH]", help="The data set; see `veilrec data list`.")],
    as_json: Json = False,
) -> None:
    """Count users, items and rows, show how long histories are, and say what is odd.

    Example: veilrec data check ml-1m

    Example: veilrec data check csv:clicks.csv

    Example: veilrec data check synthetic-ratings:users=5000,items=2000,seed=1
    """
    from veilrec.data.check import check as check_population
    from veilrec.data.check import render
    from veilrec.data.datasets import load

    report = check_population(load(spec))
    if as_json:
        print_json(report.as_json())
        return
    from rich.console import Console

    Console().print(render(report))


@app.command("import")
def import_files(
    files: Annotated[list[Path], typer.Argument(metavar="FILES...", help="Your files, plain or .gz.")],
    out: Annotated[Path, typer.Option("--out", help="The folder to write; it must not exist yet.")],
    kind: Annotated[OwnKind, typer.Option("--kind", help="What the files hold.")] = OwnKind.csv,
    name: Annotated[str | None, typer.Option("--name", help="A name for the data set in reports.")] = None,
    as_json: Json = False,
) -> None:
    """Turn your own files into a packed data set that starts at once, however large it is.

    --kind csv: a header line that names user and item, and if you have them rating and time (seconds since
    1970 or ISO 8601), in any order; separated by commas, tabs or semicolons. Several files are read as one.

    --kind impressions: one JSON object a line, `{"user": "u1", "time": "2026-01-31T10:00:00Z", "shown":
    ["a", "b"], "clicked": ["b"]}`, and to describe items `{"item": "a", "title": "Rain by noon"}`.

    Example: veilrec data import clicks.csv --out shop

    Example: veilrec data check csv:shop

    Example: veilrec train fedmf --data csv:shop
    """
    from dataclasses import replace

    from veilrec._files import refuse_existing
    from veilrec.data import packed

    refuse_existing(out)
    population = _read_own(files, kind)
    if name is not None:
        population = replace(population, name=name)
    packed.save(population, out)
    summary = {"folder": str(out), **_counts(population)}
    if as_json:
        print_json(summary)
    else:
        typer.echo(
            f"{out}: {counted(population.n_users, 'user')}, {counted(population.n_items, 'item')}, "
            f"{counted(summary['rows'], 'row')}, {counted(summary['duplicates_merged'], 'repeated row')} merged; "
            f"use it as --data {kind.value}:{out}"
        )


@app.command()
def fetch(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The data set; see `veilrec data list`.")],
    accept_licence: Annotated[
        bool, typer.Option("--accept-licence", help="Agree to the licence without being asked.")
    ] = False,
    mirror: Annotated[
        str | None, typer.Option("--mirror", help="A web folder that holds the official file; tried first.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Download a data set's official files: licence first, then resumed, checked and unpacked into the cache.

    Where a form must be filled in, or without network, it says what to download by hand and where to put it.

    Example: veilrec data fetch ml-100k

    Example: veilrec data fetch ml-1m --accept-licence
    """
    from rich.console import Console
    from rich.progress import Progress

    from veilrec.data.fetch import fetch as fetch_dataset

    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task(name, total=None, visible=False)
        folder = fetch_dataset(
            name,
            accept=_asker(accept_licence),
            mirror=mirror,
            progress=lambda done, total: bar.update(task, completed=done, total=total, visible=True),
        )
    if as_json:
        print_json({"name": name, "folder": str(folder)})
    else:
        typer.echo(f"{name} is in {folder}; look into it with `veilrec data check {name}`")


@app.command()
def export(
    spec: Annotated[str, typer.Argument(metavar="NAME[:PATH]", help="A data set with impressions.")],
    out: Annotated[Path, typer.Option("--out", help="The folder to write; it must not exist yet.")],
    format_: Annotated[ExportFormat, typer.Option("--format", help="The format to write.")] = ExportFormat.mind,
    as_json: Json = False,
) -> None:
    """Write a data set in a public format, for other tools: MIND's behaviors.tsv and news.tsv.

    Example: veilrec data export synthetic-news:users=1000,seed=1 --format mind --out made-up-mind
    """
    from veilrec._files import refuse_existing
    from veilrec.data import mind
    from veilrec.data.datasets import load

    refuse_existing(out)
    mind.write(load(spec), out)
    files = sorted(str(path.relative_to(out)) for path in out.rglob("*") if path.is_file())
    if as_json:
        print_json({"folder": str(out), "format": format_.value, "files": files})
    else:
        typer.echo(f"{out}: {', '.join(files)}")


def _listed(dataset: Dataset) -> dict[str, Any]:
    from veilrec.data.datasets import whereabouts

    found = whereabouts(dataset)
    return {
        "name": dataset.name,
        "title": dataset.title,
        "kind": dataset.kind,
        "files": list(dataset.files),
        "licence": dataset.licence,
        "how_to_get": dataset.how_to_get,
        "found": None if found is None else str(found),
    }


def _read_own(files: list[Path], kind: OwnKind) -> Population:
    from veilrec.errors import BadInput

    if kind is OwnKind.csv:
        from veilrec.data import own_logs

        return own_logs.read_csv(*files)
    if len(files) > 1:
        raise BadInput(f"impressions are read from one file, got {len(files)}: put them together first")
    from veilrec.data import own_logs

    return own_logs.read_impressions(files[0])


def _counts(population: Population) -> dict[str, Any]:
    return {
        "name": population.name,
        "users": population.n_users,
        "items": population.n_items,
        "rows": len(population.interactions),
        "duplicates_merged": population.facts.get("duplicates_merged", 0),
    }


def _asker(accepted: bool) -> Callable[[str], bool]:
    """Show the licence on standard error; ask for consent unless it was given or there is nobody to ask."""

    def ask(licence: str) -> bool:
        typer.echo(licence, err=True)
        return accepted or (sys.stdin.isatty() and typer.confirm("Do you agree?", err=True))

    return ask
