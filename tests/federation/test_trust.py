"""What `federate init --trust` chooses, refuses and says of its costs."""

import pytest

from veilrec.cli.federate import cost_lines
from veilrec.core.errors import BadInput
from veilrec.core.schema import RoundSpec
from veilrec.federation.facts import FederationFacts, terms_of
from veilrec.federation.making import FederationOptions, trusting
from veilrec.federation.trust import TrustWishes, choices
from veilrec.privacy.mechanisms.shares import DistributedNoise

DATA = "synthetic-ratings:users=30,items=200,seed=1"


def made_by(folder, wishes, *settings, **options):
    asked = FederationOptions(method="dp-fedmf", data=DATA, clients=10, rounds=2, settings=settings, **options)
    return trusting(folder, asked, wishes)


REFUSED = (
    (TrustWishes(corrupt=0.1), (), "add --secagg pairs"),
    (TrustWishes(helpers=3, secagg="pairs"), (), "there are none"),
    (TrustWishes(trust="server", secagg="helpers"), (), "--trust server has none"),
    (TrustWishes(trust="server", lost=0.1), (), "--lost is about secure aggregation"),
    (TrustWishes(trust="sums", silent=0.1), (), "with --trust sums the server does"),
    (TrustWishes(trust="sums", lost=0.1), (), "--secagg pairs, or leave it out"),
    (TrustWishes(trust="sums"), ("privacy.noise=distributed",), "is --trust noisy-sums, and --trust is sums"),
    (TrustWishes(trust="noisy-sums"), ("privacy.noise=central",), "is --trust sums or server"),
    (TrustWishes(silent=0.1), ("privacy.silent=0.2",), "--set does as well"),
)


def test_options_that_exclude_each_other_are_refused():
    for wishes, settings, words in REFUSED:
        with pytest.raises(BadInput) as refused:
            choices(wishes, settings, 10, 0)
        assert words in str(refused.value), wishes


def test_the_strongest_that_the_options_allow_comes_first():
    def found(wishes, *settings, places=0):
        return [choice.trust for choice in choices(wishes, settings, 30, places)]

    assert found(TrustWishes()) == ["noisy-sums", "sums", "server"]
    assert found(TrustWishes(secagg="helpers")) == ["noisy-sums", "sums"]
    assert found(TrustWishes(silent=0.1)) == ["noisy-sums"]
    assert found(TrustWishes(), "privacy.noise=central") == ["sums", "server"]
    with_places = choices(TrustWishes(), (), 30, 10)[0]
    assert set(with_places.settings) == {"privacy.noise=distributed", "privacy.silent=0.0", "privacy.lost=0.325"}


@pytest.mark.parametrize(("clients", "places", "least"), [(10, 3, 9), (20, 10, 18), (15, 4, 14), (8, 5, 8)])
def test_a_tenth_of_those_who_are_there_may_drop_out_beside_free_places(clients, places, least):
    lost = choices(TrustWishes(), (), clients, places)[0].lost
    assert DistributedNoise(clients + places, lost=lost).least == least


def test_costs_are_those_of_the_plan_with_free_places(tmp_path):
    made, costs = made_by(tmp_path / "a", TrustWishes(), places=3)
    assert made.federation.least == 9
    assert "9 of 13 clients that answer in a round, each with its part of the noise" in costs.parties
    assert costs.noise == {"updates": pytest.approx((13 / 9) ** 0.5, rel=1e-3)}
    with pytest.raises(BadInput, match="give a larger --lost, fewer --places"):
        made_by(tmp_path / "b", TrustWishes(trust="noisy-sums", lost=0.1), places=3)


def test_whoever_works_with_the_server_adds_no_noise_that_is_counted_on(tmp_path):
    """Of ten clients two may collude: a sum of nine that are left has the noise of seven."""
    made, costs = made_by(tmp_path / "a", TrustWishes(secagg="pairs"))
    assert made.federation.config["privacy"]["silent"] == 0.2
    assert made.federation.woven().corrupt == 2
    mechanism = FederationFacts(tmp_path / "a", made.federation).plan.mechanism
    assert (mechanism.distributed_noise.least, mechanism.distributed_noise.honest) == (9, 7)
    assert any("9 of 10 clients that answer in a round, of which 2 may add no noise" in one for one in costs.parties)
    for wishes, settings in (
        (TrustWishes(trust="noisy-sums", secagg="pairs", silent=0.1), ()),
        (TrustWishes(trust="noisy-sums", secagg="pairs"), ("privacy.silent=0",)),
    ):
        with pytest.raises(BadInput, match="whoever works with the server"):
            made_by(tmp_path / "b", wishes, *settings)


def test_a_trust_model_says_what_it_costs(tmp_path):
    """Of ten clients nine carry the noise: a full sum has sqrt(10 / 9) times as much."""
    made, costs = made_by(tmp_path / "a", TrustWishes(), rehearsal=True)
    known = FederationFacts(tmp_path / "a", made.federation)
    vector = terms_of(known.plan, RoundSpec(0), bytes(32)).vector_bytes
    assert costs.traffic.message == vector
    assert costs.traffic.run_up == 2 * vector
    assert costs.noise == {"updates": pytest.approx((10 / 9) ** 0.5, rel=1e-3)}
    assert set(costs.accuracy) == {"hr@10", "ndcg@10"}
    assert all(0.0 <= value <= 1.0 for pair in costs.accuracy.values() for value in pair)
    said = " ".join(cost_lines(costs))
    here, there = costs.accuracy["hr@10"]
    assert f"with --trust server in brackets: hr@10 {here:.4f} ({there:.4f})" in said
    real, costs = made_by(tmp_path / "b", TrustWishes())  # nobody's accuracy is measured where people are real
    assert not real.federation.rehearsal and not costs.accuracy
    assert "veilrec compare dp-fedmf:privacy.noise=central dp-fedmf:privacy.noise=distributed,privacy.lost=0.1" in (
        " ".join(cost_lines(costs))
    )
    _, costs = made_by(tmp_path / "c", TrustWishes(trust="sums"))
    assert (costs.noise, costs.accuracy, costs.compare) == ({}, {}, "")
