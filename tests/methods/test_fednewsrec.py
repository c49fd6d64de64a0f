"""FedNewsRec: the simulation is honest, its shortcut exact, its promises what was configured."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from veilrec.errors import BadInput
from veilrec.methods.base import configure, make_trainer, preset_names, promised
from veilrec.privacy.guarantee import Guarantee
from veilrec.report.reproduce.fednewsrec_paper import budget
from veilrec.simulate.simulation import Seeds, Simulation

from .tiny_news import SMALL, build, method, problem

COHORT = 20


def simulation(*settings: str) -> Simulation:
    """Without protection, unless told otherwise."""
    plain = ("calibration=none", f"cohort.size={COHORT}", "server.optimiser=sgd", "server.rate=0.5")
    built = build("fednewsrec", (*plain, *settings))
    assert isinstance(built, Simulation)
    return built


def distance(left: dict[str, Any], right: dict[str, Any]) -> float:
    """The largest relative difference between the changes of two models; a weight that hardly moved may differ more."""
    assert left.keys() == right.keys()
    return max(float(np.linalg.norm(left[k] - right[k]) / (np.linalg.norm(right[k]) + 1e-3)) for k in right)


class Apart:
    """A news learner without its shortcut."""

    def __init__(self, learner: Any) -> None:
        self.keeps_state, self.fresh_private_state, self.learn = False, learner.fresh_private_state, learner.learn


def apart(sim: Simulation, secret: bytes | None = None, **changes: Any) -> Simulation:
    plan = replace(sim.plan, learner=Apart(sim.plan.learner), **changes)
    return Simulation(plan, sim.data, sim.histories, Seeds.all_from(1, secret))


@pytest.mark.parametrize("drop_out", [0.0, 0.5])
def test_one_backward_pass_gives_what_all_messages_give(drop_out: float) -> None:
    shortcut = simulation(f"cohort.drop_out={drop_out}")
    slow = apart(shortcut)
    for number in range(2):
        reports = shortcut.step(number), slow.step(number)
        assert reports[0].up_bytes == reports[1].up_bytes
        assert reports[0].up_params == reports[1].up_params
    assert distance(shortcut.server.state(), slow.server.state()) <= 1e-5


@pytest.mark.parametrize("calibration", ["none", "as-published", "proven"])
def test_a_cohort_gives_what_as_many_cohorts_of_one_give(calibration: str) -> None:
    """Noise included: with a secret, every device and every sum has its own."""
    rate = 0.5 / COHORT if calibration == "proven" else 0.5  # a sum is as many times the mean
    made = simulation(f"calibration={calibration}", f"server.rate={rate}")
    whole, alone = apart(made, b"s" * 32), apart(made, b"s" * 32, devices_at_once=1)
    for number in range(2):
        assert whole.step(number).up_bytes == alone.step(number).up_bytes
    assert distance(whole.server.state(), alone.server.state()) <= 1e-5


def test_proven_clips_weighs_all_the_same_and_adds_noise_to_the_sum() -> None:
    sim = simulation("calibration=proven")
    assert sim.plan.mechanism.noise_on == "sum"
    assert not sim.server.weighs_examples
    before = {name: value.copy() for name, value in sim.server.weights.items()}
    sim.step(0)
    assert all((sim.server.weights[name] != value).mean() > 0.99 for name, value in before.items())


def test_says_what_it_promises() -> None:
    fednewsrec = method("fednewsrec")

    def promise(*settings: str) -> Any:
        config, _ = configure(fednewsrec, preset="tuned", dataset="", settings=settings)
        return fednewsrec.guarantee(config)

    assert promise("calibration=none").basis == "none"
    published = promise("calibration=as-published")
    assert published.epsilon == pytest.approx(2 * 0.005 / 0.015)  # section 3.3 with the values of section 4.1
    assert published.scope == "per message"
    assert published.honest_note
    assert promise("calibration=as-published", "privacy.scale=0").basis == "none"
    assert promise("cohort.sampling=fixed").adjacency == "replace-one"
    proven = promise("privacy.epsilon=3")
    assert (proven.basis, proven.epsilon, proven.unit, proven.adjacency) == ("proven", 3.0, "user", "add-remove")


@pytest.mark.parametrize("name", ["fednewsrec", "fednewsrec-head"])
def test_beside_the_claim_stand_the_epsilons_of_an_upload_and_of_a_run(name: str) -> None:
    chosen = method(name)
    settings = [*SMALL, "calibration=as-published", "cohort.size=20", "network=fednewsrec", "text.sentences=none"]
    config, _ = configure(chosen, preset="tuned", dataset="", settings=settings)
    stated = promised(chosen, config, problem(rounds=12))
    trainer = make_trainer(chosen, config, problem(rounds=12))
    assert isinstance(trainer, Simulation)
    entries = sum(values.size for values in trainer.server.weights.values())
    users = len(trainer.sampler.eligible)
    claimed = budget(0.005, 0.015, parameters=entries, uploads=-(-12 * 20 // users))
    assert stated.epsilon == claimed.claimed
    assert stated.honest_epsilon == pytest.approx(claimed.upload)
    assert stated.honest_delta == 1e-6
    assert f"epsilon {claimed.training:,.0f} at delta 1e-06" in stated.honest_note
    assert Guarantee.from_json(stated.to_json()) == stated


def test_missing_devices_make_a_fixed_cohort_unprovable() -> None:
    with pytest.raises(BadInput, match="fixed cohort"):
        simulation("calibration=proven", "cohort.sampling=fixed", "cohort.drop_out=0.1")


def test_the_model_is_smaller_where_noise_has_to_be_paid_for_unless_told_otherwise() -> None:
    def chosen(*settings: str) -> tuple[int, int, int]:
        config, rounds = configure(method("fednewsrec"), preset="tuned", dataset="", settings=settings)
        return config.size.word_dim, config.cohort.size, rounds

    assert chosen() == chosen("calibration=proven") == (16, 500, 60)
    assert chosen("calibration=none") == chosen("calibration=as-published") == (50, 200, 150)
    assert chosen("size.word_dim=20", "cohort.size=30") == (20, 30, 60)
    assert preset_names(method("fednewsrec")) == ["paper", "tuned"]


def test_learns() -> None:
    sim = build("fednewsrec", ("calibration=none", "cohort.size=40", "server.rate=0.01"))
    losses = [sim.step(number).loss for number in range(25)]
    assert np.mean(losses[-5:]) < np.mean(losses[:5]) - 0.05


def test_only_so_many_users_take_part() -> None:
    everybody = simulation()
    few, more, again = (simulation(f"train_users={n}", "cohort.size=5") for n in (10, 30, 10))
    taking_part = set(few.sampler.eligible)
    assert len(taking_part) == 10
    assert taking_part == set(again.sampler.eligible) < set(more.sampler.eligible)
    for user in range(len(everybody.data.rows)):
        expected = everybody.data.rows.row(user) if user in taking_part else []
        assert np.array_equal(few.data.rows.row(user), expected)
    other = build("fednewsrec", ("train_users=10", "cohort.size=5"), seed=2)
    assert isinstance(other, Simulation)
    assert set(other.sampler.eligible) != taking_part


def test_fewer_users_need_more_noise_and_the_promise_says_who_it_is_for() -> None:
    sigmas = [
        simulation("calibration=proven", *few).plan.mechanism.facts()["sigma"] for few in ((), ("train_users=30",))
    ]
    assert sigmas[1] > sigmas[0] > 0.0
    config, _ = configure(method("fednewsrec"), preset="tuned", dataset="", settings=["train_users=30"])
    assert any("train_users" in caveat for caveat in method("fednewsrec").guarantee(config).caveats)


def test_more_users_than_there_are_is_refused() -> None:
    with pytest.raises(BadInput, match=r"train_users is 81, but \d+ users can learn: .* or leave it out"):
        simulation("train_users=81")
    with pytest.raises(BadInput, match="train_users"):
        configure(method("fednewsrec"), preset="tuned", dataset="", settings=["train_users=0"])


def test_proven_takes_its_words_from_the_whole_catalogue() -> None:
    # words of news that nobody was shown: that they are left out would tell what somebody was shown
    news = problem().news
    assert news is not None
    sizes = [simulation(f"calibration={name}").server.weights["words.weight"].shape[0] for name in ("none", "proven")]
    assert len(news.catalogue.titles) > len(np.unique(news.impressions.shown.items))
    assert sizes[1] > sizes[0]
