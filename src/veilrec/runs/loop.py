"""The loop of a run: rounds, evaluations, checkpoints, early stopping; the same end however often it is interrupted.

Listeners that pass a run on to TensorBoard or MLflow; both are extras.
"""

from __future__ import annotations

import json
import math
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from veilrec.core.errors import Diverged, VeilrecError, unknown_name
from veilrec.core.files import write_text
from veilrec.core.resources import require
from veilrec.models.scores import Model
from veilrec.runs import checkpoint
from veilrec.runs.checkpoint import Progress
from veilrec.simulation.simulation import StepReport, Trainer

Evaluation = Callable[[Model], dict[str, float]]
COUNTED = ("clients", "down_bytes", "up_bytes", "down_params", "up_params", "selection_bytes", "paper_params")


@dataclass(frozen=True)
class Schedule:
    """When a run looks up from its work."""

    rounds: int
    evaluate_every: int = 20
    checkpoint_every: int = 20
    patience: int | None = None  # stop after so many evaluations without gain; needs a validation part
    watch: str = "ndcg@10"  # the validation metric of early stopping


class Listener(Protocol):
    """Follows a run: a progress bar, TensorBoard, MLflow."""

    def on_round(self, progress: Progress, report: StepReport) -> None:
        """A round is done."""

    def on_metrics(self, progress: Progress, metrics: Mapping[str, float]) -> None:
        """The model has been evaluated."""


class Interrupted(VeilrecError):
    """The user asked to stop; a checkpoint has been written."""

    exit_code = 130  # as after any Ctrl-C


class _Journal:
    """metrics.jsonl: a line per evaluation, cut back to the checkpoint when a run is resumed."""

    def __init__(self, path: Path, rounds_done: int) -> None:
        self._path = path
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []
        kept = [line for line in lines if _round_of(line) <= rounds_done]
        write_text(path, "".join(line + "\n" for line in kept))

    def write(self, entry: Mapping[str, Any]) -> None:
        length = self._path.stat().st_size
        try:
            with self._path.open("a", encoding="utf-8") as journal:
                journal.write(json.dumps(entry) + "\n")
        except OSError as error:
            os.truncate(self._path, length)  # a full disk takes half a line
            raise OSError(error.errno, error.strerror, str(self._path)) from error


def _round_of(line: str) -> float:
    try:
        return float(json.loads(line)["round"])
    except (ValueError, KeyError, TypeError):
        return float("inf")  # a line that a crash cut short


def run(
    folder: Path,
    trainer: Trainer,
    schedule: Schedule,
    evaluation: Evaluation,
    *,
    split_name: str,
    listeners: tuple[Listener, ...] = (),
    resume: bool = False,
    rates: tuple[str, ...] = (),
) -> Progress:
    """Train to the end (or to where early stopping ends it); the trainer then holds the final model.

    `rates` are the settings to lower when it diverges.
    """
    newest = checkpoint.newest(folder) if resume else None
    progress = Progress() if newest is None else checkpoint.restore(trainer, newest)
    journal = _Journal(folder / "metrics.jsonl", progress.rounds_done)
    loop = _Loop(folder, trainer, schedule, evaluation, split_name, listeners, journal, progress, rates)
    with _stop_between_rounds() as asked_to_stop:
        while progress.rounds_done < schedule.rounds and not progress.stopped_early:
            loop.one_round()
            if asked_to_stop() and progress.rounds_done < schedule.rounds:
                loop.checkpoint()
                raise Interrupted(f"stopped after round {progress.rounds_done}; a checkpoint is in {folder}")
    if schedule.patience is not None and progress.best_round:
        checkpoint.restore(trainer, checkpoint.checkpoint_path(folder, progress.best_round))
    return progress


@dataclass
class _Loop:
    folder: Path
    trainer: Trainer
    schedule: Schedule
    evaluation: Evaluation
    split_name: str
    listeners: tuple[Listener, ...]
    journal: _Journal
    progress: Progress
    rates: tuple[str, ...] = ()
    has_compiled: bool = False  # after the first round of this process

    @property
    def _named_rates(self) -> str:
        """The settings that a diverged training should lower."""
        return f" (--set {', '.join(f'{rate}=...' for rate in self.rates)})" if self.rates else ""

    def one_round(self) -> None:
        started = time.perf_counter()
        p, s = self.progress, self.schedule
        try:
            report = self.trainer.step(p.rounds_done)
        except Diverged as diverged:
            raise Diverged(f"round {p.rounds_done + 1}: {diverged}{self._named_rates}") from None
        p.rounds_done += 1
        if report.loss is not None and not math.isfinite(report.loss):
            raise Diverged(
                f"training has diverged: the loss of round {p.rounds_done} is {report.loss}; lower the learning rates"
                f"{self._named_rates} and train again"
            )
        for name in COUNTED:
            setattr(p, name, getattr(p, name) + getattr(report, name))
        self._note_time(report, time.perf_counter() - started)
        last = p.rounds_done == s.rounds
        improved = False
        if p.rounds_done % s.evaluate_every == 0 or last:
            improved = self._evaluate(report)
        p.seconds += time.perf_counter() - started
        for listener in self.listeners:
            listener.on_round(p, report)
        if p.rounds_done % s.checkpoint_every == 0 or last or improved or p.stopped_early:
            self.checkpoint()

    def _note_time(self, report: StepReport, seconds: float) -> None:
        p = self.progress
        p.learning_seconds += seconds
        if not self.has_compiled:
            p.first_clients += report.clients
            p.first_seconds += seconds
            self.has_compiled = True

    def _evaluate(self, report: StepReport) -> bool:
        p = self.progress
        p.metrics = self.evaluation(self.trainer.model())
        entry = {
            "round": p.rounds_done,
            "split": self.split_name,
            "metrics": p.metrics,
            "loss": report.loss,
            "clients": p.clients,
            "down_bytes": p.down_bytes,
            "up_bytes": p.up_bytes,
            "clients_per_second": p.clients_per_second,
            **({} if report.shares is None else {"shares": [round(share, 6) for share in report.shares]}),
        }
        self.journal.write(entry)
        for listener in self.listeners:
            listener.on_metrics(p, p.metrics)
        return self._improved()

    def _improved(self) -> bool:
        p, s = self.progress, self.schedule
        if s.patience is None:
            return False
        if s.watch not in p.metrics:
            raise VeilrecError(f"cannot stop early on {s.watch!r}: this protocol gives {', '.join(p.metrics)}")
        value = p.metrics[s.watch]
        if p.best_value is None or value > p.best_value:
            p.best_round, p.best_value, p.evaluations_without_gain = p.rounds_done, value, 0
            return True
        p.evaluations_without_gain += 1
        p.stopped_early = p.evaluations_without_gain >= s.patience
        return False

    def checkpoint(self) -> None:
        p = self.progress
        path = checkpoint.checkpoint_path(self.folder, p.rounds_done)
        checkpoint.save(path, self.trainer.state(), p)
        best = checkpoint.checkpoint_path(self.folder, p.best_round) if p.best_round else path
        checkpoint.prune(self.folder, keep={path, best})


@contextmanager
def _stop_between_rounds() -> Iterator[Callable[[], bool]]:
    """The first Ctrl-C lets the round finish; a second one ends at once."""
    asked = False

    def note(_number: int, _frame: object) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True

    try:
        previous = signal.signal(signal.SIGINT, note)
    except ValueError:  # not the main thread: nobody can press Ctrl-C here
        yield lambda: False
        return
    try:
        yield lambda: asked
    finally:
        signal.signal(signal.SIGINT, previous)


class _TensorBoard:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @cached_property
    def _writer(self) -> Any:
        """Opened by the first thing that is logged: until then the folder is no run yet, and has to be empty."""
        from torch.utils.tensorboard import SummaryWriter

        return SummaryWriter(str(self._folder / "tensorboard"))

    def on_round(self, progress: Progress, report: StepReport) -> None:
        if report.loss is not None:
            self._writer.add_scalar("loss", report.loss, progress.rounds_done)

    def on_metrics(self, progress: Progress, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, progress.rounds_done)
        self._writer.flush()


class _Mlflow:
    def __init__(self, folder: Path) -> None:
        import mlflow

        self._mlflow = mlflow
        mlflow.start_run(run_name=folder.name)

    def on_round(self, progress: Progress, report: StepReport) -> None:
        if report.loss is not None:
            self._mlflow.log_metric("loss", report.loss, step=progress.rounds_done)

    def on_metrics(self, progress: Progress, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self._mlflow.log_metric(name.replace("@", "_at_"), value, step=progress.rounds_done)


LOGGERS: dict[str, Callable[[Path], Listener]] = {"tensorboard": _TensorBoard, "mlflow": _Mlflow}


def check_loggers(names: Sequence[str]) -> None:
    """Refuse a logger that does not exist or whose extra is missing, before any work."""
    for name in names:
        if name not in LOGGERS:
            raise unknown_name("logger", name, LOGGERS)
        require(f"--log {name}", name)


def make_loggers(names: Sequence[str], folder: Path) -> list[Listener]:
    """The named loggers."""
    check_loggers(names)
    return [LOGGERS[name](folder) for name in names]
