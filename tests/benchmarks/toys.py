"""A population small enough to run every contender on, in which everybody takes part in every round."""

import numpy as np

from _peers import simulation_of, workload_of
from _workload import LocalWork, Ratings
from veilrec.core.csr import csr_from_pairs
from veilrec.methods.priv_fedmf_sub import fedmf, fedncf

USERS, ITEMS = 12, 40

# One batch an epoch and no negatives: nothing is drawn, so that everybody must get the same model.
LOCAL = {
    "mf": LocalWork("mf", ITEMS, dim=8, rate=0.05),
    "ncf": LocalWork("ncf", ITEMS, dim=8, layers=(8, 4), rate=0.01, reduction="mean"),
}
METHODS = {"mf": fedmf.FEDMF, "ncf": fedncf.FEDNCF}


def used_items():
    generator = np.random.default_rng(3)
    used = generator.random((USERS, ITEMS)) < 0.3
    users, items = np.nonzero(used)
    return csr_from_pairs(users, items.astype(np.int32), USERS)


def contest(local, cohort=USERS):
    """Our simulator, and the same work for the others."""
    ratings = Ratings("toy", used_items(), ITEMS)
    simulation = simulation_of(METHODS[local.model], local, ratings, cohort)
    return simulation, workload_of(simulation, local, cohort)


def relative_difference(ours, theirs):
    return float(np.linalg.norm(ours.ravel() - theirs.ravel()) / np.linalg.norm(theirs))
