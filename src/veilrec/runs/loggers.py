"""Listeners that pass a run on to TensorBoard or MLflow; both are extras."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from veilrec._extras import require
from veilrec.errors import unknown_name
from veilrec.runs.checkpoint import Progress
from veilrec.runs.loop import Listener
from veilrec.simulate.trainer import StepReport


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
