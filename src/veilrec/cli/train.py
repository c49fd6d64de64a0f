"""`veilrec train`: learn, measure, save."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from veilrec._words import counted
from veilrec.cli.output import Json, data_names, method_names, metrics_table, print_json, protocol_names
from veilrec.report.units import human_bytes

if TYPE_CHECKING:
    from veilrec.runs.request import Request


class Noise(StrEnum):
    """Where random numbers that protect people come from."""

    seeded = "seeded"
    secure = "secure"


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
    noise: Annotated[
        Noise, typer.Option(help="seeded: the same again from --seed. secure: from a secret, as publishing needs.")
    ] = Noise.seeded,
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

        veilrec train dp-fedmf --data ml-1m --noise secure --out runs/to-publish
    """
    from veilrec.errors import BadInput
    from veilrec.methods.registry import get
    from veilrec.runs.loop import Interrupted
    from veilrec.runs.request import Request, default_out

    if resume and out is None:
        raise BadInput("--resume needs --out: the folder of the run to go on with")
    chosen = [] if calibration is None else [f"calibration={calibration}"]
    request = Request(
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
        noise=noise.value,
    )
    folder = out or default_out(request)
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
    from veilrec.runs.folder import check_out
    from veilrec.runs.loggers import make_loggers
    from veilrec.runs.noise import kept_secret
    from veilrec.runs.request import prepare

    check_out(folder, resume=resume)
    prepared = prepare(request, secret=kept_secret(folder) if resume else None)
    for note in prepared.notes:
        typer.echo(f"{request.method}: {note}", err=True)
    title = f"{request.method} on {prepared.population.name}"
    loggers = make_loggers(log, folder)
    with following(title, prepared.schedule.rounds, unit=unit) as listener:
        return training.train(prepared, folder, resume=resume, listeners=(listener, *loggers))


def _print_result(result: dict[str, Any], folder: Path) -> None:
    from rich.console import Console

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
    if result["publishable"]:
        console.print(f"May be published: {folder / 'model'}, and nothing else of the run.", soft_wrap=True)
    console.print(f"Saved in {folder}. Next: veilrec recommend {folder} --user ID", soft_wrap=True)
