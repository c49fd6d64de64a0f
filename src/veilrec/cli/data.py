"""`veilrec data`: list, check, fetch, import and export datasets."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console
from rich.text import Text

from veilrec.cli.output import Json, flat_options, print_json, say
from veilrec.core.errors import BadInput, counted

if TYPE_CHECKING:
    from veilrec.data.delimited import CsvOptions
    from veilrec.data.population import Population

OwnKind = Literal["csv", "impressions"]
_COLUMN = "Its column in the header, or its number with --no-header. Default: a common name such as"


@dataclass(frozen=True)
class FileOptions:
    """How a CSV file is read, where it does not say so itself."""

    user_column: Annotated[str | None, typer.Option(help=f"{_COLUMN} user, userId, customer_id.")] = None
    item_column: Annotated[str | None, typer.Option(help=f"{_COLUMN} item, movieId, product_id.")] = None
    rating_column: Annotated[str | None, typer.Option(help=f"{_COLUMN} rating, stars. none: there is none.")] = None
    time_column: Annotated[str | None, typer.Option(help=f"{_COLUMN} time, timestamp. none: there is none.")] = None
    time_format: Annotated[
        str | None, typer.Option(help="As '%d.%m.%Y %H:%M', in UTC. Default: seconds since 1970, or ISO 8601.")
    ] = None
    decimal: Annotated[
        str | None, typer.Option(help="What stands before the decimals of a rating: . or , Default: a point.")
    ] = None
    separator: Annotated[
        str | None, typer.Option(help="Between fields: ';', ',', tab, '|' ... Default: what splits the header.")
    ] = None
    encoding: Annotated[str | None, typer.Option(help="As cp1252, latin-1, utf-16. Default: utf-8.")] = None
    no_header: Annotated[bool, typer.Option("--no-header", help="The first line is data; columns are 1, 2, 3, ...")] = (
        False
    )
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Leave out rows that cannot be read, and say how many.")
    ] = False

    rating_scale: Annotated[
        str | None,
        typer.Option(help="Lowest and highest rating there can be, as 0.5-10. none: counts or the like. Default: 1-5."),
    ] = None
    cut: Annotated[
        str | None,
        typer.Option(
            help="A public date, as 2026-01-31: impressions from then on are asked, and clicks by last-day-20. Default:"
            " each user's last."
        ),
    ] = None

    @property
    def moment(self) -> int | None:
        """The cut in seconds since 1970; None: none was given."""
        from veilrec.data.delimited import moment_of

        return None if self.cut is None else moment_of(self.cut)

    def csv(self) -> CsvOptions | None:
        """Return what was asked for of a CSV file, or None where nothing was."""
        from veilrec.data.delimited import CsvOptions

        given = {name: value for name, value in vars(self).items() if name != "cut"}
        asked = CsvOptions(header=not given.pop("no_header"), **given)
        return None if asked == CsvOptions() else asked


app = typer.Typer(
    name="data",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="List, check, fetch, import and export datasets.",
)


@app.command("list")
def list_datasets(as_json: Json = False) -> None:
    """Every data set: what it is, where its files were found, whose it is and how to get it.

    A data set is named NAME, NAME:PATH, or NAME:key=value,... where it is made up. Without PATH its files are
    looked for in $VEILREC_DATA/NAME, then where `veilrec data fetch` puts them.

    Example: veilrec data list
    """
    from veilrec.data.datasets import DATASETS, whereabouts

    names = ("name", "title", "kind", "licence", "how_to_get")
    rows = [
        {name: getattr(dataset, name) for name in names}
        | {"files": list(dataset.files), "found": None if (found := whereabouts(dataset)) is None else str(found)}
        for dataset in DATASETS.values()
    ]
    if as_json:
        print_json({"datasets": rows})
        return
    from rich.table import Table

    table = Table("name", "what it is, where it is or how to get it, and its licence", show_lines=True)
    for row in rows:
        place = f"found in {row['found']}" if row["found"] else f"to get it: {row['how_to_get']}"
        about = Text(overflow="fold").append(row["title"], "bold").append(f"\n{place}\n")
        table.add_row(row["name"], about.append(f"licence: {row['licence']}", "dim"))
    Console().print(table)


@app.command()
@flat_options
def check(
    *,
    spec: Annotated[str, typer.Argument(metavar="NAME[:PATH]", help="The data set; see `veilrec data list`.")],
    options: FileOptions,
    as_json: Json = False,
) -> None:
    """Count users, items and rows, show how long histories are, and say what is odd.

    The options from --user-column on are for csv:FILE, and the same as those of `veilrec data import`.

    Example: veilrec data check ml-1m

    Example: veilrec data check csv:clicks.csv --time-format '%d.%m.%Y' --skip-bad

    Example: veilrec data check synthetic-ratings:users=5000,items=2000,seed=1
    """
    from veilrec.data.check import check as check_population
    from veilrec.data.check import render
    from veilrec.data.datasets import load

    report = check_population(load(spec, csv=options.csv(), cut=options.moment))
    if as_json:
        print_json(report.as_json())
        return

    Console().print(render(report))


@app.command("import")
@flat_options
def import_files(
    *,
    files: Annotated[list[Path], typer.Argument(metavar="FILES...", help="Your files, plain or .gz.")],
    out: Annotated[Path, typer.Option("--out", help="The folder to write; a new one, or --replace.")],
    kind: Annotated[OwnKind, typer.Option("--kind", case_sensitive=False, help="What the files hold.")] = "csv",
    name: Annotated[
        str | None, typer.Option("--name", help="A name for the data set in reports. Default: the folder's.")
    ] = None,
    replace_old: Annotated[
        bool, typer.Option("--replace", help="Give up what an earlier import wrote there, once the new one is whole.")
    ] = False,
    options: FileOptions,
    features: Annotated[
        Path | None,
        typer.Option(
            "--features",
            help="A YAML file that names the columns that are features of users and items. Default: for clicks.csv"
            " the file clicks.features.yaml beside it, if there is one.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Turn your own files into a packed data set that starts at once, however large it is.

    --kind csv: a header line that names user and item, and if you have them rating and time, in any order; CSV, gzip
    or parquet. Several files are read as one. The options from --user-column on say what the files do not say
    themselves, and need not be repeated: the packed data set is used as --data csv:FOLDER.

    --kind impressions: one JSON object a line, `{"user": "u1", "time": "2026-01-31T10:00:00Z", "shown":
    ["a", "b"], "clicked": ["b"]}`, and to describe items `{"item": "a", "title": "Rain by noon"}`.

    Example: veilrec data import clicks.csv --out shop

    Example: veilrec data import orders.csv --user-column Kunde --item-column Artikel --separator ';' --decimal ','
    --time-column Datum --time-format '%d.%m.%Y %H:%M' --encoding cp1252 --skip-bad --out shop

    Example: veilrec data import clicks.csv --out shop --replace

    Example: veilrec data import clicks.csv --features features.yaml --out shop

    Example: veilrec data check csv:shop

    Example: veilrec train fedmf --data csv:shop
    """
    from veilrec.core.files import refuse_existing
    from veilrec.data import packed
    from veilrec.data.check import about_times, last_time, notices
    from veilrec.data.datasets import named_after

    is_import = packed.is_packed(out)
    if not (replace_old and is_import):
        refuse_existing(out, "add --replace to put the new import in its place" if is_import else "remove it first")
    population = _read_own(files, kind, options, features)
    population = replace(population, name=name or named_after(out, population.name))
    packed.save(population, out, replace=replace_old)
    summary = {"folder": str(out), **_counts(population)}
    if as_json:
        print_json(summary)
        return
    for line in (*notices(population.facts), *about_times(last_time(population))):
        say(line)
    typer.echo(
        f"{out}: {counted(population.n_users, 'user')}, {counted(population.n_items, 'item')}, "
        f"{counted(summary['rows'], 'row')}, {counted(summary['duplicates_merged'], 'repeated row')} merged; "
        f"use it as --data {kind}:{out}"
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
    format_: Annotated[
        Literal["mind"], typer.Option("--format", case_sensitive=False, help="The format to write.")
    ] = "mind",
    as_json: Json = False,
) -> None:
    """Write a data set in a public format, for other tools: MIND's behaviors.tsv and news.tsv.

    Example: veilrec data export synthetic-news:users=1000,seed=1 --format mind --out synthetic-mind
    """
    from veilrec.core.files import refuse_existing
    from veilrec.data import mind
    from veilrec.data.datasets import load

    refuse_existing(out)
    mind.write(load(spec), out)
    files = sorted(str(path.relative_to(out)) for path in out.rglob("*") if path.is_file())
    if as_json:
        print_json({"folder": str(out), "format": format_, "files": files})
    else:
        typer.echo(f"{out}: {', '.join(files)}")


def _read_own(files: list[Path], kind: OwnKind, options: FileOptions, features: Path | None) -> Population:
    csv, cut = options.csv(), options.moment
    if kind == "csv":
        from veilrec.data.own_csv import read_csv
        from veilrec.data.own_features import beside

        return read_csv(*files, options=csv, features=features or beside(files[0]), cut=cut)
    if features is not None:
        raise BadInput("--features is for --kind csv: leave it out for impressions")
    if len(files) > 1:
        raise BadInput(f"impressions are read from one file, got {len(files)}: put them together first")
    if csv is not None:
        raise BadInput("options for columns, times and encodings are for --kind csv: leave them out for impressions")
    from veilrec.data.impression_logs import read_impressions

    return read_impressions(files[0], cut=cut)


def _counts(population: Population) -> dict[str, Any]:
    from veilrec.data.own_csv import LEFT_OUT

    facts, features = population.facts, population.features
    sides = {} if features is None else {"users": features.users, "items": features.items}
    return {
        "name": population.name,
        "users": population.n_users,
        "items": population.n_items,
        "rows": len(population.interactions),
        "duplicates_merged": facts.get("duplicates_merged", 0),
        "blank_lines": facts.get("blank_lines", 0),
        "ids_stripped": facts.get("ids_stripped", 0),
        "rows_left_out": facts.get("rows_left_out", 0),
        "left_out": {key.removeprefix(LEFT_OUT): count for key, count in facts.items() if key.startswith(LEFT_OUT)},
        "columns_used": facts.get("columns_used", ""),
        "columns_ignored": facts.get("columns_ignored", ""),
        "features": {name: [feature.name for feature in side.features] for name, side in sides.items()},
    }


def _asker(accepted: bool) -> Callable[[str], bool]:
    """Show the licence on standard error; ask for consent unless it was given or there is nobody to ask."""

    def ask(licence: str) -> bool:
        typer.echo(licence, err=True)
        return accepted or (sys.stdin.isatty() and typer.confirm("Do you agree?", err=True))

    return ask
