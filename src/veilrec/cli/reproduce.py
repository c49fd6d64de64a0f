"""`veilrec reproduce`: a table or figure of a paper, its numbers beside ours."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from veilrec.cli.output import Json, following, print_json, print_wide, public_spec, say, text_table
from veilrec.core.errors import BadInput, counted

if TYPE_CHECKING:
    from veilrec.report.reproduce.results import StudySummary
    from veilrec.report.reproduce.study import Study, StudyOptions


def reproduce(
    table: Annotated[
        str | None, typer.Argument(help="Table or figure, such as fedmf-table2. Without it: the list of all.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Few rounds of one seed on small data: to try it, not to quote.")
    ] = False,
    seeds: Annotated[int, typer.Option(help="Runs of every row, with seeds 0, 1, ...")] = 3,
    data: Annotated[
        str | None, typer.Option(help="Other data than the paper's: NAME, NAME:FOLDER. See `veilrec data list`.")
    ] = None,
    protocol: Annotated[str | None, typer.Option(help="Another evaluation than the experiment's.")] = None,
    preset: Annotated[
        list[str] | None, typer.Option(help="Only paper or only tuned hyper-parameters. Default: both.")
    ] = None,
    calibration: Annotated[
        list[str] | None,
        typer.Option(help="Only as-published noise, only proven, or only none. Default: all that a row has."),
    ] = None,
    method: Annotated[
        list[str] | None, typer.Option(help="Only the rows of this method; may be repeated. Default: all.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="NAME=VALUE over the preset, of every row that has such a setting."),
    ] = None,
    skip_missing: Annotated[
        bool, typer.Option("--skip-missing", help="Leave out the rows that need a package or file that is not here.")
    ] = False,
    jobs: Annotated[int, typer.Option(help="Runs at the same time, each in a process with one thread.")] = 1,
    finished: Annotated[
        bool, typer.Option("--finished", help="Train nothing: show the runs that are there, with the seeds they have.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder; experiments in one folder share their runs. Default: runs/reproduce-TABLE."),
    ] = None,
    json_output: Json = False,
) -> None:
    """Reproduce a paper's table or figure: its numbers beside ours, and the epsilon that holds.

    Writes TABLE.json, TABLE.md, TABLE.svg and TABLE.png into the folder. The same command again goes on
    where it stopped, and reads what is finished; remove the folder to start anew. Data and packages of all rows are
    looked for before the first is trained. Where a row fails, the others are run and printed, and the exit code is 1.
    Minutes in the list are estimates for 3 seeds on two quiet cores with --jobs 2.

    Examples:

        veilrec reproduce fedmf-table2 --quick

        veilrec reproduce fedmf-accuracy --seeds 5 --jobs 2 --out runs/paper

        veilrec reproduce fedmf-table2 --method dp-fedmf --method priv-fedmf-sub --calibration proven

        veilrec reproduce fednewsrec-table2 --data mind:MINDsmall --set text.words=glove.6B.300d.txt

        veilrec reproduce privaterec-serving --quick

        veilrec reproduce frontier --seeds 3 --data ml-1m --protocol loo-99
    """
    from veilrec.report.reproduce.experiment import load_experiment

    if table is None:
        _list(json_output)
        return
    table = load_experiment(table).name  # an unknown name is refused before anything else
    from veilrec.report.reproduce.study import StudyOptions
    from veilrec.report.reproduce.summary import failed

    options = StudyOptions(
        seeds=seeds,
        quick=quick,
        data=data,
        protocol=protocol,
        presets=tuple(preset or ()),
        calibrations=tuple(name.strip().lower() for name in calibration or ()),
        methods=tuple(method or ()),
        settings=tuple(settings or ()),
        skip_missing=skip_missing,
        finished=finished,
    )
    summary, folder = _run(table, options, jobs, out)
    _finish(summary, _command(table, options), folder, json_output)
    if failed(summary):
        raise typer.Exit(1)


def _list(json_output: bool) -> None:
    from veilrec import papers
    from veilrec.report.reproduce.experiment import load_experiment

    every = [load_experiment(name) for name in papers.NAMES]
    if json_output:
        print_json({e.name: {"title": e.title, "paper": e.paper, "minutes": e.minutes} for e in every})
        return
    rows = [
        (e.name, e.sources(), e.title if e.minutes is None else f"{e.title} (about {e.minutes} minutes)") for e in every
    ]
    head = ("name", "in the paper", "what")
    Console().print(text_table(head, rows, "Tables and figures", left=range(3), whole=(0,)))


def _run(table: str, options: StudyOptions, jobs: int, out: Path | None) -> tuple[StudySummary, Path]:
    import os

    from veilrec.core.files import check_place
    from veilrec.core.resources import require
    from veilrec.report.reproduce.experiment import load_experiment
    from veilrec.report.reproduce.study import make_study

    for part in ("matplotlib", "PIL"):
        require("veilrec reproduce", part)
    from veilrec.report.reproduce.results import execute, read, recall, summarise, take

    folder = out or Path(os.environ.get("VEILREC_RUNS", "runs")) / f"reproduce-{table}"
    if folder.exists() and not folder.is_dir():
        raise BadInput(f"{folder} is a file, and runs need a folder: choose another --out")
    check_place(folder)
    study = make_study(load_experiment(table), options, folder)
    for line in study.notes:
        say(line)
    for line in study.left_out():
        say(line)
    where = ", ".join(dict.fromkeys(panel.data for panel in study.panels))
    todo = f"{counted(len(study.trials()), 'run')} on {where}" if where else "nothing to train"
    say(f"{table}: {todo}, in {folder}{_how_long(study)}")
    trials, probes = study.trials(), study.probes()
    if options.finished:
        runs = read(trials)
        return summarise(study, {**runs, **recall(probes, runs)}), folder
    runs = execute(trials, jobs=jobs, say=say, follow=following)
    return summarise(study, {**runs, **take(probes, runs, jobs=jobs, say=say)}), folder


def _how_long(study: Study) -> str:
    minutes = study.experiment.minutes
    if minutes is None or study.quick:
        return ""
    return f"; with 3 seeds, on two quiet cores and with --jobs 2, all of it takes about {minutes} minutes"


def _finish(summary: StudySummary, command: str, folder: Path, json_output: bool) -> None:
    from veilrec.core.files import write_json, write_text
    from veilrec.report.reproduce import figures
    from veilrec.report.reproduce.summary import grids, problems, to_json, to_markdown

    name = summary.study.experiment.name
    report = to_json(summary, command)
    write_json(folder / f"{name}.json", report)
    write_text(folder / f"{name}.md", to_markdown(summary, command, f"images/{name}.png"))
    pictures = figures.save_all(summary, folder)
    if json_output:
        print_json(report | {"out": str(folder)})
        return
    for grid in grids(summary):
        print_wide(text_table(grid.head, grid.rows, grid.title, left=grid.words))
    for line in (*summary.notes, *problems(summary)):
        typer.echo(line)
    runs = " and the runs" if summary.panels else ""
    typer.echo(f"Saved in {folder}: {name}.json, .md, {', '.join(f'{one}.svg, .png' for one in pictures)}{runs}.")


def _command(table: str, options: StudyOptions) -> str:
    """Spell the command as it would be typed, without defaults and without paths of this machine."""
    words = ["veilrec reproduce", table]
    words += ["--quick"] if options.quick else [f"--seeds {options.seeds}"]
    if options.data is not None:
        words.append(f"--data {public_spec(options.data)}")
    words += [f"--protocol {options.protocol}"] if options.protocol else []
    words += [f"--preset {preset}" for preset in options.presets]
    words += [f"--calibration {calibration}" for calibration in options.calibrations]
    words += [f"--method {method}" for method in options.methods]
    settings = (setting.partition("=") for setting in options.settings)
    words += [f"--set {name}={Path(value).name}" for name, _, value in settings]  # files without their folders
    words += ["--skip-missing"] if options.skip_missing else []
    words += ["--finished"] if options.finished else []
    return " ".join(words)
