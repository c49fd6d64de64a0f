"""The Python surface: a data set, a run, what a run is good for, and an audit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from veilrec.errors import BadInput
from veilrec.privacy.guarantee import Guarantee
from veilrec.runs.folder import check_out, read_result

if TYPE_CHECKING:
    from veilrec.data.population import Population
    from veilrec.runs.saved import Recommendation, SavedModel


@dataclass(frozen=True)
class Run:
    """A finished run; it needs its folder and nothing else, but for `evaluate`, which measures on the data."""

    folder: Path

    @cached_property
    def result(self) -> Mapping[str, Any]:
        """What result.json says: metrics, baselines, bytes, seconds."""
        return read_result(self.folder)

    @property
    def metrics(self) -> Mapping[str, float]:
        """On the test part of the run's protocol."""
        metrics: Mapping[str, float] = self.result["metrics"]
        return metrics

    @property
    def guarantee(self) -> Guarantee:
        """What the run promises, with everything that an epsilon means nothing without."""
        return Guarantee.from_json(self.result["guarantee"])

    @cached_property
    def model(self) -> SavedModel:
        """The model with its vocabularies."""
        from veilrec.runs.saved import open_model

        return open_model(self.folder)

    def recommend(
        self, history: Sequence[str] | None = None, *, user: str | None = None, k: int = 10
    ) -> list[Recommendation]:
        """The best items for somebody with this history of item ids, the latest last, or for a user of the run."""
        if (history is None) == (user is None):
            raise BadInput("give either a history of item ids or a user of the run")
        if k < 1:
            raise BadInput(f"k is {k}: ask for at least 1 item")
        return self.model.recommend(history, k) if history is not None else self.model.recommend_user(str(user), k)

    def evaluate(self, protocol: str | None = None, *, data: str | None = None) -> dict[str, Any]:
        """Measured again, by another protocol or on other data if asked; as `veilrec evaluate --json` prints it."""
        from veilrec.runs.evaluation import evaluate_run

        return evaluate_run(self.folder, protocol, data)


def load(data: str) -> Population:
    """A data set by name, or NAME:PATH: as `--data` of the commands."""
    from veilrec.data.datasets import load as read

    return read(data)


def train(
    method: str,
    data: str,
    *,
    out: str | Path | None = None,
    seed: int = 0,
    rounds: int | None = None,
    protocol: str | None = None,
    preset: str = "tuned",
    settings: Mapping[str, Any] | Iterable[str] = (),
    noise: Literal["seeded", "secure"] = "seeded",
) -> Run:
    """Train a method and save the run; `settings` are those of `--set`, as a mapping or as "name=value"."""
    from veilrec.runs.request import Request, default_out, prepare
    from veilrec.runs.training import train as run_to_the_end

    chosen = [f"{k}={v}" for k, v in settings.items()] if isinstance(settings, Mapping) else list(settings)
    request = Request(method, data, seed, protocol, preset, tuple(chosen), rounds, noise=noise)
    folder = default_out(request) if out is None else Path(out)
    check_out(folder, resume=False)
    run_to_the_end(prepare(request), folder)
    return Run(folder)


def open(folder: str | Path) -> Run:
    """A run that was trained before."""
    run = Run(Path(folder))
    read_result(run.folder)  # refuses a folder that is no finished run
    return run


def audit(name: str, *, quick: bool = True, seed: int = 0) -> dict[str, Any]:
    """Attack the plan of a method, or a mechanism; as `veilrec audit NAME --json` prints it."""
    from veilrec.methods.registry import METHODS

    if name in METHODS:
        from veilrec.methods.audit import audit_method

        return audit_method(name, quick=quick, seed=seed).to_json()
    from veilrec.privacy.audit import auditor

    result = auditor.audit(auditor.select(name), quick=quick, seed=seed)
    return {"mechanisms": [verdict.to_json() for verdict in result.verdicts], "passed": result.passed}
