"""Measure what it costs that nobody sees a sum without noise: accuracy with central and with distributed noise.

    python benchmarks/trust.py [--quick] [--epsilon 1,2,8] [--seeds 3] [--columns A,B] [METHOD[@news][:SETTING,...] ...]
    python benchmarks/trust.py --squeeze 2,8 [METHOD ...]    # sums in sketches that are so many times smaller

A row for every method and epsilon, hr@10 on ml-100k or AUC on synthetic-news, means over seeds: with noise of a server
that sees who takes part and exact sums; with noise of the clients, where a cohort is the next of a public order; the
same in rounds of everybody, as many as cost a client no more messages; and with margins for silent and lost clients.
`--quick`: one seed, and methods that train in seconds. `--columns`: some of central, distributed, everybody, margins.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import numpy as np

import veilrec
from veilrec.core.schema import RoundSpec
from veilrec.methods.base import configure
from veilrec.methods.registry import get
from veilrec.privacy.mechanisms.sums import CohortSum
from veilrec.privacy.randomness import Source

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
PEOPLE = {"ml-100k": 943, "synthetic-news": 4500}  # about: for how many rounds of everybody cost as much
DISTRIBUTED = ("privacy.noise=distributed",)
MARGINS = (*DISTRIBUTED, "privacy.silent=0.1", "privacy.lost=0.2")
COLUMNS = {
    "central": "central",
    "distributed": "distributed",
    "everybody": "everybody instead",
    "margins": "10 % silent, 20 % lost",
}
SQUEEZED = ("private-popularity", "dp-fedmf")  # whose sums have a row for every item


def parsed(label: str) -> tuple[str, str, list[str]]:
    """Method, data and settings of a label."""
    spec, _, more = label.partition(":")
    name, _, news = spec.partition("@")
    is_news = bool(news) or "ml-100k" not in get(name).datasets
    return name, "synthetic-news" if is_news else "ml-100k", list(filter(None, more.split(",")))


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


def rows(asked: Sequence[str], epsilons: Sequence[float], seeds: int, columns: Sequence[str]) -> Iterator[list[str]]:
    """One for each method and epsilon."""
    for label in asked:
        name, data, more = parsed(label)
        for epsilon in epsilons:
            settings = [f"privacy.epsilon={epsilon:g}", *more]
            config, rounds = configure(get(name), preset="tuned", dataset=data, settings=settings)
            size = config.cohort.size
            yield [
                label,
                f"{epsilon:g}",
                f"{rounds} of {size or 'all'}",
                *(_cell(column, name, data, settings, seeds, rounds * size) for column in columns),
            ]


def _cell(column: str, name: str, data: str, settings: Sequence[str], seeds: int, messages: int) -> str:
    """One figure; for rounds of everybody in place of cohorts, as many as cost the same messages."""
    if column != "everybody":
        noise = {"central": (), "distributed": DISTRIBUTED, "margins": MARGINS}[column]
        return measured(name, data, [*settings, *noise], seeds)
    if not messages:
        return "="
    times = math.ceil(messages / PEOPLE[data])
    whole = measured(name, data, [*settings, *DISTRIBUTED, "cohort.size=0"], seeds, times)
    return f"{whole} ({times} rounds)"


@contextmanager
def squeezed(times: int) -> Iterator[None]:
    """Sums of items as count sketches of one row, with noise on the buckets and fresh buckets in every round."""
    protect = CohortSum.protect

    def sketched(self: CohortSum, sums: dict[str, Any], spec: RoundSpec, source: Source) -> None:
        exact = {name: values.copy() for name, values in sums.items()}
        for values in sums.values():
            values[...] = 0.0
        protect(self, sums, spec, source)  # the noise alone
        for name, values in sums.items():
            if not self.schema[name].by_row:
                np.add(values, exact[name], out=values)
                continue
            draws, items = np.random.default_rng([spec.number, times]), len(values)
            bucket = draws.integers(0, max(1, items // times), items)
            sign = draws.choice([-1.0, 1.0], items).reshape(-1, *[1] * (values.ndim - 1))
            inside = np.zeros((bucket.max() + 1, *values.shape[1:]))
            inside[bucket] = values  # of every bucket the noise of one number
            np.add.at(inside, bucket, sign * exact[name])
            values[...] = sign * inside[bucket]

    with patch.object(CohortSum, "protect", sketched):
        yield


def sketches(asked: Sequence[str], epsilons: Sequence[float], seeds: int, sizes: Sequence[int]) -> Iterator[list[str]]:
    """Accuracy with sums as they are, and in sketches."""
    for label in asked:
        name, data, more = parsed(label)
        for epsilon in epsilons:
            settings = [f"privacy.epsilon={epsilon:g}", *more]
            found = [measured(name, data, settings, seeds)]
            for times in sizes:
                with squeezed(times):
                    found.append(measured(name, data, settings, seeds))
            yield [label, f"{epsilon:g}", *found]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("methods", nargs="*")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--epsilon", default="1,2,8")
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--columns", default=",".join(COLUMNS))
    parser.add_argument("--squeeze")
    asked = parser.parse_args()
    epsilons, seeds = [float(one) for one in asked.epsilon.split(",")], asked.seeds or (1 if asked.quick else 3)
    if asked.squeeze:
        sizes = [int(one) for one in asked.squeeze.split(",")]
        head = ["method", "epsilon", "as it is", *(f"1/{times}" for times in sizes)]
        found = sketches(asked.methods or SQUEEZED, epsilons, seeds, sizes)
    else:
        columns = asked.columns.split(",")
        head = ["method", "epsilon", "rounds", *(COLUMNS[column] for column in columns)]
        found = rows(asked.methods or (CHEAP if asked.quick else (*CHEAP, *FURTHER)), epsilons, seeds, columns)
    for line in (head, ["---"] * len(head)):
        sys.stdout.write(f"| {' | '.join(line)} |\n")
    for line in found:
        sys.stdout.write(f"| {' | '.join(line)} |\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
