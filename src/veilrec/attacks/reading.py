"""What the attacker of a federation knows, and how it reads what a sum gives away.

It has clients of its own with data of the same kind. What they would send, what others send beside them, and the noise
of so many clients are simulated, and the attacks on messages (`inversion`) practise on that: they settle on the score
that finds most.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from veilrec.attacks import inversion, rows
from veilrec.attacks.hostile import Model
from veilrec.attacks.recovery import BestScore, LikeOwn, Score, WitnessedRound, updates_of
from veilrec.attacks.subjects import Observation, ObservedClicks, public_news
from veilrec.client.local_training import LocalData
from veilrec.client.mf import ITEMS
from veilrec.client.news_data import OwnImpressions, blocks_of
from veilrec.core import rng
from veilrec.core.arrays import Bools, Doubles, Floats, Offsets
from veilrec.core.schema import RoundSpec, to_vectors
from veilrec.federation.facts import FederationFacts
from veilrec.kernels.title_encoder import WORDS
from veilrec.privacy.mechanisms.distributed import DistributedNoiseSum
from veilrec.privacy.mechanisms.shares import DistributedNoise, Shares

Craft: TypeAlias = Callable[[int], tuple[Model, Model | None]]
"""From an item that the attacker knows to the models of the target, and of all others (None: they send zeros)."""


@dataclass
class HostileScene:
    """A federation, what is true of its clients, and the attacker's own clients."""

    known: FederationFacts
    own: LocalData
    seed: int
    opened: WitnessedRound = field(init=False)
    clicks: ObservedClicks = field(init=False)  # of the attacker's own

    def __post_init__(self) -> None:
        plan = self.known.plan
        spec = plan.round_planner.next(0, plan.start, None)
        self.opened = WitnessedRound(spec, plan.start, spec.view(plan.schema), None)
        self.clicks = truth_of([self.own.take(np.array([row])) for row in range(len(self.own.rows))], self.n_items)
        self.news = public_news(plan, plan.start) if isinstance(self.own, OwnImpressions) else None
        self._vectors: dict[tuple[int, int, int], Floats] = {}
        self._kept: list[Model] = []

    @property
    def n_items(self) -> int:
        """Size of the catalogue."""
        return self.known.problem.n_items

    @property
    def knows_factors(self) -> bool:
        """Whether the model is a table of item vectors, which every client meets with a vector of its own."""
        return [tensor.name for tensor in self.known.plan.schema.learnt.tensors] == [ITEMS]

    def scores(self) -> dict[str, Score]:
        """All ways to read a message."""
        scores = inversion.scores_of(self.known.plan, self.n_items, [self.opened], self.clicks, self.news)
        if self.knows_factors:
            for sign in (1.0, -1.0):
                scores[f"first number of every row, times {sign:g}"] = _FirstColumn(self.key(ITEMS), sign)
        if self.news is not None and WORDS in self.opened.view.places:
            scores["words of the title that are there"] = _Explained(self.key(WORDS), self.news.titles)
        return scores

    def key(self, name: str) -> str:
        """The name of a tensor in what is seen."""
        return rows.named(self.opened, name)

    def vector(self, row: int, model: Model, number: int = 0) -> Floats:
        """What one of the attacker's own clients would send, clipped and without noise."""
        at = (row, id(model), number)
        if at not in self._vectors:
            plan, spec = self.known.plan, RoundSpec(number)
            spec = plan.round_planner.next(number, plan.start, None)
            opened = WitnessedRound(spec, model, spec.view(plan.schema), None)
            who = np.array([row])
            sent = updates_of(plan, who, self.own.take(who), opened, self.seed)
            self._kept.append(model)  # so that no other model gets its id
            self._vectors[at] = to_vectors(sent, opened.view)[0].astype(np.float32)
        return self._vectors[at]

    def observation(self, vector: Doubles) -> dict[str, Doubles]:
        """All numbers of a message as tensors."""
        view = self.opened.view
        return {self.key(t.name): vector[view.places[t.name]].reshape(t.shape) for t in view.tensors}

    def numbers(self, total: Offsets) -> Doubles:
        """The numbers that the whole ones of an opened sum stand for."""
        fixed_point = self.known.plan.fixed_point(self.opened.spec)
        return np.concatenate([fixed_point.numbers(total[place], name) for name, place in fixed_point.places.items()])

    def noise(self, shares: int, generator: np.random.Generator) -> Doubles:
        """Noise like that of so many clients."""
        mechanism, parts = self.known.plan.mechanism, []
        if not isinstance(mechanism, DistributedNoiseSum):
            raise TypeError("the clients add no noise")
        for tensor in self.opened.view.tensors:
            sigma = mechanism.share_sigma(tensor.name, self.opened.spec) * np.sqrt(shares)
            parts.append(generator.normal(0.0, sigma, tensor.size))
        return np.concatenate(parts)

    def under(self, strength: float, item: int | None = None) -> Model:
        """The model with a column that is `strength` at an item (None: at all), and 0 elsewhere."""
        table = self.known.plan.start[ITEMS].copy()
        table[:, 0] = strength if item is None else 0.0
        if item is not None:
            table[item, 0] = strength
        return {ITEMS: table}

    def times(self, factor: float) -> Model:
        """The model with all weights times a factor."""
        return {name: np.asarray(values * np.float32(factor)) for name, values in self.known.plan.start.items()}


@dataclass(frozen=True)
class _FirstColumn:
    """How far every row moves along the direction in which a model was crafted."""

    key: str
    sign: float

    def __call__(self, seen: Observation) -> Floats:
        return np.asarray(self.sign * seen[self.key][:, 0], np.float32)


@dataclass(frozen=True)
class _Explained:
    """How many words of a message every title explains whose words are all there."""

    key: str
    titles: Offsets

    def __call__(self, seen: Observation) -> Floats:
        flagged = rows.titles_in((seen[self.key] != 0.0).any(axis=1)[np.newaxis], self.titles)[0]
        found = rows.explains(flagged, np.zeros(len(flagged), np.bool_), self.titles)
        return np.asarray(np.where(flagged, found, -1.0), np.float32)


def truth_of(clients: Sequence[LocalData], n_items: int) -> ObservedClicks:
    """Who has what; of news, who clicked what before, and what they were shown, which is known anyway."""
    has: Bools = np.zeros((len(clients), n_items), np.bool_)
    shown = np.zeros_like(has)
    for row, data in enumerate(clients):
        own = data.rows.row(0)
        if not isinstance(data, OwnImpressions):
            has[row, own] = True
            continue
        for history, clicks, others in blocks_of(own):
            has[row, history] = True
            shown[row, clicks] = shown[row, others] = True
    return ObservedClicks(np.arange(len(clients)), np.arange(n_items), has & ~shown, shown)


@dataclass(frozen=True)
class Companions:
    """What is in a sum beside the target, as the attacker expects it."""

    count: int = 0  # clients that send updates
    shares: int = 0  # clients that add noise
    change: bool = False  # of the others only what changed from one round to the next


def trained_reader(scene: HostileScene, craft: Craft, beside: Companions) -> BestScore | LikeOwn:
    """A reader that has practised on the attacker's own clients."""
    scores = scene.scores()
    own = scene.clicks
    reader: Any = BestScore("message", "values", own, scores) if scores else LikeOwn("message", "values", own)
    generator = np.random.default_rng([scene.seed, rng.COHORT])
    count = len(own.clients)
    for row in range(count):
        others = generator.permutation(np.delete(np.arange(count), row))[: beside.count]
        item = rarest(own.clicked[row], own.clicked[others])
        loud, quiet = craft(item)
        seen = scene.vector(row, loud).astype(np.float64)
        for other in others.tolist():
            if quiet is not None:
                seen += scene.vector(other, quiet)
                seen -= scene.vector(other, quiet, 1) if beside.change else 0.0
        if carried_noise(scene.known.plan.mechanism) is not None and beside.shares:
            seen += scene.noise(beside.shares, generator)
        reader.practise(scene.observation(seen))
    reader.settle()
    return reader  # type: ignore[no-any-return]


def rarest(own: Bools, others: Bools) -> int:
    """The item of somebody that fewest others have."""
    items = np.flatnonzero(own)
    return int(items[others[:, items].sum(axis=0).argmin()]) if len(items) else 0


def carried_noise(mechanism: Any) -> DistributedNoise | None:
    """Return which clients carry the noise of a sum, of updates or of what is told once; None: the server does."""
    if isinstance(mechanism, DistributedNoiseSum):
        return mechanism.distributed_noise
    shares = getattr(mechanism, "shares", None)
    return shares.carried if isinstance(shares, Shares) else None
