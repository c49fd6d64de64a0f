"""`veilrec audit`: attack the claims of methods, mechanisms and serving modes, and claims known to be false."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from veilrec.cli.output import Json, print_json, say, text_table
from veilrec.core.errors import BadInput, counted

if TYPE_CHECKING:
    from rich.console import Console, Group

    from veilrec.audit.auditor import Audit, AuditVerdict
    from veilrec.audit.claims import ClaimCase
    from veilrec.audit.method import MethodAudit
    from veilrec.audit.observe import AuditCheck, Value


_FOUND_NOTHING = 0.0005  # an epsilon that is printed as 0.000
_MEANING = (
    "How to read it: every line was measured in the plan that trains, on synthetic people, and held against what the "
    "statement needs; what is drawn by chance may miss its mark as far as stands beside it (by chance). A line that "
    "fails refutes the statement; that all hold is a test and not a proof."
)


_SEEN: dict[str | None, str] = {
    "nobody": "what one client told in",
    "server sees only noisy sums": "the noisy sum of one round in",
}


def _print_method(found: MethodAudit, console: Console) -> None:
    """Print everything about one method."""
    console.print(f"{found.method}: {found.claimed.line()}", style="bold", soft_wrap=True)
    console.print(_checks(found.checks))
    if found.canary is not None:
        canary = found.canary
        seen = _SEEN.get(found.claimed.trust, "the models of")
        console.print(
            f"Canary: from {seen} {canary.runs} runs with one person's data and as many without, epsilon is at "
            f"least {canary.epsilon_lower:.3f} in the terms of the claim ({_claim_terms(found)}; confidence "
            f"{canary.confidence:g}, {counted(canary.rounds, 'round')}, 12 people); claimed is {found.claimed.line()}."
        )
        if canary.epsilon_lower < _FOUND_NOTHING:
            console.print(
                f"The canary found nothing: {canary.runs} runs a side can hardly find anything where so little is "
                "given away, so that this says nothing for or against the claim. The checks above decide."
            )
    console.print(_MEANING)
    if found.covered:
        console.print(f"Rounds of the plan: {found.covered}.")
    console.print(
        f"Such an audit fails a sound method by chance with probability at most {found.false_alarm_rate:.2g}."
    )
    if found.holds:
        console.print("The method behaves as its statement says.")
    for line in _failures(found):
        console.print(f"FAILED {line}", style="bold red", markup=False)


def _print_methods(methods: Sequence[MethodAudit], skipped: Mapping[str, str]) -> None:
    """Print a line for every method."""
    from rich.console import Console

    if not methods and not skipped:
        return
    console, rows = Console(), []
    for found in methods:
        holding = sum(check.holds for check in found.checks)
        lower = "" if found.canary is None else f"≥ {found.canary.epsilon_lower:.3f}"
        verdict = "holds" if found.holds else "FAILED"
        rows.append((found.method, found.claimed.line(), lower, f"{holding} of {len(found.checks)}", verdict))
    head = ("method", "claimed", "canary", "checks", "verdict")
    title = "Methods: the plan that trains, against its statement (canary: epsilon in the terms claimed)"
    console.print(text_table(head, rows, title, left=(0, 1, 4)))
    console.print("`veilrec audit METHOD` says what each of the checks is.")
    for name, why in skipped.items():
        console.print(f"Not audited: {name}: {why}", markup=False)
    for found in methods:
        for line in _failures(found):
            console.print(f"FAILED {found.method}: {line}", style="bold red", markup=False)


def _failures(found: MethodAudit) -> list[str]:
    """Describe what failed, a line each."""
    lines = [
        f"{check.name}{f' ({check.where})' if check.where else ''}: {_text(check.measured)}, "
        f"{_wanted(check)} was expected"
        for check in found.checks
        if not check.holds
    ]
    if found.canary is not None and not found.canary.holds:
        lines.append(
            f"canary: the released models prove an epsilon of at least {found.canary.epsilon_lower:.3f} "
            f"({_claim_terms(found)}); claimed is {found.claimed.line()}"
        )
    return lines


def _claim_terms(found: MethodAudit) -> str:
    g = found.claimed
    return f"per {g.unit}, {g.adjacency}, {g.scope}, trusting: {g.trust}, at delta {g.delta:g}, measured"


def _checks(checks: Sequence[AuditCheck]) -> Group:
    """Build a line for all checks of one name: the worst of them."""
    by_name: dict[str, list[AuditCheck]] = {}
    for check in checks:
        by_name.setdefault(check.name, []).append(check)
    rows = []
    for name, same in by_name.items():
        worst = next((check for check in same if not check.holds), same[0])
        more = f" ({len(same)} of them)" if len(same) > 1 else ""
        holds = "yes" if worst.holds else "NO"
        rows.append((name + more, _text(worst.measured), _wanted(worst).removeprefix("is "), holds))
    return text_table(("what was looked at", "measured", "has to be", "holds"), rows, left=(0, 2, 3))


def _wanted(check: AuditCheck) -> str:
    """What it has to be, and how far it may be from that by chance."""
    wanted = f"{check.relation} {_text(check.expected)}"
    by_chance = " to ".join(map(_text, check.allowed))
    return f"{wanted} (by chance {by_chance})" if by_chance not in ("", _text(check.expected)) else wanted


def _text(value: Value) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def audit(
    name: Annotated[
        str, typer.Argument(help="A method, a mechanism, a serving mode, a known-bad claim or a planted bug; or all.")
    ] = "all",
    quick: Annotated[bool, typer.Option("--quick", help="Fewer draws: seconds for a method, minutes for all.")] = False,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Change one setting of a method, as in `veilrec train`.")
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(help="Synthetic clients that a method is audited on: synthetic-ratings or synthetic-news."),
    ] = None,
    distributed_noise: Annotated[
        bool,
        typer.Option(
            "--distributed-noise", help="A method with noise of its clients: as --set privacy.noise=distributed."
        ),
    ] = False,
    silent: Annotated[
        float,
        typer.Option(min=0.0, max=0.99, help="With --distributed-noise: part of the clients that may add no noise."),
    ] = 0.0,
    seed: Annotated[int, typer.Option(help="Decides every draw of the audit.", min=0)] = 0,
    jobs: Annotated[
        int, typer.Option(help="Methods that `audit all` looks at at once, each in a process of its own.", min=1)
    ] = 2,
    plot: Annotated[
        Path | None, typer.Option(help="Draw claimed against audited epsilon of mechanisms: .svg or .png.")
    ] = None,
    json_output: Json = False,
) -> None:
    """Audit the privacy claims of methods, mechanisms and serving modes.

    A method is attacked in the plan that trains: its noise, bounds, cohorts and accounting on synthetic clients, and
    the model that it releases with one person and without. A mechanism is attacked on its worst pair of inputs; so is
    what a client sends when a model is served (serving, or serving-pooled and the like).
    Published claims that are false, and bugs that were planted, are attacked as well: an audit that does not refute
    them is broken. Exit code 0 only if everything is as it is stated, and every bad claim is refuted.

    Examples:

        veilrec audit dp-fedmf --quick

        veilrec audit veil --quick --data synthetic-news

        veilrec audit dp-fedmf --quick --distributed-noise --silent 0.2 --set cohort.size=0

        veilrec audit all --quick

        veilrec audit attention --json

        veilrec audit serving --quick
    """
    from veilrec.methods.registry import exists

    if plot is not None:
        check_plot(plot)
    if exists(name):
        given = settings or []
        if distributed_noise:
            given = ["privacy.noise=distributed", f"privacy.silent={silent}", *given]
        passed = _audit_method(name, given, data, seed=seed, quick=quick, plot=plot, json_output=json_output)
    else:
        if distributed_noise:
            raise BadInput(
                "--distributed-noise is for a method, such as dp-fedmf; the mechanism itself is audited as shared-sum"
            )
        if data is not None:
            raise BadInput(f"--data {data} is for a method, and says nothing about mechanisms: leave it out")
        passed = _audit_mechanisms(
            name, settings, seed=seed, quick=quick, jobs=jobs, plot=plot, json_output=json_output
        )
    if not passed:
        raise typer.Exit(1)


def _audit_method(
    name: str,
    settings: Sequence[str],
    data: str | None,
    *,
    seed: int,
    quick: bool,
    plot: Path | None,
    json_output: bool,
) -> bool:
    from veilrec.audit.method import audit_method
    from veilrec.audit.plan_distributed import audit_distributed_noise
    from veilrec.methods.base import configure
    from veilrec.methods.registry import get

    if plot is not None:
        raise BadInput(f"--plot draws mechanisms, and {name} is a method: leave it out, or audit all")
    say(f"audit 1/1  {name}")
    config, _ = configure(get(name), preset="tuned", dataset="", settings=settings)
    distributed = getattr(getattr(config, "privacy", None), "noise", None) == "distributed"
    audit = audit_distributed_noise if distributed else audit_method
    found = audit(name, quick=quick, seed=seed, settings=settings, data=data)
    if json_output:
        print_json({**found.to_json(), "seed": seed, "quick": quick})
    else:
        from rich.console import Console

        _print_method(found, Console())
    return found.holds


def _audit_mechanisms(
    name: str,
    settings: Sequence[str] | None,
    *,
    seed: int,
    quick: bool,
    jobs: int,
    plot: Path | None,
    json_output: bool,
) -> bool:
    from veilrec.audit import auditor
    from veilrec.audit.auditor import ALL, all_cases, serving_cases, serving_names
    from veilrec.core.errors import known_name
    from veilrec.methods.registry import names

    known = {"all", *(case.name for case in all_cases()), *serving_names(), *names()}
    name = known_name("mechanism or method", name, known)
    served = serving_cases(ALL if name == "all" else name) if name in {"all", *serving_names()} else ()
    cases = (*(() if name in serving_names() else auditor.select(name)), *served)
    if settings:
        raise BadInput(f"--set is for methods, and {name} is none: leave it out, or name a method such as dp-fedmf")
    result = auditor.audit(cases, quick=quick, seed=seed, progress=_shown)
    methods, skipped = _all_methods(quick=quick, seed=seed, jobs=jobs) if name == "all" else ([], {})
    if plot is not None:
        from veilrec.report.plots import save_audit

        save_audit(result.verdicts, plot)
    passed = result.passed and all(method.holds for method in methods)
    if json_output:
        of_methods = {
            "methods": [method.to_json() for method in methods],
            "skipped": [{"method": method, "why": why} for method, why in skipped.items()],
        }
        print_json(
            {
                "mechanisms": [verdict.to_json() for verdict in result.verdicts],
                **(of_methods if name == "all" else {}),
                "passed": passed,
                "false_alarm_rate": result.false_alarm_rate + sum(method.false_alarm_rate for method in methods),
                "seed": seed,
                "quick": quick,
            }
        )
    else:
        _print(result, plot)
        _print_methods(methods, skipped)
    return passed


def _all_methods(*, quick: bool, seed: int, jobs: int) -> tuple[list[MethodAudit], dict[str, str]]:
    """Every method that promises something with a proof; those that lack a package are named with what they lack."""
    from veilrec.audit.method import proven_cases
    from veilrec.runs.trials import in_processes

    cases = [(name, data, quick, seed) for name, data in proven_cases()]
    answers = (
        in_processes(_audit_case, iter(cases), jobs) if jobs > 1 else ((case, _audit_case(case)) for case in cases)
    )
    done: dict[_Case, MethodAudit | str] = {}
    for number, (case, answer) in enumerate(answers, 1):
        done[case] = answer
        say(f"audit of methods {number}/{len(cases)}  {case[0]}" + ("" if case[1] is None else f" on {case[1]}"))
    found = [answer for case in cases if not isinstance(answer := done[case], str)]
    return found, {case[0]: answer for case in cases if isinstance(answer := done[case], str)}


_Case = tuple[str, str | None, bool, int]


def _audit_case(case: _Case) -> MethodAudit | str:
    """Audit one method in a process of its own; return why where it cannot be."""
    from veilrec.audit.method import audit_method

    name, data, quick, seed = case
    try:
        return audit_method(name, quick=quick, seed=seed, data=data)
    except BadInput as error:
        return str(error)


def check_plot(path: Path) -> None:
    """Refuse a picture that cannot be written, before any long work."""
    from veilrec.core.resources import require

    require("--plot", "matplotlib")
    if path.suffix not in (".svg", ".png"):
        raise BadInput(f"--plot {path}: give a file that ends in .svg or .png")
    folder = path.absolute().parent
    if not folder.is_dir():
        raise BadInput(f"--plot {path}: there is no folder {path.parent}; make it first")
    if path.is_dir() or not os.access(path if path.exists() else folder, os.W_OK):
        raise BadInput(f"--plot {path}: it cannot be written; give a file in a folder of your own")


def _shown(cases: Iterable[ClaimCase]) -> Iterator[ClaimCase]:
    """The cases, with a bar on standard error in a terminal and a line each elsewhere."""
    waiting = list(cases)
    if not sys.stderr.isatty():
        for number, case in enumerate(waiting, 1):
            say(f"audit {number}/{len(waiting)}  {case.name} ({case.calibration})")
            yield case
        return
    from rich.console import Console
    from rich.progress import track

    yield from track(waiting, description="audit", console=Console(stderr=True))


def _print(result: Audit, plot: Path | None) -> None:
    from rich.console import Console

    console = Console()
    console.print(_table(result))
    console.print(
        "How to read it: an attack that saw only messages has proven that epsilon is at least the audited number; "
        "a claim below that is refuted, and a claim above it has withstood the attack, which is not a proof."
    )
    console.print(
        f"Every claim is about one release. Of sound claims, such a run refutes one by chance with probability at "
        f"most {result.false_alarm_rate:.2g}."
    )
    if result.passed:
        console.print("Every verdict is the expected one: what is proven holds, what is known to be bad is refuted.")
    for verdict in result.verdicts:
        if not verdict.passed:
            console.print(f"FAILED {verdict.name} ({verdict.calibration}): {_failure(verdict)}", style="bold red")
    if plot is not None:
        console.print(f"Plot: {plot}", soft_wrap=True)


def _failure(verdict: AuditVerdict) -> str:
    if verdict.rotted:
        return "the attack proves less than half of the claim: its pair of inputs, its score or the sampler has rotted"
    return f"it was expected that it is {verdict.expected}, the audit says {verdict.verdict}"


def _terms(verdict: AuditVerdict) -> str:
    """What the two numbers mean nothing without, and the attack behind the second."""
    return (
        f"  {verdict.unit}, {verdict.adjacency}, {verdict.scope};\n"
        f"  trusting: {verdict.trust}; delta {verdict.delta:g}; {verdict.method}"
    )


def _table(result: Audit) -> Group:
    """Build four columns, so that nothing is cut off in a terminal of 80."""
    from rich.text import Text

    rows = []
    for verdict in result.verdicts:
        mechanism = " ".join(filter(None, (verdict.name, verdict.size, f"({verdict.calibration})")))
        about = Text(mechanism, "bold")
        about.append(f"\n{_terms(verdict)}", "not bold dim")
        outcome = verdict.verdict if verdict.passed else f"FAILED: {verdict.verdict}"
        rows.append((about, f"{verdict.claimed_epsilon:.3g}", f"≥ {verdict.lower_bound:.3f}", outcome))
    head = ("mechanism; what it protects; the attack", "claimed", "audited", "verdict")
    return text_table(head, rows, "Claimed and audited epsilon of one release", left=(0, 3), whole=(1, 2))
