"""A comparison of methods as text tables, CSV, LaTeX and JSON."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from veilrec._version import __version__
from veilrec.core.errors import counted
from veilrec.core.files import write_json, write_text
from veilrec.report.labels import human_bytes, spelt
from veilrec.runs.comparison import LEVEL, ComparisonEntry, MethodComparison, PairedDifference, Spread

NAME = "comparison"  # of the files
_SHOWN = ("auc", "mrr", "ndcg@5", "ndcg@10", "hr@10")  # as many as fit beside each other; the files have all
_LATEX = {"&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}"}


@dataclass(frozen=True)
class ComparisonTable:
    """A table of texts; the columns in `numbers` are right-aligned."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    numbers: frozenset[int] = frozenset()


def save(comparison: MethodComparison, command: str) -> list[str]:
    """Write every format into the comparison's folder; return the file names. Plots need matplotlib."""
    folder, names = comparison.folder, [f"{NAME}.json", f"{NAME}.csv", "pairs.csv", f"{NAME}.tex"]
    write_json(folder / names[0], to_json(comparison, command))
    write_text(folder / names[1], to_csv(comparison))
    write_text(folder / names[2], pairs_to_csv(comparison))
    write_text(folder / names[3], to_latex(comparison))
    picture = _picture(comparison)
    if picture is not None:
        names.append(picture.name)
    return names


def _picture(comparison: MethodComparison) -> Path | None:
    try:
        from veilrec.report.plots import draw_comparison, save_figure
    except ModuleNotFoundError:  # matplotlib is an extra
        return None
    path = comparison.folder / f"{NAME}.png"
    save_figure(draw_comparison(comparison), path)
    return path


def title(comparison: MethodComparison) -> str:
    """Describe what was compared: dataset, protocol, seeds, cases, rounds."""
    c = comparison
    where = f"{c.dataset}, {c.protocol}, {counted(len(c.seeds), 'seed')}, {counted(c.cases, 'case')} a seed"
    return f"{where}; {lengths}" if (lengths := c.how_long()) else where


def grids(comparison: MethodComparison) -> list[ComparisonTable]:
    """Return the tables of scores with guarantees, and of pairs."""
    shown = _metrics(comparison)
    head = ["method", *(spelt(name) for name in shown), "from clients", "privacy"]
    rows = []
    for entry in comparison.entries:
        cells = [spread_words(entry.metrics[name]) if name in entry.metrics else "failed" for name in shown]
        sent = "" if entry.up_bytes is None else human_bytes(entry.up_bytes)
        promised = "" if entry.problem else entry.guarantee.promise()
        rows.append([entry.label + _mark(comparison, entry), *cells, sent, promised])
    scores = ComparisonTable(title(comparison), head, rows, frozenset(range(1, len(shown) + 2)))
    return [scores, _pair_grid(comparison)]


def _pair_grid(comparison: MethodComparison) -> ComparisonTable:
    rows = [
        [pair.first, pair.second, f"{pair.difference:+.4f}", _p(pair.p_value), _p(pair.corrected), _verdict(pair)]
        for pair in comparison.pairs
    ]
    head = ["first", "second", f"{spelt(comparison.metric)}, first - second", "p", "p (Holm)", "better"]
    return ComparisonTable("Pairs", head, rows, frozenset((2, 3, 4)))


def notes(comparison: MethodComparison) -> list[str]:
    """List the notes below the tables: warnings, spread, test, guarantees."""
    private = [entry for entry in comparison.measured if entry.guarantee.basis != "none"]
    statements = [
        f"Privacy of {e.label}: {e.guarantee.promise()}. {' '.join(e.guarantee.remarks())}".strip() for e in private
    ]
    return [*warnings(comparison), comparison.how_spread(), f"{_STARS} {comparison.how_tested()}", *statements]


def warnings(comparison: MethodComparison) -> list[str]:
    """List the methods that failed or rank no better than popularity."""
    c = comparison
    failed = [f"{entry.label} failed: {entry.problem.rstrip('.')}." for entry in c.entries if entry.problem]
    popularity = next((e.metrics[c.metric].mean for e in c.measured if e.label == "popularity"), None)
    no_better = [
        f"{entry.label} ranks no better than popularity ({spelt(c.metric)} {entry.metrics[c.metric].mean:.4f},"
        f" popularity {popularity:.4f})."
        for entry in c.measured
        if popularity is not None and entry.kind != "baseline" and entry.metrics[c.metric].mean <= popularity
    ]
    return failed + no_better


_STARS = "* the best; = not different from it."


def _mark(comparison: MethodComparison, entry: ComparisonEntry) -> str:
    """Mark the best entry with *, and those not significantly different from it with =."""
    best = comparison.best.label
    if entry.problem:
        return ""
    if entry.label == best:
        return " *"
    pair = next((p for p in comparison.pairs if {p.first, p.second} == {entry.label, best}), None)
    return " =" if pair is not None and pair.corrected >= LEVEL else ""


def _verdict(pair: PairedDifference) -> str:
    if pair.corrected >= LEVEL:
        return "neither"
    return pair.first if pair.difference > 0 else pair.second


def _metrics(comparison: MethodComparison) -> list[str]:
    names = comparison.measured[0].metrics
    return [comparison.metric, *(name for name in _SHOWN if name in names and name != comparison.metric)][:3]


def spread_words(spread: Spread) -> str:
    """Format a mean over seeds with its standard deviation."""
    return f"{spread.mean:.4f}" if spread.sd is None else f"{spread.mean:.4f} ± {spread.sd:.4f}"


def _p(value: float) -> str:
    return f"{value:.4f}" if value >= 0.0001 else f"{value:.1g}"


def to_csv(comparison: MethodComparison) -> str:
    """Format entries as CSV: mean and standard deviation of every metric, cost, all fields of the guarantee."""
    rows: list[dict[str, Any]] = []
    for plain, entry in zip(comparison.table, comparison.entries, strict=True):
        promised = replace(entry.guarantee, disclosure=None).to_json() | {"obstacle": entry.guarantee.obstacle}
        del promised["caveats"]
        promised |= {"obstacle": entry.guarantee.obstacle}
        promised.pop("disclosure", None)
        row = {key: value for key, value in plain.items() if key not in ("guarantee", "problem")}
        row |= {"preset": entry.preset, "settings": " ".join(entry.settings), "rounds": entry.rounds}
        row |= {f"guarantee_{key}": value for key, value in promised.items()}
        rows.append(row | {"problem": plain["problem"]})
    return _as_csv(list(rows[-1]), rows)


def pairs_to_csv(comparison: MethodComparison) -> str:
    """Format pairs as CSV."""
    names = ("first", "second", "metric", "difference", "p_value", "p_holm")
    return _as_csv(names, [{"metric": comparison.metric, **_pair_json(pair)} for pair in comparison.pairs])


def _as_csv(names: Sequence[str], rows: Sequence[dict[str, Any]]) -> str:
    target = io.StringIO()
    writer = csv.DictWriter(target, names, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return target.getvalue()


def to_latex(comparison: MethodComparison) -> str:
    """Format the tables as LaTeX for booktabs, the best in bold, with spread and test in the captions."""
    scores, pairs = grids(comparison)
    best = comparison.best.label + " *"
    return "\n".join(
        [
            f"% veilrec {__version__}; needs \\usepackage{{booktabs}}",
            _tabular(
                scores,
                " ".join([f"{scores.title}.", comparison.how_spread(), _STARS, *warnings(comparison)]),
                bold=best,
            ),
            _tabular(pairs, f"{scores.title}. {comparison.how_tested()}"),
        ]
    )


def _tabular(grid: ComparisonTable, caption: str, bold: str = "") -> str:
    columns = "".join("r" if column in grid.numbers else "l" for column in range(len(grid.head)))
    last = len(grid.head) - 1
    if grid.head[last] == "privacy":
        columns = columns[:-1] + "p{0.3\\linewidth}"  # a guarantee is a sentence
    lines = [
        r"\begin{table*}",
        r"\centering\small",
        f"\\caption{{{_tex(caption)}}}",
        f"\\begin{{tabular}}{{{columns}}}",
    ]
    lines += [r"\toprule", " & ".join(_tex(text) for text in grid.head) + r" \\", r"\midrule"]
    for row in grid.rows:
        cells = [_tex(text) for text in row]
        if row[0] == bold:
            cells[:2] = [f"\\textbf{{{cell}}}" for cell in cells[:2]]
        lines.append(" & ".join(cells) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table*}", ""])


def _tex(text: str) -> str:
    escaped = "".join(_LATEX.get(letter, letter) for letter in text.replace("\\", "/"))
    return escaped.replace("±", r"$\pm$").replace("^", r"\^{}").replace("<", "$<$").replace(">", "$>$")


def to_json(comparison: MethodComparison, command: str) -> dict[str, Any]:
    """Return all results as JSON, with every seed's values."""
    c = comparison
    named = {name: getattr(c, name) for name in ("data", "dataset", "protocol", "users", "cases", "metric")}
    return {
        "command": command,
        **named,
        "seeds": list(c.seeds),
        "spread": c.how_spread(),
        "test": c.how_tested(),
        "methods": [_entry_json(entry) for entry in c.entries],
        "pairs": [_pair_json(pair) for pair in c.pairs],
        "notes": list(c.notes),
        "warnings": warnings(c),
        "out": str(c.folder),
    }


def _pair_json(pair: PairedDifference) -> dict[str, Any]:
    own = {name: getattr(pair, name) for name in ("first", "second", "difference", "p_value")}
    return own | {"p_holm": pair.corrected}


def _entry_json(entry: ComparisonEntry) -> dict[str, Any]:
    names = ("label", "method", "kind", "rounds", "seconds", "down_bytes", "up_bytes")
    return {name: getattr(entry, name) for name in names} | {
        "preset": entry.preset or None,
        "settings": list(entry.settings),
        "metrics": {
            name: {"mean": spread.mean, "sd": spread.sd, "n": len(spread.values), "values": list(spread.values)}
            for name, spread in entry.metrics.items()
        },
        "guarantee": entry.guarantee.to_json(),
        "runs": [str(run) for run in entry.runs],
        "problem": entry.problem or None,
    }
