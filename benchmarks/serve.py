"""Time exact top-10 queries of the index beside scans of everything and a graph, on vectors of a trained model.

    python benchmarks/serve.py [--quick] [--items 1000000] [--no-peers]

One process, one thread, in cyclic order; every answer is compared with that of numpy. Also the index's bad cases.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import _serve_peers as peers
from _measure import Report, Say, answer_parent, child_result, describe_machine, options_of, script, speed_up_text
from _serve_items import Items, anti_correlated, trained_items
from _serve_peers import Ask
from veilrec.core.arrays import Floats
from veilrec.core.errors import BadInput
from veilrec.serving.index.blocks import best_of, scores_of
from veilrec.serving.index.catalogue import Filter, ItemIndex
from veilrec.serving.index.reachable import reachable_rows

K = 10
MILLION, QUICK = 1_000_000, 65_000
_FEWEST, _MOST = 1_000, 5_000_000
_SOME = 65_000  # items of the reachable set
PROMISED: Mapping[str, Mapping[str, float]] = {  # at 1,000,000 items
    "best-10": {"median_us": 100, "mismatches": 0, "memory_mb": 40, "build_s": 10},
    "new-item": {"median_us": 5000},
}
RATIOS: Mapping[str, float] = {"faiss_flat": 500, "flat_scan": 10}  # of best-10, at least
_GOOD_RECALL = 0.85  # above which a graph has to be slower


@dataclass(frozen=True)
class Options:
    """What is measured, and how long."""

    items: int = MILLION
    quick: bool = False
    peers: bool = True

    @property
    def turns(self) -> int:
        """Rounds in which everybody has a turn."""
        return 4 if self.quick else 10


@dataclass(frozen=True)
class Times:
    """Of every question: microseconds on the wall, and of our one thread."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    def take(self, ask: Callable[[], object]) -> None:
        """Time one question."""
        start, start_cpu = time.perf_counter_ns(), time.thread_time_ns()
        ask()
        end_cpu, end = time.thread_time_ns(), time.perf_counter_ns()
        self.wall.append((end - start) / 1e3)
        self.cpu.append((end_cpu - start_cpu) / 1e3)

    def figures(self) -> dict[str, float]:
        """Medians and the 99th percentile."""
        return {
            "median_us": round(float(np.median(self.wall)), 1),
            "p99_us": round(float(np.percentile(self.wall, 99)), 1),
            "median_cpu_us": round(float(np.median(self.cpu)), 1),
        }


def run(options: Options, say: Callable[[str], None]) -> dict[str, Any]:
    """Measure everything in a fresh process."""
    if not _FEWEST <= options.items <= _MOST:
        raise BadInput(f"--items is {options.items}: give {_FEWEST} to {_MOST}")
    report = {"machine": describe_machine(), "quick": options.quick, "items": options.items}
    say(f"training a model, encoding {options.items:,} synthetic titles, measuring: minutes")
    return {**child_result(__file__, json.dumps(asdict(options))), **report}


def measured(options: Options, say: Callable[[str], None]) -> dict[str, Any]:
    """All tasks, here and now."""
    start = time.perf_counter()
    items = trained_items(options.items, 1000, quick=options.quick)
    say(f"{options.items:,} items after {time.perf_counter() - start:.0f} s")
    tasks = [best_ten(items, options, say)]
    for task in (every_tenth_of_a_percent, bad_case, new_item, reachable):
        say(f"{task.__name__} after {time.perf_counter() - start:.0f} s")
        tasks.append(task(items, options))
    for done in tasks:
        done["missed"] = missed(done, options.items)
    notes = peers.missing() if options.peers else []
    return {"tasks": tasks, "source": items.source, "notes": notes, "seconds": round(time.perf_counter() - start)}


def best_ten(items: Items, options: Options, say: Callable[[str], None]) -> dict[str, Any]:
    """The k best of all, beside everybody else."""
    catalogue, build = _built(items)
    values = catalogue.rows(np.arange(len(items.vectors)))[1]
    catalogue.best(items.weights[0], K)
    contenders: dict[str, tuple[Ask, int]] = {  # and how many questions in a turn
        "ours": (lambda weights: catalogue.best(weights, K)[0], 100),
        "flat_scan": (peers.flat_scan(values, K), 10),
        "numpy": (peers.numpy_scan(values, K), 5),
    }
    graph_seconds: float | None = None
    if options.peers and not any("faiss" in line for line in peers.missing()):
        contenders["faiss_flat"] = (peers.faiss_flat(items.vectors, items.interests, K), 2)
    if options.peers and not any("hnswlib" in line for line in peers.missing()):
        say("building the graph of hnswlib")
        start = time.perf_counter()
        graph = peers.Graph(items.vectors, items.interests, K)
        graph_seconds = round(time.perf_counter() - start, 1)
        contenders |= {f"hnswlib_ef{ef}": (graph.ask(ef), 10) for ef in peers.EF}
    times, answers = _by_turns(contenders, items.weights, options.turns)
    mismatches = sum(not _is_right(catalogue, values, weights) for weights in items.weights)
    ours = times["ours"].figures()
    recall = {name: _recall(values, items.weights, found) for name, found in answers.items() if "hnsw" in name}
    return {
        "name": "best-10",
        **ours,
        "mismatches": mismatches,
        "memory_mb": _megabytes(catalogue),
        "build_s": build,
        "ratios": {
            name: round(other.figures()["median_cpu_us"] / ours["median_cpu_us"], 2)
            for name, other in times.items()
            if name != "ours"
        },
        "rivals_us": {name: other.figures()["median_us"] for name, other in times.items() if name != "ours"},
        "recall": recall,
        "hnswlib_build_s": graph_seconds,
        "questions": len(items.weights),
    }


def _megabytes(catalogue: ItemIndex) -> float:
    """Memory of the index, without the vectors."""

    def size(value: Any) -> int:
        if isinstance(value, np.ndarray):
            return value.nbytes
        return sum(map(size, vars(value).values())) if hasattr(value, "__dict__") else 0

    return round(sum(map(size, catalogue._state.parts)) / 1e6, 1)


def every_tenth_of_a_percent(items: Items, options: Options) -> dict[str, Any]:
    """A filter that leaves one item in a thousand, anywhere: no block is without some of another category."""
    codes = np.random.default_rng(2).integers(0, 1000, len(items.vectors)).astype(np.int32)
    catalogue, build = _built(Items(items.vectors, items.interests, codes, items.weights, items.source))
    values = catalogue.rows(np.arange(len(codes)))[1]
    times, wrong = Times(), 0
    catalogue.best(items.weights[0], K, wanted=Filter((0,)))
    for number, weights in enumerate(items.weights):
        wanted = Filter((number % 1000,))
        times.take(lambda weights=weights, wanted=wanted: catalogue.best(weights, K, wanted=wanted))  # type: ignore[misc]
        right = best_of(scores_of(values, weights), K, codes == number % 1000) if number % 10 == 0 else None
        wrong += right is not None and not np.array_equal(catalogue.best(weights, K, wanted=wanted)[0], right)
    memory = _megabytes(catalogue)
    return _task("filter-0.1%", times, mismatches=wrong, memory_mb=memory, build_s=build)


def bad_case(items: Items, options: Options) -> dict[str, Any]:
    """Eight interests, and values for them that are anti-correlated: made up, to be hard."""
    values = anti_correlated(len(items.vectors), 8)
    start = time.perf_counter()
    catalogue = ItemIndex.of(values, np.eye(8, dtype=np.float32))
    build = round(time.perf_counter() - start, 2)
    weights = np.random.default_rng(3).dirichlet(np.ones(8), 400).astype(np.float32)
    catalogue.best(weights[0], K)
    contenders: dict[str, tuple[Ask, int]] = {
        "ours": (lambda some: catalogue.best(some, K)[0], 20),
        "flat_scan": (peers.flat_scan(values, K), 10),
    }
    times, _ = _by_turns(contenders, weights, options.turns)
    wrong = sum(not _is_right(catalogue, values, some) for some in weights[::4])
    ratio = round(times["flat_scan"].figures()["median_cpu_us"] / times["ours"].figures()["median_cpu_us"], 2)
    memory = _megabytes(catalogue)
    return _task("anti-correlated-8", times["ours"], mismatches=wrong, memory_mb=memory, build_s=build, flat_scan=ratio)


def new_item(items: Items, options: Options) -> dict[str, Any]:
    """From the call that puts an item to the answer that has it."""
    catalogue, build = _built(items)
    times, wrong = Times(), 0
    prior = 10.0 * float(np.abs(catalogue.rows([0])[1]).max() + 1.0)
    for number, weights in enumerate(items.weights[:300]):
        vector = items.vectors[number]

        def seen(vector: Floats = vector, weights: Floats = weights, prior: float = prior * (number + 1)) -> bool:
            put = catalogue.put(vector, category=1, prior=prior)
            return bool(catalogue.best(weights, K)[0][0] == put)

        times.take(seen)
        wrong += not seen(prior=prior * (number + 1.5))
    start = time.perf_counter()
    catalogue.merge()
    return _task("new-item", times, mismatches=wrong, build_s=build) | {
        "merge_s": round(time.perf_counter() - start, 2)
    }


def reachable(items: Items, options: Options) -> dict[str, Any]:
    """The items that any weights can bring into their ten best, of 65,000."""
    values: Floats = items.vectors[:_SOME] @ items.interests.T
    reachable_rows(values[:2000], K)
    start, start_cpu = time.perf_counter(), time.thread_time()
    found = reachable_rows(values, K)
    seconds, cpu = time.perf_counter() - start, time.thread_time() - start_cpu
    known = set(found.tolist())
    wrong = sum(not set(best_of(scores_of(values, weights), K).tolist()) <= known for weights in items.weights)
    return {
        "name": "reachable-65k",
        "median_us": None,
        "p99_us": None,
        "mismatches": wrong,
        "memory_mb": None,
        "build_s": round(seconds, 2),
        "ratios": {},
        "build_cpu_s": round(cpu, 2),
        "items": len(found),
        "share": round(len(found) / len(values), 4),
    }


def _built(items: Items) -> tuple[ItemIndex, float]:
    """A catalogue, and the seconds that it takes once compiled."""
    few = min(5000, len(items.vectors))
    ItemIndex.of(items.vectors[:few], items.interests, category=items.category[:few])
    start = time.perf_counter()
    catalogue = ItemIndex.of(items.vectors, items.interests, category=items.category)
    return catalogue, round(time.perf_counter() - start, 2)


def _by_turns(
    contenders: Mapping[str, tuple[Ask, int]], weights: Floats, turns: int
) -> tuple[dict[str, Times], dict[str, list[tuple[int, Any]]]]:
    """Times of everybody, and the answers by the number of the question; a question before each turn does not count."""
    times = {name: Times() for name in contenders}
    answers: dict[str, list[tuple[int, Any]]] = {name: [] for name in contenders}
    for turn in range(turns):
        for name, (ask, count) in contenders.items():
            ask(weights[turn])
            for number in range(count):
                which = (turn * count + number) % len(weights)
                times[name].take(lambda ask=ask, which=which: ask(weights[which]))  # type: ignore[misc]
                answers[name].append((which, ask(weights[which]) if "hnsw" in name else None))
    return times, answers


def _is_right(catalogue: ItemIndex, values: Floats, weights: Floats) -> bool:
    numbers, found = catalogue.best(weights, K)
    scores = scores_of(values, weights)
    right = best_of(scores, K)
    return np.array_equal(numbers, right) and np.array_equal(found, scores[right])


def _recall(values: Floats, weights: Floats, answers: list[tuple[int, Any]]) -> float:
    """The share of answers whose score is that of one of the k best, or less by rounding alone."""
    shares = []
    for which, rows in answers:
        scores = scores_of(values, weights[which])
        limit = scores[best_of(scores, K)[-1]]
        shares.append(float((scores[rows] >= limit - 1e-4 * abs(limit)).mean()))
    return round(float(np.mean(shares)), 3)


def _task(
    name: str,
    times: Times,
    *,
    mismatches: int,
    build_s: float,
    memory_mb: float | None = None,
    flat_scan: float | None = None,
) -> dict[str, Any]:
    ratios = {} if flat_scan is None else {"flat_scan": flat_scan}
    facts = {"mismatches": int(mismatches), "memory_mb": memory_mb, "build_s": build_s, "ratios": ratios}
    return {"name": name, **times.figures(), **facts}


def missed(task: Mapping[str, Any], items: int) -> list[str]:
    """What a task does not keep of what is promised of a million items; no mismatch is kept at any size."""
    found = ["mismatches: 0"] if task["mismatches"] else []
    if items != MILLION:
        return found
    for name, most in PROMISED.get(task["name"], {}).items():
        if name != "mismatches" and task[name] > most:
            found.append(f"{name} <= {most:g}")
    if task["name"] == "best-10":
        found += [f"{name} >= {least:g}" for name, least in RATIOS.items() if task["ratios"].get(name, least) < least]
        for name, share in task["recall"].items():
            if share > _GOOD_RECALL and task["ratios"][name] < 1.0:
                found.append(f"{name} >= 1")
    return found


def show(report: Report) -> None:
    """Print the table, ratios, and missed targets."""
    console, machine = Console(), report["machine"]
    print(
        f"Exact top 10 of {report['items']:,} items, one thread, on {machine['cpu']} (load {machine['load_before']} at"
        f" the start). Items: {report['source']}."
    )
    table = Table("task", *(("median us", "99 % us", "mismatches", "memory MB", "build s")))
    for task in report["tasks"]:
        cells = (task[name] for name in ("median_us", "p99_us", "mismatches", "memory_mb", "build_s"))
        table.add_row(task["name"], *("" if cell is None else f"{cell:,}" for cell in cells))
    console.print(table)
    for task in report["tasks"]:
        for name, ratio in task["ratios"].items():
            recall = task.get("recall", {}).get(name)
            kept = "" if recall is None else f" at a recall of {recall}"
            print(f"{task['name']}: {speed_up_text(ratio)} as fast as {name}{kept}")
        if "share" in task:
            print(f"{task['name']}: {task['items']:,} items, {task['share']:.1%}, in {task['build_cpu_s']} CPU s")
        for words in task["missed"]:
            print(f"{task['name']}: missed {words}")
    for note in report["notes"]:
        print(note)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the script; the exit code."""
    parser = options_of(__doc__)
    parser.add_argument("--items", type=int, help=f"items of the catalogue; {MILLION:,}, or {QUICK:,} with --quick")
    parser.add_argument("--no-peers", action="store_true", help="leave out faiss and hnswlib")

    def measure(given: argparse.Namespace, say: Say) -> Report:
        items = given.items if given.items is not None else QUICK if given.quick else MILLION
        return run(Options(items, given.quick, not given.no_peers), say)

    return script(parser, measure, show, arguments)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        chosen = Options(**json.loads(sys.argv[2]))
        sys.exit(answer_parent(lambda: measured(chosen, lambda line: print(line, file=sys.stderr, flush=True))))
    sys.exit(main())
