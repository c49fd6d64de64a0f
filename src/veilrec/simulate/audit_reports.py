"""The part of an audit that is about reports: what devices tell before a round, how often, and what covers it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from veilrec._arrays import Bools, Doubles
from veilrec._csr import Csr
from veilrec.plan import Plan
from veilrec.privacy.accounting import epsilon_of
from veilrec.privacy.events import ComposedEvent, Event, GaussianEvent
from veilrec.privacy.guarantee import Guarantee
from veilrec.privacy.mechanisms.reports import ItemReports
from veilrec.privacy.mechanisms.votes import VoteReports
from veilrec.privacy.randomness import FastSource, KeyedSource, Source
from veilrec.simulate.checks import (
    ALPHA,
    Check,
    at_least,
    at_most,
    bare,
    is_equal,
    rate_at_least,
    repeats,
    spread_at_least,
)
from veilrec.simulate.observe import Seen, SeenReports

_NUMBERS = 100_000
_EXTRA = 2_000  # periods that no run reaches


@dataclass(frozen=True)
class Told:
    """What the reports of a run tell, as it was seen."""

    times: int  # how many different ones a device gives in a whole run
    noise: dict[str, Doubles]  # on the counts, by where it comes from; empty: bits are turned round instead
    lies: dict[str, tuple[int, int, int, int]]  # of bits: made up, of how many; left out, of how many


def told_by(plan: Plan, data: Csr, secret: Sequence[Seen], seeded: Sequence[Seen]) -> Told | None:
    """What was seen of reports."""
    reports = plan.reports
    if reports is None:
        return None
    first = secret[0].reports[0]
    times = plan.rounds if max(_different(seen.reports) for seen in (*secret, *seeded)) > 1 else 1
    if isinstance(reports.mechanism.event(), GaussianEvent):
        return Told(times, _measured(reports.mechanism, first), {})
    lies = {way: _lies(data, [one for seen in runs for one in seen.reports]) for way, runs in _ways(secret, seeded)}
    return Told(times, {}, lies)


def _ways(secret: Sequence[Seen], seeded: Sequence[Seen]) -> tuple[tuple[str, Sequence[Seen]], ...]:
    return ("secret", secret), ("seeded", seeded)


def _different(reports: Sequence[SeenReports]) -> int:
    """How many different things one device, or the counts, said."""
    said: dict[int, set[bytes]] = {}
    for one in reports:
        for device, told in zip(one.devices.tolist(), one.told, strict=True):
            said.setdefault(device, set()).add(told.tobytes())
    return max(len({one.protected.tobytes() for one in reports}), *(len(different) for different in said.values()))


def _changed(plan: Plan, guarantee: Guarantee) -> int:
    """How many bits one unit changes."""
    length = plan.reports.mechanism.length if plan.reports is not None else 0
    if guarantee.unit != "click":
        return length
    return 1 if guarantee.adjacency == "add-remove" else min(2, length)


def _moved(plan: Plan, guarantee: Guarantee) -> float:
    """How far one unit moves the counts: a device's items come or go, or turn into others."""
    people = 1 if guarantee.adjacency == "add-remove" else 2
    return math.sqrt(people * _most_squared(plan))


def _most_squared(plan: Plan) -> int:
    """The squared norm of what one device adds to the counts, at most: so many items, or one vote."""
    mechanism = plan.reports.mechanism if plan.reports is not None else None
    if isinstance(mechanism, VoteReports):
        return 1
    most: int = getattr(mechanism, "most_items", getattr(mechanism, "length", 0))
    return most


def _measured(mechanism: ItemReports, first: SeenReports) -> dict[str, Doubles]:
    """Noise on counts: the plan's own mechanism, asked again and again."""
    counts = first.told.sum(axis=0)
    draws = max(2, math.ceil(_NUMBERS / len(counts)))
    sources: dict[str, list[Source]] = {
        "secret": [KeyedSource(b"an audit's own secret", _EXTRA + draw) for draw in range(draws)],
        "seeded": [FastSource(1, _EXTRA + draw, one_generator=True) for draw in range(draws)],
    }
    return {
        way: np.concatenate([mechanism.protect(counts, source) - counts * mechanism.step for source in drawn])
        for way, drawn in sources.items()
    }


def _lies(data: Csr, reports: Sequence[SeenReports]) -> tuple[int, int, int, int]:
    """Bits that were made up, of how many zeros, and left out, of how many ones; each different report once."""
    made_up = zeros = left_out = ones = 0
    seen: set[tuple[int, bytes]] = set()
    for one in reports:
        for device, told in zip(one.devices.tolist(), one.told, strict=True):
            if (device, told.tobytes()) in seen:
                continue
            seen.add((device, told.tobytes()))
            own: Bools = np.zeros(len(told), np.bool_)
            own[data.row(device)] = True
            made_up += int(told[~own].sum())
            zeros += int(np.count_nonzero(~own))
            left_out += int(np.count_nonzero(told[own] == 0))
            ones += int(np.count_nonzero(own))
    return made_up, zeros, left_out, ones


def report_checks(
    plan: Plan, told: Told, secret: Sequence[Seen], seeded: Sequence[Seen], guarantee: Guarantee
) -> Iterator[Check]:
    """Noise or lies as many as are charged for, as often as is charged for, on no more items than may count."""
    reports = plan.reports
    if reports is None:
        return
    event = reports.mechanism.event()
    yield at_least("times that a device's report is charged for", _charged(plan, event), told.times)
    if not told.noise:
        least = epsilon_of(event, 0.0) / _changed(plan, guarantee)
        needed = math.exp(-least) / (1.0 + math.exp(-least))
        for way, (made_up, zeros, left_out, ones) in told.lies.items():
            yield rate_at_least("bits of a report that are made up", made_up, zeros, needed, way)
            yield rate_at_least("bits of a report that are left out", left_out, ones, needed, way)
        return
    step, what = reports.mechanism.step, "squared votes" if isinstance(reports.mechanism, VoteReports) else "items"
    largest = max(int((one.told**2).sum(axis=1).max()) for seen in (*secret, *seeded) for one in seen.reports)
    yield at_most(f"{what} of one device in the counts", largest * step**2, _most_squared(plan))
    mu = event.mu if isinstance(event, GaussianEvent) else 0.0
    sigma = _moved(plan, guarantee) / mu if mu > 0.0 else math.inf
    for way, noise in told.noise.items():
        yield spread_at_least("standard deviation of the noise on the counts", noise, sigma * (1.0 - 1e-3), way)
        first, second = noise.reshape(-1, reports.mechanism.length)[:2]
        yield is_equal("counts without noise", bare(first, second, sigma), 0, way)
    for way, runs in _ways(secret, seeded):
        noises = [
            (f"counts {number} of run {run}", one.protected - one.told.sum(axis=0) * step)
            for run, seen in enumerate(runs)
            for number, one in enumerate(seen.reports)
        ]
        found = repeats(noises, sigma)
        where = f"{way}: {found[0]}" if found else way
        yield Check("noises on counts that repeat each other", len(found), "is", 0, not found, where, ALPHA)


def _charged(plan: Plan, event: Event) -> int:
    """How many reports the composed run counts."""
    whole = replace(plan, comparison=None).event()
    parts = whole.parts if isinstance(whole, ComposedEvent) else ((whole, 1),)
    return sum(count for part, count in parts if part == event)
