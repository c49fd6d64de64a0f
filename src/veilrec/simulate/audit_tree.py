"""The part of an audit that is about noise of a tree: whose turn it is, and that every node has noise of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from veilrec._arrays import Offsets
from veilrec.plan import Plan
from veilrec.privacy.mechanisms.tree import TreeSum
from veilrec.privacy.randomness import KeyedSource
from veilrec.simulate.audit_noise import own_noise, protected, worst
from veilrec.simulate.checks import ALPHA, Check, at_least, at_most, repeats, spread_at_least
from veilrec.simulate.observe import SeenSums
from veilrec.updates import Round

_MOST = 24  # rounds of a tree of which the nodes are looked at
NODE = "standard deviation of the noise on a node of the tree"
NODES = "pairs of nodes that repeat each other"


def nodes_of_a_person(steps: int) -> int:
    """The most nodes that one round of a tree is in, counted."""
    nodes = [(place - (place & -place), place) for place in range(1, steps + 1)]
    return max(sum(start < place <= end for start, end in nodes) for place in range(1, min(steps, 4) + 1))


def tree_checks(plan: Plan, cohorts: Any, needed: float, key: bytes) -> Iterator[Check]:
    """Turns and nodes; `cohorts` says who was in each of the rounds of a run."""
    mechanism = plan.mechanism
    if not isinstance(mechanism, TreeSum):
        raise TypeError("only a tree has nodes")
    members: Offsets = cohorts
    steps = mechanism.steps
    often = [members[start : start + steps].sum(axis=0).max() for start in range(0, len(members), steps)]
    yield at_most("turns of a device in one tree", int(max(often)), 1)
    yield at_least("turns of a device that are accounted for", plan.most_turns or 0, int(members.sum(axis=0).max()))
    yield at_least("rounds of a tree that are accounted for", mechanism.event().steps, steps)
    yield from _node_checks(plan, steps, needed, key)


def _node_checks(plan: Plan, steps: int, needed: float, key: bytes) -> Iterator[Check]:
    """Of sums of nothing, with one secret, over the first rounds of the first tree and of the next one."""
    nodes = [
        node
        for start in (0, steps)
        for node in own_noise(plan, [_of_nothing(plan, start + place, key) for place in range(min(steps, _MOST))])
    ]
    noises = [
        (f"ended by round {node.about.number}", np.concatenate([node.noise(name).ravel() for name in node.before]))
        for node in nodes
    ]
    share = ALPHA / len(noises)
    yield worst([spread_at_least(NODE, noise, needed, where, alpha=share) for where, noise in noises])
    found = repeats(noises, needed)
    where = found[0] if found else f"{len(noises)} nodes"
    yield Check(NODES, len(found), "is", 0, not found, where, ALPHA)


def _of_nothing(plan: Plan, number: int, key: bytes) -> SeenSums:
    """The sums of a round to which nobody came, with their noise."""
    nothing = {tensor.name: np.zeros(tensor.shape) for tensor in plan.schema.learnt.tensors}
    return protected(plan, SeenSums(Round(number), nothing, nothing), KeyedSource(key, number))
