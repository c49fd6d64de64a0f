"""Turn run folders into the table of docs/results.md: python benchmarks/results.py RUN [RUN ...]."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from veilrec.privacy.guarantee import Guarantee
from veilrec.report.labels import human_bytes
from veilrec.runs.checkpoint import read_config

COLUMNS = (
    "data",
    "method",
    "rounds",
    "seed",
    "HR@10",
    "nDCG@10",
    "popularity HR@10 / nDCG@10",
    "down",
    "up",
    "seconds",
    "privacy",
)


def row(folder: Path) -> list[str]:
    """One line of the table, from what the run itself wrote."""
    result = json.loads((folder / "result.json").read_text())
    metrics, popularity = result["metrics"], result["baselines"]["popularity"]
    traffic = result["communication"]
    sent = [human_bytes(traffic[way]) if traffic[way] else "-" for way in ("down_bytes", "up_bytes")]
    settings = " ".join(read_config(folder)["settings"])
    return [
        result["dataset"],
        f"{result['method']} {settings}".strip(),
        str(result["rounds"]),
        str(result["seed"]),
        f"{metrics['hr@10']:.3f}",
        f"{metrics['ndcg@10']:.3f}",
        f"{popularity['hr@10']:.3f} / {popularity['ndcg@10']:.3f}",
        *sent,
        f"{result['seconds']:.1f}",
        Guarantee.from_json(result["guarantee"]).line(),
    ]


def main() -> None:
    """Print the table."""
    lines = ["| " + " | ".join(COLUMNS) + " |", "|" + "---|" * len(COLUMNS)]
    lines += ["| " + " | ".join(row(Path(folder))) + " |" for folder in sys.argv[1:]]
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
