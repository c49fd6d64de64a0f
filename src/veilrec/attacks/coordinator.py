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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy as np

from veilrec.attacks.plays import (
    HELPERS_ALONE,
    HOW,
    PLAYS,
    REMAINS,
    HostileStage,
    companions_of,
    crafts_of,
    honest_clients,
)
from veilrec.attacks.reading import HostileScene, carried_noise, trained_reader
from veilrec.attacks.recovery import FALSE_POSITIVES, BestScore, LikeOwn, Recovery, of_scores
from veilrec.client.local_training import LocalData
from veilrec.core.errors import BadInput
from veilrec.data.datasets import full_spec, load
from veilrec.data.population import some_users
from veilrec.evaluation.protocols import make_split
from veilrec.federation import federation
from veilrec.federation.facts import FederationFacts
from veilrec.federation.federation import SecAgg
from veilrec.federation.making import FederationOptions, make
from veilrec.methods.base import configure
from veilrec.methods.registry import get
from veilrec.privacy.accounting.accountant import detection_of
from veilrec.privacy.events import Event, repeated
from veilrec.privacy.guarantee import Guarantee
from veilrec.runs.request import problem_of

_APART = 4  # releases of one who is left out that cost what one of another update costs, under Gaussian noise
_SYNTHETIC = ("synthetic-ratings", "synthetic-news")
NoiseOfSums = Literal["masks only", "distributed"]


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


def _played(scene: HostileScene, play: str, folder: Path, effort: CoordinatorEffort) -> HostileFinding:
    """Play one attack on so many clients."""
    stage = HostileStage(scene, play, folder)
    try:
        reader, how = None, "the numbers of the sum"
        if stage.on == "rounds":
            found = []
            for craft in crafts_of(scene, play):
                reader = trained_reader(scene, craft, companions_of(stage))
                found.append((_practised(reader), craft, reader))
            _, stage.craft, reader = max(found, key=lambda one: one[0])
            how = reader.how
        targets = stage.places[: effort.targets]
        trials = []
        for target in targets:
            stage.begin()
            trials.append(HOW[play](stage, target))
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


def _bound(stage: HostileStage, recovery: Recovery) -> float | None:
    """What the accounting allows whoever sees the sums that hold the target, where that is promised."""
    plan = stage.scene.known.plan
    summed: Any = plan.mechanism if stage.on == "rounds" or plan.reports is None else plan.reports.mechanism
    carried = carried_noise(summed)
    if carried is None or honest_clients(stage) < carried.honest:  # more are corrupt than was planned for
        return None
    event: Event = summed.event_in(stage.scene.opened.spec) if stage.on == "rounds" else summed.event()
    times = 1 if summed.adjacency == "replace-one" else _APART
    rate = max(FALSE_POSITIVES, recovery.false_positive_rate, recovery.chance)
    return float(detection_of(repeated(event, times), false_alarms=min(rate, 0.5)).found)


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
            if secagg == "pairs" and play in HELPERS_ALONE:
                continue
            say(f"  {play}: {PLAYS[play]}")
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
    silent, lost = 1.0 / 3.0, 0.2
    margins = (f"privacy.noise={noise}", f"privacy.silent={silent}", f"privacy.lost={lost}")
    return FederationOptions(
        method=method,
        data=data,
        clients=effort.clients,
        settings=(*(margins if noise == "distributed" else ()), *settings),
        seed=seed,
        rounds=effort.rounds,
        secagg=secagg,
        corrupt=silent,
        lost=lost,
        rehearsal=True,
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
