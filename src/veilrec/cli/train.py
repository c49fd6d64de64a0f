"""`veilrec train`: train a method, evaluate it, save the run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console

from veilrec.cli.output import Json, data_names, following, method_names, metrics_table, print_json, protocol_names, say
from veilrec.core.errors import BadInput, VeilrecError, counted, file_trouble, is_full
from veilrec.report.labels import human_bytes

if TYPE_CHECKING:
    from veilrec.runs.request import RunRequest
    from veilrec.runs.training import Engine


_PARAMETERS = {"patience": "early_stop"}  # named otherwise on the command line than in a request
DATA_HELP = "Data set: NAME, NAME:FOLDER with its official files, or csv:FILE. See `veilrec data list`."


def train(
    context: typer.Context,
    method: Annotated[
        str | None,
        typer.Argument(
            help="Method to train (see `veilrec methods`), or FILE.py with your own.", autocompletion=method_names
        ),
    ] = None,
    data: Annotated[str, typer.Option(help=DATA_HELP, autocompletion=data_names)] = "synthetic-ratings",
    rounds: Annotated[
        int | None, typer.Option(help="Rounds (epochs for centralised methods). Default: the method's.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Decides every draw: the same seed gives the same model.")] = 0,
    protocol: Annotated[
        str | None,
        typer.Option(
            help="Evaluation: loo-99, loo-full, holdout-users, holdout-users-liked, holdout-records, ratio-8-2, mind or"
            " last-day-20.",
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
        Literal["seeded", "secure"],
        typer.Option(
            case_sensitive=False, help="seeded: the same again from --seed. secure: from a secret, as publishing needs."
        ),
    ] = "seeded",
    people: Annotated[
        int | None, typer.Option(help="Private methods: public number of clients. Default: the true one, rounded up.")
    ] = None,
    public_catalogue: Annotated[
        bool, typer.Option("--public-catalogue", help="Say that anybody may know the items, where no table lists them.")
    ] = False,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Change one setting, e.g. --set local.epochs=3. May be repeated.")
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            help="Train as a file says: config.yaml of a run, best.yaml of a search. Options here win over it."
        ),
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
    refit: Annotated[
        bool, typer.Option("--refit", help="Then train on everything for the rounds that --early-stop found best.")
    ] = False,
    start_from: Annotated[
        Path | None, typer.Option("--from", help="Warm start from the model of this run; data may have grown.")
    ] = None,
    log: Annotated[
        list[str] | None, typer.Option(help="Also log to tensorboard or mlflow (extras of the same names).")
    ] = None,
    engine: Annotated[
        Literal["local", "processes", "ray"],
        typer.Option(
            case_sensitive=False,
            help="Where clients train: local (this process), processes (more of them), ray (a cluster). Same model.",
        ),
    ] = "local",
    workers: Annotated[
        int | None, typer.Option(help="Processes of --engine processes or ray. Default: the cores of this machine.")
    ] = None,
    address: Annotated[
        str | None, typer.Option(help="Ray cluster, e.g. auto or HOST:6379. Default: Ray is started here.")
    ] = None,
    shared: Annotated[
        Path | None, typer.Option(help="Folder that every machine of the cluster sees: the workers' data lies there.")
    ] = None,
    json_output: Json = False,
) -> None:
    """Train a method on a data set, compare it with popularity and chance, and save the run.

    Examples:

        veilrec train fedmf --data ml-100k --rounds 100 --seed 1

        veilrec train fedncf --data csv:clicks.csv --set cohort.size=50 --early-stop 5 --out runs/mine

        veilrec train fedmf --data ml-1m --out runs/long --resume

        veilrec train fedmf --data csv:grown.csv --from runs/mine --rounds 20 --out runs/next

        veilrec train dp-fedmf --data ml-1m --noise secure --out runs/to-publish

        veilrec train --config runs/mine/config.yaml --seed 2

        veilrec train fedmf --data ml-1m --set cohort.size=2000 --engine processes --workers 2
    """
    from veilrec.methods.registry import get, refused
    from veilrec.runs.checkpoint import CONFIG, check_out
    from veilrec.runs.config_file import make_request, read_config_file
    from veilrec.runs.loop import Interrupted
    from veilrec.runs.request import as_meant, default_out, in_full
    from veilrec.runs.training import Engine, with_found_rounds

    if resume and out is None:
        raise BadInput("--resume needs --out: the folder of the run to go on with")
    where = Engine(engine, workers, address, shared)
    chosen = [] if calibration is None else [f"calibration={calibration.strip().lower()}"]
    options = {
        "method": method,
        "data": data,
        "seed": seed,
        "protocol": protocol,
        "preset": preset,
        "rounds": rounds,
        "evaluate_every": evaluate_every,
        "checkpoint_every": checkpoint_every,
        "patience": early_stop,
        "noise": noise,
        "start_from": start_from,
        "people": people,
        "public_catalogue": public_catalogue,
    }
    for line in refused():
        say(f"veilrec: {line}")
    file = None if config is None else read_config_file(config)
    given = options if file is None else _typed(context, options)
    request, notes = make_request(file, given, (*chosen, *(settings or ())))
    for note in notes:
        say(f"{config}: {note}")
    request = in_full(request)
    folder = out or default_out(request)
    unit = "round" if get(as_meant(request).method).kind == "federated" else "epoch"

    def search(asked: RunRequest, place: Path, goes_on: bool) -> dict[str, Any]:
        return _train(asked, place, goes_on, list(log or ()), unit, where)

    try:
        if refit:
            resumed, resume = resume, resume and folder.exists()  # which it does not before the search is done
            check_out(folder, resume=resume)
            request = with_found_rounds(request, folder, search, resume=resumed)
        result = _train(request, folder, resume, list(log or ()), unit, where)
    except Interrupted as stop:
        raise Interrupted(f"{stop}\nGo on with: the same command and --out {folder} --resume") from None
    except OSError as error:
        if not is_full(error) or not (folder / CONFIG).exists():
            raise
        line = f"{file_trouble(error)}; then go on with the same command and --out {folder} --resume"
        raise VeilrecError(line) from None
    if json_output:
        print_json(result | {"out": str(folder)})
    else:
        _print_result(result, folder)


def _typed(context: typer.Context, options: dict[str, Any]) -> dict[str, Any]:
    """Return the options that were typed."""
    usual = ("DEFAULT", "DEFAULT_MAP")
    sources = {name: context.get_parameter_source(_PARAMETERS.get(name, name)) for name in options}
    return {name: value for name, value in options.items() if (found := sources[name]) and found.name not in usual}


def _train(
    request: RunRequest, folder: Path, resume: bool, log: list[str], unit: str, engine: Engine
) -> dict[str, Any]:
    from veilrec.runs import training
    from veilrec.runs.checkpoint import check_out
    from veilrec.runs.loop import check_loggers, make_loggers
    from veilrec.runs.noise import kept_secret
    from veilrec.runs.request import prepare
    from veilrec.runs.training import hired

    check_out(folder, resume=resume)
    check_loggers(log)
    prepared = prepare(request, secret=kept_secret(folder) if resume else None)
    for note in prepared.notes:
        say(f"{prepared.method.name}: {note}")
    title = f"{prepared.method.name} on {prepared.population.name}"
    loggers = make_loggers(log, folder)
    with hired(prepared, engine), following(title, prepared.schedule.rounds, unit=unit) as listener:
        return training.train(prepared, folder, resume=resume, listeners=(listener, *loggers))


def _print_result(result: dict[str, Any], folder: Path) -> None:
    from veilrec.privacy.guarantee import Guarantee
    from veilrec.server.server import SelectionOutcome

    title = f"{result['method']} on {result['dataset']}, {result['protocol']}, seed {result['seed']}"
    console = Console()
    rows = {result["method"]: result["metrics"]}
    if (both := result["before_and_after"]) is not None:
        rows |= {"  its start, untrained": both["start"], "  trained": both["trained"]}
    console.print(metrics_table(title, rows | result["baselines"]))
    for warning in result["warnings"]:
        console.print(warning)
    if result["comparison"] is not None:
        console.print(SelectionOutcome(**result["comparison"]).line())
    traffic = result["communication"]
    if traffic["up_bytes"]:
        timed = "compilation included" if result["rounds"] == 1 else "after the first round"
        console.print(
            f"{counted(result['rounds'], 'round')}, down {human_bytes(traffic['down_bytes'])}, "
            f"up {human_bytes(traffic['up_bytes'])}, {result['clients_per_second']:,.0f} clients/s ({timed})"
        )
    guarantee = Guarantee.from_json(result["guarantee"])
    console.print(f"Privacy: {guarantee.promise()}.", *guarantee.remarks())
    if result["publishable"]:
        console.print(f"May be published: {folder / 'model'}, and nothing else of the run.", soft_wrap=True)
    console.print(f"Saved in {folder}. Next: veilrec recommend {folder} --user ID", soft_wrap=True)
