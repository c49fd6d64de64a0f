"""`veilrec tune`: search for good settings on validation items."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from veilrec.cli.output import Json, data_names, method_names, print_json, protocol_names, say
from veilrec.cli.train import DATA_HELP
from veilrec.core.errors import counted

if TYPE_CHECKING:
    from veilrec.runs.tuning import Tuned


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
    print_json(_to_json(tuned)) if json_output else _print(tuned)


def _command(tuned: Tuned) -> str:
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
        "command": _command(tuned),
        "out": str(tuned.folder),
    }


def _print(tuned: Tuned) -> None:
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
    typer.echo(f"Train with them, and measure on the test items: {_command(tuned)}")
