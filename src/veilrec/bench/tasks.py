"""The tasks of `veilrec bench simulate`: each runs in a fresh process, so that its memory is its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from veilrec.bench import peers, population, whole_run
from veilrec.bench.options import Options
from veilrec.bench.results import Result


@dataclass(frozen=True)
class Task:
    """One line of the report."""

    name: str
    about: str
    run: Callable[[str, Options], Result]
    at_least: Mapping[str, float] = field(default_factory=dict)  # what we promise of ratios
    at_most: Mapping[str, float] = field(default_factory=dict)  # what we promise of other figures


TASKS: Mapping[str, Task] = {
    task.name: task
    for task in (
        Task(
            "fedmf-ml-100k",
            "matrix factorisation 32, own items only, one SGD step an epoch",
            peers.fedmf_own_items,
            at_least={"plain_loop": 100, "pfl": 100, "flower": 500},
        ),
        Task(
            "fedmf-ml-100k-negatives",
            "the same with 4 fresh negatives for every item and batches of 256",
            peers.fedmf_with_negatives,
        ),
        Task(
            "fedncf-ml-100k",
            "NeuMF (GMF 32 beside a tower), 4 fresh negatives, batches of 256, Adam",
            peers.fedncf_with_negatives,
            at_least={"plain_loop": 20},
        ),
        Task(
            "fedmf-ml-1m-400-rounds",
            "a whole run: 400 rounds of 200 devices, evaluated every 20 rounds",
            whole_run.fedmf_ml_1m,
            at_most={"total_seconds": 40},
        ),
        Task("population-10k", "a round among 10,000 made-up users", population.of_10k),
        Task(
            "population-1m",
            "the same round among 1,000,000 made-up users",
            population.of_1m,
            at_most={"ratio_to_10k": 1.2, "peak_rss_mb": 6000},
        ),
    )
}
