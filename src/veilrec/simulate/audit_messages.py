"""The part of an audit that is about messages with noise of their own: what a paper claims, and what it comes to.

Such a claim is not expected to hold. The audit holds when the statement beside it is true: when the noise that was
measured gives the honest epsilon that is printed, or none that is finite.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from veilrec._arrays import Doubles
from veilrec.plan import Plan
from veilrec.privacy.accounting import epsilon_of, epsilon_renyi
from veilrec.privacy.events import ComposedEvent, Event, GaussianEvent, LaplaceEvent
from veilrec.privacy.guarantee import Guarantee
from veilrec.privacy.randomness import KeyedSource
from veilrec.simulate.audit_reports import Told, report_checks
from veilrec.simulate.checks import Check, is_equal, rate_at_most, spread_is_one
from veilrec.simulate.observe import Seen
from veilrec.updates import Round, Schema, Uploads, filled, from_vectors, to_vectors

_NEAR = 0.03  # of an epsilon that rests on measured noise
_USUAL = 0.2  # of the number of items of a sub-model, which the statement takes from one draw of the reports
_LAPLACE = 4.5  # kurtosis between that of Gaussian noise, 3, and that of Laplace noise, 6
_NOTHING = 2.0**-19  # of a standard deviation
_BY_CHANCE = 1e-5  # how often noise is nearer to nothing than that, at most
_MESSAGES = 300  # that are looked at
_ENOUGH = 500  # numbers, for the spread of noise of any law


def message_checks(plan: Plan, secret: Seen, seeded: Seen, told: Told | None, guarantee: Guarantee) -> Iterator[Check]:
    """What a statement says of messages that are in the clear, or noisy as a paper has it."""
    cost = plan.mechanism.event()
    if guarantee.basis == "none":
        yield is_equal("what the statement promises", "nothing", "nothing")
        yield is_equal("epsilon of an update", _word(epsilon_of(cost, 1e-6)), "none is finite")
        return
    if plan.mechanism.is_linear:  # noise that is added before learning does not cover what is sent
        yield is_equal("epsilon of a message", _word(epsilon_of(cost, 1e-6)), "none is finite")
        stated = "none is finite" if guarantee.honest_epsilon is None else _word(guarantee.honest_epsilon)
        yield is_equal("honest epsilon of the statement", stated, "none is finite")
        refuted = epsilon_of(cost, 1e-6) > (guarantee.epsilon or 0.0)
        yield is_equal("the paper's claim", "refuted" if refuted else "not refuted", "refuted")
        return
    noise = _noise(plan, secret)
    sent = np.concatenate([part.ravel() for part in noise.values()])
    spread = max(float(np.std(part)) for part in noise.values())
    nothing = int(np.count_nonzero(np.abs(sent) <= _NOTHING * spread))
    yield rate_at_most("numbers that are sent without noise", nothing, len(sent), _BY_CHANCE, "")
    delta = guarantee.honest_delta if guarantee.honest_delta is not None else guarantee.delta or 0.0
    epsilon = _epsilon(plan, secret, noise, delta)
    name = "epsilon of a message, from the noise that was measured"
    if guarantee.honest_epsilon is None:
        yield is_equal(name, _word(epsilon), "none is finite")
    else:
        honest, share = guarantee.honest_epsilon, _NEAR if told is None else _USUAL
        near, allowed = abs(epsilon / honest - 1.0) < share, (honest * (1.0 - share), honest * (1.0 + share))
        yield Check(name, epsilon, "is", honest, near, f"at delta {delta:g}", 1e-6, allowed)
    claimed = guarantee.epsilon or 0.0
    yield is_equal("the paper's claim", "refuted" if epsilon > claimed else "not refuted", "refuted", f"{claimed:g}")
    yield from _shortcut(noise, seeded)
    if told is not None:
        yield from report_checks(plan, told, [secret], [seeded], guarantee)


def _word(epsilon: float) -> str:
    return f"{epsilon:.4g}" if math.isfinite(epsilon) else "none is finite"


def _noise(plan: Plan, seen: Seen) -> dict[str, Doubles]:
    """What was added to the numbers that messages carry, by tensor: [numbers] or, where all are sent, [n, size]."""
    parts: dict[str, list[Doubles]] = {}
    for number, (bounded, sent, about) in enumerate(seen.messages[:_MESSAGES]):
        view, noisy = about.view(plan.schema), sent
        if sent.factors:  # what follows the noise is not noise
            inner: Any = plan.mechanism
            noisy = inner.inner.perturb(bounded, about, KeyedSource(b"an audit's own secret", number))
        before, after = to_vectors(filled(bounded, view), view), to_vectors(noisy, view)
        start = 0
        for tensor in view.tensors:
            place = slice(start, start + tensor.size)
            start += tensor.size
            difference = (after - before)[:, place]
            if tensor.name in noisy.entries:
                difference = difference[:, noisy.entries[tensor.name].index]
            parts.setdefault(tensor.name, []).append(difference)
    return {name: np.concatenate([one.ravel() for one in some]) for name, some in parts.items()}


def _chosen_by_data(messages: Sequence[tuple[Uploads, Uploads, Round]]) -> bool:
    """Whether messages of one round differ in which numbers they carry."""
    for name in {name for _, sent, _ in messages for name in sent.entries}:
        places = {sent.entries[name].index.tobytes() for _, sent, about in messages if about.number == 0}
        if len(places) > 1:
            return True
    return False


def _epsilon(plan: Plan, seen: Seen, noise: dict[str, Doubles], delta: float) -> float:
    """Of one message, and of one report where there are any; infinite where the data chooses what is sent."""
    moved = _moved(plan, seen.messages[0][2])
    if _chosen_by_data(seen.messages) or any(float(np.std(noise[name])) == 0.0 for name in moved):
        return math.inf
    report: list[tuple[Event, int]] = [] if plan.reports is None else [(plan.reports.mechanism.event(), 1)]
    together = np.concatenate([noise[name] / np.std(noise[name]) for name in moved])
    if float(np.mean(together**4)) < _LAPLACE:
        squares = sum(float(np.sum((distance / np.std(noise[name])) ** 2)) for name, distance in moved.items())
        return epsilon_of(ComposedEvent((*report, (GaussianEvent(math.sqrt(squares)), 1))), delta)
    losses = np.concatenate([distance / float(np.mean(np.abs(noise[name]))) for name, distance in moved.items()])
    pure = epsilon_of(ComposedEvent((*report, (LaplaceEvent(float(losses.sum())), 1))), 0.0)
    if delta == 0.0:
        return pure
    kinds, counts = np.unique(np.round(losses, 9), return_counts=True)
    each = [(LaplaceEvent(float(kind)), int(count)) for kind, count in zip(kinds, counts, strict=True)]
    return min(pure, epsilon_renyi(ComposedEvent((*report, *each)), delta))


def _moved(plan: Plan, about: Round) -> dict[str, Doubles]:
    """How far the two updates of the worst pair lie apart once they are bounded, in every number of a message."""
    view = about.view(plan.schema)
    pair = [_narrowed(vector, plan.schema.learnt, view) for vector in plan.mechanism.worst_pair()]
    bounded = plan.mechanism.bound(from_vectors(np.stack(pair), view), about)
    first, second = to_vectors(bounded, view)
    moved, start = {}, 0
    for tensor in view.tensors:
        moved[tensor.name] = np.abs(first - second)[start : start + tensor.size]
        start += tensor.size
    return moved


def _narrowed(vector: Doubles, schema: Schema, view: Schema) -> Doubles:
    """The first rows of every table, as many as a round has."""
    parts, start = [], 0
    for whole, part in zip(schema.tensors, view.tensors, strict=True):
        parts.append(vector[start : start + whole.size][: part.size])
        start += whole.size
    return np.concatenate(parts)


def _shortcut(noise: dict[str, Doubles], seeded: Seen) -> Iterator[Check]:
    """A simulation may draw the noise of all messages of a round at once: it has to be as much."""
    drawn: dict[str, Doubles] = {}  # as if one message had had it, in standard deviations of one that had
    for name, of_message in noise.items():
        shared = [
            (total[name] / math.sqrt(float(np.sum(weights.astype(np.float64) ** 2)))).ravel()
            for total, weights in seeded.shared
            if name in total
        ]
        spread = float(np.std(of_message))
        if shared and spread > 0.0:
            drawn[name] = np.concatenate(shared) / spread
    if not drawn:
        return
    together = {"all tensors": np.concatenate(list(drawn.values()))}
    for name, values in (drawn | together).items():
        if len(values) >= _ENOUGH:
            yield spread_is_one("noise of a simulation that draws it at once", values, name)
