"""The coordinator's last step, where some only judge, what comes of it, and rounds that draw more than they need."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from tests.methods.tastes import build, small_problem
from veilrec.core.errors import BadInput
from veilrec.core.plan import Plan
from veilrec.privacy.mechanisms.sums import GainSum
from veilrec.privacy.randomness import noise_of_comparison
from veilrec.server.coordinator import Coordinator
from veilrec.server.secure_reports import MessageRefused
from veilrec.server.server import SelectionOutcome, decide, verdict_of
from veilrec.simulation.real_clients import SECRET, RealRun, put_secret
from veilrec.simulation.simulation import Simulation
from veilrec.wire import messages as gains
from veilrec.wire import rounds


@cache
def simulated(name: str, *settings: str) -> Simulation:
    made = build(name, small_problem(8), settings, secret=SECRET)
    assert isinstance(made, Simulation)
    return made


class _Comparison:
    """Judges of whom only what they tell is known."""

    judge = None

    def __init__(self) -> None:
        self.mechanism = GainSum(clip=0.1, epsilon=1.0, delta=1e-6, adjacency="add-remove")


def judged(folder: Path, rounds_done: int = 1) -> tuple[Coordinator, Plan]:
    """A run whose rounds are over, with three judges."""
    simulation = simulated("fedmf", "cohort.size=2")
    plan = replace(simulation.plan, rounds=rounds_done)
    real = RealRun(folder, plan, simulation.data, simulation.seeds)
    for _ in range(rounds_done):
        real.step()
    real.close()
    with_judges = replace(plan, comparison=_Comparison())  # type: ignore[arg-type]
    server = Coordinator(folder / "server", with_judges)
    for number in range(3):
        assert server.enrol(f"judge {number}", "judges") == number
    return server, with_judges


def test_judges_are_asked_once_counted_once_and_answered_for_good(tmp_path: Path) -> None:
    server, plan = judged(tmp_path)
    asked = server.compare()
    assert asked is not None
    assert asked.devices == ("judge 0", "judge 1", "judge 2")
    assert rounds.decode(asked.start, plan.schema, asked.number)[1] is not None
    for number, gain in enumerate((0.1, -0.05)):
        assert server.receive_gain(f"judge {number}", gains.encode_gain(gain)) == "taken"
        assert server.receive_gain(f"judge {number}", gains.encode_gain(gain)) == "known already"
    for name, message, reason in (
        ("judge 0", gains.encode_gain(0.01), "second message"),
        ("judge 2", gains.encode_gain(0.2), "beyond its bound"),
        ("judge 2", b"?", "bad bytes"),
        ("judge 2", gains.encode_gain(float("nan")), "not finite"),
        ("device 0", gains.encode_gain(0.0), "not enrolled"),
    ):
        with pytest.raises(MessageRefused) as refused:
            server.receive_gain(name, message)
        assert refused.value.reason == reason
    server.close()
    server = Coordinator(tmp_path / "server", plan)  # killed, and started again
    verdict = server.close_comparison()
    assert verdict.judges == 2
    told = [gains.encode_gain(gain) for gain in (0.1, -0.05)]
    assert verdict == verdict_of(told, plan.comparison.mechanism, noise_of_comparison(SECRET))  # type: ignore[union-attr]
    with pytest.raises(MessageRefused, match="nobody is asked"):
        server.receive_gain("judge 2", gains.encode_gain(0.1))
    server.close()
    server = Coordinator(tmp_path / "server", plan)
    assert server.close_comparison() == verdict == server.verdict
    assert server.compare() is None
    server.close()


def test_nobody_judges_before_the_last_round(tmp_path: Path) -> None:
    plan = replace(simulated("fedmf", "cohort.size=2").plan, comparison=_Comparison())  # type: ignore[arg-type]
    with Coordinator(put_secret(tmp_path), plan) as server:
        server.enrol("judge 0", "judges")
        with pytest.raises(BadInput, match="not over"):
            server.compare()
        with pytest.raises(BadInput, match="not over"):
            server.close_comparison()
        with pytest.raises(MessageRefused, match="nobody is asked"):
            server.receive_gain("judge 0", gains.encode_gain(0.0))


def test_more_are_drawn_than_are_needed_and_the_first_count(tmp_path: Path) -> None:
    simulation = simulated("fedmf", "cohort.size=4")
    real = RealRun(tmp_path, simulation.plan, simulation.data, simulation.seeds, over_selection=1.5)
    broadcast, cohort = real.coordinator.open_round()
    assert len(cohort) == 6
    messages = {name: real.device(name).take_part(broadcast, 0) for name in cohort}
    for name in cohort[:4]:
        assert not real.coordinator.is_complete
        real.coordinator.receive(name, messages[name])
    assert real.coordinator.is_complete
    with pytest.raises(MessageRefused) as refused:
        real.coordinator.receive(cohort[4], messages[cohort[4]])
    assert refused.value.reason == "enough messages"
    assert real.coordinator.receive(cohort[0], messages[cohort[0]]) == "known already"
    report = real.coordinator.close_round()
    assert (report.devices, report.messages, report.void) == (6, 4, False)
    real.close()


@pytest.mark.parametrize(
    ("name", "settings"), [("dp-fedmf", ("cohort.size=4",)), ("fedmf", ("cohort.size=4", "cohort.sampling=turns"))]
)
def test_over_selection_is_refused_where_it_would_change_who_is_drawn(
    name: str, settings: tuple[str, ...], tmp_path: Path
) -> None:
    with pytest.raises(BadInput, match="over-selection"):
        Coordinator(put_secret(tmp_path), simulated(name, *settings).plan, over_selection=1.3)


def test_training_is_kept_for_a_clear_gain_only() -> None:
    mechanism = GainSum(clip=0.1, epsilon=2.0, delta=1e-6, adjacency="add-remove")
    threshold = mechanism.threshold(500)
    for times, kept in ((1.01, "trained"), (0.99, "start"), (0.0, "start"), (-3.0, "start")):
        found = decide(times * threshold * 500, 500, mechanism)
        assert (found.kept, found.threshold, found.judges) == (kept, threshold, 500)
        assert SelectionOutcome.restored(found.state()) == found
        assert SelectionOutcome(**found.to_json()) == found
        assert ("the trained model is kept" in found.line()) == (kept == "trained")
    assert mechanism.threshold(4) > mechanism.clip  # a handful of judges cannot show anything
    assert decide(4 * mechanism.clip, 4, mechanism).kept == "start"
    nobody = decide(0.0, 0, mechanism)
    assert nobody.kept == "start"
    assert "more people" in nobody.line()
