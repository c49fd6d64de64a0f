"""The part of an audit that is about noise on sums: its spread, its shape, where it lands, and that none is used twice.

Sums are first brought into a form in which each has noise of its own, and as much of it as any other: those of a tree
are added up to its nodes, and those of a bound that is learnt are measured by the bound of their round.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from veilrec._arrays import Doubles
from veilrec.plan import Plan
from veilrec.privacy.mechanisms.tree import TreeSum
from veilrec.privacy.randomness import FastSource, KeyedSource, Source
from veilrec.simulate.checks import ALPHA, Check, bare, is_equal, is_gaussian, repeats, spread_at_least
from veilrec.simulate.observe import Seen, SeenSums, Sums
from veilrec.updates import BOUND, Round

Noise = dict[str, Doubles]
NUMBERS = 100_000  # of noise: its spread is measured to a few thousandths
EXTRA = 1_000  # streams of noise that no run uses
_FEWEST_DRAWS = 40  # of the noise of every tensor, however small
_COUNTS = 2_000  # draws of the count's noise beside those
_MOST_ROUNDS = 4  # of a tree that are asked for in one draw
SPREAD = "standard deviation of the noise on a sum"


def own_noise(plan: Plan, sums: Sequence[SeenSums]) -> list[SeenSums]:
    """The sums of rounds one after another, from 0 on, each with noise of its own, that of the first round's size."""
    if isinstance(plan.mechanism, TreeSum):
        return [_node(sums[: place + 1], plan.mechanism.steps) for place in range(len(sums))]
    if plan.bound_rule is None:
        return list(sums)
    first: float = getattr(plan.mechanism, "clip_norm", 1.0)
    return [_measured_by(one, first) for one in sums]


def _measured_by(sums: SeenSums, clip_norm: float) -> SeenSums:
    """The sums of updates as if they had this bound."""
    scale = clip_norm / abs(sums.about.clip_norm or clip_norm)

    def scaled(totals: Sums) -> Sums:
        return {name: total * scale for name, total in totals.items() if name != BOUND}

    return replace(sums, before=scaled(sums.before), after=scaled(sums.after))


def _node(sums: Sequence[SeenSums], steps: int) -> SeenSums:
    """The node that the last of the rounds ends: as many rounds as the largest power of 2 that divides its place."""
    place = sums[-1].about.number % steps + 1
    inside = sums[-(place & -place) :]

    def added(totals: Sequence[Sums]) -> Sums:
        return {name: np.sum([total[name] for total in totals], axis=0) for name in totals[0]}

    return SeenSums(sums[-1].about, added([one.before for one in inside]), added([one.after for one in inside]))


def protected(plan: Plan, sums: SeenSums, source: Source, about: Round | None = None) -> SeenSums:
    """The same sums with noise from elsewhere."""
    about = sums.about if about is None else about
    after = {name: total.copy() for name, total in sums.before.items()}
    plan.mechanism.protect(after, about, source)
    return SeenSums(about, sums.before, after)


def measured_noise(plan: Plan, first: SeenSums, key: bytes, seed: int) -> tuple[dict[str, Noise], dict[str, Doubles]]:
    """Noise of every tensor, by where it comes from: the mechanism, asked again about the sums of the first round.

    In a tree, about so many rounds that two levels have noise. And that of the count, where the bound is learnt.
    """
    mechanism = plan.mechanism
    rounds = min(mechanism.steps, _MOST_ROUNDS) if isinstance(mechanism, TreeSum) else 1
    size = rounds * sum(total.size for total in first.before.values())
    draws = max(_FEWEST_DRAWS, math.ceil(NUMBERS / size))
    noise: dict[str, Noise] = {}
    counts: dict[str, Doubles] = {}
    for way in ("secret", "seeded"):
        parts: dict[str, list[Doubles]] = {}
        counted: list[Doubles] = []
        for draw in range(EXTRA, EXTRA + draws):
            asked = []
            for number in range(rounds):
                source: Source = KeyedSource(key, draw, number)
                if way == "seeded":
                    source = FastSource(seed, draw, number, one_generator=True)
                asked.append(protected(plan, first, source, replace(first.about, number=first.about.number + number)))
            for one in own_noise(plan, asked):
                for name in one.before:
                    parts.setdefault(name, []).append(one.noise(name))
            counted += [one.noise(BOUND) for one in asked if BOUND in one.before]
        if counted:
            many = SeenSums(first.about, {BOUND: np.zeros(_COUNTS)}, {})
            other = KeyedSource(key, EXTRA) if way == "secret" else FastSource(seed, EXTRA, one_generator=True)
            counted.append(protected(plan, many, other).noise(BOUND))
        noise[way] = {name: np.concatenate(part) for name, part in parts.items()}
        counts[way] = np.concatenate([np.zeros(0), *counted])
    return noise, counts


def measured_in_all(
    plan: Plan, sums: Sequence[SeenSums], key: bytes, seed: int
) -> tuple[dict[str, Noise], dict[str, Doubles]]:
    """The same of every tensor that a round is about: of the first round that is about it."""
    noise, counts = measured_noise(plan, sums[0], key, seed)
    for number, first in enumerate(firsts(sums)[1:], 1):
        further, _ = measured_noise(plan, first, key, seed + number)
        for way, of_tensors in further.items():
            noise[way] = {**of_tensors, **noise[way]}
    return noise, counts


def firsts(sums: Sequence[SeenSums]) -> list[SeenSums]:
    """The first round, and every other that is about tensors together of which no earlier one was."""
    found: dict[tuple[str, ...], SeenSums] = {}
    for one in sums:
        found.setdefault(tuple(one.before), one)
    return list(found.values())


def spread_of(noise: Noise) -> float:
    """The standard deviation of all of it together."""
    return float(np.sqrt(np.mean(np.concatenate(list(noise.values())) ** 2)))


def noise_checks(
    plan: Plan, secret: Sequence[Seen], seeded: Sequence[Seen], measured: dict[str, Noise], needed: float
) -> Iterator[Check]:
    """Spread, shape, and that no noise is used twice."""
    runs = {way: [own_noise(plan, one.sums) for one in seen] for way, seen in (("secret", secret), ("seeded", seeded))}
    tensors = list(measured["secret"])
    share = ALPHA / (len(tensors) * sum(len(sums) for sums in runs["secret"]) * 2 + 2)
    for way, noise in measured.items():
        together = np.concatenate(list(noise.values()))
        yield spread_at_least(SPREAD, together, needed, f"all tensors, {way}")
        yield is_gaussian("distance of the noise from a Gaussian", together[:NUMBERS], way)
    for tensor in tensors:
        parts = [
            (sums.noise(tensor), f"{tensor}, round {sums.about.number}, {way}")
            for way, seen in runs.items()
            for one in seen
            for sums in one
            if tensor in sums.before
        ]
        parts += [(noise[tensor], f"{tensor}, {way}") for way, noise in measured.items()]
        yield worst([spread_at_least(SPREAD, noise, needed, where, alpha=share) for noise, where in parts])
    for way, seen in runs.items():
        noises = [
            (f"{tensor} in round {sums.about.number} of run {number}", sums.noise(tensor))
            for number, one in enumerate(seen)
            for sums in one
            for tensor in tensors
            if tensor in sums.before
        ]
        found = repeats(noises, spread_of(measured[way]))
        where = f"{way}: {found[0]}" if found else way
        yield Check("pairs of noises that repeat each other", len(found), "is", 0, not found, where, ALPHA)


def worst(checks: list[Check]) -> Check:
    """One that fails, or the last, which has the most numbers behind it."""
    found = next((check for check in checks if not check.holds), checks[-1])
    return replace(found, false_alarm_rate=sum(check.false_alarm_rate for check in checks))


def coverage_checks(plan: Plan, runs: Sequence[Seen], spread: float, key: bytes) -> Iterator[Check]:
    """Every number that a round is about has noise, whether it carries data or not; and the others carry none."""
    uncovered, outside, carried = 0, 0, 0
    for number, seen in enumerate(runs):
        again = [protected(plan, sums, KeyedSource(key, number, sums.about.number)) for sums in seen.sums]
        for one, other in zip(own_noise(plan, seen.sums), own_noise(plan, again), strict=True):
            uncovered += sum(bare(one.noise(name), other.noise(name), spread) for name in one.before)
        for sums in seen.sums:
            outside += sum(sums.outside(name) for name in sums.before)
            carried += sum(int(np.count_nonzero(before)) for before in sums.before.values())
    yield is_equal("numbers of a round without noise", uncovered, 0, f"{carried} carried data")
    yield is_equal("numbers outside of a round that carry anything", outside, 0)
