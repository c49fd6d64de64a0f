"""Small plans with clients, and bugs to plant in their mechanisms."""

from copy import copy
from dataclasses import dataclass, replace
from functools import cache

from veilrec.attacks.rows import AttackPoint
from veilrec.audit.method import small_problem
from veilrec.client.local_training import LocalData
from veilrec.core.csr import Csr
from veilrec.core.plan import Plan
from veilrec.methods.base import configure, promised
from veilrec.methods.registry import get
from veilrec.privacy.guarantee import Guarantee


@dataclass(frozen=True)
class Attackable:
    """All that attacks need."""

    plan: Plan
    data: LocalData
    histories: Csr
    n_items: int
    claimed: Guarantee

    def place(self, seed=0):
        """Before the first round."""
        return AttackPoint(self.plan, self.data, self.histories, self.plan.start, self.n_items, seed)

    def with_mechanism(self, mechanism):
        """The same with another mechanism."""
        return replace(self, plan=replace(self.plan, mechanism=mechanism))


@cache
def attackable(method, *settings, users=300, data=None):
    """A method on synthetic people, who have ratings or read news; None: whichever it usually learns from."""
    found = get(method)
    config, rounds = configure(found, preset="tuned", dataset="", settings=list(settings))
    problem = small_problem(found, users, rounds, data)
    plan, clients = found.plan(config, problem), found.clients(config, problem)
    return Attackable(plan, clients, problem.train, problem.n_items, promised(found, config, problem))


def with_noise(subject, factor):
    """The same with so many times the noise on its sums."""
    mechanism = copy(subject.plan.mechanism)
    mechanism.sigma = max(factor * mechanism.sigma, 1e-12)
    return subject.with_mechanism(mechanism)


def without_clip(subject):
    """The same with a clip that was forgotten."""

    class Unclipped(type(subject.plan.mechanism)):
        def bound(self, updates, spec):
            return updates

    return subject.with_mechanism(_as(subject, Unclipped))


def without_noise_on(subject, tensor):
    """The same with a tensor that the noise leaves out."""

    class Forgetful(type(subject.plan.mechanism)):
        def protect(self, sums, spec, source):
            super().protect({name: total for name, total in sums.items() if name != tensor}, spec, source)

    return subject.with_mechanism(_as(subject, Forgetful))


def _as(subject, kind):
    mechanism = copy(subject.plan.mechanism)
    mechanism.__class__ = kind
    return mechanism
