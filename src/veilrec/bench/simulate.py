"""`veilrec bench simulate`: every task in a fresh process with one thread, then one report."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from veilrec.bench import machine
from veilrec.bench.options import Options
from veilrec.bench.tasks import TASKS
from veilrec.errors import BadInput, VeilrecError, unknown_name

Report = dict[str, Any]


def run(names: Sequence[str], options: Options, say: Callable[[str], None]) -> Report:
    """Measure the named tasks (all, if none is named) one after another."""
    if options.repeats < 1:
        raise BadInput(f"--repeats is {options.repeats}: give a whole number from 1 up, for example 7")
    for name in names:
        if name not in TASKS:
            raise unknown_name("task", name, TASKS)
    report: Report = {"tasks": [], "machine": machine.describe(), "quick": options.quick, "repeats": options.repeats}
    for name in names or TASKS:
        say(f"{name}: {TASKS[name].about}")
        result = _in_fresh_process(name, options)
        report["tasks"].append(result | {"promised": promised(name), "missed": missed(name, result)})
    return report


def _in_fresh_process(name: str, options: Options) -> dict[str, Any]:
    command = [sys.executable, "-m", "veilrec.bench.worker", name, json.dumps(asdict(options))]
    done = subprocess.run(  # noqa: S603  (our own module, no shell)
        command, env=os.environ | machine.ONE_THREAD, stdout=subprocess.PIPE, text=True, check=False
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
    slow = [key for key, least in task.at_least.items() if figures[key] is not None and figures[key] < least]
    return slow + [key for key, most in task.at_most.items() if result[key] > most]
