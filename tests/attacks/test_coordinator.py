"""A coordinator that deviates from the protocol: refused, or bounded by noise; found where a defect is planted.

At one false item in a hundred chance finds 1 % of a history. Of some 60 items that are looked for, more than 20 % by
chance has a probability below 1e-6, even if only a third of them were independent.
"""

import json

import pytest

from veilrec.attacks.coordinator import CoordinatorEffort, attack_coordinator, noises_of
from veilrec.attacks.plays import PLAYS
from veilrec.client import federated
from veilrec.core.errors import BadInput
from veilrec.federation.client import process
from veilrec.federation.identity import EndorsedKeys
from veilrec.federation.secagg import helpers
from veilrec.federation.secagg.helpers import Helper, HelperSum, HelperSumClient
from veilrec.federation.secagg.terms import Terms
from veilrec.privacy.mechanisms.distributed import DistributedNoiseSum

DATA = "synthetic-ratings:users=60,items=400,seed=3"
EFFORT = CoordinatorEffort(clients=6, targets=2, own=10, rounds=4)
BY_CHANCE = 0.2
SECAGG = pytest.mark.parametrize("secagg", ["helpers", "pairs"])


def played(*plays, method="dp-fedmf", secagg="helpers", noise="masks only", settings=("local.dim=4",), targets=2):
    effort = CoordinatorEffort(EFFORT.clients, targets, EFFORT.own, EFFORT.rounds)
    found = attack_coordinator(method, DATA, secagg=secagg, noise=noise, settings=settings, plays=plays, effort=effort)
    return found.findings


def refused(finding, *words):
    """Nothing was found, and somebody said why."""
    said = " ".join(f"{by}: {why}" for by, why, _ in finding.refusals)
    for word in words:
        assert word in said
    return finding.recovery.found == 0 or finding.recovery.recall < BY_CHANCE


def without_digest(monkeypatch):
    monkeypatch.setattr(Terms, "check_content", lambda self, content: None)


def without_bound(monkeypatch):
    monkeypatch.setattr(federated, "check_weights", lambda weights, schema: None)


def without_least(monkeypatch):
    """Neither clients nor helpers ask how many a sum is over."""
    monkeypatch.setattr(process, "agree", lambda terms, made, plan, spec: None)
    monkeypatch.setattr(HelperSumClient, "_agree", lambda self, proposal: None)
    monkeypatch.setattr(Helper, "_place", lambda self, asked: asked.helpers.index(self.identity.public))


@SECAGG
def test_models_for_one_alone_are_refused(secagg):
    overflow, two = played("overflow", "two-models", secagg=secagg)
    assert refused(overflow, "client: items has weights beyond")
    assert overflow.opened == 0
    said = "what came to be acted on" if secagg == "helpers" else "the signature is not that of key"
    assert refused(two, f"client: {said}")


@SECAGG
def test_without_a_digest_the_other_model_is_found_out(secagg, monkeypatch):
    without_digest(monkeypatch)
    overflow, two = played("overflow", "two-models", secagg=secagg, targets=1)
    assert refused(overflow, "weights beyond")  # the bound is there
    assert two.recovery.recall > 0.8
    without_bound(monkeypatch)
    (overflow,) = played("overflow", secagg=secagg, targets=1)
    assert overflow.recovery.recall == 1.0


def test_without_a_bound_the_digest_still_stops_an_overflow(monkeypatch):
    without_bound(monkeypatch)
    (overflow,) = played("overflow")
    assert refused(overflow, "what came to be acted on", "round 0 was opened with other terms")


def test_small_cohorts_are_refused_by_clients_and_helpers(monkeypatch):
    (found,) = played("small-cohort")
    assert refused(found, "helper 0: the proposal opens sums of 2 clients", "helper 1")
    assert found.opened == 0
    (found,) = played("small-cohort", secagg="pairs")
    assert refused(found, "client: the round would open the sum of 2 clients")
    without_least(monkeypatch)
    (found,) = played("small-cohort")
    assert (found.opened, found.recovery.recall) == (2, 1.0)


def test_a_cohort_without_one_client_is_refused_where_the_noise_is_for_all(monkeypatch):
    everybody = ("local.dim=4", "cohort.sampling=fixed", "cohort.size=6")
    (found,) = played("left-out", settings=everybody)
    assert refused(found, "helper 0: the proposal opens sums of 5 clients: this helper asks for 6")
    assert found.opened == 0
    (found,) = played("left-out")  # of a cohort that may have gaps, half is enough: both sums are opened
    assert found.opened == 2
    without_least(monkeypatch)
    (found,) = played("left-out", settings=everybody)
    assert found.opened == 2


def test_clients_that_nobody_invited_are_refused_and_those_of_the_operator_are_not(monkeypatch):
    made_up, sybils = played("made-up", "sybils")
    assert refused(made_up, "helper 0: the signature is not that of key")
    assert made_up.opened == 0
    assert sybils.recovery.recall == 1.0  # what remains possible: a sum of one is that one's

    def believes(self, named, *, strangers=False):
        self.keys.update((int(e["place"]), bytes.fromhex(e["key"])) for e in json.loads(named))

    monkeypatch.setattr(EndorsedKeys, "learn", believes)
    (made_up,) = played("made-up")
    assert made_up.recovery.recall == 1.0


def test_a_round_is_opened_for_one_list_and_once(monkeypatch):
    for secagg, said in (("helpers", "answered for another list of clients"), ("pairs", "leaves the round")):
        (found,) = played("replay", secagg=secagg)
        assert refused(found, said)
        assert found.opened == 0
    monkeypatch.setattr(helpers._Journal, "settle", lambda self, number, request: None)
    (found,) = played("replay")
    assert (found.opened, found.recovery.recall) == (2, 1.0)


def test_helpers_that_lie_are_noticed_and_one_honest_helper_is_enough(monkeypatch):
    lying, one, every = played("lying-helper", "one-helper", "all-helpers")
    assert refused(lying, "protocol: the sum does not pass its check")
    assert lying.opened == 0
    assert one.opened == 2 and one.recovery.recall < BY_CHANCE
    assert every.recovery.recall == 1.0
    monkeypatch.setattr(HelperSum, "finish", lambda self: self.proposal.terms.from_words(self._total))
    (lying,) = played("lying-helper")
    assert lying.opened == 2  # a wrong sum, taken for a right one


@SECAGG
def test_distributed_noise_bounds_what_every_sum_tells(secagg, monkeypatch):
    exact = played("crafted", "sybils", secagg=secagg)
    assert exact[0].recovery.recall > BY_CHANCE
    assert exact[0].bound is None
    third, crafted, sybils = played("third", "crafted", "sybils", secagg=secagg, noise="distributed")
    for finding in (third, crafted):
        assert 0.01 < finding.bound < 0.6
        assert finding.holds and finding.recovery.recall < BY_CHANCE
    assert sybils.bound is None  # more work with the server than was planned for
    monkeypatch.setattr(DistributedNoiseSum, "noise", lambda self, fixed_point, spec, source: 0)
    (bare,) = played("sybils", secagg=secagg, noise="distributed")
    assert bare.recovery.recall == 1.0


def test_reports_are_told_to_one_sum_and_hide_among_honest_ones():
    few = ("local.dim=4", "cohort.size=0")
    left_out, third, sybils = played("left-out", "third", "sybils", method="priv-fedmf-sub", settings=few)
    assert left_out.on == "reports"
    assert refused(left_out, "told once is added up 1 time at most")
    assert left_out.opened == 0
    assert third.recovery.recall < 0.5
    assert sybils.recovery.recall == 1.0
    (sybils,) = played("sybils", method="priv-fedmf-sub", settings=few, noise="distributed")
    assert sybils.recovery.recall < BY_CHANCE


def test_among_clients_alone_two_sums_of_reports_tell_what_they_differ_in():
    """What remains possible without noise: a coordinator that pretends that the first one came to nothing."""
    asked = {"method": "priv-fedmf-sub", "settings": ("local.dim=4", "cohort.size=0"), "secagg": "pairs"}
    (exact,) = played("left-out", **asked)
    assert (exact.opened, exact.recovery.recall) == (2, 1.0)
    (noisy,) = played("left-out", **asked, noise="distributed")
    assert noisy.opened == 2 and noisy.recovery.recall < BY_CHANCE


def test_the_same_seed_finds_the_same_and_says_it_as_json():
    asked = {"secagg": "helpers", "noise": "distributed", "settings": ("local.dim=4",), "effort": EFFORT}
    one, other = (attack_coordinator("dp-fedmf", DATA, plays=("third", "replay"), **asked).to_json() for _ in range(2))
    for report in (one, other):
        for finding in report["findings"]:
            finding.pop("refusals")  # keys are new ones
    assert one == other
    assert one["claimed"]["trust"] == "server sees only noisy sums"
    assert [finding["play"] for finding in one["findings"]] == ["third", "replay"]


def test_methods_have_the_noise_that_they_prove_and_data_has_to_be_enough():
    assert noises_of("fedmf", ()) == ("masks only",)
    assert noises_of("dp-fedmf", ()) == ("masks only", "distributed")
    assert set(PLAYS) >= {"overflow", "crafted"}
    with pytest.raises(BadInput, match="the attacker needs 7 of its own"):
        attack_coordinator(
            "fedmf", "synthetic-ratings:users=8,items=200,seed=3", secagg="helpers", noise="masks only", effort=EFFORT
        )
