"""The attacks of a coordinator that deviates from the protocol: which models, cohorts, rounds and helpers each uses.

Every one is a function of a federation under attack and of one of its clients, the target. What it returns is the sum
that came out, less what the coordinator knows, or nothing where it was refused.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from shutil import rmtree
from typing import Literal

import numpy as np

from veilrec.attacks.hostile import CorruptHelper, HostileCoordinator, HostileSum, Model, Refusal
from veilrec.attacks.reading import Companions, Craft, HostileScene, rarest, truth_of
from veilrec.core.arrays import Doubles, Offsets
from veilrec.core.schema import ReportSum, RoundSpec

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

HELPERS_ALONE = ("lying-helper", "one-helper", "all-helpers")
_ABOUT_MODELS = ("overflow", "two-models", "crafted")  # reports before the first round are about no model
_STRENGTHS = (1.0, 3.0, 10.0, 30.0, 100.0)  # of the weights of a crafted model
_SCALES = (1.0, 3.0, 10.0, 0.1)  # of a model that is crafted without knowing how it works
_OVERFLOW = np.float32(1e30)


@dataclass(frozen=True)
class HostileTrial:
    """What one attack on one client gave."""

    seen: Offsets | Doubles | None = None  # the opened sum, less what is known
    sums: tuple[HostileSum, ...] = ()

    @property
    def refusals(self) -> list[Refusal]:
        """All refusals on the way."""
        return [refusal for one in self.sums for refusal in one.refusals]


class HostileStage:
    """One federation under attack by one play."""

    def __init__(self, scene: HostileScene, play: str, folder: Path) -> None:
        self.scene, self.play, self.folder = scene, play, folder
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


def _plain(stage: HostileStage, target: int) -> HostileTrial:
    """One sum of everybody."""
    spec = stage.next()
    contents = stage.contents(spec, stage.craft(stage.item(target)), target, stage.places)
    one = stage.coordinator.sum_of(spec, contents, own_terms=stage.places.index(target) % 2 == 1)
    return HostileTrial(one.total, (one,))


def _left_out(stage: HostileStage, target: int) -> HostileTrial:
    models = stage.craft(-1)
    spec = stage.next()
    first = stage.coordinator.sum_of(spec, stage.contents(spec, models, target, stage.places))
    spec, others = stage.next(), stage.others(target)
    fewer = len(others) if stage.scene.known.federation.least > len(others) else 0
    second = stage.coordinator.sum_of(spec, stage.contents(spec, models, target, others), least=fewer)
    return HostileTrial(_less(first, second), (first, second))


def _less(first: HostileSum, second: HostileSum) -> Offsets | None:
    return None if first.total is None or second.total is None else first.total - second.total


def _small_cohort(stage: HostileStage, target: int) -> HostileTrial:
    friend = stage.others(target)[0]
    stage.coordinator.control((friend,))
    spec = stage.next()
    contents = stage.contents(spec, stage.craft(-1), target, (target, friend))
    one = stage.coordinator.sum_of(spec, contents, least=2)
    return HostileTrial(one.total, (one,))


def _made_up(stage: HostileStage, target: int) -> HostileTrial:
    stage.coordinator.make_up(stage.others(target))
    return _plain(stage, target)


def _sybils(stage: HostileStage, target: int) -> HostileTrial:
    stage.coordinator.control(stage.others(target))
    return _plain(stage, target)


def _third(stage: HostileStage, target: int) -> HostileTrial:
    others = stage.others(target)
    stage.coordinator.control(others[: len(stage.places) // 3])
    return _plain(stage, target)


def _replay(stage: HostileStage, target: int) -> HostileTrial:
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
    return HostileTrial(seen, tuple(later))


def _lying_helper(stage: HostileStage, target: int) -> HostileTrial:
    liar = _corrupted(stage, 1)[0]
    liar.leaves_out = target
    trial = _plain(stage, target)
    liar.leaves_out = None
    return trial


def _with_helpers(stage: HostileStage, target: int, count: int | None) -> HostileTrial:
    """Take the masks of some helpers off the target's vector; those of the others stay on it."""
    corrupt = _corrupted(stage, count)
    spec = stage.next()
    contents = stage.contents(spec, stage.craft(-1), target, stage.places)
    one = stage.coordinator.sum_of(spec, contents)
    if target not in one.updates:
        return HostileTrial(None, (one,))
    words = None
    for helper in corrupt:
        words = helper.unmasked(one.updates[target], spec.number, words)
    if words is None:
        raise ValueError("no helper is corrupt")
    return HostileTrial(words.view(f"<i{words.itemsize}").astype(np.int64), (one,))


def _corrupted(stage: HostileStage, count: int | None) -> list[CorruptHelper]:
    helpers = stage.coordinator.helpers
    for place, helper in enumerate(helpers[:count]):
        if not isinstance(helper, CorruptHelper):
            helpers[place] = CorruptHelper(helper)
    return [helper for helper in helpers[:count] if isinstance(helper, CorruptHelper)]


HOW: Mapping[str, Callable[[HostileStage, int], HostileTrial]] = {
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


def crafts_of(scene: HostileScene, play: str) -> list[Craft]:
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


def companions_of(stage: HostileStage) -> Companions:
    """What else is in the sum that a play reads."""
    n = len(stage.places)
    if stage.play == "overflow":
        return Companions(0, n)
    if stage.play == "left-out":
        return Companions(n - 1, 2 * n - 1, change=True)
    if stage.play in ("small-cohort", "made-up", "sybils", "one-helper", "all-helpers", "replay"):
        return Companions(0, 1)
    if stage.play == "third":
        return Companions(n - n // 3 - 1, n - n // 3)
    return Companions(n - 1, n)


def honest_clients(stage: HostileStage) -> int:
    """Clients of a sum that add their noise and keep it for themselves; none where no secure sum holds."""
    n = len(stage.places)
    return {"all-helpers": 0, "sybils": 1, "third": n - n // 3}.get(stage.play, n)
