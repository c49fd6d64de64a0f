"""What is measured beside a run's own result: its model before the first round, as it is asked, or otherwise judged."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from veilrec._files import write_json
from veilrec._version import __version__
from veilrec.device.ways import Serving
from veilrec.errors import VeilrecError
from veilrec.privacy.guarantee import no_guarantee
from veilrec.report.reproduce.price import NOT_RUN
from veilrec.report.reproduce.running import Outcome
from veilrec.runs.evaluation import evaluate_run
from veilrec.runs.folder import read_result
from veilrec.runs.measuring import measure
from veilrec.runs.request import prepare
from veilrec.runs.serving import evaluate_serving
from veilrec.runs.trials import Say, Trial, in_processes, title

_UNTRAINED = "untrained"


@dataclass(frozen=True)
class Probe:
    """One measurement of a trial that is not its own result."""

    trial: Trial
    serving: Serving | None = None  # None, and no protocol: before the first round, which needs no run
    protocol: str | None = None  # the same model judged by another one, whose test items it has not seen

    @property
    def place(self) -> Path:
        """The file that keeps what was measured; another one as soon as anything that decides it is another."""
        mode = self.protocol or (_UNTRAINED if self.serving is None else self.serving.mode)
        asked = mode if self.serving is None else asdict(self.serving)
        decisive = json.dumps([__version__, self.trial.folder.name, asked])
        digest = hashlib.sha256(decisive.encode()).hexdigest()[:8]
        return self.trial.folder.parent.parent / "measured" / f"{self.trial.folder.name}-{mode}-{digest}.json"

    @property
    def title(self) -> str:
        """In a few words."""
        if self.protocol is not None:
            return f"{title(self.trial)}: by {self.protocol}"
        if self.serving is None:
            return f"{title(self.trial)}: before the first round"
        return f"{title(self.trial)}: served by {in_words(self.serving)}"

    @property
    def of_a_run(self) -> bool:
        """Whether there must be a trained model."""
        return self.serving is not None or self.protocol is not None


def in_words(serving: Serving) -> str:
    """The mode with what was set of it, but for the seed."""
    fields = {name: value for name, value in asdict(serving).items() if name not in ("mode", "seed")}
    chosen = [
        f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}"
        for name, value in fields.items()
        if value is not None
    ]
    return " ".join((serving.mode, *chosen))


def recall(probes: Sequence[Probe], runs: Mapping[Path, Outcome]) -> dict[Path, Outcome]:
    """What was measured already; of the rest, that it was not."""
    return {probe.place: _known(probe, runs) or Outcome(None, problem=NOT_RUN) for probe in probes}


def take(probes: Sequence[Probe], runs: Mapping[Path, Outcome], *, jobs: int = 1, say: Say) -> dict[Path, Outcome]:
    """Measure what is not measured yet, `jobs` at once; of a run that failed there is nothing to measure."""
    found = {probe.place: outcome for probe in probes if (outcome := _known(probe, runs)) is not None}
    todo = [probe for probe in probes if probe.place not in found]
    for probe, problem in _measured(todo, jobs):
        say(f"{probe.title}: {problem or 'measured'}")
        found[probe.place] = Outcome(None, problem=problem) if problem else Outcome(_read(probe.place))
    return found


def _known(probe: Probe, runs: Mapping[Path, Outcome]) -> Outcome | None:
    """What need not be measured: it was already, of the same model, or there is no model."""
    if probe.of_a_run and (problem := runs[probe.trial.folder].problem):
        return Outcome(None, problem=problem)
    try:
        saved = _read(probe.place)
    except (OSError, ValueError):
        return None
    return Outcome(saved) if saved.get("of") == _model_of(probe) else None


def _measured(todo: Sequence[Probe], jobs: int) -> Iterator[tuple[Probe, str]]:
    if jobs > 1 and len(todo) > 1:
        yield from in_processes(_attempt, iter(todo), jobs)
    else:
        yield from ((probe, _attempt(probe)) for probe in todo)


def _attempt(probe: Probe) -> str:
    """Measure one; the problem in words where it cannot be done."""
    try:
        result = _result(probe)
    except VeilrecError as error:
        return f"failed: {error}"
    probe.place.parent.mkdir(parents=True, exist_ok=True)
    write_json(probe.place, {**result, "of": _model_of(probe)})
    return ""


def _result(probe: Probe) -> dict[str, Any]:
    if probe.protocol is not None:
        return _judged_by(probe.trial.folder, probe.protocol)
    return _before_training(probe.trial) if probe.serving is None else _served(probe.trial.folder, probe.serving)


def _model_of(probe: Probe) -> str | None:
    """The weights that were measured, for a run may be trained anew."""
    return None if not probe.of_a_run else str(read_result(probe.trial.folder)["weights_sha256"])


def _before_training(trial: Trial) -> dict[str, Any]:
    """As result.json has it, of the model that training begins with."""
    prepared = prepare(trial.request)
    measured = measure(prepared.trainer.model(), prepared.split, trial.request.seed).to_json()
    return {**measured, "rounds": 0, "communication": {}, "guarantee": no_guarantee().to_json()}


def _judged_by(folder: Path, protocol: str) -> dict[str, Any]:
    """As result.json has it, but for what the model is asked."""
    own = read_result(folder)
    return {**evaluate_run(folder, protocol), **{name: own[name] for name in ("communication", "seconds")}}


def _read(path: Path) -> dict[str, Any]:
    saved: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return saved


def _served(folder: Path, serving: Serving) -> dict[str, Any]:
    """As `veilrec evaluate --serving` has it, skew and recall among the metrics."""
    result = evaluate_serving(folder, serving)
    more = {name: result[name] for name in ("skew", "recall@100")}
    return {**result, "metrics": {**result["metrics"], **more}, "communication": {}}
