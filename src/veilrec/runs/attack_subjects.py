"""What an attack is run against: a run or a method, as a plan, devices with data, and a model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from veilrec._arrays import Floats
from veilrec._extras import require
from veilrec.data.datasets import full_spec, load
from veilrec.data.population import Population
from veilrec.device.learner import LocalData
from veilrec.device.news_log import OwnImpressions
from veilrec.errors import BadInput
from veilrec.evaluate.protocols import default_protocol, make_split
from veilrec.evaluate.split import Split
from veilrec.methods.base import Method, Problem, configure, promised, ready
from veilrec.methods.registry import get
from veilrec.plan import Plan
from veilrec.privacy.guarantee import Guarantee
from veilrec.runs.evaluation import refuse_changed_data
from veilrec.runs.folder import read_config, read_result
from veilrec.runs.request import problem_of, read_trained
from veilrec.runs.saved import open_model

_PADDING = ("padding", "pad_probability")  # how settings call the share of clicks that a device hides


@dataclass(frozen=True)
class Subject:
    """What is attacked."""

    method: str
    calibration: str | None
    data: str
    trained: str  # where the model is from
    claimed: Guarantee
    padding: float | None
    plan: Plan
    devices: LocalData
    weights: Mapping[str, Floats]
    split: Split  # what was learnt from, and the questions that were kept back

    @property
    def label(self) -> str:
        """For tables and pictures."""
        return self.method if self.calibration is None else f"{self.method}, {self.calibration}"

    @property
    def reads_news(self) -> bool:
        """Whether its devices learn from impressions."""
        return isinstance(self.devices, OwnImpressions)

    @contextmanager
    def named(self) -> Iterator[None]:
        """Errors say of which method they are."""
        try:
            yield
        except BadInput as error:
            raise BadInput(f"{self.method}: {error}") from None


class Populations:
    """Data sets, each read once."""

    def __init__(self) -> None:
        self._read: dict[str, Population] = {}

    def load(self, spec: str) -> Population:
        """The data set of this name."""
        if spec not in self._read:
            self._read[spec] = load(spec)
        return self._read[spec]


def subjects_of(
    runs: Sequence[Path],
    methods: Sequence[str],
    calibrations: Sequence[str],
    settings: Sequence[str],
    data: str,
    seed: int,
    populations: Populations,
    *,
    needs_titles: bool,
) -> list[Callable[[], Subject]]:
    """What makes each subject, runs first; a method without calibrations is attacked once."""
    if not runs and not methods:
        raise BadInput("nothing to attack: give the folder of a run, or --method such as fednewsrec")
    if not methods and (calibrations or settings):
        raise BadInput("--calibration and --set are for --method: a run is attacked as it was trained")
    made: list[Callable[[], Subject]] = [
        partial(subject_of_run, folder, populations, needs_titles=needs_titles) for folder in runs
    ]
    for name in methods:
        has = "calibration" in get(name).config.model_fields or len(methods) == 1
        for calibration in calibrations if has and calibrations else (None,):
            chosen = [] if calibration is None else [f"calibration={calibration.strip().lower()}"]
            made.append(
                partial(
                    subject_of_method,
                    name,
                    data,
                    populations,
                    settings=[*settings, *chosen],
                    seed=seed,
                    needs_titles=needs_titles,
                )
            )
    return made


def subject_of_method(
    name: str,
    data: str,
    populations: Populations,
    *,
    settings: Sequence[str] = (),
    seed: int = 0,
    needs_titles: bool = False,
) -> Subject:
    """A method as it is before its first round."""
    method = _sending(get(name))
    require(f"attacking {method.name}", "numba")
    data = full_spec(data)
    config, rounds = configure(method, preset="tuned", dataset=data.partition(":")[0], settings=settings)
    ready(method, config)
    population = populations.load(data)
    split = make_split(population, default_protocol(population), seed=seed)
    problem = problem_of(population, split, seed, rounds)
    plan, devices = _plan_of(method, config, problem, needs_titles=needs_titles)
    claimed = promised(method, config, problem)
    return _subject(method, config, data, "before the first round", claimed, plan, devices, plan.start, split)


def subject_of_run(folder: Path, populations: Populations, *, needs_titles: bool = False) -> Subject:
    """A run with its last model, on its own data."""
    rounds = int(read_result(folder)["rounds"])
    trained, model = read_trained(folder), open_model(folder)
    method = _sending(get(trained.method))
    try:
        config = method.config.model_validate(read_config(folder).get("config"))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise BadInput(f"{folder} was trained with other settings ({where}: {first['msg']}): train again") from None
    population = populations.load(trained.data)
    refuse_changed_data(folder, trained, model, population)
    split = trained.split(population)
    problem = problem_of(population, split, trained.seed, rounds)
    plan, devices = _plan_of(method, config, problem, needs_titles=needs_titles)
    weights = model.parts.weights
    if {name: values.shape for name, values in weights.items()} != {t.name: t.shape for t in plan.schema.tensors}:
        raise BadInput(f"{folder} has another model than {method.name} has today: train again")
    place = f"{folder} after {rounds} rounds"
    return _subject(method, config, trained.data, place, model.guarantee, plan, devices, weights, split)


def _sending(method: Method[Any]) -> Method[Any]:
    if method.plan is None:
        raise BadInput(
            f"{method.name} learns where all data is, and sends no messages: attack a federated method, such as"
            " fednewsrec"
        )
    return method


def _plan_of(method: Method[Any], config: Any, problem: Problem, *, needs_titles: bool) -> tuple[Plan, LocalData]:
    if method.plan is None:
        raise ValueError(f"{method.name} has no plan")
    if problem.news is None and needs_titles:
        raise BadInput(
            f"{method.name}: this data has no titles or train impressions, and the attack looks for clicked news:"
            " give --data synthetic-news or mind:FOLDER, and a method that reads titles, such as fednewsrec"
        )
    return method.plan(config, problem), method.devices(config, problem)


def _subject(
    method: Method[Any],
    config: Any,
    data: str,
    trained: str,
    claimed: Guarantee,
    plan: Plan,
    devices: LocalData,
    weights: Mapping[str, Floats],
    split: Split,
) -> Subject:
    values = config.model_dump()
    everything = {**values, **(values.get("privacy") or {})}
    padding = next((float(everything[name]) for name in _PADDING if name in everything), None)
    return Subject(
        method.name, values.get("calibration"), data, trained, claimed, padding, plan, devices, dict(weights), split
    )
