"""The part of an audit that is about a bound that is learnt: its count, its noise, and where the next bound is from."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from veilrec._arrays import Doubles
from veilrec.errors import VeilrecError
from veilrec.plan import Plan
from veilrec.privacy.accounting import epsilon_of
from veilrec.privacy.events import GaussianEvent, SampledEvent, repeated
from veilrec.privacy.guarantee import Guarantee
from veilrec.privacy.randomness import KeyedSource
from veilrec.simulate.audit_noise import EXTRA, measured_noise, spread_of
from veilrec.simulate.checks import ALPHA, Check, at_most, is_equal, spread_at_least
from veilrec.simulate.observe import Seen, SeenSums
from veilrec.updates import BOUND, Round, Uploads, from_vectors

_SLACK = 0.002
_NEAR = 0.05  # of an epsilon that rests on some hundred draws of the count's noise, and many of the updates'
_NUMBERS = 20_000  # of noise at either of two bounds
COUNT = "standard deviation of the noise on the count"
BY_ROUND = "standard deviation of the noise at another bound"


def learnt_bound_checks(
    plan: Plan, runs: Sequence[Seen], counted: Mapping[str, Doubles], needed: float, key: bytes
) -> Iterator[Check]:
    """Everything about the bound; `needed` is the noise that the first one needs on a sum."""
    mechanism: Any = plan.mechanism
    stated: float = getattr(mechanism, "count_standard_deviation", math.inf)
    for way, noise in counted.items():
        yield spread_at_least(COUNT, noise, stated * (1.0 - _SLACK), way)
    first: float = mechanism.clip_norm
    yield from _follows(plan, runs[0].sums[0], first, needed, key)
    told, meant = [], []
    for clip_norm in (first / 2.0, 2.0 * first):
        sizes = (0.0, clip_norm / 2.0, clip_norm * 1.001, 50.0 * clip_norm)
        told += _counts(plan, Round(0, clip_norm=clip_norm), sizes)
        meant += [0.5, 0.5, -0.5, -0.5]
    yield is_equal("what updates within and beyond a bound count for", _words(told), _words(meant))
    seen = [float(np.abs(counts).max()) for run in runs for counts in run.counts if len(counts)]
    yield at_most("how far one message moves the count", max(seen, default=math.inf), 0.5)
    fits = mechanism.bound(_updates(plan, (first / 2.0,)), Round(0, clip_norm=first))
    for what, counts in (("missing", None), ("1", 1.0), ("no number", math.nan)):
        yield is_equal(f"a message whose count is {what}", _checked(plan, fits, first, counts), "refused")
    yield is_equal("rounds whose bound is not from the protected count", sum(_elsewhere(plan, run) for run in runs), 0)


def _follows(plan: Plan, sums: SeenSums, first: float, needed: float, key: bytes) -> Iterator[Check]:
    """Noise at half and at twice the bound, in turn, so that what is left of the round before shows."""
    size = sum(total.size for name, total in sums.before.items() if name != BOUND)
    noise: dict[float, list[Doubles]] = {0.5: [], 2.0: []}
    for draw in range(math.ceil(_NUMBERS / size)):
        for factor, parts in noise.items():
            after = {name: np.zeros_like(total) for name, total in sums.before.items()}
            about = replace(sums.about, clip_norm=factor * first)
            plan.mechanism.protect(after, about, KeyedSource(key, 2 * EXTRA + draw, int(factor)))
            parts += [total.ravel() / factor for name, total in after.items() if name != BOUND]
    for factor, parts in noise.items():
        yield spread_at_least(BY_ROUND, np.concatenate(parts), needed, f"{factor:g} times the first")


def _updates(plan: Plan, sizes: Sequence[float]) -> Uploads:
    """Updates of these norms."""
    view = plan.schema.learnt
    vectors = np.zeros((len(sizes), sum(tensor.size for tensor in view.tensors)))
    start = 0
    for tensor in view.tensors:
        if tensor.name != BOUND:
            vectors[:, start] = sizes
            break
        start += tensor.size
    return from_vectors(vectors, view)


def _counts(plan: Plan, about: Round, sizes: Sequence[float]) -> list[float]:
    counts = plan.mechanism.bound(_updates(plan, sizes), about).dense.get(BOUND)
    return [] if counts is None else [float(count) for count in counts.ravel()]


def _words(numbers: Sequence[float]) -> str:
    return " ".join(f"{number:g}" for number in numbers)


def _checked(plan: Plan, uploads: Uploads, clip_norm: float, count: float | None) -> str:
    dense = {name: values for name, values in uploads.dense.items() if name != BOUND}
    if count is not None:
        dense[BOUND] = np.full((uploads.count, 1), count, np.float32)
    try:
        plan.mechanism.check(replace(uploads, dense=dense), Round(0, clip_norm=clip_norm))
    except VeilrecError:
        return "refused"
    return "passed on"


def _elsewhere(plan: Plan, run: Seen) -> int:
    """Rounds after which the bound is another than the rule makes of the count as it was after the noise."""
    if plan.bound_rule is None:
        return 0
    before = [float(plan.start[BOUND][0]), *(float(weights[BOUND][0]) for weights in run.released)]
    wanted = [
        np.float32(plan.bound_rule.next(now, float(sums.after[BOUND][0])))
        for now, sums in zip(before, run.sums, strict=False)
    ]
    used = sum(sums.about.clip_norm != now for now, sums in zip(before, run.sums, strict=False))
    moved = sum(bool(weights[BOUND][0] != bound) for weights, bound in zip(run.released, wanted, strict=True))
    return used + moved


def published_bound_checks(
    plan: Plan, first: SeenSums, guarantee: Guarantee, devices: int, key: bytes, seed: int
) -> Iterator[Check]:
    """The printed form: what its noise, as it was measured, costs over the run, beside the honest value stated."""
    measured, counted = measured_noise(plan, first, key, seed)
    clip_norm: float = getattr(plan.mechanism, "clip_norm", math.inf)
    rate = plan.cohort.among(devices) / devices
    delta = guarantee.honest_delta or 0.0
    for way, noise in measured.items():
        mu = math.hypot(2.0 * clip_norm / spread_of(noise), 1.0 / max(float(np.std(counted[way])), 1e-300))
        accounted: Any = getattr(plan.mechanism, "taking_part", None)
        amplified = accounted is not None and accounted.rate < 1.0
        one = SampledEvent(mu, rate, "fixed") if amplified else GaussianEvent(mu)
        epsilon = epsilon_of(repeated(one, plan.rounds), delta)
        stated = guarantee.honest_epsilon or math.inf
        near = abs(epsilon / stated - 1.0) < _NEAR
        name = "epsilon of the run, from the noise that was measured"
        allowed = (stated * (1.0 - _NEAR), stated * (1.0 + _NEAR))
        yield Check(name, epsilon, "is", stated, near, f"{way}, at delta {delta:g}", ALPHA, allowed)
    yield is_equal("adjacency of the statement", str(guarantee.adjacency), plan.mechanism.adjacency)
