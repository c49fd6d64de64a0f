"""`veilrec privacy`: privacy statements, noise calibration, accounting."""

from __future__ import annotations

import json
import shutil
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from veilrec.cli.output import Json, print_json
from veilrec.core.errors import BadInput, counted

if TYPE_CHECKING:
    from veilrec.privacy.budget import Setting
    from veilrec.privacy.statement import Statement

app = typer.Typer(
    name="privacy",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Show the privacy statement of a run, calibrate noise, account for a training.",
)

_PUBLISHABLE = "The folder model/ of the run, and nothing else of it: its other numbers are exact."


@app.command()
def show(
    run: Annotated[Path, typer.Argument(metavar="RUN|RELEASE", help="Folder of a run, or of a release.")],
    html: Annotated[
        Path | None, typer.Option(help="Write it as one page for screen and paper, with a picture, to this file.")
    ] = None,
    json_output: Json = False,
) -> None:
    """The privacy statement of a run or a release: what is protected, how strongly, against whom, and what is not.

    Examples:

        veilrec privacy show runs/dp-fedmf-ml-1m-seed0

        veilrec privacy show runs/dp-fedmf-ml-1m-seed0 --html privacy.html

        veilrec privacy show releases/news
    """
    statement = _of_release(run) if (run / "manifest.json").is_file() else _of_run(run)
    if html is not None:
        _write_page(statement, html)
    if json_output:
        print_json(statement.to_json() | {"run": str(run)} | ({} if html is None else {"html": str(html)}))
    elif html is None:
        typer.echo(statement.text())
    else:
        typer.echo(f"The statement is in {html}. A browser prints it, or saves it as PDF.")


def _of_release(folder: Path) -> Statement:
    """Build the statement of a release: its training, and the private queries that it offers."""
    from veilrec.privacy.statement import Statement
    from veilrec.runs.release import queries_of
    from veilrec.wire.releases import open_release

    release = open_release(folder, clock=None)
    covered, why = f"This is a release: {release.line()}.", "; ".join(release.manifest["why_unprotected"])
    if not release.protected:
        covered = f"Released although no proof covers it: {why}."
    return Statement(
        release.guarantee,
        method=release.method,
        dataset=str(release.manifest["data"].get("dataset", "")),
        publication=(covered,),
        queries=queries_of(release.manifest),
    )


def _of_run(run: Path) -> Statement:
    from veilrec.privacy.guarantee import Guarantee
    from veilrec.privacy.statement import Statement
    from veilrec.runs.noise import kept_obstacle

    result, config = _read_run(run)
    guarantee = Guarantee.from_json(result["guarantee"])
    reason = kept_obstacle(guarantee, str(config.get("noise", "seeded")))
    guarantee = replace(guarantee, obstacle=reason or "")
    own, before = _noise(result.get("noise")), _earlier(result.get("start_from"))
    return Statement(
        guarantee,
        method=str(result.get("method", "")),
        dataset=str(result.get("dataset", "")),
        noise=(*own, *_settings(config), *_cut(config), *before.values()),
        publication=(_PUBLISHABLE if reason is None else f"Nothing of this run: {reason}.",),
        adds_noise=bool(own),
        earlier=tuple(before),
    )


def _write_page(statement: Statement, path: Path) -> None:
    from veilrec.methods.registry import METHODS, get
    from veilrec.report.html import write_page

    kind = get(statement.method).kind if statement.method in METHODS else "federated"  # or of another version
    data_used = statement.method != "random"
    write_page(statement, path, where="nowhere" if not data_used else "clients" if kind == "federated" else "one place")


@app.command()
def calibrate(
    mechanism: Annotated[
        Literal["gaussian", "laplace", "randomised-response", "k-ary", "attention", "label"],
        typer.Option(case_sensitive=False, help="What protects the message."),
    ],
    epsilon: Annotated[float, typer.Option(help="The epsilon of one message that is wanted, above 0.")],
    delta: Annotated[
        float | None,
        typer.Option(help="Chance of failure. gaussian needs it; attention takes Laplace noise without it."),
    ] = None,
    sensitivity: Annotated[
        float | None,
        typer.Option(help="How far a change moves the message: L2 for gaussian, L1 for laplace. Default: 1."),
    ] = None,
    padding: Annotated[
        float | None,
        typer.Option(
            help="Chance that a click is replaced by a pad, afresh for every message. gaussian, laplace, attention."
        ),
    ] = None,
    basis: Annotated[
        int | None, typer.Option(help="Number of basis interests. attention with Laplace noise alone. Default: 5.")
    ] = None,
    clip: Annotated[
        float | None, typer.Option(help="Norm at which attention is clipped; attention alone. Default: 1.")
    ] = None,
    candidates: Annotated[
        int | None, typer.Option(help="Number of categories (k-ary) or of items of an impression (label).")
    ] = None,
    json_output: Json = False,
) -> None:
    """How much noise one message needs for an epsilon.

    Examples:

        veilrec privacy calibrate --mechanism gaussian --epsilon 1 --delta 1e-6 --sensitivity 0.04

        veilrec privacy calibrate --mechanism attention --epsilon 1 --delta 1e-6 --padding 0.5 --clip 1

        veilrec privacy calibrate --mechanism label --epsilon 2 --candidates 37 --json
    """
    from veilrec.privacy.budget import Wish, noise_of_message

    wish = Wish(
        mechanism=mechanism,
        epsilon=epsilon,
        delta=delta,
        sensitivity=sensitivity,
        pad_probability=padding,
        basis=basis,
        clip_norm=clip,
        candidates=candidates,
    )
    _tell({"mechanism": mechanism}, noise_of_message(wish), json_output)


@app.command()
def account(
    noise_multiplier: Annotated[
        float, typer.Option(help="Standard deviation of the noise on the sum, over how far one user can move it.")
    ],
    rounds: Annotated[int, typer.Option(help="Rounds of training.")],
    delta: Annotated[float, typer.Option(help="Chance of failure, above 0 and below 1.")],
    mechanism: Annotated[
        Literal["gaussian"], typer.Option(case_sensitive=False, help="What protects the sum.")
    ] = "gaussian",
    sampling: Annotated[
        Literal["none", "poisson", "fixed"],
        typer.Option(
            case_sensitive=False,
            help="Who takes part in a round: all (none), a fixed number, each by chance (poisson).",
        ),
    ] = "none",
    population: Annotated[int | None, typer.Option(help="Number of users. fixed and poisson need it.")] = None,
    cohort: Annotated[
        int | None, typer.Option(help="Users in a round (poisson: on average). fixed and poisson need it.")
    ] = None,
    json_output: Json = False,
) -> None:
    """What a training spends on each user, over all its rounds.

    The noise multiplier counts from the sensitivity under the adjacency that is printed: with updates clipped
    at C, a user can move the sum by 2 C (replace-one: none, fixed) or by C (add-remove: poisson).

    Examples:

        veilrec privacy account --noise-multiplier 4 --rounds 20 --delta 1e-6 --json

        veilrec privacy account --noise-multiplier 1 --rounds 1000 --delta 1e-6 --sampling fixed
        --population 4800 --cohort 30
    """
    from veilrec.privacy.accounting import Rounds
    from veilrec.privacy.budget import epsilon_of_training

    if sampling != "none" and (population is None or cohort is None):
        raise BadInput(f"sampling {sampling} needs --population and --cohort")
    if sampling == "none" and not (population is None and cohort is None):
        raise BadInput(
            "--population and --cohort count only where a cohort is drawn: add --sampling fixed or poisson, or "
            "leave them out"
        )
    people: dict[str, Any] = (
        {} if population is None or cohort is None else {"population": population, "cohort": cohort}
    )
    plan = epsilon_of_training(noise_multiplier, delta, Rounds(rounds=rounds, sampling=sampling, **people))
    _tell({"mechanism": mechanism, "sampling": sampling, **people, "rounds": rounds}, plan, json_output)


def _tell(asked: dict[str, Any], plan: Setting, json_output: bool) -> None:
    from veilrec.privacy.statement import detection_to_json, meaning

    facts = asked | dict(plan.settings)
    if json_output:
        print_json(facts | plan.guarantee.to_json() | detection_to_json(plan.guarantee))
        return
    for name, value in facts.items():
        typer.echo(f"{name.replace('_', ' ')}: {f'{value:.7g}' if isinstance(value, float) else value}")
    typer.echo(f"guarantee: {plan.guarantee.line()}")
    width = shutil.get_terminal_size().columns
    for line in (*meaning(plan.guarantee), *plan.guarantee.caveats):
        typer.echo(textwrap.fill(line, width, initial_indent="- ", subsequent_indent="  "))


def _read_run(run: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    from veilrec.runs.checkpoint import read_config

    config = read_config(run)
    path = run / "result.json"
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise BadInput(
            f"{path} cannot be read: finish the run first with `veilrec train ... --out {run} --resume`"
        ) from None
    if not isinstance(result, dict) or not isinstance(result.get("guarantee"), dict):
        raise BadInput(f"{path} has no guarantee: train the run again with this version")
    return result, config


def _noise(facts: object) -> tuple[str, ...]:
    """Describe the noise of a proven run with the numbers that `veilrec privacy account` takes."""
    try:
        n = {name: float(value) for name, value in dict(facts).items()}  # type: ignore[call-overload]
        least = "at least " if "honest" in n else ""  # clients add it: of a full sum they add more than is counted on
        return (
            f"Gaussian noise of standard deviation {least}{n['sigma']:.6g} on every sum of a round, which is {least}"
            f"{n['noise_multiplier']:.6g} times what one unit of protection can move it; a cohort of"
            f" {n['cohort']:,.0f} of {counted(int(n['population']), 'user')}.",
        )
    except (TypeError, ValueError, KeyError):
        return ()  # a run without noise on sums


def _earlier(start_from: object) -> dict[str, str]:
    """Describe the noise of every run that a run was started from, the latest first."""
    told: dict[str, str] = {}
    while isinstance(start_from, dict):
        name = Path(str(start_from.get("run", "unknown"))).name
        noise = _noise(start_from.get("noise")) or ("what noise it added is not known here.",)
        told[name] = f"The earlier run {name} that the model comes from: {noise[0]}"
        start_from = start_from.get("start_from")
    return told


def _cut(config: dict[str, Any]) -> tuple[str, ...]:
    """Describe what decides which part of somebody's data is learnt from."""
    if not isinstance(config.get("cut"), str):
        return ()
    return (f"What is learnt from is parted from what is asked by {config['cut']}: nobody else's data decides it.",)


def _settings(config: dict[str, Any]) -> tuple[str, ...]:
    """Describe the privacy settings in config.yaml; epsilon and delta stand in the guarantee."""
    settings = config.get("config")
    if not isinstance(settings, dict) or not isinstance(settings.get("privacy"), dict):
        return ()
    chosen = {name: value for name, value in settings["privacy"].items() if name not in ("epsilon", "delta")}
    words = [f"{name.replace('_', ' ')} {value}" for name, value in chosen.items()]
    cohort = settings.get("cohort")
    if isinstance(cohort, dict):
        everybody = cohort.get("size") == 0
        words += ["everybody in every round"] if everybody else []
        shown = {name: value for name, value in cohort.items() if not (everybody and name == "size")}
        words += [f"cohort {name.replace('_', ' ')} {value}" for name, value in shown.items()]
    calibration = f"calibration {settings['calibration']}, " if "calibration" in settings else ""
    rounds = config.get("rounds")
    words = [counted(rounds, "round"), *words] if isinstance(rounds, int) else words
    return (f"Settings of the run: {calibration}{', '.join(words)}.",)
