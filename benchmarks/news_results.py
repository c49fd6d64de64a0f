"""News runs as a table of docs/results.md, means over seeds: python benchmarks/news_results.py RUN [RUN ...]."""

from __future__ import annotations

import json
import statistics
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

from veilrec.privacy.guarantee import Guarantee
from veilrec.runs.checkpoint import read_config

METRICS = {"auc": "AUC", "mrr": "MRR", "ndcg@5": "nDCG@5", "ndcg@10": "nDCG@10"}


def spread(values: list[float]) -> str:
    """Mean, and the standard deviation where there is more than one."""
    mean = f"{statistics.mean(values):.3f}"
    return mean if len(values) == 1 else f"{mean} ± {statistics.stdev(values):.3f}"


def read(folder: Path) -> tuple[str, dict[str, Any]]:
    """A run's name in the table, and its result."""
    result = json.loads((folder / "result.json").read_text())
    settings = " ".join(read_config(folder)["settings"])
    return f"{result['method']} {settings}".strip(), result


def row(name: str, results: list[dict[str, Any]], measured: list[dict[str, float]]) -> list[str]:
    """One line: a method, or a baseline of it."""
    seeds = ", ".join(str(result["seed"]) for result in results)
    return [name, seeds, *(spread([metrics[key] for metrics in measured]) for key in METRICS)]


def main() -> None:
    """Print the table, best AUC first, with popularity and chance below."""
    runs: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for folder in sys.argv[1:]:
        name, result = read(Path(folder))
        runs[name].append(result)
    rows = []
    for name, results in runs.items():
        promise = Guarantee.from_json(results[0]["guarantee"]).line()
        rows.append([*row(name, results, [result["metrics"] for result in results]), promise])
    rows.sort(key=lambda cells: cells[2], reverse=True)
    longest = max(runs.values(), key=len)
    rows.extend(
        [*row(name, longest, [result["baselines"][name] for result in longest]), ""] for name in longest[0]["baselines"]
    )
    columns = ("method", "seeds", *METRICS.values(), "privacy")
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    sys.stdout.write("\n".join(lines + ["| " + " | ".join(cells) + " |" for cells in rows]) + "\n")


if __name__ == "__main__":
    main()
