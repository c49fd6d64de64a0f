"""`veilrec train`: learn, measure, save."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from veilrec._words import counted
from veilrec.cli.completion import data_names, method_names, protocol_names
from veilrec.cli.output import Json, print_json
from veilrec.report.units import human_bytes

if TYPE_CHECKING:
    from veilrec.runs.training import Request

DATA_HELP = "Data set: NAME, NAME:FOLDER with its official files, or csv:FILE. See `veilrec data list`."


def train(
    method: Annotated[str, typer.Argument(help="Method to train. See `veilrec methods`.", autocompletion=method_names)],
    data: Annotated[str, typer.Option(help=DATA_HELP, autocompletion=data_names)] = "synthetic-ratings",
    rounds: Annotated[
        int | None, typer.Option(help="Rounds (epochs for centralised methods). Default: the method's.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Decides every draw: the same seed gives the same model.")] = 0,
    protocol: Annotated[
        str | None,
        typer.Option(
            help="Evaluation: loo-99, loo-full, holdout-users, ratio-8-2, mind or last-day-20.",
            autocompletion=protocol_names,
        ),
    ] = None,
    preset: Annotated[
        str, typer.Option(help="Hyper-parameters: tuned (ours), paper (the paper's) or small.")
    ] = "tuned",
    calibration: Annotated[
        str | None,
        typer.Option(help="Private methods: proven (noise that holds, the default) or as-published (the paper's)."),
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Change one setting, e.g. --set local.epochs=3. May be repeated.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run. Default: runs/METHOD-DATA-seedN.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the last checkpoint in --out.")] = False,
    evaluate_every: Annotated[
        int | None, typer.Option(help="Evaluate after so many rounds. Default: 20 times in a run.")
    ] = None,
    checkpoint_every: Annotated[int, typer.Option(help="Write a checkpoint after so many rounds.")] = 20,
    early_stop: Annotated[
        int | None,
        typer.Option(help="Hold out a validation part and stop after so many evaluations without gain on it."),
    ] = None,
    log: Annotated[
        list[str] | None, typer.Option(help="Also log to tensorboard or mlflow (extras of the same names).")
    ] = None,
    json_output: Json = False,
) -> None:
    """Train a method on a data set, compare it with popularity and chance, and save the run.

    Examples:

        veilrec train fedmf --data ml-100k --rounds 100 --seed 1

        veilrec train fedncf --data csv:clicks.csv --set cohort.size=50 --early-stop 5 --out runs/mine

        veilrec train fedmf --data ml-1m --out runs/long --resume
    """
    from veilrec.errors import BadInput
    from veilrec.methods.registry import get
    from veilrec.runs import training
    from veilrec.runs.loop import Interrupted

    if resume and out is None:
        raise BadInput("--resume needs --out: the folder of the run to go on with")
    chosen = [] if calibration is None else [f"calibration={calibration}"]
    request = training.Request(
        method=method,
        data=data,
        seed=seed,
        protocol=protocol,
        preset=preset,
        settings=(*chosen, *(settings or ())),
        rounds=rounds,
        evaluate_every=evaluate_every,
        checkpoint_every=checkpoint_every,
        patience=early_stop,
    )
    folder = out or training.default_out(request)
    unit = "round" if get(method).kind == "federated" else "epoch"
    try:
        result = _train(request, folder, resume, list(log or ()), unit)
    except Interrupted as stop:
        raise Interrupted(f"{stop}\nGo on with: the same command and --out {folder} --resume") from None
    if json_output:
        print_json(result | {"out": str(folder)})
    else:
        _print_result(result, folder)


def _train(request: Request, folder: Path, resume: bool, log: list[str], unit: str) -> dict[str, Any]:
    from veilrec.cli.progress import following
    from veilrec.runs import training
    from veilrec.runs.loggers import make_loggers

    training.check_out(folder, resume=resume)
    prepared = training.prepare(request)
    for note in prepared.notes:
        typer.echo(f"{request.method}: {note}", err=True)
    title = f"{request.method} on {prepared.population.name}"
    loggers = make_loggers(log, folder)
    with following(title, prepared.schedule.rounds, unit=unit) as listener:
        return training.train(prepared, folder, resume=resume, listeners=(listener, *loggers))


def _print_result(result: dict[str, Any], folder: Path) -> None:
    from rich.console import Console

    from veilrec.cli.tables import metrics_table
    from veilrec.privacy.guarantee import Guarantee

    title = f"{result['method']} on {result['dataset']}, {result['protocol']}, seed {result['seed']}"
    console = Console()
    console.print(metrics_table(title, {result["method"]: result["metrics"]} | result["baselines"]))
    traffic = result["communication"]
    if traffic["up_bytes"]:
        timed = "compilation included" if result["rounds"] == 1 else "after the first round"
        console.print(
            f"{counted(result['rounds'], 'round')}, down {human_bytes(traffic['down_bytes'])}, "
            f"up {human_bytes(traffic['up_bytes'])}, {result['clients_per_second']:,.0f} clients/s ({timed})"
        )
    guarantee = Guarantee.from_json(result["guarantee"])
    console.print(f"Privacy: {guarantee.line()}.", *guarantee.caveats)
    console.print(f"Saved in {folder}. Next: veilrec recommend {folder} --user ID", soft_wrap=True)
