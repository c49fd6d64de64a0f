"""What an account of the ledger may spend, what a message costs it, and what its spending adds up to."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, get_args

import numpy as np
from scipy.special import expit, ndtri

from veilrec.core.errors import BadInput, counted, unknown_name
from veilrec.core.plan import Plan
from veilrec.privacy.accounting import epsilon_zcdp, rho_max
from veilrec.privacy.accounting.accountant import Rounds, epsilon_for
from veilrec.privacy.accounting.composition import FlatComposition, flattened
from veilrec.privacy.accounting.gaussian import base_epsilon, epsilon_gaussian, mu_for, padded_mu
from veilrec.privacy.checks import attention_l1, attention_l2, positive, probability
from veilrec.privacy.events import Event, GaussianEvent, LaplaceEvent, PureEvent, ResponseEvent, SampledEvent
from veilrec.privacy.guarantee import TRUSTS, Adjacency, Guarantee, Trust, Unit

Accounting = Literal["zcdp", "gaussian"]
PLENTY = 1e9  # an epsilon that no check spends
_FROM_FINE_TO_COARSE: tuple[Unit, ...] = ("click", "history", "user")


@dataclass(frozen=True)
class Cost:
    """What messages cost an account, in its two currencies; nothing unless told otherwise."""

    loss: float = 0.0  # the sum of rho (zCDP accounts) or of mu^2 (Gaussian accounts)
    pure: float = 0.0  # the sum of the epsilons of pure mechanisms; infinite once a message was not pure

    def plus(self, other: Cost) -> Cost:
        """Both costs together, never rounded down."""
        return Cost(_sum_rounded_up(self.loss, other.loss), _sum_rounded_up(self.pure, other.pure))


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What one account may spend; a message leaves only if it fits into every account of its ledger.

    The filter lets a message pass if the losses then stay within the limit, or if the pure epsilons do. It
    holds for costs that were chosen by what earlier messages said (Feldman and Zrnic 2021; Smith and Thakurta
    2022). Joining the two conditions costs nothing: a transcript whose privacy loss exceeds epsilon breaks
    the second one, so it kept the first one throughout and is as likely as under the first filter alone.
    """

    unit: Unit
    adjacency: Adjacency
    epsilon: float  # what the messages of one period may spend together
    delta: float
    # What all messages ever may spend together, with the same delta; unlimited periods if None.
    lifetime_epsilon: float | None = None
    accounting: Accounting = "zcdp"  # zcdp: for all kinds of messages; gaussian: exact for Gaussian noise
    trust: Trust = "nobody"  # who else has to behave for the messages' statements to hold

    def __post_init__(self) -> None:
        positive(epsilon=self.epsilon)
        probability(delta=self.delta)
        for name, allowed in (("unit", Unit), ("adjacency", Adjacency), ("accounting", Accounting), ("trust", Trust)):
            if getattr(self, name) not in get_args(allowed):
                raise unknown_name(name, getattr(self, name), get_args(allowed))
        if self.lifetime_epsilon is not None:
            positive(lifetime_epsilon=self.lifetime_epsilon)
            if self.lifetime_epsilon < self.epsilon:
                raise BadInput(
                    f"lifetime_epsilon is {self.lifetime_epsilon}: it covers all periods, so give at least "
                    f"the {self.epsilon} of one"
                )

    def line(self, period: str = "period") -> str:
        """What an account allows, with everything that an epsilon means nothing without; `period` is what ends one."""
        terms = f"per {self.unit} ({self.adjacency})"
        basis = f"trusting: {self.trust}, proven by the filter of its ledger"
        ever = self.lifetime_epsilon
        life = "without a limit over its lifetime" if ever is None else f"({ever:g}, {self.delta:g}) in its lifetime"
        return f"({self.epsilon:g}, {self.delta:g})-DP {terms} for one {period}, {life}, {basis}"

    @property
    def limit(self) -> float:
        """The largest loss of one period."""
        return _limit(self.accounting, self.epsilon, self.delta)

    def allows(self, in_period: Cost, in_lifetime: Cost) -> bool:
        """Whether both sums are within the budget."""
        if not _within(in_period, self.limit, self.epsilon):
            return False
        if self.lifetime_epsilon is None:
            return True
        limit = _limit(self.accounting, self.lifetime_epsilon, self.delta)
        return _within(in_lifetime, limit, self.lifetime_epsilon)

    def remaining(self, in_period: Cost) -> float:
        """The share of the period's budget that is left, from 0 to 1."""
        return max(0.0, 1.0 - min(in_period.loss / self.limit, in_period.pure / self.epsilon))

    def cost(self, event: Event, unit: Unit, adjacency: Adjacency) -> Cost | None:
        """What a message costs this account; None if its unit or adjacency says nothing about the account's.

        Gains from sampling or padding have no form that adds up: such a message is charged as without them.
        """
        steps = _steps(unit, adjacency, self)
        if steps is None:
            return None
        parts = flattened(event)
        if parts.in_plaintext:
            raise BadInput("the message leaves something in plaintext: no budget is large enough for it")
        loss = _LOSSES[self.accounting](parts, steps)
        return Cost(loss, steps * parts.sum_of_pure)

    def spent(self, cost: Cost) -> tuple[float, float]:
        """The smallest (epsilon, delta) known to hold for messages of this cost."""
        epsilon = _EPSILONS[self.accounting](cost.loss, self.delta)
        return (cost.pure, 0.0) if cost.pure <= epsilon else (epsilon, self.delta)


def budget_for(plan: Plan, epsilon: float = PLENTY) -> Budget:
    """Budget that covers every message of a plan."""
    units: set[Unit] = {plan.mechanism.unit} | ({plan.reports.mechanism.unit} if plan.reports else set())
    unit: Unit = "click" if "click" in units else "user"
    told = (plan.mechanism, *(part.mechanism for part in (plan.reports, plan.model_selection) if part is not None))
    trust = max((mechanism.trust for mechanism in told), key=TRUSTS.index)
    return Budget(unit=unit, adjacency=plan.mechanism.adjacency, epsilon=epsilon, delta=1e-6, trust=trust)


def _steps(unit: Unit, adjacency: Adjacency, account: Budget) -> int | None:
    """How many neighbours of the message's kind lie between two neighbours of the account's kind.

    Whoever hides a whole history hides each click in it. Replacing a click is then one replacement of the
    history, but two steps of taking a history out and putting another one in.
    """
    behind = _FROM_FINE_TO_COARSE.index(unit) - _FROM_FINE_TO_COARSE.index(account.unit)
    if behind < 0 or (behind == 0 and (adjacency, account.adjacency) == ("replace-one", "add-remove")):
        return None
    return 1 if adjacency == "replace-one" or (behind == 0 and account.adjacency == "add-remove") else 2


def _rho(parts: FlatComposition, steps: int) -> float:
    total = steps**2 * 0.5 * parts.mu**2
    for event, count in parts.counts:
        if isinstance(event, SampledEvent):
            total += count * 0.5 * (steps * event.mu) ** 2
        else:
            # Renyi divergences of a pure mechanism are at most epsilon and at most alpha epsilon^2 / 2.
            epsilon = steps * event.epsilon
            total += count * min(0.5 * epsilon**2, epsilon)
    return total


def _squared_mu(parts: FlatComposition, steps: int) -> float:
    total = (steps * parts.mu) ** 2
    for event, count in parts.counts:
        if isinstance(event, SampledEvent):
            total += count * (steps * event.mu) ** 2
        else:
            # The convex trade-off curve of this mu meets randomised response's two line segments at their
            # three corners, so it lies below: whatever is epsilon-private is mu-Gaussian-private.
            total += count * (2.0 * float(ndtri(expit(-steps * event.epsilon)))) ** 2
    return total


_LOSSES: dict[Accounting, Callable[[FlatComposition, int], float]] = {"zcdp": _rho, "gaussian": _squared_mu}
_EPSILONS: dict[Accounting, Callable[[float, float], float]] = {
    "zcdp": epsilon_zcdp,
    "gaussian": lambda squared_mu, delta: epsilon_gaussian(math.sqrt(squared_mu), delta),
}


@lru_cache(maxsize=64)
def _limit(accounting: Accounting, epsilon: float, delta: float) -> float:
    return rho_max(epsilon, delta) if accounting == "zcdp" else mu_for(epsilon, delta) ** 2


def _within(cost: Cost, limit: float, epsilon: float) -> bool:
    return cost.loss <= limit or cost.pure <= epsilon


def _sum_rounded_up(a: float, b: float) -> float:
    total = a + b
    rest = total - a
    lost = (a - (total - rest)) + (b - rest)  # exactly what rounding took away (Knuth)
    return math.nextafter(total, math.inf) if lost > 0.0 else total


Calculable = Literal["gaussian", "laplace", "randomised-response", "k-ary", "attention", "label"]

_TERMS: dict[Calculable, tuple[Unit, tuple[str, ...]]] = {  # what is protected, and the options that mean something
    "gaussian": ("history", ("sensitivity", "padding")),
    "laplace": ("history", ("sensitivity", "padding")),
    "attention": ("history", ("padding", "basis", "clip")),
    "k-ary": ("history", ("candidates",)),
    "randomised-response": ("click", ()),
    "label": ("click", ("candidates",)),
}
_CAVEATS: dict[Calculable, str] = {
    "gaussian": "The sensitivity is taken to be that of replacing a whole history.",
    "laplace": "The sensitivity is taken to be that of replacing a whole history, in the L1 norm.",
    "attention": "The attention is noised before anything else is made of it; normalise it afterwards.",
    "k-ary": "Every new answer about the same value costs again; send the old answer instead.",
    "randomised-response": "Per bit: swapping an item changes two bits and costs twice as much, a whole "
    "vector as many times as it has bits. Every new answer about the same bit costs again.",
    "label": "The label is drawn over all candidates first, and the negatives after it, without looking at "
    "the click. A click that also stands in a history costs there as well.",
}
_LEAST_NOISE = 1e-6  # an epsilon of 5e11 a round
_MAX_ROUNDS = 2**31 - 1
_EXACT = "For exact noise; drawn on a lattice, as veilrec does, it takes a little more."
_PADDED = "Padding helps single clicks only, and needs a fresh secret mask for every message."


@dataclass(frozen=True, kw_only=True)
class Wish:
    """One message, and what it should promise."""

    mechanism: Calculable
    epsilon: float
    # Needed by Gaussian noise; attention without it takes Laplace noise; the others hold with delta 0.
    delta: float | None = None
    # L2 of gaussian, L1 of laplace; 1 if left out. That of the attention follows from the two below.
    sensitivity: float | None = None
    pad_probability: float | None = None  # of gaussian, laplace and attention; 0 if left out
    basis: int | None = None  # of attention with Laplace noise; 5 if left out
    clip_norm: float | None = None  # of attention; 1 if left out
    candidates: int | None = None  # categories of k-ary, items of the impression of label

    def __post_init__(self) -> None:
        if self.mechanism not in get_args(Calculable):
            raise unknown_name("mechanism", self.mechanism, get_args(Calculable))
        positive(epsilon=self.epsilon)
        if self.delta is not None:
            probability(delta=self.delta)
        given = {
            "sensitivity": self.sensitivity,
            "padding": self.pad_probability,
            "basis": self.basis,
            "clip": self.clip_norm,
            "candidates": self.candidates,
        }
        for name, value in given.items():
            if value is not None and name not in _TERMS[self.mechanism][1]:
                raise BadInput(f"{self.mechanism} takes no --{name}: leave it out")
        if self.basis is not None and self.delta is not None:
            raise BadInput(
                "--basis counts with Laplace noise only, and --delta asks for Gaussian noise: leave one of them out"
            )


@dataclass(frozen=True)
class Setting:
    """Numbers to set, and what they promise."""

    settings: Mapping[str, Any]
    guarantee: Guarantee


def noise_of_message(wish: Wish) -> Setting:
    """The least noise that keeps the wish."""
    match wish.mechanism:
        case "gaussian":
            if wish.delta is None:
                raise BadInput("Gaussian noise has no epsilon without a delta: give --delta, such as 1e-6")
            return _gaussian(wish, 1.0 if wish.sensitivity is None else wish.sensitivity, wish.delta)
        case "laplace":
            return _laplace(wish, 1.0 if wish.sensitivity is None else wish.sensitivity)
        case "attention":
            clip_norm = 1.0 if wish.clip_norm is None else wish.clip_norm
            if wish.delta is None:
                return _laplace(wish, attention_l1(clip_norm, 5 if wish.basis is None else wish.basis))
            return _gaussian(wish, attention_l2(clip_norm), wish.delta)
        case _:
            return _response(wish)


def epsilon_of_training(noise_multiplier: float, delta: float, rounds: Rounds) -> Setting:
    """What a training with Gaussian noise on the sum of each cohort's clipped updates spends on a user."""
    if not noise_multiplier >= _LEAST_NOISE:
        raise BadInput(f"noise_multiplier is {noise_multiplier}, which protects nobody: give at least {_LEAST_NOISE:g}")
    if rounds.rounds > _MAX_ROUNDS:
        raise BadInput(f"rounds is {rounds.rounds}: give at most {_MAX_ROUNDS:,}")
    try:
        with np.errstate(all="ignore"):  # what overflows is refused below
            epsilon = epsilon_for(noise_multiplier, delta, rounds)
    except OverflowError:
        epsilon = math.inf
    if not math.isfinite(epsilon):
        raise BadInput(
            f"noise_multiplier {noise_multiplier:g} over {counted(rounds.rounds, 'round')} spends more than can be"
            " counted, which protects nobody: give more noise, or fewer rounds"
        )
    guarantee = Guarantee(
        basis="proven",
        unit="user",
        adjacency=rounds.adjacency,
        epsilon=epsilon,
        delta=delta,
        scope="whole run",
        trust="server",
        caveats=("A server that is trusted with the clipped updates adds them up and adds the noise.",),
        event=rounds.event(noise_multiplier),
    )
    return Setting({"noise_multiplier": noise_multiplier, "sampling_rate": rounds.rate}, guarantee)


def _gaussian(wish: Wish, sensitivity: float, delta: float) -> Setting:
    positive(sensitivity=sensitivity)
    padding = wish.pad_probability or 0.0
    mu = padded_mu(wish.epsilon, delta, pad_probability=padding)
    settings = {"noise": "gaussian", "sigma": sensitivity / mu, "sensitivity": sensitivity}
    event = SampledEvent(mu, 1.0 - padding, "padding") if padding else GaussianEvent(mu)
    return _setting(wish, settings, delta, event)


def _laplace(wish: Wish, sensitivity: float) -> Setting:
    positive(sensitivity=sensitivity)
    inner = base_epsilon(wish.epsilon, pad_probability=wish.pad_probability or 0.0)
    settings = {"noise": "laplace", "scale": sensitivity / inner, "sensitivity": sensitivity}
    return _setting(wish, settings, 0.0, None if wish.pad_probability else LaplaceEvent(inner))


def _response(wish: Wish) -> Setting:
    candidates = 2 if wish.mechanism == "randomised-response" else wish.candidates
    if candidates is None or candidates < 2:
        raise BadInput(f"{wish.mechanism} needs --candidates: a number of at least 2")
    odds = math.exp(-wish.epsilon)
    keep = 1.0 / (1.0 + (candidates - 1) * odds)  # e^eps / (e^eps + C - 1)
    if keep == 1.0:
        raise BadInput(
            f"at epsilon {wish.epsilon:g} (per message, trusting nobody) every answer would be the true one,"
            " to the last bit of a double: no finite epsilon describes that; ask for 30 or less"
        )
    settings = {"candidates": candidates, "keep_probability": keep, "other_probability": keep * odds}
    event = PureEvent(wish.epsilon) if candidates == 2 else ResponseEvent(wish.epsilon, candidates)
    return _setting(wish, settings, 0.0, event)


def _setting(wish: Wish, settings: Mapping[str, Any], delta: float, event: Event | None) -> Setting:
    for name in ("sigma", "scale"):
        if name in settings and not 0.0 < settings[name] < math.inf:
            raise BadInput(
                f"{name} would be {settings[name]}, beyond what a computer can count: give an epsilon and a sensitivity"
                " nearer to 1"
            )
    padded = bool(wish.pad_probability)
    caveats = [_CAVEATS[wish.mechanism]]
    if "noise" in settings:
        caveats.append(_EXACT)
    if padded:
        caveats.append(_PADDED)
    if wish.delta is not None and delta == 0.0:
        caveats.append("No delta is needed: this holds with delta 0.")
    guarantee = Guarantee(
        basis="proven",
        unit="click" if padded else _TERMS[wish.mechanism][0],
        adjacency="add-remove" if wish.mechanism == "randomised-response" else "replace-one",
        epsilon=wish.epsilon,
        delta=delta,
        scope="per message",
        trust="nobody",
        caveats=tuple(caveats),
        event=event,
    )
    return Setting(settings, guarantee)
