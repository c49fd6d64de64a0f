"""Every mechanism states everything, its statement agrees with its event, and bad input costs nothing."""

from __future__ import annotations

import ast
import inspect
import itertools
from dataclasses import is_dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from veilrec.core.errors import BadInput
from veilrec.privacy import mechanisms as registry
from veilrec.privacy.accounting.accountant import delta_of
from veilrec.privacy.events import NonPrivateEvent, repeated
from veilrec.privacy.mechanisms import MECHANISMS, instances, mechanism_class
from veilrec.privacy.mechanisms.attention import PaddedAttention, PrivateAttention
from veilrec.privacy.mechanisms.base import Mechanism, require_complete
from veilrec.privacy.mechanisms.clipping import clip_flat
from veilrec.privacy.mechanisms.interests import PooledInterest
from veilrec.privacy.randomness import SecureSource, SeededSource

INSTANCES = instances()
MANY_AT_ONCE = [mechanism for mechanism in INSTANCES if mechanism.name != "cohort-sum"]
every = pytest.mark.parametrize("mechanism", INSTANCES, ids=lambda m: f"{m.name}-{m.calibration}")


class _NoSource:
    """A source that must not be touched."""

    protects = True

    def words(self, count: int) -> NDArray[np.uint64]:
        raise AssertionError(f"{count} words were drawn")


@every
def test_states_everything(mechanism: Mechanism[Any, Any]) -> None:
    require_complete(mechanism)
    assert mechanism.calibration in type(mechanism).calibrations
    assert MECHANISMS[mechanism.name].endswith(type(mechanism).__name__)
    assert mechanism.sensitivity.value > 0.0
    assert mechanism.claimed_epsilon > 0.0
    assert 0.0 <= mechanism.claimed_delta < 1.0


@every
def test_claim_holds_exactly_if_it_is_proven(mechanism: Mechanism[Any, Any]) -> None:
    honest = mechanism.delta(mechanism.claimed_epsilon)
    if mechanism.calibration == "proven":
        assert honest <= mechanism.claimed_delta * (1.0 + 1e-9)
    else:
        assert honest > 2.0 * mechanism.claimed_delta  # every published flaw that we keep is a real one


@every
def test_no_proven_noise_is_wasted(mechanism: Mechanism[Any, Any]) -> None:
    if mechanism.calibration == "proven":
        assert mechanism.delta(0.95 * mechanism.claimed_epsilon) > mechanism.claimed_delta


@every
def test_event_accounts_for_the_whole_profile_but_for_the_sampler(mechanism: Mechanism[Any, Any]) -> None:
    if isinstance(mechanism.event(), NonPrivateEvent):
        assert mechanism.delta(50.0) > 0.5
        return
    for share in (0.0, 0.3, 0.7, 1.0):
        epsilon = share * mechanism.claimed_epsilon
        accounted = delta_of(mechanism.event(), epsilon)
        assert mechanism.delta(epsilon) <= accounted * (1.0 + 1e-6) + 1e-12


@every
def test_profile_falls(mechanism: Mechanism[Any, Any]) -> None:
    deltas = [mechanism.delta(epsilon) for epsilon in np.linspace(0.0, 2.0 * mechanism.claimed_epsilon, 6)]
    assert all(later <= earlier + 1e-12 for earlier, later in itertools.pairwise(deltas))
    assert all(0.0 <= delta <= 1.0 for delta in deltas)


def _before_noise(mechanism: Mechanism[Any, Any], value: Any) -> Any:
    """What the mechanism adds its noise to."""
    if isinstance(mechanism, PaddedAttention):
        return clip_flat(mechanism.attention(value), mechanism.noise.clip_norm)
    if isinstance(mechanism, PrivateAttention):
        return clip_flat(value, mechanism.noise.clip_norm)
    if isinstance(mechanism, PooledInterest):
        return mechanism.pooled(value)
    if mechanism.name == "interest-response":
        return value.argmax()
    if mechanism.name == "adaptive-sum":
        value = value[:, :-1]  # the sensitivity is that of the updates
    if mechanism.name in ("cohort-sum", "adaptive-sum", "scheduled-sum", "tree-sum"):
        return clip_flat(value, mechanism.clip_norm).sum(axis=0)  # type: ignore[attr-defined]
    if mechanism.name == "gain-sum":
        return mechanism.total(value.ravel())  # type: ignore[attr-defined]
    return value


@every
def test_worst_pair_is_as_far_apart_as_allowed(mechanism: Mechanism[Any, Any]) -> None:
    first, second = (np.asarray(_before_noise(mechanism, value)) for value in mechanism.worst_pair())
    stated = mechanism.sensitivity
    if stated.norm == "changed entries":
        assert (first != second).sum() == stated.value
    elif mechanism.name == "top-k-update":
        assert np.linalg.norm(first - second) <= stated.value  # it is the support that gives it away
    else:
        apart = np.linalg.norm((first.astype(np.float64) - second).ravel(), 1 if stated.norm == "L1" else 2)
        assert stated.value * (1.0 - 1e-6) <= apart <= stated.value * (1.0 + 1e-9)


@every
def test_releases_finite_values_from_a_secure_source(mechanism: Mechanism[Any, Any]) -> None:
    for value in mechanism.worst_pair():
        released = mechanism.release(value, SecureSource())
        assert released.event == mechanism.event()
        assert all(np.isfinite(np.asarray(part, np.float64)).all() for part in _parts(released.value))


@every
def test_the_same_seed_gives_the_same_release_and_another_one_another(mechanism: Mechanism[Any, Any]) -> None:
    value = mechanism.worst_pair()[0]

    def run(seed: int) -> str:
        source = SeededSource(seed)
        return repr([mechanism.release(value, source).value for _ in range(40)])

    assert run(1) == run(1) != run(2)


def _parts(value: Any) -> list[Any]:
    return list(vars(value).values()) if is_dataclass(value) else [value]


@pytest.mark.parametrize("mechanism", MANY_AT_ONCE, ids=lambda m: f"{m.name}-{m.calibration}")
def test_many_releases_at_once_are_releases(mechanism: Mechanism[Any, Any]) -> None:
    for side, seed in itertools.product((0, 1), range(20)):  # enough for every mask and cohort of these small cases
        value = mechanism.worst_pair()[side]
        one = mechanism.release(value, SeededSource(seed))
        many = mechanism.release_many(value, 1, SeededSource(seed))
        for alone, batch in zip(_parts(one.value), _parts(many.value), strict=True):
            np.testing.assert_array_equal(np.asarray(alone)[np.newaxis], batch)
        assert many.event == repeated(one.event, 1)
    together = mechanism.release_many(value, 40, SeededSource(1))
    assert together.event == repeated(mechanism.event(), 40)
    assert any(len(np.unique(part, axis=0)) > 1 for part in _parts(together.value))  # not one draw 40 times
    assert all(len(part) == 40 for part in _parts(together.value))


@every
def test_bad_input_draws_nothing(mechanism: Mechanism[Any, Any]) -> None:
    value = np.asarray(mechanism.worst_pair()[0])
    bad: list[Any] = [np.full(value.shape, np.nan), "nonsense", np.full(value.shape, np.inf)]
    if value.ndim:
        bad += [value[..., :-1], np.zeros(()), np.concatenate((value, value), axis=-1)]
    else:
        bad += [np.array(-1), np.array(10**6), np.array(0.5)]
    for wrong in bad:
        with pytest.raises(BadInput) as caught:
            mechanism.release(wrong, _NoSource())
        assert "\n" not in str(caught.value)


def test_registry_is_complete_and_lazy() -> None:
    assert {mechanism.name for mechanism in INSTANCES} == set(MECHANISMS)
    with pytest.raises(BadInput, match="laplace"):
        mechanism_class("laplas")
    imported = [n.module or "" for n in ast.parse(inspect.getsource(registry)).body if isinstance(n, ast.ImportFrom)]
    assert not any(module.startswith("veilrec.privacy") for module in imported)


def test_a_mechanism_that_leaves_its_sensitivity_out_is_refused() -> None:
    mechanism = mechanism_class("laplace").examples()[0]
    del mechanism.sensitivity
    with pytest.raises(BadInput, match="sensitivity"):
        mechanism.release(mechanism.worst_pair, _NoSource())
