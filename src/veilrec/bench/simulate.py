"""The tasks of `veilrec bench simulate`, each in a fresh process with one thread, so that its memory is its own.

That process is `python -m veilrec.bench.simulate TASK OPTIONS`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from veilrec.bench import meta, news, news_gradients, ours_alone, peers, workers
from veilrec.bench.measure import ONE_THREAD, Options, Result, describe_machine
from veilrec.errors import BadInput, VeilrecError, unknown_name

Report = dict[str, Any]


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
            ours_alone.fedmf_ml_1m,
            at_most={"total_seconds": 40},
        ),
        Task(
            "priv-fedmf-sub-ml-1m",
            "the communication paper's rounds of 200 devices, 5 local epochs, items by DP-SUB",
            ours_alone.priv_fedmf_sub,
            at_most={"seconds_of_400_rounds": 180, "peak_rss_mb": 4000},
        ),
        Task(
            "priv-fedncf-sub-compress-ml-1m",
            "the same with its NeuMF, and sparse updates of the deep layers",
            ours_alone.priv_fedncf_sub_compress,
            at_most={"seconds_of_400_rounds": 720, "peak_rss_mb": 4000},
        ),
        Task("population-10k", "a round among 10,000 made-up users", ours_alone.among_10k),
        Task(
            "population-1m",
            "the same round among 1,000,000 made-up users",
            ours_alone.among_1m,
            at_most={"ratio_to_10k": 1.2, "peak_rss_mb": 6000},
        ),
        Task(
            "workers",
            "fedmf, 2,000 devices a round: one process, two workers that give the same bits, two of Ray; empty rounds",
            workers.two_against_one,
            at_least={"speed_up": 1.5, "ray_speed_up": 1.5},
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
            "nrms-gradients",
            "gradients of each of 200 devices in NRMS, words and all, made-up news; plain loop: a pass of torch per "
            "device, news encoded for every example; of the user model alone: vectors of the news known to both",
            news_gradients.nrms,
            at_least={"plain_loop": 10, "user_model_ratio": 10},
        ),
        Task(
            "naml-gradients",
            "the same in NAML, titles and abstracts; the same loops",
            news_gradients.naml,
            at_least={"plain_loop": 10, "user_model_ratio": 10},
        ),
        Task(
            "plm-nr-gradients",
            "the same in PLM-NR over given sentence vectors; the same loops",
            news_gradients.plm_nr,
            at_least={"plain_loop": 10, "user_model_ratio": 10},
        ),
        Task(
            "reptile",
            "Reptile on 60 devices: 35 SGD steps each of a feature network, embeddings of 16, hidden layers 32 and 16",
            meta.small,
            at_least={"plain_loop": 10},
        ),
        Task(
            "reptile-paper-size",
            "the same with embeddings of 64 and four hidden layers of 64",
            meta.large,
            at_least={"plain_loop": 5},
        ),
        Task(
            "adapting-one-device",
            "the tuned linear head of popularity-head on somebody's device: 40 steps, 83 items against 1,024",
            meta.one_device,
        ),
        Task(
            "news-scoring",
            "all dev impressions of made-up news ranked from cached news vectors",
            news.ranking,
            at_least={"impressions_per_second": 20_000},
        ),
    )
}


def run(names: Sequence[str], options: Options, say: Callable[[str], None]) -> Report:
    """Measure the named tasks (all, if none is named) one after another."""
    if options.repeats < 1:
        raise BadInput(f"--repeats is {options.repeats}: give a whole number from 1 up, for example 7")
    for name in names:
        if name not in TASKS:
            raise unknown_name("task", name, TASKS)
    report: Report = {"tasks": [], "machine": describe_machine(), "quick": options.quick, "repeats": options.repeats}
    for name in names or TASKS:
        say(f"{name}: {TASKS[name].about}")
        result = _in_fresh_process(name, options)
        report["tasks"].append(result | {"promised": promised(name), "missed": missed(name, result)})
    return report


def _in_fresh_process(name: str, options: Options) -> dict[str, Any]:
    command = [sys.executable, "-m", "veilrec.bench.simulate", name, json.dumps(asdict(options))]
    done = subprocess.run(  # noqa: S603  (our own module, no shell)
        command, env=os.environ | ONE_THREAD, stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode != 0:
        raise VeilrecError(f"task {name} ended with code {done.returncode}; its last words are above")
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def promised(name: str) -> dict[str, str]:
    """The limits of a task, in symbols."""
    task = TASKS[name]
    least = {key: f">= {value:g}" for key, value in task.at_least.items()}
    return least | {key: f"<= {value:g}" for key, value in task.at_most.items()}


def missed(name: str, result: dict[str, Any]) -> list[str]:
    """The limits that a result does not keep; a rival that did not run is neither kept nor missed."""
    task, figures = TASKS[name], result | result["ratios"]
    slow = [key for key, least in task.at_least.items() if figures.get(key) is not None and figures[key] < least]
    return slow + [key for key, most in task.at_most.items() if result[key] > most]


def run_here(name: str, options: str) -> int:
    """Run one task; its result as JSON on standard output, or one line on standard error and code 2."""
    try:
        result = TASKS[name].run(name, Options(**json.loads(options)))
    except VeilrecError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    sys.stdout.write(json.dumps(result.to_json()) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(run_here(sys.argv[1], sys.argv[2]))
