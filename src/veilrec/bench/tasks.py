"""The tasks of `veilrec bench simulate`: each runs in a fresh process, so that its memory is its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from veilrec.bench import news, paper_runs, peers, population, whole_run
from veilrec.bench.options import Options
from veilrec.bench.results import Result


@dataclass(frozen=True)
class Task:
    """One line of the report."""

    name: str
    about: str
    run: Callable[[str, Options], Result]
    at_least: Mapping[str, float] = field(default_factory=dict)  # what we promise of ratios and other figures
    at_most: Mapping[str, float] = field(default_factory=dict)


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
        Task(
            "priv-fedmf-sub-ml-1m",
            "the communication paper's rounds of 200 devices, 5 local epochs, items by DP-SUB",
            paper_runs.priv_fedmf_sub,
            at_most={"seconds_of_400_rounds": 180, "peak_rss_mb": 4000},
        ),
        Task(
            "priv-fedncf-sub-compress-ml-1m",
            "the same with its NeuMF, and sparse updates of the deep layers",
            paper_runs.priv_fedncf_sub_compress,
            at_most={"seconds_of_400_rounds": 720, "peak_rss_mb": 4000},
        ),
        Task("population-10k", "a round among 10,000 made-up users", population.of_10k),
        Task(
            "population-1m",
            "the same round among 1,000,000 made-up users",
            population.of_1m,
            at_most={"ratio_to_10k": 1.2, "peak_rss_mb": 6000},
        ),
        Task(
            "fednewsrec",
            "FedNewsRec on made-up news, 200 devices, one backward pass for all",
            news.without_clipping,
            at_least={"plain_loop": 10},
        ),
        Task(
            "fednewsrec-clipped",
            "the same with every device's whole update clipped",
            news.with_clipping,
            at_least={"plain_loop": 10},
        ),
        Task(
            "fednewsrec-clipped-entries", "the same with every entry clipped, as published", news.with_clipped_entries
        ),
        Task(
            "news-scoring",
            "all dev impressions of made-up news ranked from cached news vectors",
            news.ranking,
            at_least={"impressions_per_second": 20_000},
        ),
    )
}
