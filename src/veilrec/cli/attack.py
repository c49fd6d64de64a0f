"""`veilrec attack`: what an adversary recovers from client messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer
from rich.console import Console

from veilrec.cli.audit import check_plot
from veilrec.cli.output import Json, data_names, flat_options, method_names, print_json, say, text_table
from veilrec.core.errors import BadInput, known_name

if TYPE_CHECKING:
    from veilrec.attacks.coordinator import CoordinatorAttack
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


@dataclass(frozen=True)
class AttackSubjects:
    """What is attacked."""

    runs: Runs = None
    methods: Methods = None
    data: Data = "synthetic-ratings"
    calibrations: Calibrations = None
    settings: Settings = None


@dataclass(frozen=True)
class NewsSubjects(AttackSubjects):
    """What is attacked by reading titles."""

    data: Data = "synthetic-news"


@dataclass(frozen=True)
class AttackOutput:
    """Seed of an attack, and where its findings go."""

    seed: Seed = 0
    plot: Plot = None
    json_output: Json = False


app = typer.Typer(help="Attack client messages, and measure what is recovered.")
ATTACKS = {
    "gradient-rows": "which clicked news an update of a news model reveals, from its rows of words and its layers",
    "repeated-queries": "what n noisy queries of one client reveal of its interests, with fresh noise and memoised",
    "membership": "whether somebody's data was used, from all that a training releases, by canaries",
    "row-support": "which items somebody has, from the rows of a message or of a sum that are there",
    "inversion": "what of a history can be worked out from the numbers of a message, a sum, or a release",
    "poisoning": "what some clients that lie do to everybody's lists, and what stops them",
    "malicious-coordinator": "what a coordinator that deviates from secure aggregation learns of one client",
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


def run_folders(folders: Sequence[Path] | None) -> list[Path]:
    """Resolve run folders; a finished federation has its run in a subfolder."""
    from veilrec.federation.federation import FILE, RUN

    found = []
    for folder in folders or ():
        if (folder / FILE).exists():
            if not (folder / RUN).exists():
                raise BadInput(f"{folder} is a federation without a run: finish it with `veilrec federate up {folder}`")
            folder = folder / RUN  # noqa: PLW2901
        found.append(folder)
    return found


UpdateCount = Annotated[
    int | None, typer.Option(help="Clients that are attacked; as many again are the attacker's own. Default: 150.")
]
_UPDATES, _QUICK_UPDATES = 150, 40
_QUICK_ROUNDS, _QUICK_NEWS_ROUNDS = 60, 10  # of a training; a news model takes as long for one as the others for ten


@app.command("membership")
@flat_options
def membership(
    *,
    subjects: AttackSubjects,
    canaries: Annotated[int | None, typer.Option(help="Canaries in one training. Default: 200.")] = None,
    trainings: Annotated[int | None, typer.Option(help="Each with new canaries. Default: 10.")] = None,
    rounds: Annotated[
        int | None, typer.Option(help="Rounds of each that are watched. Default: all, with --quick the first ones.")
    ] = None,
    kind: Annotated[str, typer.Option(help="Canaries: crafted, random, or both.")] = "both",
    quick: Quick = False,
    output: AttackOutput,
) -> None:
    """Was this person's data used?

    Canaries take the place of some clients, half of them by a coin each; the method's own plan trains; and whoever made
    the canaries says which of them were there, from all that was released or from the last model. AUC 0.5 is guessing.
    Epsilon is proven from below (one-run audit), and stands beside the claimed one; the ceiling is what the accounting
    of the plan allows the best of all attacks.

    Examples:

        veilrec attack membership --method dp-fedmf --data ml-100k --set privacy.epsilon=2

        veilrec attack membership --method fedmf --quick --json
    """
    from veilrec.attacks.membership import KINDS, MembershipEffort
    from veilrec.attacks.running import attack_members

    kind = known_name("kind of canaries", kind, (*KINDS, "both"))
    kinds: Any = tuple(KINDS) if kind == "both" else (kind,)
    many = canaries if canaries is not None else 100 if quick else 200
    times = trainings if trainings is not None else 2 if quick else 10

    def attack(subject: AttackSubject) -> Result:
        few = None if not quick else _QUICK_NEWS_ROUNDS if subject.reads_news else _QUICK_ROUNDS
        effort = MembershipEffort(many, times, few if rounds is None else rounds)
        return attack_members(subject, effort=effort, kinds=kinds, seed=output.seed)

    _show(_attack_all(subjects, output, attack), output, _print_members)


@app.command("row-support")
@flat_options
def row_support(
    *, subjects: AttackSubjects, updates: UpdateCount = None, quick: Quick = False, output: AttackOutput
) -> None:
    """Which items are in a history, judged by the rows of an update?

    A client changes the rows of its own items most. The attacker ranks items by how long their rows are in one message,
    or in the noisy sum of a round when it knows what everybody else sent; reports that name items count as well. Recall
    is the share of a history that is found at one false item in a hundred.

    Examples:

        veilrec attack row-support --method fedmf --method dpals --data ml-100k

        veilrec attack row-support runs/mine --quick --json
    """
    from veilrec.attacks.running import attack_rows

    _recover_histories(subjects, updates, quick, output, attack_rows)


@app.command("inversion")
@flat_options
def inversion(
    *, subjects: AttackSubjects, updates: UpdateCount = None, quick: Quick = False, output: AttackOutput
) -> None:
    """What of a history can be worked out from the numbers of a message?

    Three adversaries: a server that gets messages one by one, a server that gets only the exact sum of a cohort (secure
    aggregation), and somebody outside, who sees the sum as it is released. Recall is the share of a history that is
    found at one false item in a hundred.

    Examples:

        veilrec attack inversion --method fedmf --method dp-fedmf --data ml-100k

        veilrec attack inversion --method fednewsrec --calibration none --data synthetic-news:users=1000 --quick
    """
    from veilrec.attacks.running import attack_messages

    _recover_histories(subjects, updates, quick, output, attack_messages)


@app.command("poisoning")
@flat_options
def poisoning(
    *,
    subjects: AttackSubjects,
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
    quick: Quick = False,
    output: AttackOutput,
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

    chosen: Any = [known_name("poison", name, tuple(POISONS)) for name in poisons or POISONS]
    against: Any = [known_name("defence", name, tuple(DEFENCES)) for name in defences or ("none", "bound")]
    many = shares or ((0.05,) if quick else SHARES)
    length = rounds if rounds is not None else 20 if quick else None

    def attack(subject: AttackSubject) -> Result:
        return attack_poisoning(subject, poisons=chosen, shares=many, defences=against, rounds=length, seed=output.seed)

    _show(_attack_all(subjects, output, attack), output, _print_poisoning)


@app.command("malicious-coordinator")
@flat_options
def malicious_coordinator(
    *,
    methods: Methods = None,
    data: Annotated[str | None, typer.Option(help="Data set. Default: synthetic.", autocompletion=data_names)] = None,
    settings: Settings = None,
    secagg: Annotated[list[str] | None, typer.Option(help="helpers, pairs. May be repeated. Default: both.")] = None,
    plays: Annotated[list[str] | None, typer.Option("--play", help="An attack. May be repeated. Default: all.")] = None,
    quick: Quick = False,
    output: AttackOutput,
) -> None:
    """What does a coordinator that deviates from the protocol learn of one client?

    A federation is made, and its coordinator sends clients and helpers whatever serves it: another model to everybody
    but one client, another cohort, a round that is over, keys of its own. Each attack is played on one client after the
    other, under masks alone and with distributed noise. Found is the share of a history that is named at one false item
    in a hundred; beside it stands what the accounting of the noise allows at most.

    Examples:

        veilrec attack malicious-coordinator --method dp-fedmf --quick

        veilrec attack malicious-coordinator --method fedmf --secagg pairs --play two-models --json
    """
    from veilrec.attacks.coordinator import FULL, QUICK, attack_coordinator, noises_of
    from veilrec.attacks.plays import PLAYS
    from veilrec.core.errors import BadInput, known_name

    if not methods:
        raise BadInput("nothing to attack: give --method, such as dp-fedmf")
    if output.plot is not None:
        check_plot(output.plot)
    chosen = [known_name("attack", name, tuple(PLAYS)) for name in plays or PLAYS]
    ways = ("helpers", "pairs")
    sums: Any = [known_name("secure aggregation", name, ways) for name in secagg or ways]
    wanted = [(name, way, noise) for name in methods for way in sums for noise in noises_of(name, settings or ())]
    found = []
    for number, (name, way, noise) in enumerate(wanted, 1):
        say(f"attack {number}/{len(wanted)}  {name}, {way}, {noise}")
        asked: Any = {"settings": settings or (), "plays": chosen, "effort": QUICK if quick else FULL}
        found.append(attack_coordinator(name, data, secagg=way, noise=noise, **asked, seed=output.seed, say=say))
    if output.plot is not None:
        from veilrec.report.plots import save_coordinator

        save_coordinator(found, output.plot)
    if output.json_output:
        _print_json("malicious-coordinator", found, output.seed)
    else:
        _print_coordinator(found, output)


def _print_coordinator(found: Sequence[CoordinatorAttack], output: AttackOutput) -> None:
    from rich.console import Console

    from veilrec.attacks.plays import PLAYS, REMAINS

    console, head = Console(), ("attack", "opened", "found", "rate", "95 %", "false", "bound")
    for one in found:
        console.print(f"{one.label}: {one.claimed.line()}", style="bold", soft_wrap=True, markup=False)
        console.print(f"{one.clients} clients, sums of {one.least} at least; data {one.data}", markup=False)
        rows, told = [], []
        for f in one.findings:
            r = f.recovery
            bound = "none" if f.bound is None else f"{f.bound:.3f}"
            interval = f"{r.interval[0]:.3f}-{r.interval[1]:.3f}"
            numbers = (f"{r.found}/{r.clicks}", f"{r.recall:.3f}", interval, f"{r.false_positive_rate:.4f}", bound)
            rows.append((f.play, f"{f.opened}/{f.targets}", *numbers))
            by = ", ".join(dict.fromkeys(by for by, _, _ in f.refusals))
            told += [f"{f.play}: refused by {by}: {why}" for _, why, _ in f.refusals[:1]]
        console.print(text_table(head, rows, whole=range(7)))
        for line in told:
            console.print(line, soft_wrap=True, markup=False)
    for play in dict.fromkeys(f.play for one in found for f in one.findings):
        remains = f" Remains possible: {REMAINS[play]}." if play in REMAINS else ""
        console.print(f"{play}: {PLAYS[play]}.{remains}", soft_wrap=True, markup=False)
    console.print(
        "found: items of the targets' histories, at one false item in a hundred; bound: the most that the accounting of"
        " the noise allows, none where nothing is promised against this adversary.",
        soft_wrap=True,
    )
    _print_plot(console, output)


def _attack_all(
    subjects: AttackSubjects,
    output: AttackOutput,
    attack: Callable[[AttackSubject], Result],
    *,
    needs_titles: bool = False,
) -> list[Result]:
    """Attack every subject."""
    from veilrec.attacks.subjects import Populations, subjects_of

    if output.plot is not None:
        check_plot(output.plot)
    named = (run_folders(subjects.runs), subjects.methods or (), subjects.calibrations or (), subjects.settings or ())
    made = subjects_of(*named, subjects.data, output.seed, Populations(), needs_titles=needs_titles)
    found = []
    for number, make in enumerate(made, 1):
        subject = make()
        say(f"attack {number}/{len(made)}  {subject.label}")
        found.append(attack(subject))
    return found


def _show(found: Sequence[Result], output: AttackOutput, table: Callable[[Console, Result], None]) -> None:
    """Show findings as a picture, and as JSON or tables."""
    if output.plot is not None:
        from veilrec.report.plots import draw_attack, save_figure

        save_figure(draw_attack(found), output.plot)
    if output.json_output:
        _print_json(found[0].attack, found, output.seed)
        return

    console = Console()
    for one in found:
        subject = one.subject
        padding = "" if subject.padding is None else f"; padding {subject.padding:g}"
        console.print(f"{subject.label}: {subject.claimed.line()}", style="bold", soft_wrap=True, markup=False)
        console.print(f"model {subject.trained}; data {subject.data}{padding}", soft_wrap=True, markup=False)
        table(console, one)
    _print_plot(console, output)


def _print_json(attack: str, found: Sequence[Result | QueryAttack | CoordinatorAttack], seed: int) -> None:
    each = [one.to_json() | {"seed": seed} for one in found]
    print_json(each[0] if len(each) == 1 else {"attack": attack, "results": each, "seed": seed})


def _print_plot(console: Console, output: AttackOutput) -> None:
    if output.plot is not None:
        console.print(f"Plot: {output.plot}", soft_wrap=True, markup=False)


def _recover_histories(
    subjects: AttackSubjects, updates: int | None, quick: bool, output: AttackOutput, attack: Callable[..., Result]
) -> None:
    count = updates if updates is not None else _QUICK_UPDATES if quick else _UPDATES
    found = _attack_all(subjects, output, lambda subject: attack(subject, updates=count, seed=output.seed))
    _show(found, output, _print_recovery)


def _print_members(console: Console, one: Result) -> None:
    head = ("seen", "canaries", "AUC", "95 %", "found at 1 % false", "epsilon at least")
    findings: Any = one.findings
    rows = [
        (
            f.view,
            f"{f.kind}, {f.canaries} x {f.trainings}",
            f"{f.auc:.3f}",
            f"{f.interval[0]:.3f}-{f.interval[1]:.3f}",
            f"{f.true_positive_rate:.3f}",
            f"{f.epsilon_lower:.2f}",
        )
        for f in findings
    ]
    console.print(text_table(head, rows, left=(0, 1), whole=(2, 3)))
    ceiling = one.about["ceiling"]
    if ceiling is not None:
        told = f"AUC {ceiling['auc']:.3f}, found {ceiling['true_positive_rate']:.3f}"
        console.print(f"The best attack on all that is released can reach: {told} (by the plan's own accounting).")
    console.print("epsilon at least: in the terms of the line above but for chance, 95 % sure; 0 proves nothing.")


def _print_recovery(console: Console, one: Result) -> None:
    """Print a row for every finding, and what the attacker sees."""
    from veilrec.attacks import inversion
    from veilrec.attacks.subjects import SEEN

    rows, findings = [], one.findings
    for finding in findings:
        found, (low, high) = finding.recovery, finding.recovery.interval
        how = finding.how if finding.by in ("sum", "values") else f"{finding.by}: {finding.how}"
        rates = (f"{found.recall:.3f}", f"{low:.3f}-{high:.3f}", f"{found.false_positive_rate:.4f}")
        rows.append((finding.view, how, *rates, f"{found.chance:.4f}"))
    head = ("seen", "what gives it away", "recall", "95 %", "false", "chance")
    console.print(text_table(head, rows, left=(0, 1), whole=(0, 2, 3, 4, 5)))
    seen: Any = inversion.SEEN if one.attack == "inversion" else SEEN
    for view in dict.fromkeys(finding.view for finding in findings):
        console.print(f"{view}: {seen[view]}", soft_wrap=True)


def _print_poisoning(console: Console, one: Result) -> None:
    from veilrec.attacks.poisoning import DEFENCES, POISONS

    rows: list[tuple[str, ...]] = []
    told: dict[str, str] = {}
    findings: Any = one.findings
    for f in findings:
        lies = f"{f.liars} ({f.share:.1%})" if f.poison is not None else "0"
        exposure = "" if f.exposure is None else f"{f.exposure:.3f}"
        rows.append((f.defence, f.poison or "nobody lies", lies, exposure, f"{f.quality:.3f}"))
        told |= {f.defence: DEFENCES[f.defence]} | ({} if f.poison is None else {f.poison: POISONS[f.poison]})
    head = ("defence", "attack", "liars", "exposure", findings[0].metric.upper())
    console.print(text_table(head, rows, left=(0, 1), whole=range(5)))
    for name, about in told.items():
        console.print(f"{name}: {about}", soft_wrap=True)


@app.command("gradient-rows")
@flat_options
def gradient_rows(
    *,
    subjects: NewsSubjects,
    updates: Annotated[
        int, typer.Option(help="Clients that are attacked; as many again are the attacker's own.")
    ] = 150,
    rounds: Annotated[int, typer.Option(help="Rounds of each client that the attacker takes together.")] = 1,
    output: AttackOutput,
) -> None:
    """Which clicked news does an update reveal?

    The rows of words that are there name the titles that a client has read; the rows of a layer's gradient span the
    vectors of the clicked news. Where the noise lies on the sum of a round, the attacker sees that sum and knows what
    everybody else sent; what the server sees, which such a method trusts, stands beside it. Recall is the share of
    clicked news that are found; news that were shown do not count, since whoever made the page knows them.

    Examples:

        veilrec attack gradient-rows --method fednewsrec --calibration none --calibration proven

        veilrec attack gradient-rows runs/mine --updates 300 --plot leak.png

        veilrec attack gradient-rows --method fednewsrec-head --data mind:FOLDER --json
    """
    from veilrec.attacks.running import attack_updates

    if updates < 1 or rounds < 1:
        name, value = ("updates", updates) if updates < 1 else ("rounds", rounds)
        raise BadInput(f"--{name} is {value}: give at least 1")

    def attack(subject: AttackSubject) -> Result:
        return attack_updates(subject, updates=updates, rounds=rounds, seed=output.seed)

    def table(console: Console, one: Result) -> None:
        first = one.findings[0]
        console.print(f"{first.updates} clients, {first.recovery.clicks:,} clicks to find")
        _print_recovery(console, one)

    _show(_attack_all(subjects, output, attack, needs_titles=True), output, table)
    if not output.json_output:
        together = "one update" if rounds == 1 else f"{rounds} updates of each client, taken together"
        typer.echo(
            f"How to read it: recall is the share of clicked news that were found in {together}; false is the share of"
            " the others that were taken for clicked; chance is what somebody finds who names each news as often"
            " without looking. Intervals take into account that clicks of one client are found or missed together."
        )


@app.command("repeated-queries")
@flat_options
def repeated_queries(
    *,
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
    output: AttackOutput,
) -> None:
    """What do n noisy queries of one client reveal of its interests?

    The attacker averages the noisy attention of every test user, or counts answers of the k-ary response, and names the
    strongest interest. Noise that is fresh for every query averages out; memoised queries are the same again.

    Examples:

        veilrec attack repeated-queries runs/mine --epsilon 1

        veilrec attack repeated-queries runs/mine --calibration as-published --plot queries.png
    """
    from veilrec.attacks.running import COUNTS, QueryNoise, attack_queries, clip_norm_of
    from veilrec.attacks.subjects import Populations
    from veilrec.privacy.mechanisms.attention import Noise
    from veilrec.privacy.mechanisms.base import Calibration

    if not runs:
        raise BadInput("nothing to attack: give the folder of a run of a method with basis vectors, such as privaterec")
    noise = known_name("noise", noise, get_args(Noise))
    calibration = known_name("calibration", calibration, get_args(Calibration))
    if output.plot is not None:
        check_plot(output.plot)
    populations, found = Populations(), []
    for number, folder in enumerate(run_folders(runs), 1):
        asking = QueryNoise(
            epsilon=epsilon,
            delta=delta if delta is not None else 0.0 if noise == "laplace" else 1e-6,
            clip_norm=clip_norm_of(folder) if clip_norm is None else clip_norm,
            noise=noise,  # type: ignore[arg-type]
            calibration=calibration,  # type: ignore[arg-type]
        )
        say(f"attack {number}/{len(runs)}  {folder}")
        found.append(attack_queries(folder, populations, asking, counts=queries or COUNTS, seed=output.seed))
    if output.plot is not None:
        from veilrec.report.plots import draw_queries, save_figure

        save_figure(draw_queries(found), output.plot)
    if output.json_output:
        _print_json("repeated-queries", found, output.seed)
    else:
        _print_queries(found, output)


def _print_queries(found: Sequence[QueryAttack], output: AttackOutput) -> None:
    console, head = Console(), ("queries", "found", "95 %", "error", "epsilon together")
    for one in found:
        console.print(f"{one.folder}: {one.method}, {one.users} test users, {one.interests} interests", markup=False)
        for curve in one.curves:
            how = "memoised" if curve.memoised else "fresh noise for every query"
            console.print(f"{curve.mode}, {how}: {curve.claimed.line()}", style="bold", soft_wrap=True)
            rows = []
            for point in curve.points:
                cost = "none" if point.epsilon_together is None else f"{point.epsilon_together:.4g}"
                interval = f"{point.interval[0]:.3f} to {point.interval[1]:.3f}"
                rows.append((str(point.queries), f"{point.found:.3f}", interval, f"{point.error:.3f}", cost))
            console.print(text_table(head, rows, left=()))
        console.print(
            "How to read it: found is how often the strongest interest is named; who gets no query and always names"
            f" the most common one is right {one.chance:.3f} of the time;"
            " the error is half the L1 distance between the attention and what the attacker takes it for; the epsilon"
            " of the queries together is in the terms of the line above each table but for the scope, which is all"
            " these queries, and worked out from the noise."
        )
    _print_plot(console, output)
