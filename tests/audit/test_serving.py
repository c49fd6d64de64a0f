"""The audit of what serving sends: sound claims hold, and bugs planted in what runs are caught."""

import numpy as np
import pytest

from veilrec.audit.auditor import AUDITED, audit_claim, case_of, serving_cases, serving_names
from veilrec.client.queries import PRIVATE, Serving, Sizes, make_mechanism
from veilrec.privacy.mechanisms.attention import PrivateAttention
from veilrec.privacy.mechanisms.interests import EmbeddingNoise, InterestResponse, PooledInterest
from veilrec.privacy.mechanisms.responses import KaryResponse

QUICK = {"effort": 1, "seed": 0}
BY_MODE = {
    "attention": Serving(mode="attention", epsilon=5.0, delta=1e-6),
    "pooled": Serving(mode="pooled", epsilon=5.0, delta=1e-6),
    "interest": Serving(mode="interest", epsilon=1.0),
    "vector": Serving(mode="vector", epsilon=5.0, delta=1e-6),
}


def test_every_mode_is_audited_with_what_serving_makes():
    assert {how.mode for how in AUDITED} == set(PRIVATE)
    assert {how.mode for how in AUDITED if how.calibration == "as-published"} == {"attention", "vector"}
    assert serving_names() == {"serving", *(f"serving-{mode}" for mode in PRIVATE)}
    assert {case.name for case in serving_cases("serving-pooled")} == {"serving-pooled"}
    assert len(serving_cases()) == len(AUDITED)


@pytest.mark.parametrize("mode", ["pooled", "interest"])
def test_sound_claims_hold_and_are_nearly_reached(mode):
    verdict = audit_claim(case_of(make_mechanism(BY_MODE[mode], Sizes())), **QUICK)
    assert verdict.passed
    assert verdict.lower_bound > 0.8 * verdict.claimed_epsilon


def _less_noise(mechanism, share):
    """A bug in what runs: all noise times `share`, while everything still claims what it claimed."""
    if isinstance(mechanism, PooledInterest):
        mechanism.sigma *= share
    elif isinstance(mechanism, PrivateAttention):
        mechanism.noise.scale *= share
    elif isinstance(mechanism, EmbeddingNoise):
        mechanism.scale *= share
    elif isinstance(mechanism, InterestResponse):
        truthful = KaryResponse(categories=5, epsilon=mechanism.claimed_epsilon / share, unit="history")
        mechanism.response = truthful


@pytest.mark.parametrize("share", [0.5, 1e-3], ids=["half the noise", "hardly any"])
@pytest.mark.parametrize("mode", list(PRIVATE))
def test_too_little_noise_is_caught(mode, share):
    mechanism = make_mechanism(BY_MODE[mode], Sizes())
    honest = case_of(mechanism)
    _less_noise(mechanism, share)
    assert not audit_claim(honest, **QUICK).passed


def test_a_wrong_sensitivity_is_caught(monkeypatch):
    """Clicks that are not clipped, three times as long as the noise is made for."""
    monkeypatch.setattr("veilrec.privacy.mechanisms.interests.clip_flat", lambda clicks, norm: clicks)

    class Longer(PooledInterest):
        def worst_pair(self):
            first, second = super().worst_pair()
            return 3.0 * first, 3.0 * second

    bad = Longer(projection=np.eye(16), clip_norm=1.0, slots=50, epsilon=5.0, delta=1e-6)
    assert audit_claim(case_of(bad), **QUICK).verdict == "refuted"
