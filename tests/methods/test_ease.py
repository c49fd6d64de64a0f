"""The limits of EASE."""

from __future__ import annotations

import numpy as np
import pytest

from veilrec.core.arrays import Csr
from veilrec.core.errors import BadInput
from veilrec.methods.base import Problem, configure, make_trainer
from veilrec.methods.references.item_item import EASE, EASE_MOST_ITEMS, EaseConfig


def test_refuses_too_many_items_before_any_work() -> None:
    problem = Problem(Csr(np.array([0, 1]), np.array([0], np.int32)), EASE_MOST_ITEMS + 1, 0)
    with pytest.raises(BadInput, match=f"at most {EASE_MOST_ITEMS} items; drop rare items, or use mf or fedmf"):
        make_trainer(EASE, EaseConfig(), problem)


def test_refuses_a_ridge_that_cannot_work() -> None:
    with pytest.raises(BadInput, match="ridge of ease is '0'"):
        configure(EASE, preset="tuned", dataset="", settings=["ridge=0"])
