"""An audit of distributed noise finds what is wrong with it: bugs are planted in what clients put under masks."""

from collections.abc import Callable

import numpy as np
import pytest

from veilrec.audit.method import tiny_plan
from veilrec.audit.plan_distributed import EVERY_SHARE, audit_distributed_noise, honest_of, share_canary, share_checks
from veilrec.core.arrays import Offsets
from veilrec.core.errors import BadInput
from veilrec.federation.facts import guarantee_of, with_distributed_noise
from veilrec.federation.making import least_of_shares
from veilrec.methods.registry import get
from veilrec.privacy.events import GaussianEvent
from veilrec.privacy.mechanisms.base import Released
from veilrec.privacy.mechanisms.distributed import DistributedNoise, DistributedNoiseSum
from veilrec.privacy.randomness import KeyedSource

CLIENTS, SILENT = 12, 0.3
Draw = Callable[..., Offsets]
_noise = DistributedNoiseSum.noise


def halved(self, *arguments):
    return _noise(self, *arguments) // 2


def halved_in_the_last_round(self, fixed_point, spec, source):
    return _noise(self, fixed_point, spec, source) // (2 if spec.number == 2 else 1)


def none_on_the_first_tensor(self, fixed_point, spec, source):
    drawn = _noise(self, fixed_point, spec, source)
    drawn[next(iter(fixed_point.places.values()))] = 0
    return drawn


def none_on_one_number(self, fixed_point, spec, source):
    drawn = _noise(self, fixed_point, spec, source)
    drawn[-1] = 0
    return drawn


def the_same_again(self, fixed_point, spec, source):
    return _noise(self, fixed_point, spec, KeyedSource(b"s" * 32, 1))


def of_another_shape(self, fixed_point, spec, source):
    """As wide, and flat."""
    drawn = _noise(self, fixed_point, spec, source)
    spread = float(drawn.std()) * 3.0**0.5
    return np.asarray(np.random.default_rng(drawn[:4].astype(np.uint32)).uniform(-spread, spread, drawn.size), np.int64)


def without_a_clip(self, updates, spec, fixed_point, source):
    return Released(fixed_point.integers(updates)[0] + self.noise(fixed_point, spec, source), self.event_in(spec))


def failed(*, least=CLIENTS, silent=SILENT):
    plan = with_distributed_noise(tiny_plan(get("dp-fedmf"))[0], DistributedNoise(CLIENTS, SILENT))
    checks = share_checks(plan, guarantee_of(plan, 1e-6), least=least, silent=silent, clients=CLIENTS, seed=3)
    return {check.name for check in checks if not check.holds}


def test_what_is_sound_passes_and_bugs_are_found(monkeypatch):
    """Fixed seed; over all seeds a sound plan fails in 5 of a million."""
    spread = "standard deviation of a client's share of the noise"
    large = "how far an update that is made to be large moves a sum"
    assert failed() == set()
    bugs = [
        (DistributedNoiseSum, "noise", halved, spread),
        (DistributedNoiseSum, "noise", halved_in_the_last_round, EVERY_SHARE),
        (DistributedNoiseSum, "noise", none_on_the_first_tensor, spread),
        (DistributedNoiseSum, "noise", none_on_one_number, "numbers of a share without noise"),
        (DistributedNoiseSum, "noise", the_same_again, "pairs of shares that repeat each other"),
        (DistributedNoiseSum, "noise", of_another_shape, "distance of a share's noise from a Gaussian"),
        (DistributedNoiseSum, "share", without_a_clip, large),
        (DistributedNoise, "honest", property(lambda self: self.least), spread),
        (DistributedNoiseSum, "events", lambda self, rounds: ((GaussianEvent(0.01), rounds),), spread),
    ]
    for kind, name, bug, found in bugs:
        with monkeypatch.context() as planted:
            planted.setattr(kind, name, bug)
            assert any(check.startswith(found) for check in failed()), bug


def test_terms_that_are_others_than_planned_for_are_found():
    assert "clients without which no sum is opened" in failed(least=CLIENTS - 2)
    assert failed(silent=0.6) >= {
        "clients whose noise is counted on",
        "standard deviation of a client's share of the noise",
    }


def test_a_canary_among_twelve_sees_half_of_the_noise_and_a_missing_clip(monkeypatch):
    plan = with_distributed_noise(tiny_plan(get("dp-fedmf"))[0], DistributedNoise(CLIENTS, SILENT))
    claimed = guarantee_of(plan, 1e-6)

    def holds():
        return share_canary(plan, claimed, least=CLIENTS, silent=SILENT, runs=400, seed=1).holds

    assert holds()
    monkeypatch.setattr(DistributedNoiseSum, "noise", halved)
    assert not holds()
    monkeypatch.setattr(DistributedNoiseSum, "noise", _noise)
    monkeypatch.setattr(DistributedNoiseSum, "bound", lambda self, updates, spec: updates)
    monkeypatch.setattr("veilrec.audit.plan_distributed._LARGE", 3.0)  # beyond that a lattice has no room
    assert not holds()


def test_the_plan_that_a_federation_runs_holds_and_what_it_would_refuse_is_not_audited():
    for least in range(1, 40):
        for silent in (0.0, 0.1, 0.3, 0.5, 0.99):
            assert honest_of(least, silent) == DistributedNoise(least, silent).honest
    with pytest.raises(BadInput, match=r"cohort\.size=0"):
        audit_distributed_noise("dp-fedmf", quick=True, settings=["cohort.size=50"])
    with pytest.raises(BadInput, match="prove something"):
        audit_distributed_noise("fedmf", quick=True)
    assert least_of_shares(tiny_plan(get("dp-fedmf"))[0]) == CLIENTS // 2
    found = audit_distributed_noise("dp-fedmf", quick=True, silent=0.2, settings=["cohort.size=0"])
    assert found.holds
    assert found.claimed.trust == "server sees only noisy sums"
    assert found.canary.epsilon_lower > 0.5
