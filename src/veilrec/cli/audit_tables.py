"""The audit of a method, in tables that somebody who has never seen one can read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from veilrec._words import counted

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from veilrec.methods.audit import MethodAudit
    from veilrec.simulate.checks import Check, Value

_FOUND_NOTHING = 0.0005  # an epsilon that is printed as 0.000
_MEANING = (
    "How to read it: every line was measured in the plan that trains, on made-up people, and held against what the "
    "statement needs; what is drawn by chance may miss its mark as far as stands beside it (by chance). A line that "
    "fails refutes the statement; that all hold is a test and not a proof."
)


_SEEN: dict[str | None, str] = {
    "nobody": "what one device told in",
    "server sees only noisy sums": "the noisy sum of one round in",
}


def print_method(found: MethodAudit, console: Console) -> None:
    """Everything about one method."""
    console.print(f"{found.method}: {found.claimed.line()}", style="bold", soft_wrap=True)
    console.print(_checks(found.checks))
    if found.canary is not None:
        canary = found.canary
        seen = _SEEN.get(found.claimed.trust, "the models of")
        console.print(
            f"Canary: from {seen} {canary.runs} runs with one person's data and as many without, epsilon is at "
            f"least {canary.epsilon_lower:.3f} in the terms of the claim ({_terms(found)}; confidence "
            f"{canary.confidence:g}, {counted(canary.rounds, 'round')}, 12 people); claimed is {found.claimed.line()}."
        )
        if canary.epsilon_lower < _FOUND_NOTHING:
            console.print(
                f"The canary found nothing: {canary.runs} runs a side can hardly find anything where so little is "
                "given away, so that this says nothing for or against the claim. The checks above decide."
            )
    console.print(_MEANING)
    console.print(
        f"Such an audit fails a sound method by chance with probability at most {found.false_alarm_rate:.2g}."
    )
    if found.holds:
        console.print("The method behaves as its statement says.")
    for line in failures(found):
        console.print(f"FAILED {line}", style="bold red", markup=False)


def print_methods(methods: Sequence[MethodAudit], skipped: Mapping[str, str]) -> None:
    """A line for every method."""
    from rich.console import Console
    from rich.table import Table

    if not methods and not skipped:
        return
    console = Console()
    table = Table(title="Methods: the plan that trains, against its statement (canary: epsilon in the terms claimed)")
    for name, justify in (("method", "left"), ("claimed", "left"), ("canary", "right"), ("checks", "right")):
        table.add_column(name, justify=justify)  # type: ignore[arg-type]
    table.add_column("verdict")
    for found in methods:
        holding = sum(check.holds for check in found.checks)
        lower = "" if found.canary is None else f"≥ {found.canary.epsilon_lower:.3f}"
        verdict = "holds" if found.holds else "FAILED"
        table.add_row(found.method, found.claimed.line(), lower, f"{holding} of {len(found.checks)}", verdict)
    console.print(table)
    console.print("`veilrec audit METHOD` says what each of the checks is.")
    for name, why in skipped.items():
        console.print(f"Not audited: {name}: {why}", markup=False)
    for found in methods:
        for line in failures(found):
            console.print(f"FAILED {found.method}: {line}", style="bold red", markup=False)


def failures(found: MethodAudit) -> list[str]:
    """What failed, a line each."""
    lines = [
        f"{check.name}{f' ({check.where})' if check.where else ''}: {_text(check.measured)}, "
        f"{_wanted(check)} was expected"
        for check in found.checks
        if not check.holds
    ]
    if found.canary is not None and not found.canary.holds:
        lines.append(
            f"canary: the released models prove an epsilon of at least {found.canary.epsilon_lower:.3f} "
            f"({_terms(found)}); claimed is {found.claimed.line()}"
        )
    return lines


def _terms(found: MethodAudit) -> str:
    g = found.claimed
    return f"per {g.unit}, {g.adjacency}, {g.scope}, trusting: {g.trust}, at delta {g.delta:g}, measured"


def _checks(checks: Sequence[Check]) -> Table:
    """Checks of one name are one line: the worst of them."""
    from rich.table import Table

    table = Table()
    table.add_column("what was looked at")
    table.add_column("measured", justify="right")
    table.add_column("has to be")
    table.add_column("holds")
    by_name: dict[str, list[Check]] = {}
    for check in checks:
        by_name.setdefault(check.name, []).append(check)
    for name, same in by_name.items():
        worst = next((check for check in same if not check.holds), same[0])
        more = f" ({len(same)} of them)" if len(same) > 1 else ""
        wanted = _wanted(worst).removeprefix("is ")
        table.add_row(name + more, _text(worst.measured), wanted, "yes" if worst.holds else "NO")
    return table


def _wanted(check: Check) -> str:
    """What it has to be, and how far it may be from that by chance."""
    wanted = f"{check.relation} {_text(check.expected)}"
    by_chance = " to ".join(map(_text, check.allowed))
    return f"{wanted} (by chance {by_chance})" if by_chance not in ("", _text(check.expected)) else wanted


def _text(value: Value) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
