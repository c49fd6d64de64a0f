"""The test for what no noise hides: something that one input can send and the other cannot."""

from __future__ import annotations

from veilrec.privacy.audit.bounds import at_least

ENOUGH = 10  # sightings on one side


def separated(hits: int, other_hits: int, trials: int, *, delta: float, alpha: float) -> bool:
    """Whether an event was seen often (and beyond delta) under one input and never under the other.

    For events of the support only: which entries are there, which digits a number can have, what a set holds. A sound
    mechanism gives every input the same support, so no epsilon, however large, is claimed for what fails here. It is
    not for thresholds on a likelihood: there a sound mechanism of epsilon 10 shows 10 against 0 all the time.
    """
    if min(hits, other_hits) > 0:
        return False
    seen = max(hits, other_hits)
    return seen >= ENOUGH and at_least(seen, trials, alpha) > delta
