"""From the names of runs and methods to what an attack needs: a plan, devices with data, and a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from veilrec._arrays import Doubles, Floats
from veilrec._csr import Csr
from veilrec._extras import require
from veilrec.data.datasets import full_spec, load
from veilrec.data.population import Population
from veilrec.device.learner import LocalData
from veilrec.errors import BadInput
from veilrec.evaluate.protocols import default_protocol, make_split
from veilrec.methods.base import Method, Problem, configure, promised, ready
from veilrec.methods.registry import get
from veilrec.plan import Plan
from veilrec.privacy.guarantee import Guarantee
from veilrec.runs.evaluation import refuse_changed_data
from veilrec.runs.folder import read_config, read_result
from veilrec.runs.request import news_data, read_trained
from veilrec.runs.saved import SavedModel, open_model
from veilrec.simulate.attacks.gradient_rows import Finding, recover_clicks
from veilrec.simulate.attacks.repeated_queries import COUNTS, Asking, Curve, average_queries, best_guess

_PADDING = ("padding", "pad_probability")  # how settings call the share of clicks that a device hides
_USERS = 500  # test users whose interests are looked for, at most


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

    @property
    def label(self) -> str:
        """For tables and pictures."""
        return self.method if self.calibration is None else f"{self.method}, {self.calibration}"


@dataclass(frozen=True)
class Attacked:
    """A subject, and what was found."""

    subject: Subject
    rounds: int  # of each device, taken together
    findings: tuple[Finding, ...]

    def to_json(self) -> dict[str, Any]:
        """The first finding, which is the one that the method's statement is about, and all of them."""
        s = self.subject
        about = {"attack": "gradient-rows", "method": s.method, "calibration": s.calibration, "model": s.trained}
        terms = {"padding": s.padding, "claimed": s.claimed.to_json(), "data": s.data, "rounds": self.rounds}
        every = [finding.to_json() for finding in self.findings]
        return about | self.findings[0].to_json() | terms | {"findings": every}


class Populations:
    """Data sets, each read once."""

    def __init__(self) -> None:
        self._read: dict[str, Population] = {}

    def load(self, spec: str) -> Population:
        """The data set of this name."""
        if spec not in self._read:
            self._read[spec] = load(spec)
        return self._read[spec]


def attack_uploads(subject: Subject, *, uploads: int, rounds: int = 1, seed: int = 0) -> Attacked:
    """Look for clicked news in what a subject's devices send; errors say of which method they are."""
    try:
        found = recover_clicks(
            subject.plan, subject.devices, subject.weights, uploads=uploads, rounds=rounds, seed=seed
        )
    except BadInput as error:
        raise BadInput(f"{subject.method}: {error}") from None
    return Attacked(subject, rounds, found)


def subject_of_method(
    name: str, data: str, populations: Populations, *, settings: Sequence[str] = (), seed: int = 0
) -> Subject:
    """A method as it is before its first round."""
    method = _sending(get(name))
    require(f"attacking {method.name}", "numba")
    data = full_spec(data)
    config, rounds = configure(method, preset="tuned", dataset=data.partition(":")[0], settings=settings)
    ready(method, config)
    population = populations.load(data)
    split = make_split(population, default_protocol(population), seed=seed)
    problem = Problem(
        split.train,
        split.n_items,
        seed,
        rounds,
        news_data(population, split),
        population.features,
        None,
        population.catalogue,
    )
    plan, devices = _plan_of(method, config, problem)
    claimed = promised(method, config, problem)
    return _subject(method, config, data, "before the first round", claimed, plan, devices, plan.start)


def subject_of_run(folder: Path, populations: Populations) -> Subject:
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
    problem = Problem(
        split.train,
        split.n_items,
        trained.seed,
        rounds,
        news_data(population, split),
        population.features,
        None,
        population.catalogue,
    )
    plan, devices = _plan_of(method, config, problem)
    weights = model.parts.weights
    if {name: values.shape for name, values in weights.items()} != {t.name: t.shape for t in plan.schema.tensors}:
        raise BadInput(f"{folder} has another model than {method.name} has today: train again")
    place = f"{folder} after {rounds} rounds"
    return _subject(method, config, trained.data, place, model.guarantee, plan, devices, weights)


def _sending(method: Method[Any]) -> Method[Any]:
    if method.plan is None:
        raise BadInput(
            f"{method.name} learns where all data is, and sends no messages: attack a federated method, such as"
            " fednewsrec"
        )
    return method


def _plan_of(method: Method[Any], config: Any, problem: Problem) -> tuple[Plan, LocalData]:
    if method.plan is None:
        raise ValueError(f"{method.name} has no plan")
    if problem.news is None:
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
) -> Subject:
    values = config.model_dump()
    everything = {**values, **(values.get("privacy") or {})}
    padding = next((float(everything[name]) for name in _PADDING if name in everything), None)
    return Subject(
        method.name, values.get("calibration"), data, trained, claimed, padding, plan, devices, dict(weights)
    )


@dataclass(frozen=True)
class Asked:
    """A run whose users' queries were averaged."""

    folder: Path
    method: str
    data: str
    users: int
    interests: int
    chance: float  # of naming the right interest without a query
    asking: Asking
    curves: tuple[Curve, ...]

    def to_json(self) -> dict[str, Any]:
        """For `veilrec attack repeated-queries --json`."""
        a = self.asking
        return {
            "attack": "repeated-queries",
            "run": str(self.folder),
            "method": self.method,
            "data": self.data,
            "users": self.users,
            "interests": self.interests,
            "chance": self.chance,
            "calibration": a.calibration,
            "noise": a.noise,
            "clip_norm": a.clip_norm,
            "curves": [curve.to_json() for curve in self.curves],
        }


def attack_queries(
    folder: Path, populations: Populations, asking: Asking, *, counts: Sequence[int] = COUNTS, seed: int = 0
) -> Asked:
    """Average the queries of a run's test users."""
    trained, model = read_trained(folder), open_model(folder)
    scorer = _with_interests(model)
    population = populations.load(trained.data)
    refuse_changed_data(folder, trained, model, population)
    attention = attention_of_test_users(scorer, trained.split(population).test.impressions, seed)
    curves = average_queries(attention, asking, counts=counts, seed=seed)
    users, interests = attention.shape
    return Asked(folder, trained.method, trained.data, users, interests, best_guess(attention), asking, curves)


def clip_norm_of(folder: Path) -> float:
    """The bound on attention that a run's model was trained with."""
    return float(_with_interests(open_model(folder)).model.sizes.attention_clip)


def _with_interests(model: SavedModel) -> Any:
    scorer: Any = model.for_anybody
    if not hasattr(getattr(scorer, "model", None), "padded_attention"):
        raise BadInput(
            f"{model.folder} is a run of {model.method}, whose model has no basis vectors, so that its devices send no"
            " attention: train one that has, such as privaterec, and give its folder"
        )
    return scorer


def attention_of_test_users(scorer: Any, impressions: Any, seed: int) -> Doubles:
    """Attention over the basis of test users with a history, some of them: [users, B]."""
    import torch

    if impressions is None:
        raise BadInput("the run's protocol asks about no impressions: train with --protocol mind")
    _, first = np.unique(impressions.users, return_index=True)  # one history a user
    rows = np.unique(impressions.history_of[first]).astype(np.int64)
    rows = rows[impressions.histories.lengths()[rows] > 0]
    generator = np.random.Generator(np.random.Philox(np.random.SeedSequence([seed])))
    rows = np.sort(generator.permutation(rows)[:_USERS])
    if not len(rows):
        raise BadInput("no test user has clicked anything before: there are no interests to find")
    items, mask = _padded(impressions.histories.take(rows), scorer.longest)
    with torch.inference_mode():
        past = scorer.states[torch.from_numpy(items)]
        found = scorer.model.attention(scorer.model.whole_user(past, torch.from_numpy(mask)))
    attention = found.numpy().astype(np.float64)
    return np.asarray(attention / attention.sum(axis=1, keepdims=True))


def _padded(histories: Csr, longest: int) -> tuple[Any, Any]:
    """The latest clicks of every history: [users, longest] and which are real."""
    width = max(1, min(longest, int(histories.lengths().max(initial=0))))
    items, mask = np.zeros((len(histories), width), np.int64), np.zeros((len(histories), width), np.bool_)
    for row in range(len(histories)):
        latest = histories.row(row)[-width:]
        items[row, : len(latest)], mask[row, : len(latest)] = latest, True
    return items, mask
