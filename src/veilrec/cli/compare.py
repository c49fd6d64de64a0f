"""`veilrec compare`: several methods on the same users, with spreads and paired tests."""

from __future__ import annotations

import shlex
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from veilrec.cli.output import Json, data_names, method_names, print_json, protocol_names, say
from veilrec.cli.train import DATA_HELP

if TYPE_CHECKING:
    from veilrec.report.comparison import ComparisonTable
    from veilrec.runs.comparison import MethodComparison

_WIDTH_OF_FILES = 180  # of tables that no terminal cuts


class Format(StrEnum):
    """How a comparison is printed."""

    table = "table"
    csv = "csv"
    latex = "latex"
    html = "html"
    json = "json"


def compare(
    methods: Annotated[
        list[str],
        typer.Argument(
            help="Methods or FILE.py, with settings of their own if you like: fedmf dp-fedmf:privacy.epsilon=4"
            " mf:best.yaml mine.py:damping=0.5",
            metavar="METHOD[:SETTING=VALUE,...]...",
            autocompletion=method_names,
        ),
    ],
    data: Annotated[str, typer.Option(help=DATA_HELP, autocompletion=data_names)] = "synthetic-ratings",
    seeds: Annotated[int, typer.Option(help="Runs of every method, with seeds 0, 1, ...")] = 3,
    protocol: Annotated[
        str | None, typer.Option(help="Evaluation. Default: the usual one of the data.", autocompletion=protocol_names)
    ] = None,
    metric: Annotated[
        str | None, typer.Option(help="What is tested and drawn. Default: ndcg@10, or auc for impressions.")
    ] = None,
    preset: Annotated[str | None, typer.Option(help="Hyper-parameters of all methods: tuned, paper or small.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Rounds (epochs) of all methods. Default: each method's.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="A setting of all methods that have it, or METHOD.NAME=VALUE of one. May be repeated."
        ),
    ] = None,
    jobs: Annotated[int, typer.Option(help="Runs at the same time, each in a process with one thread.")] = 1,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the files and of new runs. Default: runs/compare-DATA.")
    ] = None,
    form: Annotated[
        Format, typer.Option("--format", case_sensitive=False, help="What is printed; the folder gets every form.")
    ] = (Format.table),
    json_output: Json = False,
) -> None:
    """Compare methods over seeds with paired tests, beside popularity and chance; train missing runs.

    Finished runs of the same request are read again, those that were stopped go on. The folder gets comparison.json,
    .csv, .tex, .html and .png, and pairs.csv. Where a run fails, the others are compared, and the exit code is 1.

    Examples:

        veilrec compare fedmf mf ease --data ml-100k --seeds 5 --jobs 2

        veilrec compare dp-fedmf:privacy.epsilon=2 dp-fedmf:privacy.epsilon=8 fedmf --data ml-1m

        veilrec compare fedmf mf --data ml-100k --set fedmf.local.epochs=3 --format latex

        veilrec compare nrms naml --data mind:MINDsmall --seeds 3 --metric mrr
    """
    from veilrec.cli.output import following
    from veilrec.report.comparison import save
    from veilrec.runs import comparison

    result = comparison.compare(
        methods,
        data,
        seeds=seeds,
        protocol=protocol,
        preset=preset,
        rounds=rounds,
        settings=tuple(settings or ()),
        metric=metric,
        out=out,
        jobs=jobs,
        say=say,
        follow=following,
    )
    command = _command(result, methods, settings or [], preset=preset, rounds=rounds)
    names = save(result, command)
    _print(result, command, Format.json if json_output else form)
    say(f"Saved in {result.folder}: {', '.join(names)}")
    if not any(name.endswith(".png") for name in names):
        say("No picture: matplotlib is not installed; pip install 'veilrec[report]'")
    if len(result.measured) < len(result.entries):
        raise typer.Exit(1)


def _command(
    result: MethodComparison, methods: list[str], settings: list[str], *, preset: str | None, rounds: int | None
) -> str:
    """The command as it would be typed, without anybody's folders."""
    name, _, rest = result.data.partition(":")
    data = result.data if "=" in rest or not rest else f"{name}:PATH"
    words = ["veilrec", "compare", *methods, "--data", data, "--seeds", str(len(result.seeds))]
    words += ["--protocol", result.protocol, "--metric", result.metric]
    words += ["--preset", preset] if preset else []
    words += ["--rounds", str(rounds)] if rounds is not None else []
    for setting in settings:
        words += ["--set", setting]
    return shlex.join(words)


def _print(result: MethodComparison, command: str, form: Format) -> None:
    from veilrec.report import comparison as report

    if form == Format.json:
        print_json(report.to_json(result, command))
    elif form == Format.table:
        for grid in (*report.grids(result), *report.fairness_grids(result)):
            _print_grid(grid)
        for words in report.notes(result):
            typer.echo(words)
    else:
        suffix = {Format.csv: "csv", Format.latex: "tex", Format.html: "html"}[form]
        sys.stdout.write((result.folder / f"{report.NAME}.{suffix}").read_text(encoding="utf-8"))


def _print_grid(grid: ComparisonTable) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(grid.title), title_justify="left")
    for column, name in enumerate(grid.head):
        table.add_column(Text(name), justify="right" if column in grid.numbers else "left", overflow="fold")
    for row in grid.rows:
        table.add_row(*(Text(cell) for cell in row))
    Console(width=None if sys.stdout.isatty() else _WIDTH_OF_FILES).print(table)
