"""Cases apart by how much the model knows of the user: whom noise and missing data hurt most."""

from __future__ import annotations

import numpy as np

from veilrec.evaluate.evaluator import Judgement

FEWEST = (0, 1, 6, 21, 51, 101)  # known items, at least, of the users in each group


def by_known_items(judgement: Judgement) -> dict[str, Judgement]:
    """The groups 0, 1-5, 6-20, 21-50, 51-100 and 101+ that have any case, by the number of known items."""
    number = np.searchsorted(FEWEST, judgement.known, side="right") - 1
    return {_name(group): judgement.of(number == group) for group in np.unique(number).tolist()}


def _name(group: int) -> str:
    if group + 1 == len(FEWEST):
        return f"{FEWEST[group]}+"
    fewest, most = FEWEST[group], FEWEST[group + 1] - 1
    return str(fewest) if fewest == most else f"{fewest}-{most}"
