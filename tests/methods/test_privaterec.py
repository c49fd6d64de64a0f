"""PrivateRec and its comparison: what they promise, what a run spends, and what is refused."""

import numpy as np
import pytest
import torch

from tests.methods.tiny_news import SMALL, build, method, population, problem
from veilrec.core.csr import Csr
from veilrec.methods.base import configure, promised, ready
from veilrec.methods.news.ranker import NewsRanker, NewsUsers
from veilrec.methods.privaterec.privaterec import PrivateRecConfig, shared_out
from veilrec.models.news_model import take_news
from veilrec.privacy.accounting import epsilon_of
from veilrec.privacy.events import training_event
from veilrec.privacy.mechanisms.sums import NoNoise
from veilrec.server.round_specs import CohortSampler, CohortSettings

REPORTS = ("training=reports", "cohort.size=20", "cohort.sampling=cyclic")


def config(*settings, name="privaterec", preset="tuned"):
    return configure(method(name), preset=preset, dataset="", settings=settings)[0]


def simulation(*settings, name="privaterec"):
    return build(name, ("cohort.size=10", *settings))


@pytest.mark.parametrize("model", ["nrms", "naml"])
@pytest.mark.parametrize("way", ["calibration=as-published", "calibration=none", "training=sums"])
def test_models_learn_in_every_way(model, way):
    sim = simulation(f"model={model}", way, "cohort.sampling=poisson")
    report = sim.step(0)
    assert np.isfinite(report.loss) and sum(report.shares) == pytest.approx(1.0, abs=1e-4)


def test_pads_of_words_fill_titles_and_stand_for_padded_clicks():
    sim = simulation("calibration=as-published", "pads=words", "privacy.pad_probability=0.5")
    trainer = sim.plan.trainer
    assert (trainer._news.title > 0).all()
    pad_word = int(trainer._news.title.max())
    assert pad_word == sim.plan.schema["words.weight"].shape[0] - 1 and (trainer._news.title[-1] == pad_word).all()
    before = sim.server.weights["words.weight"][pad_word].copy()
    sim.step(0)
    assert not np.array_equal(sim.server.weights["words.weight"][pad_word], before)
    assert sim.model().n_items == problem().n_items  # the pad is no news that anybody is shown


def test_pad_words_start_at_nothing_and_leave_titles_apart():
    """Most of a title are pad words: with a vector as long as a word's, all news were alike, and so all users."""
    sim = simulation("calibration=as-published", "pads=words", "privacy.pad_probability=0.5")
    assert not sim.server.weights["words.weight"][-1].any()
    news = NewsUsers(sim.model()).news
    apart = np.linalg.norm(news - news.mean(0), axis=1).mean() / np.linalg.norm(news, axis=1).mean()
    assert apart > 0.5


def test_served_padding_is_what_training_padded_with():
    """Not a parameter that nothing learns: the encoded title of pad words, also of a model that was stored."""
    for pads in ("words", "vector"):
        sim = simulation("calibration=as-published", f"pads={pads}", "privacy.pad_probability=0.5", "averaging=0")
        sim.step(0)
        pad = NewsUsers(sim.model()).pad
        assert np.linalg.norm(pad) > 0.0
        trainer, weights = sim.plan.trainer, {k: v.copy() for k, v in sim.server.weights.items()}
        if pads == "words":
            with torch.inference_mode():
                expected = trainer._with(weights).encode_news(take_news(trainer._news, slice(-1, None)))[0].numpy()
        else:
            expected = weights["pad"]
        np.testing.assert_allclose(pad, expected, atol=1e-6)
        ranker, nobody = sim.plan.ranker, Csr(np.zeros(1, np.int64), np.zeros(0, np.int32))
        stored = NewsRanker.restored(ranker.settings(), ranker.tables(weights))
        np.testing.assert_allclose(NewsUsers(stored.model(weights, None, nobody)).pad, expected, atol=1e-6)


def test_centralised_training_has_the_paper_s_adam():
    adam = ("rate=0.0001", "second_momentum=0.99")
    (group,) = build("centralized", adam).optimiser.param_groups
    assert (group["lr"], group["betas"]) == (0.0001, (0.9, 0.99))
    asked, _ = configure(method("centralized"), preset="paper", dataset="", settings=())
    assert (asked.rate, asked.second_momentum) == (0.0001, 0.99)


@pytest.mark.parametrize("name", ["fedrec", "dp-fedrec", "centralized"])
def test_baselines_of_the_paper_read_titles_as_privaterec_does(name):
    config, _ = configure(method(name), preset="paper", dataset="", settings=())
    assert config.text.pad_words
    everybody = () if name == "centralized" else ("cohort.size=10",)
    filled = build(name, ("text.pad_words=true", *everybody))
    news = filled.news if name == "centralized" else filled.plan.ranker.items
    assert (news.title > 0).all() and not (
        build(name, everybody).model().reader.read(population().catalogue).title > 0
    ).all()
    np.testing.assert_array_equal(filled.model().reader.read(population().catalogue).title, news.title)


def test_as_published_no_epsilon_is_finite_and_the_claim_is_the_papers():
    asked = config("calibration=as-published", "privacy.epsilon=5")
    claim = promised(method("privaterec"), asked, problem())
    assert (claim.basis, claim.unit, claim.epsilon, claim.delta) == ("as published", "click", 5.0, 0.0)
    assert claim.honest_epsilon is None and "history" in claim.honest_note
    assert isinstance(simulation("calibration=as-published").plan.mechanism, NoNoise)


def test_dp_fedrec_as_published_costs_the_root_of_its_numbers():
    sim = simulation("calibration=as-published", "privacy.epsilon=2", name="dp-fedrec")
    mechanism = sim.plan.mechanism
    assert mechanism.clip_norm == 0.005 and mechanism.scale == pytest.approx(2 * 0.005 / 2)
    asked = config(*SMALL, "calibration=as-published", "privacy.epsilon=2", "cohort.size=10", name="dp-fedrec")
    claim = promised(method("dp-fedrec"), asked, problem())
    assert claim.honest_epsilon == pytest.approx(2.0 * mechanism.dimension**0.5, rel=1e-6)


def test_reports_spend_what_is_promised_over_all_turns_of_a_client():
    sim = simulation(*REPORTS, "privacy.epsilon=8")
    plan = sim.plan
    assert (plan.mechanism.unit, plan.mechanism.trust) == ("user", "nobody")
    clients = int((sim.data.rows.lengths() > 0).sum())
    assert plan.max_participations == -(-5 * 20 // clients)
    spent = epsilon_of(training_event(plan), 1e-6)
    assert 0.99 * 8.0 <= spent <= 8.0
    statement = promised(method("privaterec"), config(*SMALL, *REPORTS), problem())
    assert (statement.basis, statement.unit, statement.trust) == ("proven", "user", "nobody")
    assert any("shown" in caveat for caveat in statement.caveats)


def test_the_epsilon_of_a_run_is_shared_out_by_composition():
    asked = PrivateRecConfig(training="reports", cohort=CohortSettings(size=20, sampling="cyclic"))
    once, often = shared_out(asked, 1), shared_out(asked, 10)
    assert sum(once) == pytest.approx(8.0, rel=1e-3) and 8.0 / 10 < sum(often) < sum(once)


def test_reports_leave_the_user_encoder_as_it_was():
    sim = simulation(*REPORTS)
    before = {name: value.copy() for name, value in sim.server.weights.items()}
    sim.step(0)
    for name, value in sim.server.weights.items():
        if name.startswith("clicks.") or name in ("newcomer", "pad"):
            assert np.array_equal(value, before[name]), name
    assert not np.array_equal(sim.server.weights["basis"], before["basis"])


@pytest.mark.parametrize("secret", [None, bytes(range(32))])
def test_turns_come_equally_often(secret):
    settings = CohortSettings(size=7, sampling="cyclic")
    sampler = CohortSampler(settings, np.arange(100, 123), 3, secret=secret)
    for rounds in (1, 3, 10, 23):
        seen = np.concatenate([sampler.draw(number) for number in range(rounds)])
        counts = np.bincount(seen - 100, minlength=23)
        assert counts.max() == settings.max_participations(rounds, 23) and counts.max() - counts.min() <= 1


def test_padding_does_not_count_where_users_are_protected():
    notes = ready(method("privaterec"), config("training=sums", "privacy.pad_probability=0.3"))
    assert any("pad_probability 0.3 does not count" in note for note in notes)


def test_gaussian_noise_is_an_option_as_published():
    sim = simulation("calibration=as-published", "privacy.law=gaussian", "privacy.delta=0.001")
    trainer = sim.plan.trainer
    # Classical sigma for theta 1 at (10, 1e-3): sqrt(2 ln 1250) / 10
    assert trainer.noise.attention.scale == pytest.approx(0.377648, rel=1e-5)


def test_centralised_training_and_the_paper_presets_can_be_had():
    trainer = build("centralized", ("batch=64",))
    assert np.isfinite(trainer.step(0).loss or np.nan)
    paper = config(name="centralized", preset="paper")
    assert (paper.batch, paper.rate, paper.size.heads) == (64, 1e-4, 20)
    asked = config(preset="paper")
    assert (asked.calibration, asked.size.basis) == ("as-published", 5)
    assert (asked.privacy.pad_probability, asked.pads) == (0.5, "words")
