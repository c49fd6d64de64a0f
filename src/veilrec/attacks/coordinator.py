"""What a coordinator that deviates from the protocol learns of one client: its history, item by item.

Every attack is played against the clients and helpers of a real federation (`hostile`), one client after another. What
it opens, less what the coordinator knows, is read by the attacks on messages (`rows`, `inversion`): they practise on
clients of the attacker's own, whose messages, companions and noise are simulated as the attack would meet them, and
settle on the score that finds most. A round that is refused finds nothing.

Where clients add the noise, what is found has a bound. Of sums that hold the client, the accounting of the plan says
how well any test can tell its update from any other one (twice the clip norm apart, so four times the cost of one that
is left out); an item is found no more often than that allows, at the rate at which others with such items are taken for
somebody who has them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryDirectory
from typing import Any, Literal, TypeAlias

import numpy as np

from veilrec.attacks import inversion, rows
from veilrec.attacks.hostile import CorruptHelper, HostileCoordinator, HostileSum, Model, Refusal
from veilrec.attacks.recovery import (
    FALSE_POSITIVES,
    BestScore,
    LikeOwn,
    Recovery,
    Score,
    WitnessedRound,
    of_scores,
    updates_of,
)
from veilrec.attacks.subjects import Observation, ObservedClicks, public_news
from veilrec.client.local_training import LocalData
from veilrec.client.mf import ITEMS
from veilrec.client.news_data import OwnImpressions, blocks_of
from veilrec.core import rng
from veilrec.core.arrays import Bools, Doubles, Floats, Offsets
from veilrec.core.errors import BadInput
from veilrec.core.schema import ReportSum, RoundSpec, to_vectors
from veilrec.data.datasets import full_spec, load
from veilrec.data.population import some_users
from veilrec.evaluation.protocols import make_split
from veilrec.federation import federation
from veilrec.federation.facts import FederationFacts
from veilrec.federation.federation import SecAgg
from veilrec.federation.making import FederationOptions, make
from veilrec.kernels.title_encoder import WORDS
from veilrec.methods.base import configure
from veilrec.methods.registry import get
from veilrec.privacy.accounting.accountant import detection_of
from veilrec.privacy.events import Event, repeated
from veilrec.privacy.guarantee import Guarantee
from veilrec.privacy.mechanisms.distributed import DistributedNoiseSum
from veilrec.privacy.mechanisms.shares import DistributedNoise, Shares
from veilrec.runs.request import problem_of

PLAYS: Mapping[str, str] = {
    "overflow": "the target gets the model, everybody else one on which it overflows (all weights times 1e30)",
    "two-models": "the target gets a model that makes it loud, all others one that makes them quiet; both are bounded",
    "left-out": "the same cohort is asked twice, the second time without the target; the sums are subtracted",
    "small-cohort": "a sum of the target and one client of the coordinator, by terms that say that two are enough",
    "made-up": "clients that nobody invited take every other place of the sum",
    "sybils": "clients that the operator invited for itself take every other place of the sum",
    "replay": "a round that is over is asked for again, without the target",
    "lying-helper": "a helper leaves the target's mask on a sum of an honest coordinator",
    "one-helper": "the coordinator and one helper, which gives it the target's mask",
    "all-helpers": "the coordinator and all helpers together",
    "third": "the coordinator and a third of the clients, whose updates and noise are known and subtracted",
    "crafted": "one model for everybody, made so that the target stands out by one item that the coordinator knows",
}
REMAINS: Mapping[str, str] = {
    "sybils": "more clients work with the server than was planned for",
    "all-helpers": "no helper is honest",
    "crafted": "everybody gets the same bounded model: a sum without noise tells what it tells",
}
"""What the threat model says remains possible, and why."""

_HELPERS_ALONE = ("lying-helper", "one-helper", "all-helpers")
_ABOUT_MODELS = ("overflow", "two-models", "crafted")  # reports before the first round are about no model
_STRENGTHS = (1.0, 3.0, 10.0, 30.0, 100.0)  # of the weights of a crafted model
_SCALES = (1.0, 3.0, 10.0, 0.1)  # of a model that is crafted without knowing how it works
_OVERFLOW = np.float32(1e30)
_APART = 4  # releases of one who is left out that cost what one of another update costs, under Gaussian noise

_SYNTHETIC = ("synthetic-ratings", "synthetic-news")
NoiseOfSums = Literal["masks only", "distributed"]

Craft: TypeAlias = Callable[[int], tuple[Model, Model | None]]
"""From an item that the attacker knows to the models of the target, and of all others (None: they send zeros)."""


@dataclass(frozen=True)
class CoordinatorEffort:
    """How much is attacked."""

    clients: int  # of the federation
    targets: int  # of these, one after the other
    own: int  # clients on which the attacker practises
    rounds: int  # of the plan, on which the noise depends


QUICK, FULL = CoordinatorEffort(10, 4, 16, 8), CoordinatorEffort(12, 12, 40, 8)


@dataclass(frozen=True)
class HostileFinding:
    """What one attack found."""

    play: str
    on: Literal["rounds", "reports"]  # the sums that were attacked
    how: str
    targets: int
    opened: int  # targets of which a sum came out
    refusals: tuple[tuple[str, str, int], ...]  # by whom, why, and how often
    recovery: Recovery
    bound: float | None  # of the recall, by the plan's accounting; None: nothing is promised against this adversary

    @property
    def holds(self) -> bool:
        """Whether what was found is within the bound, but for chance."""
        return self.bound is None or self.recovery.interval[0] <= self.bound

    def to_json(self) -> dict[str, Any]:
        """For `--json`."""
        own = {"play": self.play, "about": PLAYS[self.play], "remains": REMAINS.get(self.play), "on": self.on}
        counts = {"how": self.how, "targets": self.targets, "opened": self.opened, "bound": self.bound}
        refusals = [{"by": by, "why": why, "times": times} for by, why, times in self.refusals]
        return own | counts | self.recovery.to_json() | {"holds": self.holds, "refusals": refusals}


@dataclass(frozen=True)
class CoordinatorAttack:
    """All attacks on one federation."""

    method: str
    data: str
    secagg: SecAgg
    noise: NoiseOfSums
    claimed: Guarantee
    clients: int
    least: int
    findings: tuple[HostileFinding, ...]

    @property
    def label(self) -> str:
        """For tables and pictures."""
        return f"{self.method}, {self.secagg}, {self.noise}"

    def to_json(self) -> dict[str, Any]:
        """For `--json`."""
        named = {name: getattr(self, name) for name in ("method", "data", "secagg", "noise", "clients", "least")}
        findings = [finding.to_json() for finding in self.findings]
        return {"attack": "malicious-coordinator"} | named | {"claimed": self.claimed.to_json(), "findings": findings}


@dataclass(frozen=True)
class _Trial:
    """What one attack on one client gave."""

    seen: Offsets | Doubles | None = None  # the opened sum, less what is known
    sums: tuple[HostileSum, ...] = ()

    @property
    def refusals(self) -> list[Refusal]:
        return [refusal for one in self.sums for refusal in one.refusals]


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
class _Companions:
    """What is in a sum beside the target, as the attacker expects it."""

    count: int = 0  # clients that send updates
    shares: int = 0  # clients that add noise
    change: bool = False  # of the others only what changed from one round to the next


def _trained(scene: HostileScene, craft: Craft, beside: _Companions) -> BestScore | LikeOwn:
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


class _Stage:
    """One federation under attack by one play."""

    def __init__(self, scene: HostileScene, play: str, folder: Path, effort: CoordinatorEffort) -> None:
        self.scene, self.play, self.folder, self.effort = scene, play, folder, effort
        known = scene.known
        reports = known.plan.reports
        self.on: Literal["rounds", "reports"] = "rounds"
        if reports is not None and reports.mechanism.under_masks and play not in _ABOUT_MODELS:
            self.on = "reports"
        self.craft: Craft = lambda _: (known.plan.start, known.plan.start)
        self.number = 0
        self._copies = 0
        self.coordinator = self._fresh()
        self.places = sorted(self.coordinator.clients)
        datas = [self.coordinator.opened[place].data for place in self.places]
        self.truth = truth_of(datas, scene.n_items)

    def _fresh(self) -> HostileCoordinator:
        """A copy of the federation in which nothing has happened yet."""
        self._copies += 1
        folder = self.folder / "copy"
        rmtree(folder, ignore_errors=True)
        return HostileCoordinator(self.scene.known, folder, seed=self.scene.seed + self._copies)

    def begin(self) -> None:
        """Have two rounds ahead, with clients that no model which was made up has spoilt."""
        spoilt = self.on == "reports" or self.play in _ABOUT_MODELS
        if self.number and (spoilt or self.number + 2 > self.scene.known.plan.rounds):
            self.coordinator.close()
            self.coordinator, self.number = self._fresh(), 0
        self.coordinator.control(())

    def next(self) -> RoundSpec | ReportSum:
        """The next sum."""
        self.number += 1
        if self.on == "reports":
            return ReportSum(self.number - 1)
        return self.coordinator.spec(self.number - 1)

    def contents(
        self, spec: RoundSpec | ReportSum, models: tuple[Model, Model | None], target: int, places: Sequence[int]
    ) -> dict[int, bytes]:
        """What each of these clients gets: its own model, or nothing with a sum of reports."""
        if isinstance(spec, ReportSum):
            return dict.fromkeys(places, b"")
        loud, quiet = models
        everybody = self.coordinator.broadcast(spec, self.scene.times(float(_OVERFLOW)) if quiet is None else quiet)
        alone = everybody if quiet is loud else self.coordinator.broadcast(spec, loud)
        return {place: alone if place == target else everybody for place in places}

    def others(self, target: int) -> list[int]:
        """All clients but the target."""
        return [place for place in self.places if place != target]

    def item(self, target: int) -> int:
        """An item of the target that the attacker knows: one that few others have."""
        row = self.places.index(target)
        return rarest(self.truth.clicked[row], np.delete(self.truth.clicked, row, axis=0))


def _plain(stage: _Stage, target: int) -> _Trial:
    """One sum of everybody."""
    spec = stage.next()
    contents = stage.contents(spec, stage.craft(stage.item(target)), target, stage.places)
    one = stage.coordinator.sum_of(spec, contents, own_terms=stage.places.index(target) % 2 == 1)
    return _Trial(one.total, (one,))


def _left_out(stage: _Stage, target: int) -> _Trial:
    models = stage.craft(-1)
    spec = stage.next()
    first = stage.coordinator.sum_of(spec, stage.contents(spec, models, target, stage.places))
    spec, others = stage.next(), stage.others(target)
    fewer = len(others) if stage.scene.known.federation.least > len(others) else 0
    second = stage.coordinator.sum_of(spec, stage.contents(spec, models, target, others), least=fewer)
    return _Trial(_less(first, second), (first, second))


def _less(first: HostileSum, second: HostileSum) -> Offsets | None:
    return None if first.total is None or second.total is None else first.total - second.total


def _small_cohort(stage: _Stage, target: int) -> _Trial:
    friend = stage.others(target)[0]
    stage.coordinator.control((friend,))
    spec = stage.next()
    contents = stage.contents(spec, stage.craft(-1), target, (target, friend))
    one = stage.coordinator.sum_of(spec, contents, least=2)
    return _Trial(one.total, (one,))


def _made_up(stage: _Stage, target: int) -> _Trial:
    stage.coordinator.make_up(stage.others(target))
    return _plain(stage, target)


def _sybils(stage: _Stage, target: int) -> _Trial:
    stage.coordinator.control(stage.others(target))
    return _plain(stage, target)


def _third(stage: _Stage, target: int) -> _Trial:
    others = stage.others(target)
    stage.coordinator.control(others[: len(stage.places) // 3])
    return _plain(stage, target)


def _replay(stage: _Stage, target: int) -> _Trial:
    models, asked = stage.craft(-1), []
    for _ in range(2 if stage.on == "rounds" else 1):
        spec = stage.next()
        contents = stage.contents(spec, models, target, stage.places)
        asked.append((spec, contents, stage.coordinator.sum_of(spec, contents)))
    seen, later = None, []
    for spec, contents, first in reversed(asked):
        again = stage.coordinator.sum_of(spec, contents, counted=stage.others(target))
        later.append(again)
        seen = _less(first, again) if seen is None else seen
    return _Trial(seen, tuple(later))


def _lying_helper(stage: _Stage, target: int) -> _Trial:
    liar = _corrupted(stage, 1)[0]
    liar.leaves_out = target
    trial = _plain(stage, target)
    liar.leaves_out = None
    return trial


def _with_helpers(stage: _Stage, target: int, count: int | None) -> _Trial:
    """Take the masks of some helpers off the target's vector; those of the others stay on it."""
    corrupt = _corrupted(stage, count)
    spec = stage.next()
    contents = stage.contents(spec, stage.craft(-1), target, stage.places)
    one = stage.coordinator.sum_of(spec, contents)
    if target not in one.updates:
        return _Trial(None, (one,))
    words = None
    for helper in corrupt:
        words = helper.unmasked(one.updates[target], spec.number, words)
    if words is None:
        raise ValueError("no helper is corrupt")
    return _Trial(words.view(f"<i{words.itemsize}").astype(np.int64), (one,))


def _corrupted(stage: _Stage, count: int | None) -> list[CorruptHelper]:
    helpers = stage.coordinator.helpers
    for place, helper in enumerate(helpers[:count]):
        if not isinstance(helper, CorruptHelper):
            helpers[place] = CorruptHelper(helper)
    return [helper for helper in helpers[:count] if isinstance(helper, CorruptHelper)]


_HOW: Mapping[str, Callable[[_Stage, int], _Trial]] = {
    "overflow": _plain,
    "two-models": _plain,
    "left-out": _left_out,
    "small-cohort": _small_cohort,
    "made-up": _made_up,
    "sybils": _sybils,
    "replay": _replay,
    "lying-helper": _lying_helper,
    "one-helper": partial(_with_helpers, count=1),
    "all-helpers": partial(_with_helpers, count=None),
    "third": _third,
    "crafted": _plain,
}


def _crafts(scene: HostileScene, play: str) -> list[Craft]:
    """The models that a play may send; the one that finds most on the attacker's own clients is sent."""
    real = scene.known.plan.start
    if play == "overflow":
        return [lambda _: (real, None)]
    if play == "two-models":
        if scene.knows_factors:
            quiet = scene.under(0.0)
            return [_always(scene.under(strength), quiet) for strength in _STRENGTHS]
        return [_always(real, scene.times(scale)) for scale in _SCALES]
    if play == "crafted":
        if scene.knows_factors:
            return [partial(_trap, scene, strength) for strength in _STRENGTHS]
        return [_always(model, model) for model in map(scene.times, _SCALES)]
    return [_always(real, real)]


def _always(loud: Model, quiet: Model) -> Craft:
    return lambda _: (loud, quiet)


def _trap(scene: HostileScene, strength: float, item: int) -> tuple[Model, Model]:
    """A direction in which one item alone lies: whoever has it moves all its items along it."""
    model = scene.under(strength, item)
    return model, model


def _beside(stage: _Stage) -> _Companions:
    n = len(stage.places)
    if stage.play == "overflow":
        return _Companions(0, n)
    if stage.play == "left-out":
        return _Companions(n - 1, 2 * n - 1, change=True)
    if stage.play in ("small-cohort", "made-up", "sybils", "one-helper", "all-helpers", "replay"):
        return _Companions(0, 1)
    if stage.play == "third":
        return _Companions(n - n // 3 - 1, n - n // 3)
    return _Companions(n - 1, n)


def _played(scene: HostileScene, play: str, folder: Path, effort: CoordinatorEffort) -> HostileFinding:
    """Play one attack on so many clients."""
    stage = _Stage(scene, play, folder, effort)
    try:
        reader, how = None, "the numbers of the sum"
        if stage.on == "rounds":
            found = []
            for craft in _crafts(scene, play):
                reader = _trained(scene, craft, _beside(stage))
                found.append((_practised(reader), craft, reader))
            _, stage.craft, reader = max(found, key=lambda one: one[0])
            how = reader.how
        targets = stage.places[: effort.targets]
        trials = []
        for target in targets:
            stage.begin()
            trials.append(_HOW[play](stage, target))
    finally:
        stage.coordinator.close()
    clicked, shown = stage.truth.clicked[: len(targets)].copy(), stage.truth.shown[: len(targets)].copy()
    scores = np.full(clicked.shape, -np.inf)
    for row, trial in enumerate(trials):
        if trial.seen is not None:
            seen = trial.seen
            scores[row] = seen if reader is None else reader.unusual(scene.observation(scene.numbers(np.asarray(seen))))
        if play == "crafted" and scene.knows_factors:  # what the attacker knew is not found
            item = stage.item(targets[row])
            clicked[row, item], shown[row, item] = False, True
    recovery = of_scores(scores, clicked, shown)
    why = Counter((refusal.by, refusal.why) for trial in trials for refusal in trial.refusals)
    refusals = tuple((by, reason, times) for (by, reason), times in why.most_common())
    opened = sum(trial.seen is not None for trial in trials)
    bound = _bound(stage, recovery)
    return HostileFinding(play, stage.on, how, len(targets), opened, refusals, recovery, bound)


def _practised(reader: BestScore | LikeOwn) -> float:
    return reader.best if isinstance(reader, BestScore) else 0.0


def _bound(stage: _Stage, recovery: Recovery) -> float | None:
    """What the accounting allows whoever sees the sums that hold the target, where that is promised."""
    if stage.play in ("small-cohort", "made-up", "all-helpers"):
        return None
    plan = stage.scene.known.plan
    summed: Any = plan.mechanism if stage.on == "rounds" or plan.reports is None else plan.reports.mechanism
    carried = carried_noise(summed)
    if carried is None or _beside(stage).shares < carried.honest:  # more are corrupt than was planned for
        return None
    event: Event = summed.event_in(stage.scene.opened.spec) if stage.on == "rounds" else summed.event()
    times = 1 if summed.adjacency == "replace-one" else _APART
    rate = max(FALSE_POSITIVES, recovery.false_positive_rate, recovery.chance)
    return float(detection_of(repeated(event, times), false_alarms=min(rate, 0.5)).found)


def carried_noise(mechanism: Any) -> DistributedNoise | None:
    """Return which clients carry the noise of a sum, of updates or of what is told once; None: the server does."""
    if isinstance(mechanism, DistributedNoiseSum):
        return mechanism.distributed_noise
    shares = getattr(mechanism, "shares", None)
    return shares.carried if isinstance(shares, Shares) else None


def noises_of(method: str, settings: Sequence[str]) -> tuple[NoiseOfSums, ...]:
    """Return whose noise can be on the sums of a method: nobody's that clients know of, and that of clients."""
    found = get(method)
    config, _ = configure(found, preset="tuned", dataset="", settings=settings)
    return ("masks only", "distributed") if found.guarantee(config).basis == "proven" else ("masks only",)


def attack_coordinator(
    method: str,
    data: str | None = None,
    *,
    secagg: SecAgg,
    noise: NoiseOfSums,
    settings: Sequence[str] = (),
    plays: Sequence[str] = tuple(PLAYS),
    effort: CoordinatorEffort = QUICK,
    seed: int = 0,
    say: Callable[[str], None] = lambda _: None,
) -> CoordinatorAttack:
    """Make a federation and play all attacks on it."""
    if data is None:
        data = next((name for name in _SYNTHETIC if name in get(method).datasets), _SYNTHETIC[0])
    data = full_spec(data)
    with TemporaryDirectory(prefix="veilrec-attack-") as place:
        folder = Path(place)
        make(folder / "federation", _wishes(method, data, secagg, noise, settings, effort, seed))
        known = FederationFacts(folder / "federation", federation.read(folder / "federation"))
        scene = HostileScene(known, own_clients(known, data, effort, seed), seed)
        findings = []
        for play in plays:
            if secagg == "pairs" and play in _HELPERS_ALONE:
                continue
            say(play)
            findings.append(_played(scene, play, folder, effort))
        guarantee, least = known.guarantee, known.federation.least
        name = get(method).name
        return CoordinatorAttack(name, data, secagg, noise, guarantee, effort.clients, least, tuple(findings))


def _wishes(
    method: str,
    data: str,
    secagg: SecAgg,
    noise: NoiseOfSums,
    settings: Sequence[str],
    effort: CoordinatorEffort,
    seed: int,
) -> FederationOptions:
    """The federation that is attacked: a third of its clients may work with the coordinator."""
    silent = {"distributed_noise": True, "silent": 1.0 / 3.0} if noise == "distributed" else {}
    return FederationOptions(
        method=method,
        data=data,
        clients=effort.clients,
        settings=tuple(settings),
        seed=seed,
        rounds=effort.rounds,
        secagg=secagg,
        corrupt=1.0 / 3.0,
        lost=0.2,
        rehearsal=True,
        **silent,  # type: ignore[arg-type]
    )


def own_clients(known: FederationFacts, data: str, effort: CoordinatorEffort, seed: int) -> LocalData:
    """Clients of the attacker, who are not in the federation, with their data."""
    population = load(data)
    order = np.random.default_rng(seed).permutation(population.n_users)  # as `federate init` draws its clients
    chosen = np.sort(order[effort.clients : effort.clients + effort.own]).astype(np.int64)
    if len(chosen) <= effort.clients:
        raise BadInput(
            f"{population.name} has {population.n_users} users, of which {effort.clients} are attacked: the attacker"
            f" needs {effort.clients + 1} of its own; take more data"
        )
    own = some_users(population, chosen)
    split = make_split(own, known.federation.protocol, seed=seed)
    clients = known.method.clients(known.config, problem_of(own, split, known.federation.seed, known.plan.rounds))
    return clients.take(np.flatnonzero(clients.rows.lengths() > 0).astype(np.int64))
