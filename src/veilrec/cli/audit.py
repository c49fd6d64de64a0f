"""`veilrec audit`: attack our own claims, and those that we know to be false."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from veilrec.cli.audit_tables import print_method, print_methods
from veilrec.cli.output import Json, print_json, say

if TYPE_CHECKING:
    from rich.table import Table

    from veilrec.methods.audit import MethodAudit
    from veilrec.privacy.audit.attacks import Case
    from veilrec.privacy.audit.auditor import Audit, Verdict


def audit(
    name: Annotated[
        str, typer.Argument(help="A method, a mechanism, a way of serving, a known-bad or a planted bug; or all.")
    ] = "all",
    quick: Annotated[bool, typer.Option("--quick", help="Fewer draws: seconds for a method, minutes for all.")] = False,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Change one setting of a method, as in `veilrec train`.")
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(help="Made-up people that a method is audited on: synthetic-ratings or synthetic-news."),
    ] = None,
    shares: Annotated[
        bool,
        typer.Option(
            "--shares", help="A method as `federate init --secagg helpers --shares` runs it: devices add noise."
        ),
    ] = False,
    silent: Annotated[
        float, typer.Option(min=0.0, max=0.99, help="With --shares: part of the devices that may add no noise.")
    ] = 0.0,
    seed: Annotated[int, typer.Option(help="Decides every draw of the audit.", min=0)] = 0,
    plot: Annotated[
        Path | None, typer.Option(help="Draw claimed against audited epsilon of mechanisms: .svg or .png.")
    ] = None,
    json_output: Json = False,
) -> None:
    """Attack what methods and mechanisms claim, and say which claims hold.

    A method is attacked in the very plan that trains: its noise, bounds, cohorts and accounting on made-up people, and
    the model that it releases with one person and without. A mechanism is attacked on its worst pair of inputs; so is
    what a device sends when a model is served (serving, or serving-pooled and the like).
    Published claims that are false, and bugs that were planted, are attacked as well: an audit that does not refute
    them is broken. Exit code 0 only if everything is as it is stated, and every bad claim is refuted.

    Examples:

        veilrec audit dp-fedmf --quick

        veilrec audit veil --quick --data synthetic-news

        veilrec audit dp-fedmf --quick --shares --silent 0.2 --set cohort.size=0

        veilrec audit all --quick

        veilrec audit attention --json

        veilrec audit serving --quick
    """
    from veilrec.methods.registry import exists

    if plot is not None:
        check_plot(plot)
    if exists(name):
        with_shares = silent if shares else None
        passed = _audit_method(
            name, settings or (), data, with_shares, seed=seed, quick=quick, plot=plot, json_output=json_output
        )
    else:
        _refuse_data(data, shares=shares)
        passed = _audit_mechanisms(name, settings, seed=seed, quick=quick, plot=plot, json_output=json_output)
    if not passed:
        raise typer.Exit(1)


def _refuse_data(data: str | None, *, shares: bool) -> None:
    from veilrec.errors import BadInput

    if shares:
        raise BadInput("--shares is for a method, such as dp-fedmf; the mechanism itself is audited as shared-sum")
    if data is not None:
        raise BadInput(f"--data {data} is for a method, and says nothing about mechanisms: leave it out")


def _audit_method(
    name: str,
    settings: Sequence[str],
    data: str | None,
    with_shares: float | None,
    *,
    seed: int,
    quick: bool,
    plot: Path | None,
    json_output: bool,
) -> bool:
    from veilrec.errors import BadInput
    from veilrec.federate.audit import audit_with_shares
    from veilrec.methods.audit import audit_method

    if plot is not None:
        raise BadInput(f"--plot draws mechanisms, and {name} is a method: leave it out, or audit all")
    say(f"audit 1/1  {name}")
    if with_shares is None:
        found = audit_method(name, quick=quick, seed=seed, settings=settings, data=data)
    else:
        found = audit_with_shares(name, quick=quick, silent=with_shares, seed=seed, settings=settings, data=data)
    if json_output:
        print_json({**found.to_json(), "seed": seed, "quick": quick})
    else:
        from rich.console import Console

        print_method(found, Console())
    return found.holds


def _audit_mechanisms(
    name: str, settings: Sequence[str] | None, *, seed: int, quick: bool, plot: Path | None, json_output: bool
) -> bool:
    from veilrec.errors import BadInput
    from veilrec.evaluate.serving_audit import ALL, serving_cases, serving_names
    from veilrec.privacy.audit import auditor

    name = _known(name)
    served = serving_cases(ALL if name == "all" else name) if name in {"all", *serving_names()} else ()
    cases = (*(() if name in serving_names() else auditor.select(name)), *served)
    if settings:
        raise BadInput(f"--set is for methods, and {name} is none: leave it out, or name a method such as dp-fedmf")
    result = auditor.audit(cases, quick=quick, seed=seed, progress=_shown)
    methods, skipped = _all_methods(quick=quick, seed=seed) if name == "all" else ([], {})
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
        print_methods(methods, skipped)
    return passed


def _known(name: str) -> str:
    """The name of a mechanism as it is written; a name of nothing is told what there is, methods included."""
    from veilrec.errors import known_name
    from veilrec.evaluate.serving_audit import serving_names
    from veilrec.methods.registry import names
    from veilrec.privacy.audit.auditor import all_cases

    return known_name(
        "mechanism or method", name, {"all", *(case.name for case in all_cases()), *serving_names(), *names()}
    )


def _all_methods(*, quick: bool, seed: int) -> tuple[list[MethodAudit], dict[str, str]]:
    """Every method that promises something with a proof; those that lack a package are named with what they lack."""
    from veilrec.errors import BadInput
    from veilrec.methods.audit import audit_method, proven_cases

    found, skipped, cases = [], {}, proven_cases()
    for number, (name, data) in enumerate(cases, 1):
        say(f"audit of methods {number}/{len(cases)}  {name}" + ("" if data is None else f" on {data}"))
        try:
            found.append(audit_method(name, quick=quick, seed=seed, data=data))
        except BadInput as error:
            skipped[name] = str(error)
    return found, skipped


def check_plot(path: Path) -> None:
    """Refuse a picture that cannot be written, before any long work."""
    from veilrec._extras import require
    from veilrec.errors import BadInput

    require("--plot", "matplotlib")
    if path.suffix not in (".svg", ".png"):
        raise BadInput(f"--plot {path}: give a file that ends in .svg or .png")
    folder = path.absolute().parent
    if not folder.is_dir():
        raise BadInput(f"--plot {path}: there is no folder {path.parent}; make it first")
    if path.is_dir() or not os.access(path if path.exists() else folder, os.W_OK):
        raise BadInput(f"--plot {path}: it cannot be written; give a file in a folder of your own")


def _shown(cases: Iterable[Case]) -> Iterator[Case]:
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


def _failure(verdict: Verdict) -> str:
    if verdict.rotted:
        return "the attack proves less than half of the claim: its pair of inputs, its score or the sampler has rotted"
    return f"it was expected that it is {verdict.expected}, the audit says {verdict.verdict}"


def _terms(verdict: Verdict) -> str:
    """What the two numbers mean nothing without, and the attack behind the second."""
    return (
        f"  {verdict.unit}, {verdict.adjacency}, {verdict.scope};\n"
        f"  trusting: {verdict.trust}; delta {verdict.delta:g}; {verdict.method}"
    )


def _table(result: Audit) -> Table:
    """Four columns, so that nothing is cut off in a terminal of 80."""
    from rich.table import Table
    from rich.text import Text

    table = Table(title="Claimed and audited epsilon of one release")
    table.add_column("mechanism; what it protects; the attack")
    for name in ("claimed", "audited"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("verdict")
    for verdict in result.verdicts:
        mechanism = " ".join(filter(None, (verdict.name, verdict.size, f"({verdict.calibration})")))
        about = Text(mechanism, "bold")
        about.append(f"\n{_terms(verdict)}", "not bold dim")
        outcome = verdict.verdict if verdict.passed else f"FAILED: {verdict.verdict}"
        table.add_row(about, f"{verdict.claimed_epsilon:.3g}", f"≥ {verdict.lower_bound:.3f}", outcome)
    return table
