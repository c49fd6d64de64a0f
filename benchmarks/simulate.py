"""Time rounds of the simulator beside a plain torch loop, pfl, Flower, and its own kernel.

    python benchmarks/simulate.py                # all tasks: an hour or so
    python benchmarks/simulate.py --quick --no-peers --task fedmf-ml-100k

Every task runs in a fresh process with one thread; the contenders take turns and do the same work. Seconds are medians
per round; compiling and starting up do not count, for anybody.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table

import _meta as meta
import _news as news
import _news_gradients as news_gradients
import _ours_alone as ours_alone
import _peers as peers
import _workers as workers
from _measure import (
    Options,
    Report,
    Result,
    answer_parent,
    child_result,
    describe_machine,
    options_of,
    script,
    speed_up_text,
)
from veilrec.core.errors import BadInput, unknown_name

_RIVALS = {"plain_loop": "plain loop", "pfl": "pfl", "flower": "Flower", "numba_limit": "kernel alone"}
_FIGURES = (
    "total_seconds",
    "ratio_to_10k",
    "hr@10",
    "ratio_to_frugal_loop",
    "ratio_to_batched_torch",
    "milliseconds_of_a_client",
    "impressions_per_second",
)


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
            at_least={"plain_loop": 50, "pfl": 80, "flower": 500},
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
            at_least={"plain_loop": 15},
        ),
        Task(
            "fedmf-ml-1m-400-rounds",
            "a whole run: 400 rounds of 200 clients, evaluated every 20 rounds",
            ours_alone.fedmf_ml_1m,
            at_most={"total_seconds": 40},
        ),
        Task(
            "priv-fedmf-sub-ml-1m",
            "the communication paper's rounds of 200 clients, 5 local epochs, items by DP-SUB",
            ours_alone.priv_fedmf_sub,
            at_most={"seconds_of_400_rounds": 180, "peak_rss_mb": 4000},
        ),
        Task(
            "priv-fedncf-sub-compress-ml-1m",
            "the same with its NeuMF, and sparse updates of the deep layers",
            ours_alone.priv_fedncf_sub_compress,
            at_most={"seconds_of_400_rounds": 720, "peak_rss_mb": 4000},
        ),
        Task("population-10k", "a round among 10,000 synthetic users", ours_alone.among_10k),
        Task(
            "population-1m",
            "the same round among 1,000,000 synthetic users",
            ours_alone.among_1m,
            at_most={"ratio_to_10k": 1.2, "peak_rss_mb": 6000},
        ),
        Task(
            "workers",
            "fedmf, 2,000 clients a round: one process, two workers that give the same bits, two of Ray; empty rounds",
            workers.two_against_one,
            at_least={"speed_up": 1.5, "ray_speed_up": 1.5},
        ),
        Task(
            "fednewsrec",
            "FedNewsRec on synthetic news, 200 clients, one backward pass for all",
            news.without_clipping,
            at_least={"plain_loop": 10},
        ),
        Task(
            "fednewsrec-clipped",
            "the same with every client's whole update clipped",
            news.with_clipping,
            at_least={"plain_loop": 10},
        ),
        Task(
            "fednewsrec-clipped-entries", "the same with every entry clipped, as published", news.with_clipped_entries
        ),
        Task(
            "nrms-gradients",
            "gradients of each of 200 clients in NRMS, words and all, synthetic news; plain loop: a pass of torch per "
            "client, news encoded for every example; of the user model alone: vectors of the news known to both",
            news_gradients.nrms,
            at_least={"plain_loop": 10, "user_model_ratio": 5},
        ),
        Task(
            "naml-gradients",
            "the same in NAML, titles and abstracts; the same loops",
            news_gradients.naml,
            at_least={"plain_loop": 10, "user_model_ratio": 5},
        ),
        Task(
            "plm-nr-gradients",
            "the same in PLM-NR over given sentence vectors; the same loops",
            news_gradients.plm_nr,
            at_least={"plain_loop": 10, "user_model_ratio": 5},
        ),
        Task(
            "reptile",
            "Reptile on 60 clients: 35 SGD steps each of a feature network, embeddings of 16, hidden layers 32 and 16",
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
            "adapting-one-client",
            "the tuned linear head of popularity-head on somebody's device: 40 steps, 83 items against 1,024",
            meta.one_client,
        ),
        Task(
            "news-scoring",
            "all dev impressions of synthetic news ranked from cached news vectors",
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
        result = child_result(__file__, name, json.dumps(asdict(options)))
        report["tasks"].append(result | {"promised": promised(name), "missed": missed(name, result)})
    return report


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


def show(report: Report) -> None:
    """Print the table and, per task, further figures, notes and missed targets."""
    console, machine = Console(), report["machine"]
    console.print(
        f"Median wall-clock time of a round, one thread, the same work for all contenders in a task, "
        f"on {machine['cpu']} (load {machine['load_before']} at the start)."
    )
    console.print(_table(report["tasks"]))
    for result in report["tasks"]:
        figures = [f"{name} {result[name]:g}" for name in _FIGURES if name in result]
        speed, memory = f"{result['clients_per_second']:,.0f} clients/s", f"{result['peak_rss_mb']:,.0f} MB"
        print(f"{result['name']}:", ", ".join([f"data {result['dataset']}", speed, memory, *figures]))
        for note in result["notes"]:
            print(f"{result['name']}: {note}")
        for name in result["missed"]:
            print(f"{result['name']}: missed {name} {result['promised'][name]}")


def _table(results: list[dict[str, Any]]) -> Table:
    """A block of rows per task: ours, then every rival that ran."""
    table = Table()
    table.add_column("task", no_wrap=True)
    table.add_column("contender", no_wrap=True)
    table.add_column("per round", justify="right")
    table.add_column("we are faster", justify="right")
    for result in results:
        table.add_row(result["name"], "veilrec", _time(result["seconds_per_round"]), "")
        for name, title in _RIVALS.items():
            seconds = result["rival_seconds_per_round"][name]
            if seconds is not None:
                table.add_row("", title, _time(seconds), speed_up_text(result["ratios"][name]))
        table.add_section()
    return table


def _time(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.2f} ms"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the script; the exit code."""
    parser = options_of(__doc__)
    parser.add_argument("--task", action="append", default=[], help="only this task; repeat it for several")
    parser.add_argument("--repeats", type=int, default=7, help="turns of every contender; the median counts")
    parser.add_argument("--no-peers", action="store_true", help="leave out pfl and Flower")
    return script(
        parser,
        lambda given, say: run(given.task, Options(given.repeats, given.quick, not given.no_peers), say),
        show,
        arguments,
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        task, options = sys.argv[2:]
        sys.exit(answer_parent(lambda: TASKS[task].run(task, Options(**json.loads(options))).to_json()))
    sys.exit(main())
