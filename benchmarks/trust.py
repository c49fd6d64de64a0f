"""Measure what it costs that nobody sees a sum without noise: accuracy with central and with distributed noise.

    python benchmarks/trust.py [--quick] [--epsilon 1,2,8] [METHOD[:SETTING,...] ...]

A row for every method and epsilon, hr@10 on ml-100k or AUC on synthetic-news, means over seeds: with noise of a server
that sees who takes part and exact sums; with noise of the clients, where a cohort is the next of a public order; the
same in rounds of everybody, as many as cost a client no more messages; and with margins for silent and lost clients.
`--quick`: one seed, and methods that train in seconds.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import veilrec
from veilrec.methods.base import configure
from veilrec.methods.registry import get

CHEAP = ("private-popularity", "private-gram", "dpals", "dp-fedmf", "priv-fedmf-sub", "dp-privrec", "veil", "veil@news")
FURTHER = (
    "popularity-head",
    "dpals-features",
    "dp-fedmf-svd",
    "dp-fedmf-topk",
    "dp-fedncf",
    "dp-fedncf-dgc",
    "priv-fedncf-sub",
    "priv-fedncf-sub-compress",
    "fednewsrec",
    "privaterec",
    "dp-fedrec",
)
NEWS = ("veil@news", "fednewsrec", "privaterec", "dp-fedrec")
PEOPLE = {"ml-100k": 943, "synthetic-news": 4500}  # about: for how many rounds of everybody cost as much
DISTRIBUTED = ("privacy.noise=distributed",)
MARGINS = (*DISTRIBUTED, "privacy.silent=0.1", "privacy.lost=0.2")


def measured(name: str, data: str, settings: Sequence[str], seeds: int, rounds: int | None = None) -> str:
    """Mean of the runs' own metric."""
    found = []
    for seed in range(seeds):
        with TemporaryDirectory() as folder:
            run = veilrec.train(
                name, data, out=Path(folder) / "run", seed=seed, rounds=rounds, settings=settings, public_catalogue=True
            )
            found.append(run.metrics["auc" if data == "synthetic-news" else "hr@10"])
    return f"{statistics.mean(found):.3f}"


def rows(asked: Sequence[str], epsilons: Sequence[float], seeds: int) -> Iterator[list[str]]:
    """One for each method and epsilon."""
    for label in asked:
        spec, _, more = label.partition(":")
        name, data = spec.partition("@")[0], "synthetic-news" if spec in NEWS else "ml-100k"
        for epsilon in epsilons:
            settings = [f"privacy.epsilon={epsilon:g}", *filter(None, more.split(","))]
            config, rounds = configure(get(name), preset="tuned", dataset=data, settings=settings)
            size, fewer = config.cohort.size, "="
            if size:
                times = math.ceil(rounds * size / PEOPLE[data])
                whole = measured(name, data, [*settings, *DISTRIBUTED, "cohort.size=0"], seeds, times)
                fewer = f"{whole} ({times} rounds)"
            yield [
                label,
                f"{epsilon:g}",
                f"{rounds} of {size or 'all'}",
                measured(name, data, settings, seeds),
                measured(name, data, [*settings, *DISTRIBUTED], seeds),
                fewer,
                measured(name, data, [*settings, *MARGINS], seeds),
            ]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("methods", nargs="*")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--epsilon", default="1,2,8")
    asked = parser.parse_args()
    methods = asked.methods or (CHEAP if asked.quick else (*CHEAP, *FURTHER))
    columns = "method", "epsilon", "rounds", "central", "distributed", "everybody instead", "10 % silent, 20 % lost"
    for line in (columns, ["---"] * len(columns)):
        sys.stdout.write(f"| {' | '.join(line)} |\n")
    for line in rows(methods, [float(one) for one in asked.epsilon.split(",")], 1 if asked.quick else 3):
        sys.stdout.write(f"| {' | '.join(line)} |\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
