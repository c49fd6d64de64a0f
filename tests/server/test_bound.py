"""The bound of the next round: from the noisy count alone, never out of its limits, saved with the model."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.audit.bounded_plans import ITEMS, adaptive_plan, data, people, plain_plan
from veilrec.client import local_training
from veilrec.core.errors import BadInput, VeilrecError
from veilrec.core.schema import BOUND, with_bound
from veilrec.methods.private import with_learnt_bound
from veilrec.privacy.accounting import Rounds
from veilrec.privacy.mechanisms.schedules import AdaptiveSum
from veilrec.server.aggregation import ServerRate
from veilrec.server.coordinator import Coordinator
from veilrec.server.round_specs import CohortSettings, LearntBound, SeededParts
from veilrec.server.server import GeometricClipping, PublishedClipping, Server
from veilrec.simulation.real_clients import RealRun, put_secret
from veilrec.simulation.simulation import Seeds, Simulation

SECRET = bytes(range(32))
RULE = GeometricClipping(cohort=20, smallest=0.01, largest=100.0)


def simulation(plan: Any, secret: bytes | None = SECRET) -> Simulation:
    return Simulation(plan, data(), people(), Seeds.all_from(1, secret))


def test_the_geometric_rule_is_that_of_andrew_and_others() -> None:
    # 15 of 20 within: (15 - 5) / 2 = 5 counted; S exp(-0.2 (0.75 - 0.5))
    assert RULE.next(2.0, 5.0) == pytest.approx(2.0 * math.exp(-0.05))
    assert RULE.next(2.0, 0.0) == 2.0
    assert RULE.next(2.0, 1e9) == pytest.approx(2.0 * math.exp(-0.1))  # more than all is noise
    assert RULE.next(0.01, 10.0) == 0.01
    assert RULE.next(100.0, -10.0) == 100.0


def test_the_printed_rule_falls_below_nothing() -> None:
    # privacy-math, section 5(c): S 40, gamma 0.9, alpha_4 1, everybody always within: 400 rounds to 0
    rule, bound = PublishedClipping(cohort=30, quantile=0.9, rate=1.0), 40.0
    for _ in range(400):
        bound = rule.next(bound, 30.0)
    assert bound == pytest.approx(0.0, abs=1e-9)
    assert rule.next(bound, 30.0) < 0.0
    with pytest.raises(VeilrecError, match="bound has become nan"):
        rule.next(1.0, math.nan)


def test_a_rule_that_makes_no_sense_or_has_no_tensor_is_refused(tmp_path: Path) -> None:
    for wrong in ({"cohort": 0}, {"smallest": 0.0}, {"quantile": 1.5}, {"rate": math.nan}, {"largest": 0.001}):
        with pytest.raises(BadInput):
            replace(RULE, **wrong)  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="need each other"):
        Server(replace(adaptive_plan(), bound_rule=None))
    with pytest.raises(BadInput, match="need each other"):
        Server(replace(plain_plan(CohortSettings(size=20, sampling="poisson")), bound_rule=RULE))
    Coordinator(put_secret(tmp_path / "server"), adaptive_plan()).close()
    with pytest.raises(BadInput, match="another plan"):  # a run does not go on by another rule
        Coordinator(tmp_path / "server", adaptive_plan(rate=0.1))


def test_the_agenda_says_the_bound_of_the_model_and_what_another_one_says() -> None:
    plan = adaptive_plan()
    weights = {**plan.start, BOUND: np.array([0.3], np.float32)}
    about = LearntBound().next(4, weights, None)
    assert (about.number, about.clip_norm, about.rows) == (4, float(np.float32(0.3)), None)
    parts = LearntBound(SeededParts(schema=plan.schema, public_seed=1, row_share=0.5))
    assert parts.leaves_out
    assert not LearntBound().leaves_out
    assert len(parts.next(4, weights, None).rows) == 30  # type: ignore[arg-type]


def test_the_bound_moves_by_the_protected_count_and_by_nothing_else() -> None:
    plan = replace(adaptive_plan(), server=ServerRate(optimiser="adam", rate=0.1), decay_share=0.01)
    run = simulation(plan)
    assert plan.bound_rule is not None
    for number in range(3):
        before = float(run.server.weights[BOUND][0])
        protected: list[float] = []
        step = run.server.step

        def watched(step: Any = step, protected: list[float] = protected) -> None:
            protected.append(float(run.server._aggregator.sums[BOUND][0]))
            step()

        run.server.step = watched  # type: ignore[method-assign]
        run.step(number)
        run.server.step = step  # type: ignore[method-assign]
        assert run.server.weights[BOUND][0] == np.float32(plan.bound_rule.next(before, protected[0]))
        assert run.server.weights[BOUND][0] != np.float32(before)
    assert not any(BOUND in name for name in run.server.state() if name.startswith("optimiser."))


@pytest.mark.parametrize("start", [0.1, 90.0])
def test_the_bound_finds_the_quantile_of_the_norms(start: float) -> None:
    """Votes of n items have norm sqrt(n); the noise on the count is below one person."""
    everybody = Rounds(rounds=60, sampling="poisson", population=60, cohort=60)
    mechanism = AdaptiveSum(
        schema=with_bound(local_training.schema(ITEMS)),
        clip_norm=start,
        noise_multiplier=1e-3,
        count_standard_deviation=0.3,
        taking_part=everybody,
        delta=1e-6,
    )
    plain = replace(
        plain_plan(CohortSettings(size=0, sampling="poisson"), rounds=60),
        schema=local_training.schema(ITEMS),
        learner=local_training.VoteLocalTrainer(),
        start=local_training.start_weights(ITEMS),
    )
    run = simulation(with_learnt_bound(plain, mechanism, rate=0.1), None)
    for number in range(80):
        run.step(number)
    norms = np.sqrt(people().lengths())
    assert float(run.server.weights[BOUND][0]) == pytest.approx(np.median(norms), rel=0.1)


@pytest.mark.parametrize("sampling", ["poisson", "fixed"])
def test_real_devices_and_a_coordinator_give_the_simulation(sampling: str, tmp_path: Path) -> None:
    plan = adaptive_plan(sampling)
    simulated = simulation(plan)
    real = RealRun(tmp_path, plan, data(), simulated.seeds)
    for number in range(3):
        report = simulated.step(number)
        assert real.step().up_bytes == report.up_bytes
    for name, value in simulated.server.weights.items():
        assert np.allclose(value, real.coordinator.standing.weights[name], rtol=0, atol=1e-5), name
    assert simulated.server.weights[BOUND][0] == real.coordinator.standing.weights[BOUND][0]
    real.close()
