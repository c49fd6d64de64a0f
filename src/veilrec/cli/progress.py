"""A run as it goes: a bar in a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from veilrec.report.units import human_bytes
from veilrec.simulate.checkpoint import Progress
from veilrec.simulate.run import Listener
from veilrec.simulate.trainer import StepReport

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID

SHOWN = ("hr@10", "ndcg@10", "auc", "mrr")


def _metrics(metrics: Mapping[str, float]) -> str:
    return "  ".join(f"{name} {metrics[name]:.4f}" for name in SHOWN if name in metrics)


def _traffic(progress: Progress) -> str:
    speed = progress.devices / max(progress.learning_seconds, 1e-9)
    if not progress.devices:
        return ""
    return f"{speed:,.0f} clients/s  down {human_bytes(progress.down_bytes)}  up {human_bytes(progress.up_bytes)}"


class PlainLines:
    """One line per evaluation."""

    def __init__(self, title: str, rounds: int) -> None:
        self._title = title
        self._rounds = rounds

    def on_round(self, progress: Progress, report: StepReport) -> None:
        """Say nothing between evaluations."""

    def on_metrics(self, progress: Progress, metrics: Mapping[str, float]) -> None:
        """Say how good the model is now."""
        text = (
            f"{self._title} {progress.rounds_done}/{self._rounds}  {_metrics(metrics)}  {_traffic(progress)}"
        )
        sys.stderr.write(text.rstrip() + "\n")
        sys.stderr.flush()


class LiveBar:
    """A bar with the latest metrics behind it."""

    def __init__(self, bar: Bar, task: TaskID) -> None:
        self._bar = bar
        self._task = task
        self._latest = ""

    def on_round(self, progress: Progress, report: StepReport) -> None:
        """Move the bar."""
        words = f"{self._latest}  {_traffic(progress)}".strip()
        self._bar.update(self._task, completed=progress.rounds_done, words=words)

    def on_metrics(self, progress: Progress, metrics: Mapping[str, float]) -> None:
        """Remember the metrics for the next move."""
        self._latest = _metrics(metrics)


@contextmanager
def following(title: str, rounds: int, *, unit: str = "round") -> Iterator[Listener]:
    """A listener that shows a run on standard error."""
    if not sys.stderr.isatty():
        yield PlainLines(f"{title}: {unit}", rounds)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
        TextColumn("{task.fields[words]}"),
    )  # fmt: skip
    with Bar(*columns, console=Console(stderr=True)) as bar:
        yield LiveBar(bar, bar.add_task(title, total=rounds, words=""))
