"""Training is kept for a clear gain only."""

from __future__ import annotations

import pytest

from veilrec.privacy.mechanisms.sums import GainSum
from veilrec.server.server import SelectionOutcome, decide

MECHANISM = GainSum(clip=0.1, epsilon=2.0, delta=1e-6, adjacency="add-remove")


@pytest.mark.parametrize(("times", "kept"), [(1.01, "trained"), (0.99, "start"), (0.0, "start"), (-3.0, "start")])
def test_a_gain_has_to_exceed_the_threshold(times: float, kept: str) -> None:
    threshold = MECHANISM.threshold(500)
    found = decide(times * threshold * 500, 500, MECHANISM)
    assert (found.kept, found.threshold, found.judges) == (kept, threshold, 500)
    assert SelectionOutcome.restored(found.state()) == found
    assert SelectionOutcome(**found.to_json()) == found
    assert ("the trained model is kept" in found.line()) == (kept == "trained")


def test_a_handful_of_judges_cannot_show_anything_and_the_start_is_kept() -> None:
    assert MECHANISM.threshold(4) > MECHANISM.clip
    assert decide(4 * MECHANISM.clip, 4, MECHANISM).kept == "start"
    nobody = decide(0.0, 0, MECHANISM)
    assert nobody.kept == "start"
    assert "more people" in nobody.line()
