"""`veilrec attack`: what an adversary recovers from client messages."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import update_wrapper
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from veilrec.cli.audit import check_plot
from veilrec.cli.output import Json, data_names, method_names, print_json, say

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from veilrec.attacks.running import QueryAttack, Result
    from veilrec.attacks.subjects import AttackSubject

Runs = Annotated[
    list[Path] | None,
    typer.Argument(help="Runs of `veilrec train`, with their settings and data; or federations that are over."),
]
Methods = Annotated[
    list[str] | None, typer.Option("--method", help="A method. May be repeated.", autocompletion=method_names)
]
Data = Annotated[str, typer.Option(help="Data set of the methods: NAME or NAME:FOLDER.", autocompletion=data_names)]
Calibrations = Annotated[
    list[str] | None, typer.Option("--calibration", help="Of the methods: proven, as-published, none. May be repeated.")
]
Settings = Annotated[
    list[str] | None, typer.Option("--set", help="Change one setting of the methods, as in `veilrec train`.")
]
Quick = Annotated[bool, typer.Option("--quick", help="Less of everything: under a minute.")]
Seed = Annotated[int, typer.Option(help="Decides every draw of the attack.", min=0)]
Plot = Annotated[Path | None, typer.Option(help="Draw what was found: .svg or .png.")]
RATINGS = "synthetic-ratings"
_AFTER = ("quick", "seed", "plot", "json_output")  # what a command asks by itself stands before these


@dataclass(frozen=True)
class AttackOptions:
    """What is attacked, and where the findings go."""

    runs: Runs = None
    methods: Methods = None
    data: Data = RATINGS
    calibrations: Calibrations = None
    settings: Settings = None
    quick: Quick = False
    seed: Seed = 0
    plot: Plot = None
    json_output: Json = False


def asks_what_all_do(command: Callable[..., None]) -> Callable[..., None]:
    """The command with the options of `Asked`, which it takes as its first argument, and its own."""
    common = inspect.signature(AttackOptions, eval_str=True).parameters
    own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]
    before = [option for name, option in common.items() if name not in _AFTER]
    options = [*before, *own, *(common[name] for name in _AFTER)]

    def run(**given: Any) -> None:
        asked = AttackOptions(**{name: given.pop(name) for name in common})
        command(asked, **given)

    update_wrapper(run, command)
    run.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
    run.__annotations__ = {option.name: option.annotation for option in options}
    return run


def run_folders(folders: Sequence[Path] | None) -> list[Path]:
    """Where the runs lie: the folder of a federation that is over holds one."""
    from veilrec.core.errors import BadInput
    from veilrec.federation.federation import FILE, RUN

    found = []
    for folder in folders or ():
        if (folder / FILE).exists():
            if not (folder / RUN).exists():
                raise BadInput(f"{folder} is a federation without a run: finish it with `veilrec federate up {folder}`")
            folder = folder / RUN  # noqa: PLW2901
        found.append(folder)
    return found


Uploads = Annotated[
    int | None, typer.Option(help="Devices that are attacked; as many again are the attacker's own. Default: 150.")
]
_UPLOADS, _QUICK_UPLOADS = 150, 40
_QUICK_ROUNDS, _QUICK_NEWS_ROUNDS = 60, 10  # of a training; a news model takes as long for one as the others for ten


@asks_what_all_do
def membership(
    asked: AttackOptions,
    canaries: Annotated[int | None, typer.Option(help="Canaries in one training. Default: 200.")] = None,
    trainings: Annotated[int | None, typer.Option(help="Each with new canaries. Default: 10.")] = None,
    rounds: Annotated[
        int | None, typer.Option(help="Rounds of each that are watched. Default: all, with --quick the first ones.")
    ] = None,
    kind: Annotated[str, typer.Option(help="Canaries: crafted, random, or both.")] = "both",
) -> None:
    """Was this person's data used?

    Canaries take the place of some devices, half of them by a coin each; the method's own plan trains; and whoever made
    the canaries says which of them were there, from all that was released or from the last model. AUC 0.5 is guessing.
    Epsilon is proven from below (one-run audit), and stands beside the claimed one; the ceiling is what the accounting
    of the plan allows the best of all attacks.

    Examples:

        veilrec attack membership --method dp-fedmf --data ml-100k --set privacy.epsilon=2

        veilrec attack membership --method fedmf --quick --json
    """
    from veilrec.attacks.membership import KINDS, MembershipEffort
    from veilrec.attacks.running import attack_members
    from veilrec.core.errors import known_name

    kind = known_name("kind of canaries", kind, (*KINDS, "both"))
    kinds: Any = tuple(KINDS) if kind == "both" else (kind,)
    usual = (100, 2) if asked.quick else (200, 10)
    many, times = (
        number if given is None else given for given, number in zip((canaries, trainings), usual, strict=True)
    )

    def attack(subject: AttackSubject) -> Result:
        few = None if not asked.quick else _QUICK_NEWS_ROUNDS if subject.reads_news else _QUICK_ROUNDS
        effort = MembershipEffort(many, times, few if rounds is None else rounds)
        return attack_members(subject, effort=effort, kinds=kinds, seed=asked.seed)

    show(attacked(asked, attack), asked, _print_members)


@asks_what_all_do
def row_support(asked: AttackOptions, uploads: Uploads = None) -> None:
    """Which items are in a history, judged by the rows of an update?

    A device changes the rows of its own items most. The attacker ranks items by how long their rows are in one message,
    or in the noisy sum of a round when it knows what everybody else sent; reports that name items count as well. Recall
    is the share of a history that is found at one false item in a hundred.

    Examples:

        veilrec attack row-support --method fedmf --method dpals --data ml-100k

        veilrec attack row-support runs/mine --quick --json
    """
    from veilrec.attacks.running import attack_rows

    _look_for_histories(asked, uploads, attack_rows)


@asks_what_all_do
def inversion(asked: AttackOptions, uploads: Uploads = None) -> None:
    """What of a history can be worked out from the numbers of a message?

    Three adversaries: a server that gets messages one by one, a server that gets only the exact sum of a cohort (secure
    aggregation), and somebody outside, who sees the sum as it is released. Recall is the share of a history that is
    found at one false item in a hundred.

    Examples:

        veilrec attack inversion --method fedmf --method dp-fedmf --data ml-100k

        veilrec attack inversion --method fednewsrec --calibration none --data synthetic-news:users=1000 --quick
    """
    from veilrec.attacks.running import attack_messages

    _look_for_histories(asked, uploads, attack_messages)


@asks_what_all_do
def poisoning(
    asked: AttackOptions,
    poisons: Annotated[
        list[str] | None, typer.Option("--poison", help="promote, fake-history, flip, boost. May be repeated.")
    ] = None,
    shares: Annotated[
        list[float] | None, typer.Option("--share", help="Share of malicious clients. Default: 0.001, 0.01, 0.05.")
    ] = None,
    defences: Annotated[
        list[str] | None,
        typer.Option(
            "--defence",
            help="none, bound, trimmed, trimmed-rows, median, groups. May be repeated. Default: none, bound.",
        ),
    ] = None,
    rounds: Annotated[int | None, typer.Option(help="Of each training. Default: all, with --quick 20.")] = None,
) -> None:
    """How do malicious clients change the lists of honest users?

    They promote the rarest item or news, or spoil the model. Exposure is the share of honest users with it among their
    first ten; HR@10 (AUC of news) is how good the model still is for them. A bound is a clip norm that the coordinator
    checks. Robust sums (trimmed, trimmed-rows, median) need messages one by one, which secure aggregation hides; groups
    need sums of ten.

    Examples:

        veilrec attack poisoning --method fedmf --data ml-100k --poison promote --share 0.01

        veilrec attack poisoning --method dp-fedmf --defence bound --defence groups --quick
    """
    from veilrec.attacks.poisoning import DEFENCES, POISONS
    from veilrec.attacks.running import SHARES, attack_poisoning
    from veilrec.core.errors import known_name

    chosen: Any = [known_name("poison", name, tuple(POISONS)) for name in poisons or POISONS]
    against: Any = [known_name("defence", name, tuple(DEFENCES)) for name in defences or ("none", "bound")]
    many = shares or ((0.05,) if asked.quick else SHARES)
    length = rounds if rounds is not None else 20 if asked.quick else None

    def attack(subject: AttackSubject) -> Result:
        return attack_poisoning(subject, poisons=chosen, shares=many, defences=against, rounds=length, seed=asked.seed)

    show(attacked(asked, attack), asked, _print_poisoning)


def attacked(asked: AttackOptions, attack: Callable[[AttackSubject], Result]) -> list[Result]:
    """Every subject that was asked for, attacked."""
    from veilrec.attacks.subjects import Populations, subjects_of

    if asked.plot is not None:
        check_plot(asked.plot)
    named = (run_folders(asked.runs), asked.methods or (), asked.calibrations or (), asked.settings or ())
    made = subjects_of(*named, asked.data, asked.seed, Populations(), needs_titles=False)
    found = []
    for number, make in enumerate(made, 1):
        subject = make()
        say(f"attack {number}/{len(made)}  {subject.label}")
        found.append(attack(subject))
    return found


def show(found: Sequence[Result], asked: AttackOptions, table: Callable[[Console, Result], None]) -> None:
    """As a picture, and as JSON or tables."""
    if asked.plot is not None:
        from veilrec.report.plots import save_attack

        save_attack(found, asked.plot)
    if asked.json_output:
        each = [one.to_json() | {"seed": asked.seed} for one in found]
        print_json(each[0] if len(each) == 1 else {"attack": found[0].attack, "results": each, "seed": asked.seed})
        return
    from rich.console import Console

    console = Console()
    for one in found:
        subject = one.subject
        console.print(f"{subject.label}: {subject.claimed.line()}", style="bold", soft_wrap=True, markup=False)
        console.print(f"model {subject.trained}; data {subject.data}", soft_wrap=True, markup=False)
        table(console, one)
    if asked.plot is not None:
        console.print(f"Plot: {asked.plot}", soft_wrap=True, markup=False)


def _look_for_histories(asked: AttackOptions, uploads: int | None, attack: Callable[..., Result]) -> None:
    count = uploads if uploads is not None else _QUICK_UPLOADS if asked.quick else _UPLOADS
    found = attacked(asked, lambda subject: attack(subject, uploads=count, seed=asked.seed))
    show(found, asked, print_recovery)


def _print_members(console: Console, one: Result) -> None:
    from rich.table import Table

    table = Table()
    for name in ("seen", "canaries"):
        table.add_column(name)
    for name in ("AUC", "95 %", "found at 1 % false", "epsilon at least"):
        table.add_column(name, justify="right", no_wrap=name in ("AUC", "95 %"))
    for finding in one.findings:
        f: Any = finding
        low, high = f.interval
        table.add_row(
            f.view,
            f"{f.kind}, {f.canaries} x {f.trainings}",
            f"{f.auc:.3f}",
            f"{low:.3f}-{high:.3f}",
            f"{f.true_positive_rate:.3f}",
            f"{f.epsilon_lower:.2f}",
        )
    console.print(table)
    ceiling = one.about["ceiling"]
    if ceiling is not None:
        told = f"AUC {ceiling['auc']:.3f}, found {ceiling['true_positive_rate']:.3f}"
        console.print(f"The best attack on all that is released can reach: {told} (by the plan's own accounting).")
    console.print("epsilon at least: in the terms of the line above but for chance, 95 % sure; 0 proves nothing.")


def print_recovery(console: Console, one: Result) -> None:
    """What attacks found that look for a history."""
    console.print(recovery_table(one.findings))
    for view in dict.fromkeys(f.view for f in one.findings):
        console.print(f"{view}: {_seen(one.attack, view)}", soft_wrap=True)


def recovery_table(findings: Sequence[Any]) -> Table:
    """A row for every finding."""
    from rich.table import Table

    table = Table()
    table.add_column("seen", no_wrap=True)
    table.add_column("what gives it away")
    for name in ("recall", "95 %", "false", "chance"):
        table.add_column(name, justify="right", no_wrap=True)
    for finding in findings:
        found = finding.recovery
        low, high = found.interval
        table.add_row(
            finding.view,
            finding.how if finding.by in ("sum", "values") else f"{finding.by}: {finding.how}",
            f"{found.recall:.3f}",
            f"{low:.3f}-{high:.3f}",
            f"{found.false_positive_rate:.4f}",
            f"{found.chance:.4f}",
        )
    return table


def _print_poisoning(console: Console, one: Result) -> None:
    from rich.table import Table

    from veilrec.attacks.poisoning import DEFENCES, POISONS

    table = Table()
    for name in ("defence", "attack"):
        table.add_column(name, no_wrap=True)
    first: Any = one.findings[0]
    for name in ("liars", "exposure", first.metric.upper()):
        table.add_column(name, justify="right", no_wrap=True)
    for finding in one.findings:
        f: Any = finding
        lies = f"{f.liars} ({f.share:.1%})" if f.poison is not None else "0"
        exposure = "" if f.exposure is None else f"{f.exposure:.3f}"
        table.add_row(f.defence, f.poison or "nobody lies", lies, exposure, f"{f.quality:.3f}")
    console.print(table)
    told: dict[str, str] = {}
    for finding in one.findings:
        g: Any = finding
        told |= {g.defence: DEFENCES[g.defence]} | ({} if g.poison is None else {g.poison: POISONS[g.poison]})
    for name, about in told.items():
        console.print(f"{name}: {about}", soft_wrap=True)


def _seen(attack: str, view: str) -> str:
    from veilrec.attacks import inversion, subjects

    seen: Any = inversion.SEEN if attack == "inversion" else subjects.SEEN
    return str(seen[view])


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


def _print_uploads(attacked: Sequence[Result], rounds: int, plot: Path | None) -> None:
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
        console.print(recovery_table(one.findings))
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


app.command("membership")(membership)
app.command("row-support")(row_support)
app.command("inversion")(inversion)
app.command("poisoning")(poisoning)


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
