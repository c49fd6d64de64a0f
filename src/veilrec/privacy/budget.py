"""What an account of the ledger may spend, what a message costs it, and what its spending adds up to."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, get_args

from scipy.special import expit, ndtri

from veilrec.core.errors import BadInput, unknown_name
from veilrec.privacy.accounting import epsilon_zcdp, rho_max
from veilrec.privacy.accounting.composition import FlatComposition, flattened
from veilrec.privacy.accounting.gaussian import epsilon_gaussian, mu_for
from veilrec.privacy.checks import positive, probability
from veilrec.privacy.events import Event, SampledEvent
from veilrec.privacy.guarantee import Adjacency, Trust, Unit

Accounting = Literal["zcdp", "gaussian"]
_FROM_FINE_TO_COARSE: tuple[Unit, ...] = ("click", "history", "user")


@dataclass(frozen=True)
class Cost:
    """What messages cost an account, in its two currencies; nothing unless told otherwise."""

    loss: float = 0.0
    """The sum of rho (zCDP accounts) or of mu^2 (Gaussian accounts)."""
    pure: float = 0.0
    """The sum of the epsilons of pure mechanisms; infinite once a message was not pure."""

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
    epsilon: float
    """What the messages of one period may spend together."""
    delta: float
    lifetime_epsilon: float | None = None
    """What all messages ever may spend together, with the same delta; unlimited periods if None."""
    accounting: Accounting = "zcdp"
    """zcdp: for all kinds of messages; gaussian: exact for Gaussian noise, and refuses what is known as zCDP only."""
    trust: Trust = "nobody"
    """Who else has to behave for the messages' statements to hold."""

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
        if parts.in_the_clear:
            raise BadInput("the message leaves something in the clear: no budget is large enough for it")
        loss = _LOSSES[self.accounting](parts, steps)
        return Cost(loss, steps * parts.sum_of_pure)

    def spent(self, cost: Cost) -> tuple[float, float]:
        """The smallest (epsilon, delta) known to hold for messages of this cost."""
        epsilon = _EPSILONS[self.accounting](cost.loss, self.delta)
        return (cost.pure, 0.0) if cost.pure <= epsilon else (epsilon, self.delta)

    def largest_mu(self, messages: int) -> float:
        """The largest sensitivity / sigma of Gaussian noise such that so many messages fit into a period."""
        if messages < 1:
            raise BadInput(f"messages is {messages}: give at least 1")
        rounding = 1.0 - (messages + 4) * 2.0**-52  # the ledger rounds every sum up
        squared_mu = self.limit / messages * rounding
        return math.sqrt(squared_mu if self.accounting == "gaussian" else 2.0 * squared_mu)


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
    total = steps**2 * (parts.rho + 0.5 * parts.mu**2)
    for event, count in parts.counts:
        if isinstance(event, SampledEvent):
            total += count * 0.5 * (steps * event.mu) ** 2
        else:
            # Renyi divergences of a pure mechanism are at most epsilon and at most alpha epsilon^2 / 2.
            epsilon = steps * event.epsilon
            total += count * min(0.5 * epsilon**2, epsilon)
    return total


def _squared_mu(parts: FlatComposition, steps: int) -> float:
    if parts.rho > 0.0:
        raise BadInput(
            f"the message is known as {parts.rho:g}-zCDP only (a discrete Gaussian is), and an account kept in mu has"
            " no sound price for that: use an account with accounting 'zcdp', or Gaussian noise on the lattice"
        )
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
