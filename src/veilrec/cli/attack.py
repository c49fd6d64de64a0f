"""`veilrec attack`: what an adversary recovers from client messages."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from veilrec.cli import attack_training
from veilrec.cli.attack_training import Calibrations, Data, Plot, Seed, Settings, run_folders
from veilrec.cli.audit import check_plot
from veilrec.cli.output import Json, method_names, print_json, say

if TYPE_CHECKING:
    from veilrec.attacks.running import Attacked, QueryAttack

app = typer.Typer(help="Attack client messages, and measure what is recovered.")
ATTACKS = {
    "gradient-rows": "which clicked news an upload of a news model reveals, from its rows of words and its layers",
    "repeated-queries": "what n noisy queries of one device reveal of its interests, with fresh noise and memoised",
    "membership": "whether somebody's data was used, from all that a training releases, by canaries",
    "row-support": "which items somebody has, from the rows of a message or of a sum that are there",
    "inversion": "what of a history can be worked out from the numbers of a message, a sum, or a release",
    "poisoning": "what some devices that lie do to everybody's lists, and what stops them",
}


@app.callback(invoke_without_command=True)
def attack(
    context: typer.Context,
    listed: Annotated[bool, typer.Option("--list", help="Which attacks there are.")] = False,
    json_output: Json = False,
) -> None:
    """Attack client messages, and measure what is recovered; without a name, list the attacks."""
    if context.invoked_subcommand is not None and not listed:
        return
    if json_output:
        print_json({"attacks": [{"attack": name, "about": about} for name, about in ATTACKS.items()]})
    else:
        for name, about in ATTACKS.items():
            typer.echo(f"veilrec attack {name:18}{about}")
    raise typer.Exit


@app.command("gradient-rows")
def gradient_rows(
    runs: Annotated[list[Path] | None, typer.Argument(help="Runs of `veilrec train`, attacked as trained.")] = None,
    methods: Annotated[
        list[str] | None,
        typer.Option(
            "--method", help="A method, before its first round. May be repeated.", autocompletion=method_names
        ),
    ] = None,
    data: Data = "synthetic-news",
    calibrations: Calibrations = None,
    settings: Settings = None,
    uploads: Annotated[
        int, typer.Option(help="Devices that are attacked; as many again are the attacker's own.")
    ] = 150,
    rounds: Annotated[int, typer.Option(help="Rounds of each device that the attacker takes together.")] = 1,
    seed: Seed = 0,
    plot: Plot = None,
    json_output: Json = False,
) -> None:
    """Which clicked news does an upload reveal?

    The rows of words that are there name the titles that a device has read; the rows of a layer's gradient span the
    vectors of the clicked news. Where the noise lies on the sum of a round, the attacker sees that sum and knows what
    everybody else sent; what the server sees, which such a method trusts, stands beside it. Recall is the share of
    clicked news that are found; news that were shown do not count, since whoever made the page knows them.

    Examples:

        veilrec attack gradient-rows --method fednewsrec --calibration none --calibration proven

        veilrec attack gradient-rows runs/mine --uploads 300 --plot leak.png

        veilrec attack gradient-rows --method fednewsrec-head --data mind:FOLDER --json
    """
    from veilrec.attacks.running import attack_uploads
    from veilrec.attacks.subjects import Populations, subjects_of
    from veilrec.core.errors import BadInput

    if uploads < 1 or rounds < 1:
        name, value = ("uploads", uploads) if uploads < 1 else ("rounds", rounds)
        raise BadInput(f"--{name} is {value}: give at least 1")
    if plot is not None:
        check_plot(plot)
    populations = Populations()
    subjects = subjects_of(
        run_folders(runs), methods or (), calibrations or (), settings or (), data, seed, populations, needs_titles=True
    )
    attacked = []
    for number, make in enumerate(subjects, 1):
        subject = make()
        say(f"attack {number}/{len(subjects)}  {subject.label}")
        attacked.append(attack_uploads(subject, uploads=uploads, rounds=rounds, seed=seed))
    if plot is not None:
        from veilrec.report.plots import save_attack

        save_attack(attacked, plot)
    if json_output:
        each = [one.to_json() | {"seed": seed} for one in attacked]
        print_json(each[0] if len(each) == 1 else {"attack": "gradient-rows", "results": each, "seed": seed})
    else:
        _print_uploads(attacked, rounds, plot)


def _print_uploads(attacked: Sequence[Attacked], rounds: int, plot: Path | None) -> None:
    from rich.console import Console

    from veilrec.attacks.subjects import SEEN

    console = Console()
    for one in attacked:
        subject = one.subject
        padding = "" if subject.padding is None else f"; padding {subject.padding:g}"
        console.print(f"{subject.label}: {subject.claimed.line()}", style="bold", soft_wrap=True, markup=False)
        about = f"model {subject.trained}; data {subject.data}{padding}"
        told = f"{one.findings[0].uploads} devices, {one.findings[0].recovery.clicks:,} clicks to find"
        console.print(f"{about}; {told}", soft_wrap=True, markup=False)
        console.print(attack_training.recovery_table(one.findings))
    for view in dict.fromkeys(finding.view for one in attacked for finding in one.findings):
        console.print(f"{view}: {SEEN[view]}")
    together = "one upload" if rounds == 1 else f"{rounds} uploads of each device, taken together"
    console.print(
        f"How to read it: recall is the share of clicked news that were found in {together}; false is the share of the"
        " others that were taken for clicked; chance is what somebody finds who names each news as often"
        " without looking. Intervals take into account that clicks of one device are found or missed together."
    )
    if plot is not None:
        console.print(f"Plot: {plot}", soft_wrap=True, markup=False)


app.command("membership")(attack_training.membership)
app.command("row-support")(attack_training.row_support)
app.command("inversion")(attack_training.inversion)
app.command("poisoning")(attack_training.poisoning)


@app.command("repeated-queries")
def repeated_queries(
    runs: Annotated[list[Path] | None, typer.Argument(help="Runs of a method with basis vectors.")] = None,
    epsilon: Annotated[float, typer.Option(help="Epsilon of one query, per history.")] = 1.0,
    delta: Annotated[
        float | None, typer.Option(help="Of one query with Gaussian noise; Laplace noise has 0. Default: 1e-6.")
    ] = None,
    noise: Annotated[str, typer.Option(help="laplace or gaussian.")] = "laplace",
    calibration: Annotated[str, typer.Option(help="proven or as-published.")] = "proven",
    clip_norm: Annotated[
        float | None, typer.Option(help="Of the attention. Default: that of the run's training.")
    ] = None,
    queries: Annotated[
        list[int] | None, typer.Option(help="After how many queries to look. May be repeated. Default: 1 to 100.")
    ] = None,
    seed: Seed = 0,
    plot: Plot = None,
    json_output: Json = False,
) -> None:
    """What do n noisy queries of one device reveal of its interests?

    The attacker averages the noisy attention of every test user, or counts answers of the k-ary response, and names the
    strongest interest. Noise that is fresh for every query averages out; memoised queries are the same again.

    Examples:

        veilrec attack repeated-queries runs/mine --epsilon 1

        veilrec attack repeated-queries runs/mine --calibration as-published --plot queries.png
    """
    from typing import get_args

    from veilrec.attacks.running import COUNTS, QueryNoise, attack_queries, clip_norm_of
    from veilrec.attacks.subjects import Populations
    from veilrec.core.errors import BadInput, known_name
    from veilrec.privacy.mechanisms.attention import Noise
    from veilrec.privacy.mechanisms.base import Calibration

    if not runs:
        raise BadInput("nothing to attack: give the folder of a run of a method with basis vectors, such as privaterec")
    noise = known_name("noise", noise, get_args(Noise))
    calibration = known_name("calibration", calibration, get_args(Calibration))
    if plot is not None:
        check_plot(plot)
    populations, asked = Populations(), []
    for number, folder in enumerate(run_folders(runs), 1):
        asking = QueryNoise(
            epsilon=epsilon,
            delta=delta if delta is not None else 0.0 if noise == "laplace" else 1e-6,
            clip_norm=clip_norm_of(folder) if clip_norm is None else clip_norm,
            noise=noise,  # type: ignore[arg-type]
            calibration=calibration,  # type: ignore[arg-type]
        )
        say(f"attack {number}/{len(runs)}  {folder}")
        asked.append(attack_queries(folder, populations, asking, counts=queries or COUNTS, seed=seed))
    if plot is not None:
        from veilrec.report.plots import save_queries

        save_queries(asked, plot)
    if json_output:
        each = [one.to_json() | {"seed": seed} for one in asked]
        print_json(each[0] if len(each) == 1 else {"attack": "repeated-queries", "results": each, "seed": seed})
    else:
        _print_queries(asked, plot)


def _print_queries(asked: Sequence[QueryAttack], plot: Path | None) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    for one in asked:
        console.print(f"{one.folder}: {one.method}, {one.users} test users, {one.interests} interests", markup=False)
        for curve in one.curves:
            how = "memoised" if curve.memoised else "fresh noise for every query"
            console.print(f"{curve.mode}, {how}: {curve.claimed.line()}", style="bold", soft_wrap=True)
            table = Table()
            for name in ("queries", "found", "95 %", "error", "epsilon together"):
                table.add_column(name, justify="right")
            for point in curve.points:
                low, high = point.interval
                cost = "none" if point.epsilon_together is None else f"{point.epsilon_together:.4g}"
                table.add_row(
                    str(point.queries), f"{point.found:.3f}", f"{low:.3f} to {high:.3f}", f"{point.error:.3f}", cost
                )
            console.print(table)
        console.print(
            "How to read it: found is how often the strongest interest is named; who gets no query and always names"
            f" the most common one is right {one.chance:.3f} of the time;"
            " the error is half the L1 distance between the attention and what the attacker takes it for; the epsilon"
            " of the queries together is in the terms of the line above each table but for the scope, which is all"
            " these queries, and worked out from the noise."
        )
    if plot is not None:
        console.print(f"Plot: {plot}", soft_wrap=True, markup=False)
