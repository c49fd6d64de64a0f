"""`veilrec audit`: attack our own claims, and those that we know to be false."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from veilrec.cli.output import Json, print_json

if TYPE_CHECKING:
    from rich.table import Table

    from veilrec.privacy.audit.auditor import Audit, Verdict
    from veilrec.privacy.audit.case import Case


def audit(
    mechanism: Annotated[str, typer.Argument(help="A mechanism, a known-bad or a planted bug; or all.")] = "all",
    quick: Annotated[bool, typer.Option("--quick", help="Fewer draws: under a minute instead of a few.")] = False,
    seed: Annotated[int, typer.Option(help="Decides every draw of the audit.", min=0)] = 0,
    plot: Annotated[Path | None, typer.Option(help="Draw claimed against audited epsilon: .svg or .png.")] = None,
    json_output: Json = False,
) -> None:
    """Attack every mechanism on its worst pair of inputs, and say which claims hold.

    Published claims that are false, and bugs that were planted, are attacked as well: an audit that does not refute
    them is broken. Exit code 0 only if every proven claim holds and every bad one is refuted.

    Examples:

        veilrec audit all --quick

        veilrec audit attention --json
    """
    from veilrec.privacy.audit import auditor
    from veilrec.privacy.audit.cases import select

    cases = select(mechanism)
    if plot is not None:
        _check_plot(plot)
    result = auditor.audit(cases, quick=quick, seed=seed, progress=_shown)
    if plot is not None:
        from veilrec.report.audit_plot import save

        save(result.verdicts, plot)
    if json_output:
        print_json(
            {
                "mechanisms": [verdict.to_json() for verdict in result.verdicts],
                "passed": result.passed,
                "false_alarm_rate": result.false_alarm_rate,
                "seed": seed,
                "quick": quick,
            }
        )
    else:
        _print(result, plot)
    if not result.passed:
        raise typer.Exit(1)


def _check_plot(path: Path) -> None:
    from veilrec.errors import BadInput

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
            sys.stderr.write(f"audit {number}/{len(waiting)}  {case.name} ({case.calibration})\n")
            sys.stderr.flush()
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
