"""The synthetic population of the contract, and methods built on it."""

from veilrec.audit.contract_subject import COHORT, ITEMS, SEED, ContractSubject, same
from veilrec.client.local_training import OwnItems
from veilrec.methods.registry import METHODS, get
from veilrec.simulation.simulation import Seeds, Simulation

__all__ = ["COHORT", "ITEMS", "ON_RATINGS", "SEED", "after_a_round", "build", "same", "small_problem"]
ON_RATINGS = [name for name in METHODS if "synthetic-ratings" in get(name).datasets]  # the others need news


def small_problem(users=60, seed=SEED):
    """A few clients, so that a handful of rounds visits most of them more than once."""
    return ContractSubject("fedmf").problem(users=users, seed=seed)


def build(name, problem, settings=(), *, secret=None):
    """Of a method, or of `method:calibration`."""
    name, _, calibration = name.partition(":")
    return ContractSubject(name, calibration or None).build(problem, *settings, secret=secret)


def after_a_round(plan, problem, secret=None):
    """Every client with its items, and one round of the plan."""
    run = Simulation(plan, OwnItems(problem.train), problem.train, Seeds.all_from(1, secret))
    run.step(0)
    return run
