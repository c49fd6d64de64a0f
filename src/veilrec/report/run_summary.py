"""Summary of a finished run for reports, read from its config.yaml, metrics.jsonl and result.json."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from veilrec.core.errors import BadInput, bad_line, counted
from veilrec.methods.registry import get
from veilrec.privacy.guarantee import Guarantee
from veilrec.runs.checkpoint import read_config, read_result

COUNTS = ("cases", "skipped")  # reported beside the metrics, and not metrics
_MAIN_METRICS = ("auc", "hr@10", "ndcg@10")  # the first of them that a protocol gives


@dataclass(frozen=True)
class EvaluationPoint:
    """One evaluation during a run."""

    round: int
    metrics: Mapping[str, float]
    loss: float | None
    clients: int  # that took part so far, counted again in every round
    down_bytes: int  # so far, all clients together
    up_bytes: int


@dataclass(frozen=True)
class RunSummary:
    """A finished run: its request, learning curve, final metrics, guarantee and traffic."""

    label: str  # what a page calls it: the method, and the folder where two runs have the same method
    folder: str  # its name without what is above it
    method: str
    kind: str  # federated, centralised or baseline
    dataset: str
    data: str  # as it was asked for
    protocol: str
    seed: int
    preset: str
    settings: tuple[str, ...]
    rounds: int
    users: int
    items: int
    rows: int
    metrics: Mapping[str, float]
    baselines: Mapping[str, Mapping[str, float]]
    guarantee: Guarantee
    down_bytes: int
    up_bytes: int
    seconds: float
    split: str  # which part the points were measured on: test or valid
    points: tuple[EvaluationPoint, ...]
    noise: str = "seeded"  # or secure
    config: Mapping[str, Any] = field(default_factory=dict)  # every setting of the method, in groups

    def clients_per_round(self) -> float:
        """Return the mean number of clients in a round."""
        return self.points[-1].clients / max(self.points[-1].round, 1) if self.points else 0.0

    def participation(self) -> str:
        """Say how many clients took part in how many rounds: 300 rounds of 100 clients."""
        clients = self.clients_per_round()
        about = "all " if clients == self.users else "" if clients.is_integer() else "about "
        return f"{counted(self.rounds, 'round')} of {about}{counted(round(clients), 'client')}"

    def bytes_per_participation(self) -> tuple[float, float]:
        """Return the mean bytes that one client receives and sends in one round."""
        times = max(self.points[-1].clients, 1) if self.points else 1
        return self.down_bytes / times, self.up_bytes / times

    def command(self) -> str:
        """Return the command that makes this run again."""
        settings = "".join(f" --set {setting}" for setting in self.settings)
        preset = "" if self.preset == "tuned" else f" --preset {self.preset}"
        noise = "" if self.noise == "seeded" else f" --noise {self.noise}"
        return (
            f"veilrec train {self.method} --data {self.data} --rounds {self.rounds} --seed {self.seed}"
            f" --protocol {self.protocol}{preset}{noise}{settings}"
        )


def main_metric(metrics: Mapping[str, float]) -> str:
    """Choose the metric that curves show: AUC for impressions, HR@10 where held-out items are ranked."""
    names = [name for name in metrics if name not in COUNTS]
    return next((name for name in _MAIN_METRICS if name in names), names[0])


def read_run(folder: Path) -> RunSummary:
    """Read the folder of a finished run."""
    config = read_config(folder)
    result = read_result(folder)
    split, points = _read_points(folder / "metrics.jsonl")
    try:
        return RunSummary(
            label=result["method"],
            folder=folder.name,
            method=result["method"],
            kind=get(result["method"]).kind,
            dataset=result["dataset"],
            data=config["data"],
            protocol=result["protocol"],
            seed=result["seed"],
            preset=config["preset"],
            settings=tuple(config["settings"]),
            rounds=int(result["rounds"]),
            users=int(config["users"]),
            items=int(config["items"]),
            rows=int(config["rows"]),
            metrics=_numbers(result["metrics"]),
            baselines={name: _numbers(values) for name, values in dict(result["baselines"]).items()},
            guarantee=Guarantee.from_json(result["guarantee"]),
            down_bytes=int(result["communication"]["down_bytes"]),
            up_bytes=int(result["communication"]["up_bytes"]),
            seconds=float(result["seconds"]),
            split=split,
            points=points,
            noise=config.get("noise", "seeded"),
            config=dict(config.get("config") or {}),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise BadInput(
            f"{folder} is not a whole run ({type(error).__name__}: {error}): train again into a new folder"
        ) from None


def refuse_other_data(runs: Sequence[RunSummary]) -> None:
    """Refuse runs that one page cannot compare: of different data or protocols."""
    for run in runs:
        for name in ("dataset", "protocol", "users", "items", "rows"):
            ours, first = getattr(run, name), getattr(runs[0], name)
            if ours != first:
                raise BadInput(
                    f"{run.folder} has {name} {ours} and {runs[0].folder} has {first}: one report compares runs of "
                    "the same data and protocol"
                )


def with_own_labels(runs: Sequence[RunSummary]) -> list[RunSummary]:
    """Label runs of one method by their folders, so that no two have the same label."""
    counts = Counter(run.method for run in runs)
    return [replace(run, label=f"{run.method} in {run.folder}") if counts[run.method] > 1 else run for run in runs]


def _numbers(metrics: Any) -> dict[str, float]:
    """Convert metrics to numbers; at least one is required."""
    numbers = {name: float(value) for name, value in dict(metrics).items()}
    if not numbers:
        raise ValueError("no metrics")
    return numbers


def _read_points(path: Path) -> tuple[str, tuple[EvaluationPoint, ...]]:
    points, split = [], "test"
    for number, line in enumerate(_lines(path), 1):
        try:
            entry = json.loads(line)
            split = entry["split"]
            points.append(
                EvaluationPoint(
                    round=entry["round"],
                    metrics=_numbers(entry["metrics"]),
                    loss=entry["loss"],
                    clients=entry["devices"],
                    down_bytes=entry["down_bytes"],
                    up_bytes=entry["up_bytes"],
                )
            )
        except (ValueError, KeyError, TypeError) as error:
            raise bad_line(path, number, f"no evaluation of a run ({error}): train again into a new folder") from None
    return split, tuple(points)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except OSError:
        raise BadInput(f"{path} is missing: the folder is not a whole run; train again into a new folder") from None
