"""Shared by all benchmark scripts: options, contenders that take turns, results, the machine, the command line."""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from veilrec.core.errors import VeilrecError
from veilrec.report.labels import installed

Report = dict[str, Any]
Say = Callable[[str], None]
Round = Callable[[int], object]  # does the round of that number
RIVALS = ("plain_loop", "pfl", "flower", "numba_limit")
_PACKAGES = ("veilrec", "numpy", "numba", "torch", "pfl", "flwr", "ray", "faiss-cpu", "hnswlib")
_POOLS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")
ONE_THREAD = dict.fromkeys(_POOLS, "1")


@dataclass(frozen=True)
class Turns:
    """How contenders take part in cyclic order."""

    repeats: int = 7  # turns of every contender
    rounds: int = 3  # different rounds in a turn, the same for everybody
    laps: int = 10  # how often a fast contender does them in its turn, to be longer than the clock's noise


@dataclass(frozen=True)
class Options:
    """How long to measure, and against whom."""

    repeats: int = 7
    quick: bool = False  # fewer and smaller measurements: to see that it works, not to quote
    peers: bool = True  # also run pfl and Flower where they are installed

    @property
    def turns(self) -> Turns:
        """How the contenders of a round take part in cyclic order."""
        return Turns(self.repeats, rounds=1, laps=3) if self.quick else Turns(self.repeats)


@dataclass(frozen=True)
class Result:
    """One task, measured."""

    name: str
    dataset: str  # what was really used
    clients: int  # in a round
    seconds_per_round: float
    peak_rss_mb: float  # of our own part, before any peer is loaded
    rivals: Mapping[str, float] = field(default_factory=dict)  # seconds per round of those that ran
    figures: Mapping[str, float] = field(default_factory=dict)  # further ones, of this task alone
    notes: tuple[str, ...] = ()  # what did not run, and why

    def to_json(self) -> dict[str, Any]:
        """Ratios above 1 say how many times faster we are; null: not run."""
        seconds = {name: self.rivals.get(name) for name in RIVALS}
        return {
            "name": self.name,
            "seconds_per_round": self.seconds_per_round,
            "clients_per_second": round(self.clients / self.seconds_per_round, 1),
            "peak_rss_mb": round(self.peak_rss_mb, 1),
            "ratios": {
                name: None if value is None else round(value / self.seconds_per_round, 3)
                for name, value in seconds.items()
            },
            "dataset": self.dataset,
            "clients_per_round": self.clients,
            "rival_seconds_per_round": seconds,
            **self.figures,
            "notes": list(self.notes),
        }


def seconds_per_round(contenders: Mapping[str, Round], fast: frozenset[str], turns: Turns) -> dict[str, float]:
    """Median over the turns, so that a busy moment of the machine hits everybody.

    Before each turn, one round that does not count warms caches and compilers.
    """
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(turns.repeats):
        numbers = range(turn * turns.rounds, (turn + 1) * turns.rounds)
        for name, one_round in contenders.items():
            laps = turns.laps if name in fast else 1
            one_round(numbers[0])
            start = time.perf_counter()
            for _ in range(laps):
                for number in numbers:
                    one_round(number)
            times[name].append((time.perf_counter() - start) / (laps * turns.rounds))
    return {name: statistics.median(seconds) for name, seconds in times.items()}


@dataclass(frozen=True)
class RoundTime:
    """Medians over rounds that were never done before."""

    seconds: float  # on the wall
    cpu_seconds: float  # of our one thread: what others do on the machine hardly shows


def fresh_rounds(contenders: Mapping[str, Round], count: int) -> dict[str, RoundTime]:
    """Round by round, every contender once: nothing that a round needs is in a cache already."""
    wall: dict[str, list[float]] = {name: [] for name in contenders}
    cpu: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(count):
        for name, one_round in contenders.items():
            start, start_cpu = time.perf_counter(), time.thread_time()
            one_round(number)
            cpu[name].append(time.thread_time() - start_cpu)
            wall[name].append(time.perf_counter() - start)
    return {name: RoundTime(statistics.median(wall[name]), statistics.median(cpu[name])) for name in contenders}


def describe_machine() -> dict[str, object]:
    """Processor, cores, load and versions; null for a package that is not installed."""
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "load_before": round(os.getloadavg()[0], 2),
        "threads": 1,
        "python": platform.python_version(),
        "versions": {name: installed(name) for name in _PACKAGES},
    }


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def script(
    parser: argparse.ArgumentParser,
    measure: Callable[[argparse.Namespace, Say], Report],
    show: Callable[[Report], None],
    arguments: Sequence[str] | None = None,
) -> int:
    """Run a benchmark script: parse its options, measure, then print a summary or, with `--json`, one JSON object.

    Args:
        parser: Holds the options of this script; `--json` and `--quick` are added here.
        measure: Returns the report; its progress lines go to standard error.
        show: Prints a report for people.
        arguments: The command line without the name of the script; `sys.argv` if None.

    Returns:
        The exit code: 0, or 2 after one line on standard error that says what to put right.
    """
    parser.add_argument("--json", action="store_true", help="print one JSON object on standard output")
    parser.add_argument("--quick", action="store_true", help="smaller and shorter: to try it, not to quote")
    given = parser.parse_args(arguments)
    try:
        report = measure(given, lambda line: print(line, file=sys.stderr, flush=True)) | {"quick": given.quick}
    except VeilrecError as error:
        sys.stderr.write(f"{Path(sys.argv[0]).name}: {error}\n")
        return 2
    if given.json:
        print(json.dumps(report, indent=2))
        return 0
    show(report)
    if given.quick:
        print("Measured with --quick: not for quoting.")
    return 0


def options_of(doc: str | None) -> argparse.ArgumentParser:
    """Make the parser of a script, with its module docstring as the help text."""
    return argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)


def child_result(script_file: str, *arguments: str) -> Report:
    """Measure in a fresh process with one thread: `python SCRIPT --child ARGUMENTS`; its last line is the result.

    Raises:
        VeilrecError: The process failed; what it said is on standard error.
    """
    done = subprocess.run(
        [sys.executable, script_file, "--child", *arguments],
        env=os.environ | ONE_THREAD,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise VeilrecError(f"{arguments[0]} ended with code {done.returncode}; its last words are above")
    result: Report = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def answer_parent(measure: Callable[[], Report]) -> int:
    """Run in the child of `child_result`: print the result as one line of JSON, or one line on standard error."""
    try:
        result = measure()
    except VeilrecError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    sys.stdout.write(json.dumps(result) + "\n")
    return 0


def speed_up_text(ratio: float) -> str:
    """Format a ratio of times: `138 x`, `1.50 x`."""
    return f"{ratio:,.0f} x" if ratio >= 10 else f"{ratio:.2f} x"
