"""From a method's name and a data set's name to a trainer that is ready to learn; nothing is written yet."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from veilrec._version import __version__
from veilrec.core.errors import BadInput, counted, known_name
from veilrec.core.plan import Plan
from veilrec.core.resources import require
from veilrec.data.datasets import SYNTHETIC, full_spec, load, short_name
from veilrec.data.population import Population, features_by, keys_of, ratings_out_of_one
from veilrec.evaluation.protocols import PROTOCOLS, default_protocol, make_split
from veilrec.evaluation.split import Split, for_search
from veilrec.methods.base import (
    LARGEST,
    Config,
    Method,
    NewsData,
    Problem,
    configure,
    is_set,
    make_trainer,
    preset_names,
    promised,
    ready,
    speaks_of,
)
from veilrec.methods.private import DECLARED, nominal_people, rounded_people
from veilrec.methods.public import data_in_plan
from veilrec.methods.registry import full_name, get, source_of
from veilrec.privacy.disclosure import disclosure_of
from veilrec.privacy.events import training_event
from veilrec.privacy.guarantee import Guarantee
from veilrec.runs.checkpoint import CONFIG, read_config
from veilrec.runs.loop import Schedule
from veilrec.runs.noise import Noise, Real, check_noise, new_secret, obstacle, stated
from veilrec.runs.warm_start import CarriedOver, WarmStart, carry_over, read_earlier
from veilrec.server.round_specs import TooFewClients
from veilrec.simulation.simulation import Seeds, Simulation, Trainer


@dataclass(frozen=True)
class RunRequest:
    """Everything that decides the outcome of a run; saved as config.yaml."""

    method: str
    data: str
    seed: int = 0
    protocol: str | None = None  # None: the usual one for the kind of data
    preset: str = "tuned"
    settings: tuple[str, ...] = ()  # name=value, over the preset
    rounds: int | None = None
    evaluate_every: int | None = None
    checkpoint_every: int = 20
    patience: int | None = None
    noise: Noise = "seeded"
    caveats: tuple[str, ...] = ()  # what the guarantee of a private run has to say beside its own words
    searched: str | None = None  # the data whose people's exact metrics chose the settings
    start_from: Path | None = None  # an earlier run
    rounds_from: Path | None = None  # a run that stopped early, which found how many rounds are best
    real: Real | None = None  # how real clients learnt it; None: they were simulated
    promise: Guarantee | None = None  # of real clients, where it is another than that of a server that sees messages
    people: int | None = None  # public nominal number of clients; None: the true one, rounded up
    public_catalogue: bool = False  # whether anybody may know the items, where no table lists them

    @property
    def dataset(self) -> str:
        """Name of the data set, without path or options."""
        return self.data.partition(":")[0]

    def configured(self, dataset: str | None = None) -> tuple[Config, int]:
        """Return what preset and settings come to, and the number of rounds; `dataset` has other presets."""
        method, dataset = get(self.method), dataset or self.dataset
        config, rounds = configure(method, preset=self.preset, dataset=dataset, settings=self.settings)
        return config, rounds if self.rounds is None else self.rounds


@dataclass(frozen=True)
class PreparedRun:
    """A request with its data read, split, and its trainer built."""

    request: RunRequest
    method: Method[Any]
    population: Population
    split: Split
    trainer: Trainer
    schedule: Schedule
    config: Config
    problem: Problem
    plan: Plan | None = None  # of a federated method
    secret: bytes | None = field(default=None, repr=False)  # of secure noise
    notes: tuple[str, ...] = ()  # what was settled otherwise than the settings say, for the user to read
    earlier: WarmStart | None = None  # the run that it starts from
    carried_over: CarriedOver | None = None  # of that one

    @property
    def seeded_before(self) -> str | None:
        """The run that it starts from, if noise in that one's model can be drawn again."""
        return self.earlier.name if self.earlier is not None and self.earlier.seeded else None

    def obstacle(self) -> str | None:
        """Why its model may not be published; None where it may."""
        return obstacle(self._together(), self.request.noise, self.seeded_before, self.request.real, self.read_off)

    @cached_property
    def read_off(self) -> tuple[str, ...]:
        """What of the model is read off people's data, so that no noise covers it."""
        earlier = () if self.earlier is None else self.earlier.read_off
        items = () if self.request.public_catalogue else items_of_uses(self.population)
        return (*items, *self.population.exact, *_searched(self.request), *earlier, *self._planned_with_data())

    def _planned_with_data(self) -> tuple[str, ...]:
        """Say where the plan is made of more than public facts; looked for only where nothing else is in the way."""
        request = self.request
        if self.plan is None or obstacle(self._together(), request.noise, self.seeded_before, request.real) is not None:
            return ()
        found = data_in_plan(self.method, self.config, self.problem, neighbours=False)
        return () if found is None else (f"the method plans with more than public facts ({found})",)

    def guarantee(self) -> Guarantee:
        """What the run promises, and why its model is not to be published, where it is not."""
        r, together = self.request, self._together()
        if together.basis == "proven":
            together = replace(together, caveats=(*together.caveats, *self._public()))
        guarantee = stated(together, r.noise, self.seeded_before, r.real, self.read_off)
        more = () if guarantee.basis == "none" else r.caveats
        disclosure = guarantee.disclosure  # of real clients: as they were promised
        if disclosure is None and self.plan is not None:
            disclosure = disclosure_of(self.plan, simulated=r.real is None)
        return replace(guarantee, caveats=(*guarantee.caveats, *more), disclosure=disclosure)

    def _public(self) -> tuple[str, ...]:
        """What the statement says of public facts that only a run knows."""
        people = nominal_people(self.problem, given=self.request.people is not None)
        by_us = self.request.public_catalogue and self.request.real is None  # a federation says so itself
        return (*people, DECLARED) if by_us and self.population.unlisted_items else people

    def _together(self) -> Guarantee:
        """Compose the guarantees of this run and of those that it starts from."""
        own = self.request.promise or promised(self.method, self.config, self.problem)
        if own.basis == "proven" and self.plan is not None:
            own = replace(own, event=training_event(self.plan))
        return own if self.earlier is None else self.earlier.together(own)

    def description(self) -> dict[str, Any]:
        """What config.yaml says."""
        r = self.request
        source = source_of(r.method)
        named = ("seed", "preset", "checkpoint_every", "patience", "noise", "people", "public_catalogue")
        return {
            "veilrec": __version__,
            "method": self.method.name,
            **({} if source is None else {"method_from": source}),
            "data": absolute(r.data),
            "protocol": self.split.protocol,
            **{name: getattr(r, name) for name in named},
            "settings": list(r.settings),
            "rounds": self.schedule.rounds,
            "evaluate_every": self.schedule.evaluate_every,
            "caveats": list(r.caveats),
            **({} if r.searched is None else {"searched": r.searched}),
            "start_from": None if self.earlier is None else self.earlier.description(),
            "rounds_from": None if r.rounds_from is None else str(r.rounds_from.resolve()),
            "nominal_people": self.problem.people,
            "config": self.config.model_dump(mode="json"),
            **({} if r.real is None else {"real": r.real}),
            **data_facts(self.population, self.split),
        }


def data_facts(population: Population, split: Split) -> dict[str, Any]:
    """What config.yaml says of the data, so that other data is noticed: how it was cut, what ratings mean, sizes."""
    scale = population.rating_scale
    return {"cut": split.cut, "rating_scale": None if scale is None else list(scale), **sizes(population)}


def _searched(request: RunRequest) -> tuple[str, ...]:
    """Say that exact metrics of people chose the settings; nothing where they are synthetic."""
    if request.searched is None or request.searched.partition(":")[0] in SYNTHETIC:
        return ()
    return (
        f"its settings were chosen by exact metrics of the people of {short_name(request.searched)}: leave them to the"
        " preset, or search on synthetic data",
    )


def items_of_uses(population: Population) -> tuple[str, ...]:
    """Say which items would be published because people used them; nothing where a table lists all."""
    count = population.unlisted_items
    if not count:
        return ()
    which = "the catalogue is" if count == population.n_items else f"{count:,} of the items, which no table lists, are"
    return (
        f"{which} the set of items that people used: bring a table of all items, or say --public-catalogue if anybody"
        " may know them",
    )


def sizes(population: Population) -> dict[str, int]:
    """How much there is of the data."""
    return {"users": population.n_users, "items": population.n_items, "rows": len(population.interactions)}


def absolute(spec: str) -> str:
    """A data specification that means the same from any folder."""
    name, colon, rest = spec.partition(":")
    if colon and "=" not in rest and Path(rest).expanduser().exists():
        return f"{name}:{Path(rest).expanduser().resolve()}"
    return spec


def as_meant(request: RunRequest) -> RunRequest:
    """Switch to the private form of the method, where there is one and the settings speak of privacy."""
    form = get(request.method).private_form
    return replace(request, method=form) if form and speaks_of(request.settings, "privacy") else request


def in_full(request: RunRequest) -> RunRequest:
    """Spell every name as its list does: FedMF on ML-1M is fedmf on ml-1m."""
    method = get(request.method)
    return replace(
        request,
        method=full_name(request.method),
        data=full_spec(request.data),
        protocol=None if request.protocol is None else known_name("protocol", request.protocol, PROTOCOLS),
        preset=known_name(f"preset of {method.name}", request.preset, preset_names(method)),
    )


def default_out(request: RunRequest) -> Path:
    """runs/METHOD-DATA-seedN, with a number behind it where that exists."""
    dataset, name = short_name(request.data), get(as_meant(request).method).name
    base = Path(os.environ.get("VEILREC_RUNS", "runs")) / f"{name}-{dataset}-seed{request.seed}"
    candidate, number = base, 1
    while candidate.exists():
        number += 1
        candidate = base.with_name(f"{base.name}-{number}")
    return candidate


def prepare(
    request: RunRequest,
    *,
    secret: bytes | None = None,
    searching: bool = False,
    dataset: str | None = None,
    enrolled: bool = False,
) -> PreparedRun:
    """Check everything and read the data. Secure noise is drawn from the secret of a run that goes on, or a new one.

    Searching, the validation part stands in place of the test part, which nobody then has. `dataset` is the one whose
    presets are meant, where the data is a part of it under another name. Clients that are `enrolled` are known, and so
    is their number.
    """
    require(f"training {request.method}", "numba")  # kernels run without it, but a population would take days
    request = in_full(request)
    asked, request = request.method, as_meant(request)
    method = get(request.method)
    check_noise(request.noise, method)
    settings, rounds = request.configured(dataset)
    _check_counts(request, rounds)
    known = ready(method, settings)
    if request.patience is not None and method.guarantee(settings).basis == "proven":
        raise BadInput(
            "--early-stop would choose the round by exact metrics of people's held-out items, which no noise covers:"
            " leave it out, or choose --rounds beforehand"
        )
    if request.noise == "secure" and secret is None:
        secret = new_secret()
    earlier = None if request.start_from is None else read_earlier(request.start_from, secret)
    seed = request.seed if earlier is None else earlier.seed(request.seed)
    population = load(request.data)
    protocol = request.protocol or default_protocol(population)
    held_out = searching or request.patience is not None
    split = make_split(population, protocol, seed=request.seed, validation=held_out)
    split = for_search(split) if searching else split
    problem = problem_of(population, split, seed, rounds)
    if not enrolled and request.real is None:
        # What a public seed draws for a client must be the same whoever else is there; enrolled ones have numbers.
        numbers = None if secret is None else keys_of(population.users)
        problem = replace(problem, numbers=numbers)  # which draw who takes part, and so how many can learn
        problem = replace(problem, people=_people(request, method, settings, problem))
    may_shrink = not is_set(request.settings, "cohort.size")
    settings, plan, trainer, notes = _build(method, settings, problem, secret, may_shrink=may_shrink)
    if request.method != asked:
        notes = (f"{asked} with settings of privacy is {method.name}", *notes)
    carried, notes = None, (*known, *notes)
    if earlier is not None:
        carried = carry_over(earlier, request.method, trainer, population, split)
        notes = (*notes, *carried.notes())
    schedule = Schedule(
        rounds=rounds,
        evaluate_every=request.evaluate_every or max(1, rounds // method.evaluations),
        checkpoint_every=request.checkpoint_every,
        patience=request.patience,
        watch="ndcg@10" if split.test.impressions is None else "auc",
    )
    return PreparedRun(
        request, method, population, split, trainer, schedule, settings, problem, plan, secret, notes, earlier, carried
    )


def _people(request: RunRequest, method: Method[Any], settings: Config, problem: Problem) -> int | None:
    """The nominal number of clients that noise is chosen for; None: there is no noise."""
    if method.plan is None or method.guarantee(settings).basis == "none":
        if request.people is not None:
            raise BadInput(f"--people is for methods that add noise, and {method.name} adds none: leave it out")
        return None
    rows, guarantee = method.clients(settings, problem).rows, method.guarantee(settings)
    in_turns = dict(settings)["cohort"].sampling == "cyclic" and guarantee.trust == "server"
    count = len(rows) if in_turns else int((rows.lengths() > 0).sum())  # a turn is everybody's, with data or without
    if request.people is not None and not count <= request.people <= LARGEST:
        raise BadInput(
            f"--people is {request.people}, and {counted(count, 'client')} can learn: give from {count} to {LARGEST:,}"
        )
    return request.people or rounded_people(count) or None


def _check_counts(request: RunRequest, rounds: int) -> None:
    asked = {
        "rounds": rounds,
        "evaluate-every": request.evaluate_every,
        "checkpoint-every": request.checkpoint_every,
        "early-stop": request.patience,
    }
    for name, value in asked.items():
        if value is not None and not 1 <= value <= LARGEST:
            raise BadInput(f"--{name} is {value}: it must be from 1 to {LARGEST:,}")


def _build(
    method: Method[Config], settings: Config, problem: Problem, secret: bytes | None, *, may_shrink: bool
) -> tuple[Config, Plan | None, Trainer, tuple[str, ...]]:
    """A trainer; where few clients can learn and no privacy depends on the cohort, one with everybody in each round."""
    try:
        return settings, *_made(method, settings, problem, secret), ()
    except TooFewClients as few:
        if not may_shrink or method.guarantee(settings).basis != "none":
            raise
        usual = dict(settings)["cohort"]
        shrunk = settings.model_copy(update={"cohort": replace(usual, size=few.population)})
        note = (
            f"every round has all {counted(few.population, 'client')} instead of the usual {usual.size}:"
            " there are no more that can learn"
        )
        return shrunk, *_made(method, shrunk, problem, secret), (note,)


def _made(
    method: Method[Config], settings: Config, problem: Problem, secret: bytes | None
) -> tuple[Plan | None, Trainer]:
    if method.plan is None:
        return None, make_trainer(method, settings, problem)
    plan = method.plan(settings, problem)
    seeds = Seeds.all_from(problem.public_seed, secret)
    clients, people = method.clients(settings, problem), problem.people
    return plan, Simulation(plan, clients, problem.train, seeds, people=people, numbers=problem.numbers)


def problem_of(population: Population, split: Split, seed: int, rounds: int) -> Problem:
    """What a method gets of a split: its training part, and what is public."""
    news, ratings = news_data(population, split), ratings_out_of_one(population, split.train)
    return Problem(
        split.train,
        split.n_items,
        seed,
        rounds,
        news,
        features_by(population, split.train),
        ratings,
        population.catalogue,
        records=split.records,
        disliked=split.disliked,
    )


def news_data(population: Population, split: Split) -> NewsData | None:
    """Titles and train impressions, where there are both."""
    if population.catalogue is None or split.train_impressions is None:
        return None
    return NewsData(population.catalogue, split.train_impressions)


@dataclass(frozen=True)
class Trained:
    """What config.yaml of a run says about the data that it was trained on, and how that was cut."""

    method: str
    data: str
    seed: int
    protocol: str
    validation: bool  # whether a part was held out to stop early
    cut: str
    sizes: Mapping[str, int]

    def split(self, population: Population) -> Split:
        """Repeat the split of the run; raise BadInput where the data is cut otherwise today."""
        split = make_split(population, self.protocol, seed=self.seed, validation=self.validation)
        if split.cut != self.cut:
            raise BadInput(
                f"{self.data} is cut by {split.cut}, and was by {self.cut} when the run was trained: import it with the"
                " --cut of then, or train again"
            )
        return split


def read_trained(folder: Path) -> Trained:
    """From config.yaml."""
    saved = read_config(folder)
    needed = ("data", "seed", "protocol", "patience", "cut", "users", "items", "rows")
    if missing := [key for key in needed if key not in saved]:
        raise BadInput(f"{folder / CONFIG} is not whole: it says nothing of {missing[0]}; train again")
    for key in ("method", "data", "seed", "protocol", "cut", "users", "items", "rows"):
        is_text = key in ("method", "data", "protocol", "cut")
        wanted, name = (str, "a name") if is_text else (int, "a whole number")
        if not isinstance(saved[key], wanted):
            raise BadInput(f"{folder / CONFIG} is damaged: its {key} is {saved[key]!r}, not {name}; train again")
    own = {key: saved[key] for key in ("method", "data", "seed", "protocol", "cut")}
    known = {key: saved[key] for key in ("users", "items", "rows")}
    return Trained(**own, validation=saved["patience"] is not None, sizes=known)
