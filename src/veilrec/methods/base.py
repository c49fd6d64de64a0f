"""Definition of a method: citation, configuration with presets, guarantee, and the assembly of its plan."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, Generic, Literal, Self, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError, model_validator

from veilrec.client.local_training import LocalData, OwnItems
from veilrec.client.rankers import Ranker
from veilrec.core.arrays import Floats, Offsets
from veilrec.core.csr import Csr
from veilrec.core.errors import BadInput, known_name, unknown_name
from veilrec.core.features import Features
from veilrec.core.plan import Plan
from veilrec.data.datasets import DATASETS
from veilrec.data.population import Impressions, ItemTable
from veilrec.methods.registry import STATED
from veilrec.privacy.guarantee import Guarantee, no_guarantee
from veilrec.server.round_specs import CohortSettings
from veilrec.simulation.simulation import Seeds, Simulation, Trainer


class Config(BaseModel):
    """Base of configurations: frozen, typed, without unknown names.

    Where `privacy.noise` is distributed, cohorts are drawn without chance, which the server would see through.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    @model_validator(mode="after")
    def _known_cohorts(self) -> Self:
        privacy, cohort = (getattr(self, name, None) for name in ("privacy", "cohort"))
        if getattr(privacy, "noise", None) == "distributed" and isinstance(cohort, CohortSettings):
            self.__dict__["cohort"] = cohort.in_public_order  # frozen for everybody else
        return self


C = TypeVar("C", bound=Config)
EVERY_DATASET = tuple(DATASETS)  # of methods that know items by their ids: a click is a click
_OF_PRIVATE_METHODS = ("calibration", "privacy")  # settings that the others lack
IN_PLAINTEXT = "In plaintext, "  # how a caveat begins that is about messages without masks
LARGEST = 2**31 - 1  # of a whole number in the settings: compiled code counts the product of two of them


@dataclass(frozen=True)
class NewsData:
    """Training data of methods that read text: a public catalogue, and training impressions."""

    catalogue: ItemTable
    impressions: Impressions


@dataclass(frozen=True)
class Problem:
    """Training data of a method; never the test or validation part."""

    train: Csr
    n_items: int
    public_seed: int  # of what everybody may know: first models, and the parts that rounds are about
    rounds: int = 1  # how many are planned: a private method needs to know before the first
    news: NewsData | None = None  # None: no catalogue, or a protocol without train impressions
    features: Features | None = None  # of everybody: a client has its own row of the users' side
    ratings: Floats | None = None  # [len(train.items)], out of 1 by the scale of the data; None: it has none
    catalogue: ItemTable | None = None  # titles and categories of the items, where they are known
    people: int | None = None  # public nominal number of clients; None: how many can learn, which is public itself
    records: Csr | None = None  # `train` with every use of an item, for methods that learn from repeats; None: once
    disliked: Csr | None = None  # what was rated low where `train` is what was liked; None: nothing is told apart
    numbers: Offsets | None = None  # of every client, by its name alone: the key of its public draws; None: its row


def own_items(config: Any, problem: Problem) -> OwnItems:
    """Local data of clients where items are known by their ids."""
    return OwnItems(problem.train)


@dataclass(frozen=True)
class LearningTrial:
    """Settings with which a method must beat popularity by a factor on 500 synthetic users, for the contract tests.

    Such a population is far smaller than the defaults of most methods are made for.
    """

    rounds: int = 100
    settings: tuple[str, ...] = ()
    times_popularity: float = 2.0


@dataclass(frozen=True)
class Exemption:
    """A contract check that a method need not pass, with the reason."""

    check: str  # by its name
    reason: str
    calibration: str | None = None  # of that one only


@dataclass(frozen=True)
class Method(Generic[C]):
    """One method; its file names the parts, cites the paper, and lists its deviations."""

    name: str
    kind: Literal["federated", "centralised", "baseline"]
    paper: str
    model: str
    summary: str
    datasets: tuple[str, ...]
    config: type[C]
    guarantee: Callable[[C], Guarantee]  # of the whole run, as configured
    rounds: int  # default number of rounds (epochs for centralised methods)
    plan: Callable[[C, Problem], Plan] | None = None  # of federated methods
    clients: Callable[[C, Problem], LocalData] = own_items  # what their clients learn from
    trainer: Callable[[C, Problem], Trainer] | None = None  # of methods that need everybody's data in one place
    # "tuned", "tuned@ml-1m" or, where noise asks for other settings, "tuned:proven" -> settings
    presets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    deviations: tuple[str, ...] = ()
    # the same guarantee with what only a run knows: its rounds, clients and items
    guarantee_of_run: Callable[[C, Problem], Guarantee] | None = None
    # refuses settings that need what is not on this machine, before any data is read; gives notes for the user
    ready: Callable[[C], tuple[str, ...]] | None = None
    evaluations: int = 20  # in the course of a run, unless told otherwise: fewer where one takes as long as many rounds
    item_parameters: int | None = None  # floats per item that the communication paper counts; None: not counted there
    rounds_are_fixed: bool = False  # private methods: the noise was chosen for this many rounds
    measured: tuple[str, ...] = ()  # datasets with results in docs/results.md
    private_form: str = ""  # of methods without privacy: the one that is meant where settings speak of privacy
    private_relative: str | None = None  # the method to name to those who ask this one for privacy
    published: Mapping[str, Any] = field(default_factory=dict)  # the paper's own numbers, by data set
    rankers: tuple[type[Ranker], ...] = ()  # of outside methods that rank in a way of their own: what opens their runs
    # kinds of synthetic people from which it learns in a way of its own each: all of them are checked and audited
    made_up: tuple[str, ...] = ()
    trial: LearningTrial = LearningTrial()  # how the contract sees that it learns
    exemptions: tuple[Exemption, ...] = ()  # from the contract, with reasons


def unprotected(*caveats: str) -> Callable[[Any], Guarantee]:
    """Guarantee of a method without formal guarantee, whatever its configuration."""
    return lambda _: no_guarantee(*caveats)


def make_trainer(method: Method[C], config: C, problem: Problem, *, secret: bytes | None = None) -> Trainer:
    """Make the trainer of a method: a simulation of its plan, or a centralised trainer.

    Simulations draw everything from the public seed unless a secret is given.
    """
    if method.plan is not None:
        seeds = Seeds.all_from(problem.public_seed, secret)
        clients = method.clients(config, problem)
        plan = method.plan(config, problem)
        return Simulation(plan, clients, problem.train, seeds, people=problem.people, numbers=problem.numbers)
    if method.trainer is None:
        raise ValueError(f"{method.name} has neither a plan nor a trainer")
    return method.trainer(config, problem)


def promised(method: Method[C], config: C, problem: Problem) -> Guarantee:
    """Guarantee of a run."""
    if method.guarantee_of_run is None:
        return method.guarantee(config)
    return method.guarantee_of_run(config, problem)


def ready(method: Method[C], config: C) -> tuple[str, ...]:
    """Check that packages and files for these settings are installed; return notes for the user."""
    return () if method.ready is None else method.ready(config)


@cache
def _preset_file() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = yaml.safe_load((Path(__file__).parent / "presets.yaml").read_text("utf-8"))
    return found


def read_presets(name: str) -> dict[str, dict[str, Any]]:
    """Presets of a built-in method in presets.yaml: of what it is `like`, then its own, merged deeply."""
    presets: dict[str, dict[str, Any]] = {}
    own = dict(_preset_file()[name])
    for group in own.pop("like", ()):
        _merge(presets, read_presets(group))
    _merge(presets, own)
    return presets


_SHAPES: dict[str, TypeAdapter[Any]] = {
    "trial": TypeAdapter(LearningTrial),
    "exemptions": TypeAdapter(tuple[Exemption, ...]),
}


def described(name: str) -> dict[str, Any]:
    """Fields of a built-in method as methods.yaml and presets.yaml state them."""
    fields: dict[str, Any] = {"name": name}
    for key, value in STATED[name].items():
        if key in _SHAPES:
            fields[key] = _SHAPES[key].validate_python(value)
        elif isinstance(value, list):
            parts = (part if isinstance(part, list) else [part] for part in value)
            fields[key] = tuple(one for part in parts for one in part)
        elif key != "where":
            fields[key] = value
    return fields | ({"presets": read_presets(name)} if name in _preset_file() else {})


def preset_names(method: Method[Any]) -> list[str]:
    """Names of the presets; "tuned" always exists and is the default."""
    return sorted({re.split("[@:]", name)[0] for name in method.presets} | {"tuned"})


def configure(method: Method[C], *, preset: str, dataset: str, settings: Sequence[str] = ()) -> tuple[C, int]:
    """The configuration of a run and its number of rounds: defaults, then the preset, then the user's settings."""
    preset = known_name(f"preset of {method.name}", preset, preset_names(method))
    values: dict[str, Any] = method.config().model_dump()
    asked: dict[str, Any] = {}
    for setting in settings:
        _merge(asked, _parse(setting))
    for name in (preset, f"{preset}@{dataset}"):
        _merge(values, method.presets.get(name, {}))
    calibration = asked.get("calibration", values.get("calibration"))
    _merge(values, method.presets.get(f"{preset}:{calibration}", {}))
    _merge(values, asked)
    rounds = values.pop("rounds", method.rounds)
    try:
        config = _countable(method, method.config.model_validate(values))
        return _with_noise_to_share(method, config), TypeAdapter(int).validate_python(rounds)
    except ValidationError as error:
        raise BadInput(_explain(method, error)) from None


def speaks_of(settings: Sequence[str], part: str) -> bool:
    """Whether the settings of the user include any of a group."""
    return any(setting.strip().startswith(f"{part}.") for setting in settings)


def is_set(settings: Sequence[str], name: str) -> bool:
    """Whether the settings of the user include a name."""
    return any(setting.partition("=")[0].strip() == name for setting in settings)


def _countable(method: Method[Any], config: C) -> C:
    """Return the configuration; raise BadInput if an integer in it is too large."""
    for name, value in leaves(config.model_dump()):
        if isinstance(value, int) and abs(value) > LARGEST:
            raise BadInput(f"setting {name} of {method.name} is {value}: give at most {LARGEST:,}")
    return config


def _with_noise_to_share(method: Method[Any], config: C) -> C:
    """Return the configuration; raise BadInput if it asks for distributed noise where no sum has noise."""
    if getattr(getattr(config, "privacy", None), "noise", None) == "distributed":
        trust = method.guarantee(config).trust
        if trust != "server sees only noisy sums":
            raise BadInput(
                f"privacy.noise is distributed, and {method.name} has no proven noise on sums with these settings"
                f"{'' if trust is None else f' (it trusts: {trust})'}: leave it out"
            )
    return config


def leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every value with its dotted name."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _merge(target: dict[str, Any], source: Mapping[str, Any]) -> None:
    for key, value in source.items():
        if isinstance(value, Mapping):
            branch = target.setdefault(key, {})
            if not isinstance(branch, dict):
                raise BadInput(f"{key} is a single value and has no parts such as {next(iter(value))}")
            _merge(branch, value)
        else:
            target[key] = value


def _parse(setting: str) -> dict[str, Any]:
    path, equals, text = setting.partition("=")
    if not equals or not path.strip():
        raise BadInput(f"--set {setting}: expected name=value, for example --set local.epochs=3")
    value: Any = _value(setting, text.strip())
    for part in reversed(path.strip().split(".")):
        value = {part: value}
    result: dict[str, Any] = value
    return result


def _value(setting: str, text: str) -> Any:
    """Text, which the configuration reads; but [16, 8] and [age, gender] are lists, and null is nothing."""
    if text != "null" and not text.startswith("["):
        return text
    try:
        return json.loads(text)
    except ValueError:
        words = [word.strip() for word in text[1:-1].split(",")]
        if text.endswith("]") and all(re.fullmatch(r"[^\s\[\]{}\"',]+", word) for word in words):
            return words
        raise BadInput(f"--set {setting}: expected a list such as [16, 8] or [age, gender]") from None


def _explain(method: Method[Any], error: ValidationError) -> str:
    first = error.errors()[0]
    path = ".".join(str(part) for part in first["loc"]) or "rounds"  # the only one outside of the configuration
    if first["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        group = path.partition(".")[0]
        if group in _OF_PRIVATE_METHODS and group not in method.config.model_fields:
            return _not_private(method, path)
        return str(unknown_name(f"setting of {method.name}", path, setting_names(method.config)))
    return f"setting {path} of {method.name} is {first['input']!r}: {first['msg'].lower()}"


def _not_private(method: Method[Any], path: str) -> str:
    told = f"{method.name} adds no noise and has no {path}"
    if method.private_relative is None:
        return f"{told}: leave it out, or choose one of `veilrec methods --private`"
    return f"{told}: leave it out, or train its private relative {method.private_relative}"


def learning_rates(config: type[BaseModel]) -> tuple[str, ...]:
    """Names of the settings that are learning rates of clients or server."""
    paths = [name.split(".") for name in setting_names(config)]
    return tuple(".".join(path) for path in paths if path[0] != "bound" and re.fullmatch(r"(\w+_)?rate", path[-1]))


def setting_names(config: type[BaseModel], prefix: str = "") -> list[str]:
    """Dotted names of all settings that --set accepts."""
    names = []
    for name, info in config.model_fields.items():
        inner = info.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            names += setting_names(inner, f"{prefix}{name}.")
        elif is_dataclass(inner):
            names += [f"{prefix}{name}.{part.name}" for part in fields(inner)]
        else:
            names.append(prefix + name)
    return names
