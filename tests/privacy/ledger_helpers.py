"""What the tests of the ledger share: a mechanism that says what it costs, and messages made by it."""

from uuid import uuid4

import numpy as np

from veilrec.core.errors import BadInput
from veilrec.privacy.accounting.gaussian import delta_gaussian
from veilrec.privacy.events import GaussianEvent, PureEvent
from veilrec.privacy.ledger import Budget
from veilrec.privacy.mechanisms.base import Mechanism, Sensitivity
from veilrec.privacy.randomness import SecureSource, uniforms

CLICK = Budget(unit="click", adjacency="replace-one", epsilon=2.0, delta=1e-6)
HALF = PureEvent(1.0)  # of CLICK: two fit into a period


class Noisy(Mechanism[float, float]):
    """Stands for any mechanism: a number that says what it costs; its noise is not what is tested here."""

    name = "noisy"
    calibration = "proven"
    claimed_epsilon = 1.0
    claimed_delta = 1e-6

    def __init__(self, cost=None, unit="click", adjacency="replace-one"):
        self.cost = cost or GaussianEvent(2.0**-10)
        self.unit, self.adjacency = unit, adjacency
        self.sensitivity = Sensitivity(1.0, "L2")

    def _perturb(self, value, source):
        if not np.isfinite(value):
            raise BadInput("value is NaN: give a finite number")
        return value + float(uniforms(source, 1)[0])

    def event(self):
        return self.cost

    def delta(self, epsilon):
        return delta_gaussian(epsilon, 2.0**-10)

    def worst_pair(self):
        return 0.0, 1.0

    @classmethod
    def examples(cls):
        return (cls(),)


def spend(ledger, event=HALF, **how):
    """A message of its own, which no other repeats."""
    return ask(ledger, uuid4().hex, event, **how)


def ask(ledger, version="model 1", event=HALF, **how):
    return ledger.message(
        Noisy(event), 5.0, SecureSource(), model_version=version, encode=lambda value: value.hex().encode(), **how
    )


def charged(ledger):
    return ledger.report()[0].messages
