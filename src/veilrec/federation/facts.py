"""Public facts: all that a plan needs to know of a problem, with made-up people in the place of the real ones.

A plan depends on the catalogue, on the names of features, and on how many devices there are, never on what any of them
holds. So the people of the facts have one click each, on the first item; only whether a device has something to learn
from is true, and that shows anyway: those without do not take part. Whoever makes a federation checks that the plan
of the facts is the plan of the data (`making`).
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np

from veilrec.client.federated import plan_digest
from veilrec.client.news_data import pack_logs
from veilrec.core.arrays import Bools, Indices
from veilrec.core.csr import Csr, offsets_of
from veilrec.core.errors import BadInput
from veilrec.core.features import Features, without_rows
from veilrec.core.plan import Plan
from veilrec.data import packed
from veilrec.data.news_text import occurring
from veilrec.data.population import Impressions, Interactions, Population, Strings
from veilrec.federation.distributed_noise import with_distributed_noise
from veilrec.federation.federation import CA, FACTS, FILE, Federation
from veilrec.methods.base import Config, Method, NewsData, Problem
from veilrec.methods.registry import get
from veilrec.privacy.mechanisms.distributed import NoiseShares
from veilrec.wire import messages

_ROOM = 1 << 16  # bytes of heads
_OF_ONE_DEVICE = 512  # bytes: two round keys, a lasting key and its endorsement, in hexadecimal digits
_RATINGS = "ratings"  # whether people rate: 1 or 0


def public_people(problem: Problem, items: Strings, *, tells_shown: bool, places: int = 0) -> Population:
    """The facts of a problem, as a population of nobody; `tells_shown` adds which news anybody was shown.

    Behind the people of the problem come so many `places` for people who are not there yet: to a plan, they are.
    """
    count = len(problem.train) + places
    later = np.ones(places, np.bool_)
    has_items = np.append(problem.train.lengths() > 0, later)
    impressions = {}
    if problem.news is not None:
        has_log = np.append(pack_logs(problem.news.impressions, len(problem.train), 1).lengths() > 0, later)
        told = occurring(problem.news.impressions, problem.n_items) if tells_shown else np.zeros(0, np.bool_)
        impressions["train"] = _shown_to(has_log, np.flatnonzero(told).astype(np.int32))
    features = problem.features
    return Population(
        "facts",
        Strings.of(str(number) for number in range(count)),
        items,
        Interactions(offsets_of(has_items), np.zeros(int(has_items.sum()), np.int32)),
        impressions,
        problem.catalogue if problem.news is None else problem.news.catalogue,
        {_RATINGS: int(problem.ratings is not None)},
        None if features is None else Features(without_rows(features.users.features, count), features.items),
    )


def _shown_to(people: Bools, told: Indices) -> Impressions:
    """Two items, and a click on the first, for each of these people; and one list of what was told, without a click."""
    users = np.append(np.flatnonzero(people), 0).astype(np.int32)
    count = len(users)
    shown = np.concatenate([np.tile(np.array([0, 1], np.int32), count - 1), told])
    clicked = np.concatenate([np.tile(np.array([1, 0], np.uint8), count - 1), np.zeros(len(told), np.uint8)])
    rows = Csr(offsets_of([*[2] * (count - 1), len(told)]), shown)
    nothing = Csr(np.zeros(2, np.int64), np.zeros(0, np.int32))
    return Impressions(users, np.zeros(count, np.int64), rows, clicked, nothing, np.zeros(count, np.int32))


def public_problem(people: Population, *, seed: int, rounds: int) -> Problem:
    """Make the problem that a method plans with from the public facts."""
    log = people.interactions
    news = None
    if "train" in people.impressions and people.catalogue is not None:
        news = NewsData(people.catalogue, people.impressions["train"])
    return Problem(
        Csr(log.offsets, log.items),
        people.n_items,
        seed,
        rounds,
        news,
        people.features,
        np.ones(len(log.items), np.float32) if people.facts[_RATINGS] else None,
        people.catalogue,
    )


class FederationFacts:
    """The method of a federation, its settings, and the plan that everybody makes of its files."""

    def __init__(self, folder: Path, federation: Federation) -> None:
        self.folder, self.federation = folder, federation
        if not packed.is_packed(folder / FACTS):
            raise BadInput(f"{folder / FACTS} is not there: copy it from the federation, beside {FILE} and {CA}")
        if digest_of(folder / FACTS) != federation.facts:
            raise BadInput(f"{folder / FACTS} is not that of this federation: copy it again from where init wrote it")
        self.people = packed.load(folder / FACTS)
        self.method: Method[Any] = get(federation.method)
        self.config = config_of(self.method, federation)
        self.problem = public_problem(self.people, seed=federation.seed, rounds=federation.rounds)
        if self.method.plan is None:
            raise BadInput(f"{self.method.name} has no plan for devices: a federation needs a federated method")
        self.plan = as_federated(self.method.plan(self.config, self.problem), federation)
        if plan_digest(self.plan) != federation.plan:
            raise BadInput(
                f"this veilrec makes another plan of {folder / FILE} than the one that was agreed on: use the veilrec"
                " that made the federation"
            )


def as_federated(plan: Plan, federation: Federation) -> Plan:
    """A method's plan with the noise where the federation wants it."""
    return with_distributed_noise(plan, NoiseShares(federation.least, federation.silent)) if federation.shares else plan


def config_of(method: Method[Any], federation: Federation) -> Config:
    """The settings, as they were when the federation was made."""
    try:
        found: Config = method.config.model_validate(federation.config)
    except ValueError as error:
        raise BadInput(f"{FILE}: the config of {method.name} cannot be read ({str(error).splitlines()[0]})") from None
    return found


def digest_of(folder: Path) -> str:
    """Digest all files of the facts."""
    total = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        total.update(f"{path.name}\n".encode())
        total.update(hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()


def largest_content(known: FederationFacts) -> int:
    """Bytes of the largest thing that a federation sends: twice a whole model, for those who compare two."""
    return 2 * _whole_model(known.plan) + _said_of_devices(known) + _ROOM


def largest_answer(known: FederationFacts) -> int:
    """Bytes of the largest answer that a federation allows: every entry of the model with its number beside it."""
    plan = known.plan
    items = 0 if plan.reports is None else plan.reports.mechanism.length
    reports = max(messages.size(items), 8 * items)  # under masks an item takes a word
    return max(3 * _whole_model(plan), reports) + _said_of_devices(known) + _ROOM


def _said_of_devices(known: FederationFacts) -> int:
    """Keys, shares and signatures, where devices mask against each other."""
    return _OF_ONE_DEVICE * known.federation.devices if known.federation.secagg == "pairs" else 0


def _whole_model(plan: Plan) -> int:
    return sum(8 * int(np.prod(tensor.shape)) for tensor in plan.schema.tensors)
