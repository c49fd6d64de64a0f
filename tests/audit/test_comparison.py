"""The last comparison of a simulated run: what it keeps, also after a stop, and what the audit catches."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from tests.audit.planted_bugs import setting, wrapped
from tests.methods.tiny_news import SMALL, method, problem
from veilrec.audit.plan_messages import comparison_checks
from veilrec.core.errors import BadInput
from veilrec.methods.base import configure, make_trainer
from veilrec.methods.news import federated as parts
from veilrec.privacy.accounting import epsilon_of
from veilrec.privacy.events import training_event
from veilrec.privacy.mechanisms.sums import GainSum
from veilrec.simulation import simulation as simulated
from veilrec.simulation.simulation import Seeds, Simulation

SECRET = bytes(range(32))
SETTINGS = ("network=public-head", "text.sentences=titles", "text.sentence_dim=8", "cohort.size=0", "privacy.epsilon=4")
ROUNDS = 3


def made(*settings, secret=None):
    chosen = method("fednewsrec-head")
    config, _ = configure(chosen, preset="tuned", dataset="", settings=[*SMALL, *SETTINGS, *settings])
    trainer = make_trainer(chosen, config, problem(rounds=ROUNDS), secret=secret)
    assert isinstance(trainer, Simulation)
    return trainer


@dataclass(frozen=True)
class Says:
    """Validation clients who all say the same."""

    validator: Any
    gain: float

    def clients(self, data):
        return self.validator.clients(data)

    def gains(self, data, start, trained):
        return np.full(len(data.rows), self.gain)


def saying(gain, secret=None):
    base = made()
    judged = replace(base.plan.model_selection, validator=Says(base.plan.model_selection.validator, gain))
    plan = replace(base.plan, model_selection=judged)
    return Simulation(plan, base.data, base.histories, Seeds.all_from(1, secret))


def run(sim, begin=0):
    for number in range(begin, ROUNDS):
        sim.step(number)
    return sim


@pytest.mark.parametrize(("gain", "kept"), [(1.0, "trained"), (-1.0, "start")])
def test_what_the_validators_say_decides_which_model_ranks(gain, kept):
    sim = run(saying(gain))
    assert sim.selection.kept == kept
    wanted = sim.plan.start if kept == "start" else sim.server_state.weights
    assert all(np.array_equal(sim.parts().weights[name], value) for name, value in wanted.items())
    assert not np.array_equal(sim.plan.start["scales"], sim.server_state.weights["scales"])
    both, history = sim.compared(), np.arange(5)
    assert np.array_equal(both[kept].score_all(history), sim.model().score_all(history))
    assert not np.array_equal(both["start"].score_all(history), both["trained"].score_all(history))
    assert made().compared() == {}


def test_nothing_is_compared_before_the_last_round_and_validators_are_counted_in_bytes():
    sim, without = made(), made("validators.share=0")
    assert sim.step(0).up_bytes > 0
    assert sim.selection is None
    trainers = int((sim.data.rows.lengths() > 0).sum())
    last = [sim.step(number) for number in (1, 2)][-1]
    assert last.clients == trainers
    validators = len(sim.plan.model_selection.validator.clients(sim.data))
    assert last.up_bytes > validators * 8
    assert without.plan.model_selection is None
    assert int((without.data.rows.lengths() > 0).sum()) == trainers + validators
    share = sim.plan.model_selection.people / (sim.plan.model_selection.people + trainers)
    assert sim.selection.validators == sim.plan.model_selection.people and share == pytest.approx(0.2, abs=0.02)


@pytest.mark.parametrize("secret", [None, SECRET])
def test_stopped_and_gone_on_is_the_same_to_the_bit(secret):
    straight, stopped = run(made(secret=secret)), made(secret=secret)
    stopped.step(0)
    resumed = made(secret=secret)
    resumed.load_state(stopped.state(), 1)
    run(resumed, 1)
    ended = made(secret=secret)
    ended.load_state(straight.state(), ROUNDS)
    for other in (resumed, ended):
        assert other.selection == straight.selection
        assert other.state().keys() == straight.state().keys()
        assert all(np.array_equal(value, straight.state()[name]) for name, value in other.state().items())
        for name, value in straight.parts().weights.items():
            assert np.array_equal(other.parts().weights[name], value)


def test_a_run_that_starts_from_another_is_compared_with_that_one():
    earlier, sim = made(), saying(-1.0)
    earlier.step(0)
    state = {name: np.array(values) for name, values in sim.state().items()}
    for name, values in earlier.server.weights.items():
        state[f"server.weights.{name}"] = values.copy()
    sim.load_state(state, 0)
    run(sim)
    assert np.array_equal(sim.parts().weights["scales"], earlier.server.weights["scales"])


def test_without_validators_nothing_is_compared_and_both_groups_spend_the_whole_epsilon():
    plan = made().plan
    assert epsilon_of(training_event(plan), 1e-6) == pytest.approx(4.0, rel=1e-3)
    assert epsilon_of(training_event(replace(plan, model_selection=None)), 1e-6) <= 4.0
    unproven, alone = made("calibration=none"), run(made("validators.share=1e-9"))
    assert unproven.plan.model_selection is None
    assert run(unproven).selection is None
    assert (alone.selection.kept, alone.selection.validators) == ("start", 1)
    for share in ("1", "-0.1", "nan", "2"):
        with pytest.raises(BadInput, match=r"validators\.share"):
            made(f"validators.share={share}")


def failing():
    """Checks of an audit that do not hold, of the plan as the method makes it now."""
    sim = made()
    chosen = method("fednewsrec-head")
    config, _ = configure(chosen, preset="tuned", dataset="", settings=[*SMALL, *SETTINGS])
    checks = comparison_checks(sim.plan, sim.data, sim.histories, chosen.guarantee(config), 0)
    return [check.name for check in checks if not check.holds]


def test_a_sound_comparison_passes_the_audit():
    assert failing() == []


_without_noise = setting(GainSum, "protect", lambda self, total, source: total * self.step)
_half_the_noise = wrapped(
    GainSum, "protect", lambda sound, self, total, source: 0.5 * (sound(self, total, source) + total * self.step)
)
_validators_learn = wrapped(parts, "parted", lambda sound, logs, *of: replace(sound(logs, *of), rows=logs))
_unclipped = setting(GainSum, "bound", lambda self, gains: np.clip(np.nan_to_num(gains), -1e3, 1e3))


@partial(wrapped, simulated, "decide")
def _no_threshold(sound, *of):
    found = sound(*of)
    return replace(found, kept="trained" if found.gain > 0.0 else "start")


@partial(wrapped, GainSum, "__init__")
def _half_sensitivity(sound, self, **settings):
    sound(self, **settings)
    self.sigma *= 0.5


BUGS = {
    "no noise": (_without_noise, "standard deviation of the noise"),
    "half the noise": (_half_the_noise, "standard deviation of the noise"),
    "validation clients learn": (_validators_learn, "clients that train and validate"),
    "not clipped": (_unclipped, "sum of validation clients who all say"),
    "threshold ignored": (_no_threshold, "against their own threshold"),
    "half the sensitivity": (_half_sensitivity, "standard deviation of the noise"),
}


@pytest.mark.parametrize("bug", BUGS)
def test_the_audit_finds_every_planted_bug(bug, monkeypatch):
    plant, found_by = BUGS[bug]
    plant(monkeypatch)
    assert any(found_by in name for name in failing())
