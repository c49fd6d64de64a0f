"""Was this person's data used? Many canaries at once, in or out by a coin each, in the training of the very plan.

The attacker made the canaries, knows what they would send in every round but for the noise (and, where everybody is in
every round, what all others send), and sees what the training releases. How much of each canary there is in a release
is estimated for all of them together (ridge regression), and the evidence is added up over the releases. Guesses of
many coins from one training give epsilon from below (Steinke, Nasr and Jagielski 2023); trainings with new coins make
it sharper.

Synthetic people who take the place of some clients: what an attacker puts in, to see whether it comes out again.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, cast, get_args

import numpy as np
from scipy.special import ndtr, ndtri

from veilrec.attacks import recovery
from veilrec.attacks.recovery import Witness, WitnessedRound
from veilrec.audit.bounds import epsilon_from_guesses
from veilrec.client.local_training import LocalData
from veilrec.client.news_data import HEAD, OwnImpressions
from veilrec.core import rng
from veilrec.core.arrays import Bools, Doubles, Indices, Offsets
from veilrec.core.csr import Csr, packed
from veilrec.core.errors import BadInput
from veilrec.core.plan import Plan
from veilrec.core.schema import to_vectors
from veilrec.privacy.accounting.accountant import detection_of
from veilrec.privacy.events import training_event
from veilrec.privacy.guarantee import Guarantee
from veilrec.privacy.randomness import FastSource
from veilrec.server.round_specs import Tally
from veilrec.simulation.simulation import Seeds, one_of

Kind = Literal["crafted", "random"]
KINDS: dict[Kind, str] = {
    "crafted": "all that they have are rare items, which move parts of a model that hardly anybody else moves",
    "random": "as many items as somebody else has, any of them",
}
_ITEMS = 20  # of a crafted canary
_IMPRESSIONS, _PAST, _OTHERS = 5, 8, 4  # of a crafted reader: what was shown, read before, and not clicked
_RARE = 0.5  # share of the items, those that fewest clients have


@dataclass(frozen=True)
class Canaries:
    """Who was put in the place of whom, and which of them are there."""

    slots: Offsets  # clients
    inside: Bools  # whether the canary is there; if not, nobody is, or its double
    data: LocalData  # a row for every slot: the canary; then, replace-one, one for every double
    has_doubles: bool  # who is there instead

    def __len__(self) -> int:
        return len(self.slots)

    @property
    def clients(self) -> Offsets:
        """The number of each row of the data."""
        return np.tile(self.slots, 2) if self.has_doubles else self.slots


def plant(
    data: LocalData, n_items: int, count: int, generator: np.random.Generator, *, kind: Kind, doubles: bool
) -> tuple[LocalData, Canaries]:
    """The data with a canary in each of some places, and who they are; half of them are to be taken out again.

    With doubles, what is in a canary's place when it is not there is another one, already put there.
    """
    if kind not in get_args(Kind):
        raise BadInput(f"canaries are {kind!r}: allowed are {', '.join(KINDS)}")
    able = np.flatnonzero(data.rows.lengths() > 0).astype(np.int64)
    if not 2 <= count < len(able):
        raise BadInput(
            f"{count} canaries among {len(able)} clients that can learn: give at least 2, and fewer than there are"
        )
    slots = np.sort(generator.permutation(able)[:count])
    inside = generator.permutation(np.arange(count) % 2 == 0)
    rows = [_rows(data, n_items, slots, generator, kind) for _ in range(2 if doubles else 1)]
    both = rows[0] if len(rows) == 1 else _stacked(*rows)
    there = both.take(np.where(inside | (not doubles), 0, count) + np.arange(count))
    own = with_rows(data.take(np.tile(slots, len(rows))), np.arange(len(both)), both)
    return with_rows(data, slots, there), Canaries(slots, inside, own, doubles)


def _stacked(first: Csr, second: Csr) -> Csr:
    offsets = np.concatenate([first.offsets, first.offsets[-1] + second.offsets[1:]])
    return Csr(offsets, np.concatenate([first.items, second.items]))


def with_rows(data: LocalData, slots: Offsets, rows: Csr) -> LocalData:
    """Data with other rows in some places; who rates gives everything there full marks."""
    n = len(data.rows)
    chosen = np.arange(n)
    chosen[slots] = n + np.arange(len(slots))
    changed: dict[str, Any] = {"rows": _stacked(data.rows, rows).take(chosen)}
    ratings = getattr(data, "ratings", None)
    if ratings is not None:
        entries = Csr(data.rows.offsets, np.arange(len(data.rows.items), dtype=np.int32))
        full = Csr(rows.offsets, np.full(len(rows.items), len(ratings), np.int32))
        changed["ratings"] = np.append(ratings, np.float32(1.0))[_stacked(entries, full).take(chosen).items]
    return cast(LocalData, replace(cast(Any, data), **changed))


def _rows(data: LocalData, n_items: int, slots: Offsets, generator: np.random.Generator, kind: Kind) -> Csr:
    if isinstance(data, OwnImpressions):
        news = int(data.rows.items.max()) + 1 if n_items < 1 else n_items
        make = _rare_readers if kind == "crafted" else _random_readers
        return make(data, news, len(slots), generator)
    used = np.bincount(data.rows.items, minlength=n_items)
    if kind == "crafted":
        rare = np.argsort(used + generator.random(n_items))[: max(_ITEMS, int(_RARE * n_items))]
        return packed([generator.permutation(rare)[:_ITEMS] for _ in slots])
    lengths = data.rows.lengths()
    sizes = generator.choice(lengths[lengths > 0], len(slots))
    return packed([generator.permutation(n_items)[: min(int(size), n_items - 1)] for size in sizes])


def _rare_readers(data: OwnImpressions, n_news: int, count: int, generator: np.random.Generator) -> Csr:
    """Somebody who read, and then clicks, news that hardly anybody reads."""
    read = np.bincount(in_logs(data), minlength=n_news)
    rare = np.argsort(read + generator.random(n_news))[: max(_PAST + _IMPRESSIONS, int(_RARE * n_news))]
    readers = []
    for _ in range(count):
        own = generator.permutation(rare)[: _PAST + _IMPRESSIONS]
        others = generator.integers(0, n_news, (_IMPRESSIONS, _OTHERS))
        blocks = [impression(own[:_PAST], own[_PAST + i], others[i]) for i in range(_IMPRESSIONS)]
        readers.append(np.concatenate(blocks))
    return packed(readers)


def impression(past: Indices, click: int, others: Indices) -> Indices:
    """One impression with one click, as a log has it."""
    return np.concatenate([[len(past), 1, len(others)], past, [click], others]).astype(np.int32)


def _random_readers(data: OwnImpressions, n_news: int, count: int, generator: np.random.Generator) -> Csr:
    """Somebody with as many impressions as another, about any news."""
    able = np.flatnonzero(data.rows.lengths() > 0)
    readers: list[Indices] = []
    for client in generator.choice(able, count):
        row = data.rows.row(int(client)).copy()
        numbers = _is_news(row)
        row[numbers] = generator.integers(0, n_news, int(numbers.sum()))
        readers.append(row)
    return packed(readers)


def in_logs(data: OwnImpressions) -> Indices:
    """All that stands in anybody's log, as often as it does."""
    rows = data.rows
    return np.concatenate([row[_is_news(row)] for row in (rows.row(r) for r in range(len(rows)))])


def _is_news(row: Indices) -> Bools:
    """Which entries of a log are news and not lengths."""
    news, at = np.ones(len(row), np.bool_), 0
    while at < len(row):
        news[at : at + HEAD] = False
        at += HEAD + int(row[at : at + HEAD].sum())
    return news


View = Literal["every round", "final model", "message"]
SEEN: dict[View, str] = {
    "every round": "all that the training releases: noisy sums, or where nothing is promised the change of every round",
    "final model": "the first model and the last one",
    "message": "one message of a client: is it the canary's, or its double's?",
}
CONFIDENCE = 0.95
FALSE_ALARMS = 0.01
_SURE = (0.1, 0.3, 1.0)  # shares of the canaries that are guessed, those first whose score is farthest out
_MAX_SIGNAL = 6.0  # in standard deviations: others move models as well, and not as evenly as noise
_MOST, _TINY = 50.0, 1e-300
_CURVE = ndtr(np.linspace(-3.5, 2.5, 16))  # false alarms at which the ceiling is worked out
_ALIKE = 0.01  # strengths of a Gaussian release, worked out at two rates of false alarms


@dataclass(frozen=True)
class Ceiling:
    """What the best attack on what was released can do, by the accounting of the plan itself."""

    auc: float
    true_positive_rate: float  # at FALSE_ALARMS


@dataclass(frozen=True)
class Membership:
    """How well one attacker told who was there."""

    view: View
    kind: Kind
    canaries: int
    trainings: int
    auc: float
    interval: tuple[float, float]  # of the AUC
    true_positive_rate: float  # at FALSE_ALARMS
    true_positive_interval: tuple[float, float]
    epsilon_lower: float  # wrong with probability 1 - CONFIDENCE

    def to_json(self) -> dict[str, Any]:
        """All fields."""
        return asdict(self) | {"seen": SEEN[self.view], "false_positive_rate": FALSE_ALARMS, "confidence": CONFIDENCE}


@dataclass(frozen=True)
class MembershipEffort:
    """How much is tried."""

    canaries: int = 200  # in one training
    trainings: int = 10
    rounds: int | None = None  # of each training, from the first on; None: all


def find_members(
    plan: Plan,
    data: LocalData,
    histories: Csr,
    n_items: int,
    claimed: Guarantee,
    *,
    effort: MembershipEffort,
    kind: Kind = "crafted",
    seed: int = 0,
) -> tuple[Membership, ...]:
    """Train with canaries, and say of each whether it was there: by everything released, and by the last model.

    Where clients put noise on their messages, also by one message: whether it is the canary's, or its double's.
    """
    for name, value in (("trainings", effort.trainings), ("rounds", effort.rounds)):
        if value is not None and value < 1:
            raise BadInput(f"--{name} is {value}: give at least 1")
    doubles = claimed.adjacency == "replace-one"
    scores: dict[View, list[Doubles]] = {}
    truth = []
    for run in range(effort.trainings):
        generator = np.random.default_rng([seed, rng.COHORT, run])
        planted, canaries = plant(data, n_items, effort.canaries, generator, kind=kind, doubles=doubles)
        removed = np.zeros(0, np.int64) if doubles else canaries.slots[~canaries.inside]
        seeds = Seeds(seed + run, seed + 1_000 + run, seed + 2_000 + run)
        witness = recovery.watched(plan, planted, histories, seeds, removed)
        for view, found in _scores(plan, canaries, witness, seeds.draws, effort.rounds).items():
            scores.setdefault(view, []).append(found)
        truth.append(canaries.inside)
    inside, delta = np.concatenate(truth), claimed.delta or 0.0
    return tuple(
        judge_scores(np.concatenate(parts), inside, view, kind, effort, delta) for view, parts in scores.items()
    )


def _scores(plan: Plan, canaries: Canaries, witness: Witness, draws: int, rounds: int | None) -> dict[View, Doubles]:
    """How much each attacker believes in each canary."""
    everybody = len(witness.sampler.eligible)
    rate = plan.cohort.among(everybody) / everybody
    others = np.setdiff1d(witness.sampler.eligible, canaries.slots)
    every = np.zeros(len(canaries))
    first: WitnessedRound | None = None
    fresh = plan.reports is not None and plan.reports.fresh
    for release in witness.releases(rounds):
        opened = release.opened
        seen = release.seen
        if rate == 1.0 and plan.mechanism.noise_on == "sum":  # everybody is in every round: what others send is known
            sent = recovery.sums_of(plan, others, witness.data, opened, draws, release.kept)
            seen = seen - np.concatenate([total.ravel() for total in sent.values()])
        updates = recovery.updates_of(plan, canaries.clients, canaries.data, opened, draws)
        found = _Estimate.of(*recovery.products(updates, opened.view, seen), canaries, seen, rate)
        every += found.evidence(rate, either=canaries.has_doubles)
        if opened.tally is not None and (first is None or fresh):
            told = _told_by_canaries(plan, others, witness.data, opened.tally, draws)
            every += _in_tally(plan, canaries, told, draws, opened.spec.number if fresh else 0)
        first = first or opened
    if first is None:
        raise BadInput("the training has no round: there is nothing to look at")
    scores: dict[View, Doubles] = {
        "every round": every,
        "final model": _in_model(plan, canaries, witness, (first, witness.opened), draws, others),
    }
    if plan.mechanism.noise_on == "message" and canaries.has_doubles:
        scores["message"] = _in_messages(plan, canaries, first, draws)
    return scores


def _in_messages(plan: Plan, canaries: Canaries, opened: WitnessedRound, draws: int) -> Doubles:
    """Whether a message of the first round is more like what the canary sends, or its double."""
    both = recovery.updates_of(plan, canaries.clients, canaries.data, opened, draws)
    n, spec = len(canaries), opened.spec
    scores = np.zeros(n)
    for place in range(n):
        one, other = one_of(both, place), one_of(both, n + place)
        source = FastSource(draws, rng.NOISE, spec.number, int(canaries.slots[place]), one_generator=True)
        sent = plan.mechanism.perturb(one if canaries.inside[place] else other, spec, source)
        seen, first, second = (to_vectors(message, opened.view)[0] for message in (sent, one, other))
        scores[place] = float((seen - (first + second) / 2) @ (first - second))
    return scores


def _told_by_canaries(plan: Plan, others: Offsets, data: LocalData, tally: Tally, draws: int) -> Doubles:
    """Counts of reports less what all others told; nobody knows how clients lied."""
    if plan.reports is None or plan.reports.mechanism.keep_probability < 1.0:
        return tally.counts
    mechanism = plan.reports.mechanism
    counts = mechanism.count(data.take(others).rows, others, seed=draws, period=0)
    return np.asarray(tally.counts - counts * mechanism.step)


def _in_tally(plan: Plan, canaries: Canaries, seen: Doubles, draws: int, period: int) -> Doubles:
    told = recovery.reported(plan, canaries.clients, canaries.data, draws, period)
    found = _Estimate.of(told @ told.T, told @ seen, canaries, seen, 1.0)
    return found.evidence(1.0, either=canaries.has_doubles)


def _in_model(
    plan: Plan,
    canaries: Canaries,
    witness: Witness,
    rounds: tuple[WitnessedRound, WitnessedRound],
    draws: int,
    others: Offsets,
) -> Doubles:
    """By what a canary would send to the first model, and to the last, as if the whole training were one sum."""
    total = np.zeros(len(canaries))
    for opened in rounds:
        rows, changes = opened.spec.rows, []
        for tensor in opened.view.tensors:
            moved = witness.server.weights[tensor.name].astype(np.float64) - plan.start[tensor.name]
            changes.append((moved[rows] if tensor.by_row and rows is not None else moved).ravel())
        seen = np.concatenate(changes)
        updates = recovery.updates_of(plan, canaries.clients, canaries.data, opened, draws)
        found = _Estimate.of(*recovery.products(updates, opened.view, seen), canaries, seen, 1.0)
        total += found.share / max(float(np.std(found.share)), 1e-300)
    if plan.from_reports is not None and rounds[0].tally is not None:  # they are in the model
        told = _told_by_canaries(plan, others, witness.data, rounds[0].tally, draws)
        total += _in_tally(plan, canaries, told, draws, 0)
    return total


@dataclass(frozen=True)
class _Estimate:
    """How much of each canary's update, less its double's, there is in a sum."""

    share: Doubles  # as estimated
    if_there: Doubles  # what the estimate is on average of who is there; of others it is 0
    spread: Doubles  # its standard deviation

    @classmethod
    def of(cls, together: Doubles, with_seen: Doubles, canaries: Canaries, seen: Doubles, rate: float) -> _Estimate:
        """From products of updates with each other and with the sum: the best linear estimate.

        A weight is m = rate / 2 on average, and varies by v = m (1 - m). With r = y - m U^T 1 and power its mean
        square, the estimate is m + M U r with M = (U U^T + power / v)^-1; of who is there it is h = (M U U^T)_ii more
        than of who is not, and its variance is power (M U U^T M)_ii.
        """
        if canaries.has_doubles:
            n = len(canaries)
            less = np.concatenate([np.eye(n), -np.eye(n)], axis=1)
            together, with_seen = less @ together @ less.T, less @ with_seen
        mean = 0.0 if canaries.has_doubles else 0.5 * rate
        square = float(seen @ seen) - 2.0 * mean * float(with_seen.sum()) + mean**2 * float(together.sum())
        power = max(square / len(seen), _TINY)
        ridge = power / (0.5 * rate * (1.0 - 0.5 * rate)) + 1e-9 * float(np.trace(together)) / len(together)
        inverse = np.linalg.inv(together + ridge * np.eye(len(together)))
        shrunk = inverse @ together
        spread = np.sqrt(np.maximum((shrunk * inverse).sum(axis=1), _TINY) * power)
        left = inverse @ (with_seen - mean * together.sum(axis=1))
        return cls(left + mean * np.diag(shrunk), np.diag(shrunk), spread)

    def evidence(self, rate: float, *, either: bool) -> Doubles:
        """The logarithm of a likelihood ratio: part of the sum with this chance against not, or against its double."""
        signal = np.minimum(self.if_there / self.spread, _MAX_SIGNAL)
        for_it = signal * self.share / self.spread - signal**2 / 2
        here = np.log1p(rate * np.expm1(np.clip(for_it, -_MOST, _MOST))) if rate < 1.0 else for_it
        if not either:
            return np.asarray(here)
        against = -signal * self.share / self.spread - signal**2 / 2
        there = np.log1p(rate * np.expm1(np.clip(against, -_MOST, _MOST))) if rate < 1.0 else against
        return np.asarray(here - there)


def judge_scores(
    scores: Doubles, inside: Bools, view: View, kind: Kind, effort: MembershipEffort, delta: float
) -> Membership:
    """What scores of canaries say about who was there."""
    area = auc(scores[inside], scores[~inside])
    found, low, high = true_positives(scores[inside], scores[~inside])
    lower = max(_from_guesses(scores, inside, share, delta) for share in _SURE)
    return Membership(
        view, kind, effort.canaries, effort.trainings, area, auc_interval(area, inside), found, (low, high), lower
    )


def auc(members: Doubles, others: Doubles) -> float:
    """How often a member scores above another; ties count half."""
    order = np.sort(others)
    below = np.searchsorted(order, members, side="left") + np.searchsorted(order, members, side="right")
    return float(below.mean() / (2 * len(others)))


def auc_interval(area: float, inside: Bools) -> tuple[float, float]:
    """By the variance of Hanley and McNeil (1982), which is 0 where all were told: then by how many that was."""
    n, m = int(inside.sum()), int((~inside).sum())
    if area in (0.0, 1.0):
        few = float(min(n, m))
        return recovery.proportion_interval(area * few, few)
    one, other = area / (2.0 - area), 2.0 * area**2 / (1.0 + area)
    variance = area * (1.0 - area) + (n - 1) * (one - area**2) + (m - 1) * (other - area**2)
    reach = float(ndtri(0.5 + 0.5 * CONFIDENCE)) * math.sqrt(max(variance, 0.0) / (n * m))
    return max(0.0, area - reach), min(1.0, area + reach)


def true_positives(members: Doubles, others: Doubles) -> tuple[float, float, float]:
    """The share of members above the threshold that one of a hundred others passes at most, with its interval."""
    allowed = int(FALSE_ALARMS * len(others))
    threshold = np.sort(others)[len(others) - 1 - allowed]
    hits = int((members > threshold).sum())
    return hits / len(members), *recovery.proportion_interval(float(hits), float(len(members)))


def _from_guesses(scores: Doubles, inside: Bools, share: float, delta: float) -> float:
    """Epsilon from below: the highest scores are guessed to be there, the lowest not, in equal numbers."""
    half = max(1, int(share * len(scores) / 2))
    order = np.argsort(scores, kind="stable")
    correct = int(inside[order[-half:]].sum()) + int((~inside[order[:half]]).sum())
    alpha = (1.0 - CONFIDENCE) / len(_SURE)
    return epsilon_from_guesses(correct, 2 * half, delta=delta, canaries=len(scores), alpha=alpha)


def ceiling_of(plan: Plan) -> Ceiling:
    """What accounting allows whoever sees all releases of a run."""
    event = training_event(plan)

    def found_at(rate: float) -> float:
        return detection_of(event, false_alarms=rate).found

    at = found_at(FALSE_ALARMS)
    strengths = [float(ndtri(found) - ndtri(rate)) for rate, found in ((FALSE_ALARMS, at), (0.1, found_at(0.1)))]
    if abs(strengths[0] - strengths[1]) < _ALIKE:  # Gaussian, whatever it is made of
        return Ceiling(float(ndtr(max(strengths) / math.sqrt(2.0))), at)
    found = np.array([found_at(float(rate)) for rate in _CURVE])
    steps = np.diff(np.concatenate([_CURVE, [1.0]]))
    area = _CURVE[0] * found[0] + np.sum(steps * np.concatenate([found[1:], [1.0]]))  # never too low
    return Ceiling(float(area), at)
