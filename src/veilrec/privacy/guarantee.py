"""What a run, a release or a query promises, with everything that an epsilon means nothing without.

What two runs promise together, where the second starts from the model of the first: the plainest sum that holds.

Basic composition: a run that keeps (e1, d1) and another, chosen after seeing its outcome, that keeps (e2, d2) keep
(e1 + e2, d1 + d2) together, for whoever was in both. Whoever was in one of them has that one's promise, which is less.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, get_args

from veilrec.core.errors import BadInput
from veilrec.privacy.events import ComposedEvent, Event, event_from_json, event_to_json

Unit = Literal["click", "history", "user"]
Adjacency = Literal["replace-one", "add-remove"]
Scope = Literal["per message", "per round", "whole run", "lifetime"]
# Who adds the noise, and what the server sees without it: nothing at all (`nobody`); nothing, because the clients of a
# sum add its distributed noise; exact sums, to which it adds the noise; every message, likewise.
Trust = Literal["nobody", "server sees only noisy sums", "server sees only sums", "server"]
Basis = Literal["proven", "as published", "none"]
ADJACENCIES: tuple[Adjacency, ...] = ("add-remove", "replace-one")
TRUSTS: tuple[Trust, ...] = get_args(Trust)  # from the least to the most
_WORDS: Mapping[str, tuple[str, ...]] = {
    "basis": get_args(Basis),
    "unit": get_args(Unit),
    "adjacency": get_args(Adjacency),
    "scope": get_args(Scope),
    "trust": TRUSTS,
}


@dataclass(frozen=True)
class Disclosure:
    """What leaves a client, what the server sees, and what is published: sentences derived from a plan.

    `privacy.disclosure.disclosure_of` makes it. `fields` names everything that is sent, by its name in the messages.
    """

    fields: tuple[str, ...]
    leaves: tuple[str, ...]
    stays: tuple[str, ...]
    server: tuple[str, ...]
    published: tuple[str, ...]
    simulated: str = ""  # why a simulated run protects nobody from whoever ran it; empty for real clients

    @classmethod
    def from_json(cls, told: Any) -> Disclosure:
        """Read what `Guarantee.to_json` wrote; anything else raises BadInput."""
        lists = ("fields", "leaves", "stays", "server", "published")
        whole = isinstance(told, Mapping) and set(told) == {*lists, "simulated"} and isinstance(told["simulated"], str)
        if not whole or not all(isinstance(word, str) for name in lists for word in _listed(told[name])):
            raise BadInput("not a privacy guarantee of veilrec: its disclosure is not as it should be")
        return cls(**{name: tuple(told[name]) for name in lists}, simulated=told["simulated"])


def _listed(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, list | tuple) else (None,)


@dataclass(frozen=True)
class Guarantee:
    """One statement; epsilon is None where nothing is promised (basis "none")."""

    basis: Basis
    unit: Unit | None = None
    adjacency: Adjacency | None = None
    epsilon: float | None = None
    delta: float | None = None
    scope: Scope | None = None
    trust: Trust | None = None
    caveats: tuple[str, ...] = ()
    # What really holds where a paper's claim is stated, for the same unit, adjacency, scope and trust.
    honest_epsilon: float | None = None
    honest_delta: float | None = None
    honest_note: str = ""  # why the honest value is another one, or why there is none
    # What was done, where that is known: it says more than epsilon (or the honest one) and delta, see `meaning`.
    event: Event | None = None
    # Why nobody may rely on it as the run or release lies there: its noise can be drawn again, or nothing is proven.
    # Empty for a run that may be published, and for methods, messages and queries, which are no run.
    obstacle: str = ""
    disclosure: Disclosure | None = None  # of runs and releases: what leaves a client, who sees it, what is published

    def __post_init__(self) -> None:
        for name, allowed in _WORDS.items():
            value = getattr(self, name)
            if value is not None and value not in allowed:
                raise ValueError(f"{name} is {value!r}: allowed are {', '.join(allowed)}")
        fields = (self.unit, self.adjacency, self.epsilon, self.delta, self.scope, self.trust)
        if self.basis == "none" and any(field is not None for field in (*fields, self.event)):
            raise ValueError("a guarantee with basis 'none' promises nothing: leave the other fields out")
        if self.basis != "none" and any(field is None for field in fields):
            raise ValueError("an epsilon needs its unit, adjacency, delta, scope and trust")
        if (self.honest_epsilon is None) != (self.honest_delta is None):
            raise ValueError("an honest epsilon and its delta come together")
        if self.basis != "as published" and (self.honest_epsilon is not None or self.honest_note):
            raise ValueError("an honest value beside the stated one is for basis 'as published' only")
        for epsilon in (self.epsilon, self.honest_epsilon):
            if epsilon is not None and not 0.0 <= epsilon < math.inf:
                raise ValueError(f"epsilon is {epsilon}: it is finite and not negative")
        for delta in (self.delta, self.honest_delta):
            if delta is not None and not 0.0 <= delta < 1.0:
                raise ValueError(f"delta is {delta}: it lies from 0 to below 1")

    def to_json(self) -> dict[str, Any]:
        """All fields, for result files."""
        fields = asdict(self) | {"caveats": list(self.caveats)}
        fields["event"] = None if self.event is None else event_to_json(self.event)
        if not self.obstacle:  # of runs and releases alone, as is the disclosure
            del fields["obstacle"]
        told = fields.pop("disclosure")
        if told is not None:  # with lists, as it is read back
            fields["disclosure"] = {
                name: list(part) if isinstance(part, tuple) else part for name, part in told.items()
            }
        return fields

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Guarantee:
        """Read what `to_json` wrote; fields that are unknown or impossible raise."""
        caveats = fields.get("caveats", ())
        if not isinstance(caveats, list | tuple) or not all(isinstance(caveat, str) for caveat in caveats):
            raise BadInput(f"not a privacy guarantee of veilrec: caveats are a list of texts, not {caveats!r}")
        event, told = fields.get("event"), fields.get("disclosure")
        known = None if event is None else event_from_json(event)
        disclosure = None if told is None else Disclosure.from_json(told)
        if not isinstance(fields.get("obstacle", ""), str):
            raise BadInput(f"not a privacy guarantee of veilrec: obstacle is a text, not {fields['obstacle']!r}")
        try:
            return cls(**{**fields, "caveats": tuple(caveats), "event": known, "disclosure": disclosure})
        except (TypeError, ValueError) as error:
            raise BadInput(f"not a privacy guarantee of veilrec: {error}") from None

    def line(self) -> str:
        """One line for tables and logs; an epsilon is never printed without its unit and the rest."""
        if self.basis == "none":
            return "no privacy guarantee"
        line = (
            f"({self.epsilon:g}, {self.delta:g})-DP per {self.unit} ({self.adjacency}), {self.scope}, "
            f"trusting: {self.trust}, {self.basis}"
        )
        if self.basis == "proven":
            return line
        if self.honest_epsilon is None:
            return f"{line}; that does not hold"
        return f"{line}; honestly ({self.honest_epsilon:.4g}, {self.honest_delta:g}) in the same terms, proven"

    @property
    def holds(self) -> bool:
        """Whether it is proven, and for the very noise that was drawn."""
        return self.basis == "proven" and not self.obstacle

    def promise(self) -> str:
        """The line of a run or a release: without a guarantee where something stands in its way: see the remarks."""
        if self.basis == "proven" and self.obstacle:
            return f"no guarantee as it is; without what stands in its way it would be {self.line()}"
        return self.line()

    def remarks(self) -> tuple[str, ...]:
        """The sentences that belong below the line: first what is wrong with a paper's claim, then the caveats."""
        note, caveats = self.honest_note.removesuffix("."), self.caveats
        if self.obstacle:
            caveats = (*caveats, f"Not to be published: {self.obstacle}.")
        if not note:
            return caveats
        return (f"{note}." if self.honest_epsilon is None else f"The honest number: {note}.", *caveats)


def no_guarantee(*caveats: str) -> Guarantee:
    """The statement of a method whose messages are not private."""
    return Guarantee(basis="none", caveats=caveats)


def after(now: Guarantee, earlier: Guarantee, *, run: str) -> Guarantee:
    """The statement of a run that started from the model of an earlier one, called `run`."""
    if now.basis == "none":
        return replace(now, caveats=(f"It started from the run {run}: {earlier.line()}.", *now.caveats))
    both = f"This run alone: {now.line()}. The earlier run {run} that it started from: {earlier.line()}."
    if now.basis == "as published":
        on_top = f"{both} What the earlier run costs comes on top for whoever was in both."
        return replace(now, caveats=(on_top, *now.caveats))
    if earlier.basis != "proven":
        reason = "no proven noise covers what its model has learnt, so that nothing is promised of this one."
        return no_guarantee(f"{both} The model of the earlier run is in this one, and {reason}", *now.caveats)
    if (now.unit, now.scope) != (earlier.unit, earlier.scope):
        reason = "promises about different units or scopes do not add up: nothing is promised of the two together."
        return no_guarantee(f"{both} Two {reason}", *now.caveats)
    adjacency, epsilon, delta = _sum(now, earlier)
    if delta >= 1.0:
        reason = "their deltas add up to 1 or more, so that nothing is promised of the two together."
        return no_guarantee(f"{both} Brought to one adjacency, {reason}", *now.caveats)
    trust = max(TRUSTS.index(g.trust) for g in (now, earlier) if g.trust is not None)
    event = None  # not known where one does not say, or was accounted for another adjacency
    if now.event is not None and earlier.event is not None and now.adjacency == earlier.adjacency:
        event = ComposedEvent(((now.event, 1), (earlier.event, 1)))
    caveat = f"{both} The two together, for whoever was in both, by basic composition: epsilons and deltas add up."
    return replace(
        now,
        adjacency=adjacency,
        epsilon=epsilon,
        delta=delta,
        trust=TRUSTS[trust],
        caveats=(caveat, *now.caveats),
        event=event,
    )


def _sum(now: Guarantee, earlier: Guarantee) -> tuple[Adjacency, float, float]:
    adjacency: Adjacency = "add-remove" if now.adjacency == earlier.adjacency == "add-remove" else "replace-one"
    epsilon = delta = 0.0
    for part in (now, earlier):
        e, d = part.epsilon or 0.0, part.delta or 0.0
        if part.adjacency != adjacency:  # replacing somebody is removing and adding somebody: group privacy for two
            e, d = 2 * e, (1 + math.exp(e)) * d
        epsilon, delta = epsilon + e, delta + d
    return adjacency, epsilon, delta
