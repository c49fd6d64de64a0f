"""`veilrec compare` and `veilrec tune`: several methods side by side, and the settings of one."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from veilrec.cli.output import (
    Json,
    data_names,
    following,
    method_names,
    print_json,
    print_wide,
    protocol_names,
    public_spec,
    say,
    text_table,
)
from veilrec.cli.train import DATA_HELP
from veilrec.core.errors import counted

if TYPE_CHECKING:
    from veilrec.runs.comparison import MethodComparison
    from veilrec.runs.tuning import Tuned


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
    json_output: Json = False,
) -> None:
    """Compare methods over seeds with paired tests, beside popularity and chance; train missing runs.

    Finished runs of the same request are read again, those that were stopped go on. The folder gets comparison.json,
    .csv, .tex and .png, and pairs.csv. Where a run fails, the others are compared, and the exit code is 1.

    Examples:

        veilrec compare fedmf mf ease --data ml-100k --seeds 5 --jobs 2

        veilrec compare dp-fedmf:privacy.epsilon=2 dp-fedmf:privacy.epsilon=8 fedmf --data ml-1m

        veilrec compare fedmf mf --data ml-100k --set fedmf.local.epochs=3

        veilrec compare nrms naml --data mind:MINDsmall --seeds 3 --metric mrr
    """
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
    command = _compare_command(result, methods, settings or [], preset=preset, rounds=rounds)
    names = save(result, command)
    _print_comparison(result, command, json_output)
    say(f"Saved in {result.folder}: {', '.join(names)}")
    if not any(name.endswith(".png") for name in names):
        say("No picture: matplotlib is not installed; pip install 'veilrec[report]'")
    if len(result.measured) < len(result.entries):
        raise typer.Exit(1)


def _compare_command(
    result: MethodComparison, methods: list[str], settings: list[str], *, preset: str | None, rounds: int | None
) -> str:
    """Spell the command as it would be typed, without local paths."""
    words = ["veilrec", "compare", *methods, "--data", public_spec(result.data), "--seeds", str(len(result.seeds))]
    words += ["--protocol", result.protocol, "--metric", result.metric]
    words += ["--preset", preset] if preset else []
    words += ["--rounds", str(rounds)] if rounds is not None else []
    for setting in settings:
        words += ["--set", setting]
    return shlex.join(words)


def _print_comparison(result: MethodComparison, command: str, json_output: bool) -> None:
    from veilrec.report import comparison as report

    if json_output:
        print_json(report.to_json(result, command))
        return
    for grid in report.grids(result):
        words = [column for column in range(len(grid.head)) if column not in grid.numbers]
        print_wide(text_table(grid.head, grid.rows, grid.title, left=words))
    for note in report.notes(result):
        typer.echo(note)


def tune(
    method: Annotated[
        str, typer.Argument(help="Method to tune (see `veilrec methods`), or FILE.py.", autocompletion=method_names)
    ],
    data: Annotated[str, typer.Option(help=DATA_HELP, autocompletion=data_names)] = "synthetic-ratings",
    space: Annotated[
        Path | None,
        typer.Option(help="YAML: NAME: {low: L, high: H, log: true} or NAME: [choices]. Default: around the preset."),
    ] = None,
    trials: Annotated[int, typer.Option(help="Trials in all; more of them go on with a search that is done.")] = 20,
    seed: Annotated[int, typer.Option(help="Seed of the trials and of the search.")] = 0,
    protocol: Annotated[
        str | None, typer.Option(help="Evaluation. Default: the usual one of the data.", autocompletion=protocol_names)
    ] = None,
    preset: Annotated[str, typer.Option(help="Hyper-parameters to start from: tuned, paper or small.")] = "tuned",
    rounds: Annotated[
        int | None,
        typer.Option(help="Rounds (epochs) of a trial, at most; not where --space has rounds. Default: the method's."),
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="A setting of every trial, which is not searched for.")
    ] = None,
    jobs: Annotated[int, typer.Option(help="Trials at the same time, each in a process with one thread.")] = 1,
    out: Annotated[Path | None, typer.Option(help="Folder of the search. Default: runs/tune-METHOD-DATA.")] = None,
    json_output: Json = False,
) -> None:
    """Search hyper-parameters on validation items; test items are never used.

    The same command goes on after an interruption or a kill. The folder gets best.yaml, which `veilrec train --config`
    reads. Without --space: rates and decays within a factor of 10 around the preset's, and what else usually pays.

    Examples:

        veilrec tune fedmf --data ml-100k --trials 50 --jobs 2

        veilrec tune ease --data ml-1m --space ridge.yaml --out runs/tune-ease

        veilrec train --config runs/tune-fedmf-ml-100k/best.yaml
    """
    from veilrec.runs import tuning
    from veilrec.runs.request import RunRequest

    request = RunRequest(
        method=method,
        data=data,
        seed=seed,
        protocol=protocol,
        preset=preset,
        settings=tuple(settings or ()),
        rounds=rounds,
    )
    tuned = tuning.tune(request, space=space, trials=trials, out=out, jobs=jobs, say=say)
    print_json(_to_json(tuned)) if json_output else _print_tuned(tuned)


def _train_command(tuned: Tuned) -> str:
    from veilrec.methods.plugins import is_file
    from veilrec.runs.tuning import BEST

    method = tuned.request.method
    named = f" {method.removesuffix(':METHOD')}" if is_file(method) else ""  # no file makes code run by itself
    return f"veilrec train{named} --config {tuned.folder / BEST}"


def _to_json(tuned: Tuned) -> dict[str, Any]:
    from veilrec.methods.registry import short_name
    from veilrec.runs.tuning import BEST

    r = tuned.request
    return {
        "method": short_name(r.method),
        "data": r.data,
        "protocol": r.protocol,
        "seed": r.seed,
        "metric": tuned.metric,
        "measured_on": "validation items",
        "value": tuned.value,
        "value_of_preset": tuned.at_start,
        "value_of_popularity": tuned.popularity,
        "settings": list(r.settings),
        "rounds": r.rounds,
        "trials": tuned.trials,
        "failed": tuned.failed,
        "caveats": list(r.caveats),
        "best": str(tuned.folder / BEST),
        "command": _train_command(tuned),
        "out": str(tuned.folder),
    }


def _print_tuned(tuned: Tuned) -> None:
    from veilrec.methods.registry import short_name
    from veilrec.runs.tuning import SPLIT_BY_SEED

    r, name = tuned.request, short_name(tuned.request.method)
    failed = f", {tuned.failed} of them failed" if tuned.failed else ""
    start = "" if tuned.at_start is None else f"the preset's own settings: {tuned.at_start:.4f}, "
    typer.echo(f"{name} on {r.data.partition(':')[0]}, {r.protocol}: {counted(tuned.trials, 'trial')}{failed}")
    typer.echo(
        f"Best {tuned.metric} on validation items: {tuned.value:.4f} ({start}popularity: {tuned.popularity:.4f})"
    )
    if tuned.value <= tuned.popularity:
        typer.echo("That ranks no better than popularity: search in another space, or with more rounds.")
    for setting in r.settings:
        typer.echo(f"  {setting}")
    typer.echo(f"  {counted(r.rounds or 0, 'round')}")
    if tuned.private:
        typer.echo(
            f"Not covered by the guarantee: {tuned.caveat()} A run with these settings says so in its guarantee."
        )
    if r.protocol in SPLIT_BY_SEED:
        typer.echo(f"Test with --seed {r.seed}: under {r.protocol} another seed has other test items, some seen here.")
    typer.echo(f"Train with them, and measure on the test items: {_train_command(tuned)}")
