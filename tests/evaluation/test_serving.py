from dataclasses import replace

import numpy as np
import pytest

from tests.evaluation.served import DIM, NEWS, SUBJECTS, MeanModel, categories, impressions, texts
from veilrec.client.queries import Padding, PooledInput, Serving, Sizes, make_mechanism
from veilrec.core.csr import Csr
from veilrec.core.errors import BadInput
from veilrec.evaluation.metrics import impression_metrics, places_in_lists
from veilrec.evaluation.serving import (
    SIMULATED,
    composed,
    expected_users,
    groups_of,
    guarantee_of,
    in_categories,
    made_up_histories,
    make_plan,
    pooled_space,
    public_interests,
    serve,
    skew,
)
from veilrec.serving.answering import scores_in_lists


def test_what_cannot_be_served_or_does_not_fit_the_model_is_refused_in_words():
    for wrong, match in (
        ({"mode": "poled"}, "pooled"),
        ({"mode": "Pooled", "epsilon": 1.0}, "pooled"),
        ({"mode": "pooled"}, "needs an epsilon"),
        ({"mode": "pooled", "epsilon": 5.0}, "needs a delta"),
        ({"mode": "attention", "epsilon": 5.0, "noise": "gaussian"}, "needs a delta"),
        ({"mode": "interest", "epsilon": 0.0}, "epsilon is 0"),
        ({"mode": "interest", "epsilon": -1.0}, "epsilon is -1"),
        ({"mode": "interest", "epsilon": float("nan")}, "epsilon is nan"),
        ({"mode": "interest", "epsilon": float("inf")}, "epsilon is inf"),
        ({"mode": "pooled", "epsilon": 1.0, "delta": 0.0}, "delta is 0"),
        ({"mode": "pooled", "epsilon": 1.0, "delta": 1.0}, "delta is 1"),
        ({"mode": "none-sent", "epsilon": 1.0}, "epsilon means nothing for none-sent"),
        ({"mode": "plain", "epsilon": 1.0}, "epsilon means nothing for plain"),
        ({"mode": "none-sent", "queries": 3}, "queries means nothing"),
        ({"mode": "interest", "epsilon": 1.0, "padding": 0.5}, "padding means nothing"),
        ({"mode": "attention", "epsilon": 1.0, "padding": 1.0}, "padding is 1"),
        ({"mode": "attention", "epsilon": 1.0, "padding": -0.1}, "padding is -0.1"),
        ({"mode": "attention", "epsilon": 1.0, "clip": 0.0}, "clip is 0"),
        ({"mode": "attention", "epsilon": 1.0, "sensitive": ("news",)}, "sensitive means nothing"),
        ({"mode": "pooled", "epsilon": 1.0, "delta": 1e-6, "calibration": "as-published"}, "no paper"),
        ({"mode": "interest", "epsilon": 1.0, "pool": 0}, "pool is 0"),
        ({"mode": "interest", "epsilon": 1.0, "queries": 0}, "queries is 0"),
    ):
        with pytest.raises(BadInput, match=match):
            Serving(**wrong)
    for basis, how, match in (
        (None, {"mode": "attention", "epsilon": 1.0}, "no basis vectors"),
        (DIM + 1, {"mode": "attention", "epsilon": 1.0}, "9 basis vectors of 8 numbers"),
        (4, {"mode": "interest", "epsilon": 1.0, "pool": NEWS + 1}, "there are 120 news"),
        (4, {"mode": "interest", "epsilon": 1.0, "interests": 3}, "of its own"),
        (None, {"mode": "interest", "epsilon": 1.0, "interests": 1}, "give 2 to"),
        (None, {"mode": "pooled", "epsilon": 1.0, "delta": 1e-6, "axes": DIM + 1}, "at most"),
        (None, {"mode": "pooled", "epsilon": 1.0, "delta": 1e-6, "sensitive": ("sport",)}, "subject-0"),
        (None, {"mode": "pooled", "epsilon": 1.0, "delta": 1e-6, "sensitive": ()}, "at least one"),
        (4, {"mode": "attention", "epsilon": 1.0, "noise": "uniform"}, "unknown noise"),
        (4, {"mode": "attention", "epsilon": 1.0, "calibration": "hoped"}, "unknown calibration"),
    ):
        model = MeanModel(basis)
        if basis is not None and basis > DIM:
            model.basis = np.ones((basis, DIM))
        with pytest.raises(BadInput, match=match):
            make_plan(Serving(**how), model, categories())


def test_usual_noise_and_normalisation_and_categories():
    assert Serving(mode="attention", epsilon=1.0).law == "laplace"
    assert Serving(mode="attention", epsilon=1.0, delta=1e-6).law == "gaussian"
    laplace = make_mechanism(Serving(mode="attention", epsilon=1.0, delta=1e-6, noise="laplace"), Sizes())
    assert (laplace.claimed_delta, Serving(mode="attention", epsilon=1.0).normalisation) == (0.0, "simplex")
    assert Serving(mode="attention", epsilon=1.0, calibration="as-published").normalisation == "softplus"
    np.testing.assert_array_equal(in_categories(("HEALTH",), ["health", "", "sport"]), [True, False, False])
    with pytest.raises(BadInput, match="no categories"):
        in_categories(("health",), None)


def test_noise_is_what_the_mathematics_says():
    """Vectors of the notes, section 1: theta 1, (1, 1e-6) for a history, and 50 slots for a click."""
    attention = make_mechanism(Serving(mode="attention", epsilon=1.0, delta=1e-6), Sizes())
    assert attention.noise.scale == pytest.approx(5.974598, abs=1e-5)
    pooled = make_mechanism(Serving(mode="pooled", epsilon=1.0, delta=1e-6), Sizes())
    assert pooled.sigma == pytest.approx(0.168987, rel=3e-5)
    vector = make_mechanism(Serving(mode="vector", epsilon=1.0, calibration="as-published"), Sizes(dim=400))
    assert vector.scale == pytest.approx(2 * 0.001)
    with pytest.raises(BadInput, match="no mechanism"):
        make_mechanism(Serving(mode="plain"), Sizes())


def promise(**how):
    serving = Serving(**how)
    return guarantee_of(serving, make_mechanism(serving, Sizes()))


def test_a_paper_s_claim_has_the_honest_epsilon_beside_it():
    laplace = promise(mode="attention", epsilon=1.0, calibration="as-published")
    assert (laplace.basis, laplace.epsilon, laplace.delta) == ("as published", 1.0, 0.0)
    assert laplace.honest_epsilon == pytest.approx(2.0, rel=1e-6)  # theta 1: section 1
    assert "clip norm" in laplace.honest_note
    gaussian = promise(mode="attention", epsilon=10.0, delta=1e-3, calibration="as-published")
    assert gaussian.honest_epsilon == pytest.approx(17.859, abs=0.01)
    vector = promise(mode="vector", epsilon=10.0, delta=1e-3, calibration="as-published")
    assert "textbook" in vector.honest_note
    assert vector.honest_epsilon > 10.0


def test_what_a_mode_proves_is_stated_and_that_a_measurement_protects_nobody():
    for mode, unit in (("pooled", "click"), ("interest", "history"), ("vector", "history")):
        stated = promise(mode=mode, epsilon=2.0, delta=1e-6)
        assert (stated.basis, stated.unit, stated.scope, stated.trust) == ("proven", unit, "per message", "nobody")
        assert stated.epsilon == 2.0
        assert SIMULATED in stated.caveats
    nothing = guarantee_of(Serving(mode="none-sent"), None)
    assert (nothing.epsilon, nothing.delta, nothing.basis) == (0.0, 0.0, "proven")
    assert guarantee_of(Serving(mode="plain"), None).basis == "none"
    first = promise(mode="pooled", epsilon=1.0, delta=1e-6, sensitive=("health", "politics")).caveats[0]
    assert "Only clicks on health, politics are covered" in first and "told exactly" in first


def test_a_claim_of_any_size_is_stated():
    """A study has an epsilon of 1,000 for none: e^1000 is no number, and what is stated of it is one."""
    model = MeanModel(4)
    sizes = Sizes(basis=4, padding=Padding(model.users_in_slots, model.basis, model.pad))
    for how in (
        {"mode": "attention"},
        {"mode": "attention", "padding": 0.5},
        {"mode": "attention", "padding": 0.5, "delta": 1e-6},
        {"mode": "interest"},
        {"mode": "pooled", "delta": 1e-6},
        {"mode": "vector"},
    ):
        for calibration in ("proven", "as-published") if how["mode"] in ("attention", "vector") else (None,):
            serving = Serving(epsilon=1000.0, calibration=calibration, **how)
            stated = guarantee_of(serving, make_mechanism(serving, sizes))
            assert stated.epsilon == 1000.0
            assert (stated.honest_epsilon is None) == (calibration != "as-published")


def together(**how):
    serving = Serving(**how)
    return composed(serving, make_mechanism(serving, Sizes()))


def test_queries_add_up_as_in_section_9_and_what_is_repeated_costs_once():
    for queries, epsilon in ((10, 3.5247), (30, 6.5848), (100, 13.507), (365, 31.040)):
        found = together(mode="attention", epsilon=1.0, delta=1e-6, queries=queries)
        assert found.epsilon == pytest.approx(epsilon, rel=1e-3)
        assert (found.scope, found.delta) == ("lifetime", 1e-6)
    pure = together(mode="interest", epsilon=1.0, queries=30)
    assert (pure.epsilon, pure.delta) == (pytest.approx(30.0), 0.0)
    assert together(mode="interest", epsilon=1.0, delta=1e-6, queries=30).epsilon < 29.0
    once = together(mode="interest", epsilon=1.0, queries=30, memoised=True)
    assert (once.epsilon, once.scope) == (pytest.approx(1.0), "per message")  # of one period, not of a lifetime
    assert "every new version costs as much again" in once.caveats[0]
    assert together(mode="interest", epsilon=1.0) is None


ASKED = impressions()


def _served(model, asked=ASKED, **how):
    return serve(Serving(**how), model, asked, _plain(model, asked), texts(), categories())


def _plain(model, asked=ASKED):
    return scores_in_lists(model.users(asked.histories), model.news, asked.history_of.astype(np.int64), asked.shown)


def _auc(scores):
    ranks = places_in_lists(scores, ASKED.shown.offsets, ASKED.clicked)
    offsets = 3 * np.arange(len(ASKED) + 1)
    return float(impression_metrics(ranks, offsets, ASKED.shown.lengths())["auc"].mean())


def test_nothing_sent_gives_what_the_model_gives():
    model = MeanModel()
    served = _served(model, mode="none-sent")
    np.testing.assert_array_equal(served.scores, _plain(model))
    assert (served.recall, served.skew, served.bytes_up, served.plan) == (1.0, 0.0, 0, None)
    ids = sum(len(f"N{item}") for item in range(NEWS))
    assert served.bytes_down == NEWS * (4 * DIM + len("a title")) + ids
    plain = _served(model, mode="plain")
    assert plain.bytes_up == 7 + 4 * DIM
    assert plain.bytes_down < served.bytes_down


@pytest.mark.parametrize(
    ("basis", "how"),
    [
        (4, {"mode": "attention"}),
        (None, {"mode": "pooled", "delta": 1e-6}),
        (None, {"mode": "interest", "interests": 4, "pool": 40}),
        (4, {"mode": "interest", "pool": 40}),
        (None, {"mode": "vector", "delta": 1e-6}),
    ],
)
def test_hardly_any_noise_serves_like_the_model_and_much_like_chance(basis, how):
    model = MeanModel(basis)
    own = _auc(_plain(model))
    little, much = _served(model, epsilon=100.0, **how), _served(model, epsilon=0.01, **how)
    assert _auc(little.scores) > own - 0.03
    assert _auc(much.scores) < 0.62
    assert little.recall > much.recall
    assert little.skew < much.skew


def test_every_impression_has_noise_of_its_own():
    asked = impressions(300)
    one = {"histories": asked.histories.take(np.array([5])), "history_of": np.zeros(300, np.int32)}
    shown = Csr(np.arange(301, dtype=np.int64), np.full(300, 7, np.int32))  # everywhere the same item and history
    scores, again, other = (
        _served(MeanModel(), replace(asked, shown=shown, **one), mode="vector", epsilon=1.0, seed=seed).scores
        for seed in (0, 0, 1)
    )
    assert len(np.unique(scores)) == 300
    np.testing.assert_array_equal(scores, again)
    assert not np.array_equal(scores, other)


def test_a_pool_is_ranked_as_the_model_ranks_and_all_else_behind_it():
    model = MeanModel()
    served = _served(model, mode="interest", epsilon=1.0, pool=NEWS)
    assert (served.skew, served.recall) == (0.0, 1.0)
    assert _auc(served.scores) == _auc(_plain(model))
    served = _served(model, mode="interest", epsilon=1.0, pool=1)
    assert (served.scores >= 1.0).reshape(-1, 12).sum(axis=1).max() == 1
    assert served.recall <= 0.01 + 1e-9
    assert served.bytes_down == pytest.approx(4 * DIM + len("a title") + 3, abs=1)


def test_sensitive_clicks_and_padding():
    how = {"mode": "pooled", "epsilon": 0.1, "delta": 1e-6}
    whole, some = _served(MeanModel(), **how), _served(MeanModel(), sensitive=("subject-1",), **how)
    assert some.bytes_up == whole.bytes_up + 4 * 8
    assert some.plan.asking.question.kind == "pooled-and-clear"
    for calibration in ("proven", "as-published"):
        how = {"mode": "attention", "epsilon": 50.0, "padding": 0.3, "calibration": calibration}
        assert _auc(_served(MeanModel(basis=4), **how).scores) > 0.75


def test_skew_counts_the_places_that_hold_another_item():
    lists = Csr(np.array([0, 3, 3, 5]), np.zeros(5, np.int32))
    plain = np.array([3.0, 2.0, 1.0, 1.0, 0.0], np.float32)
    assert skew(plain, plain, lists) == 0.0
    turned = np.array([1.0, 2.0, 3.0, 1.0, 0.0], np.float32)  # the middle one of three stays
    assert skew(plain, turned, lists) == pytest.approx((2 / 3 + 0) / 2)
    ties = np.array([3.0, 2.0, 1.0, 5.0, 5.0], np.float32)  # in the order of the list
    assert skew(plain, ties, lists) == 0.0
    assert skew(plain[:0], plain[:0], Csr(np.array([0, 0]), np.zeros(0, np.int32))) == 0.0


def test_one_candidate_no_click_and_no_history_are_answered():
    model, asked = MeanModel(basis=4), impressions(3)
    odd = replace(
        asked,
        shown=Csr(np.array([0, 1, 1, 3]), np.array([4, 5, 6], np.int32)),
        clicked=np.zeros(3, np.uint8),
        histories=Csr(np.zeros(4, np.int64), np.zeros(0, np.int32)),
    )
    for how in ({"mode": "attention"}, {"mode": "pooled", "delta": 1e-6}, {"mode": "interest"}, {"mode": "vector"}):
        scores = _served(model, odd, epsilon=1.0, **how).scores
        assert scores.shape == (3,) and np.isfinite(scores).all()


def test_groups_are_found_and_the_same_seed_finds_the_same():
    model = MeanModel()
    (centres, group), again = (groups_of(model.news.astype(np.float64), SUBJECTS, seed=3) for _ in range(2))
    assert len(np.unique(group * SUBJECTS + model.subject)) == SUBJECTS  # each group is one subject
    np.testing.assert_array_equal(centres, again[0])
    centres, group = groups_of(np.ones((5, 3)), 4, seed=1)  # vectors that are all the same
    np.testing.assert_array_equal(centres, np.ones((4, 3)))
    assert set(group) == {0}
    assert len(groups_of(np.eye(4), 4, seed=1)[0]) == 4


def test_made_up_readers_read_what_there_is_and_prefer_a_few_subjects():
    model = MeanModel()
    histories = made_up_histories(model.news, 10, seed=1)
    assert 0 <= histories.items.min() < histories.items.max() < NEWS
    assert (histories.lengths().min(), histories.lengths().max()) == (2, 10)
    long = np.flatnonzero(histories.lengths() == 10)
    shares = np.array([np.bincount(model.subject[histories.row(row)], minlength=SUBJECTS).max() for row in long])
    assert shares.mean() > 5.5  # of 10; readers without taste have 4 to 5 of one of four subjects
    np.testing.assert_array_equal(histories.items, made_up_histories(model.news, 10, seed=1).items)
    assert made_up_histories(model.news[:1], 1, seed=1).items.max() == 0


def test_public_interests_are_the_subjects_and_pooled_space_keeps_within_its_clip_norm():
    model = MeanModel()
    interests = public_interests(model, model.news, 8, seed=1)
    assert (interests.shape, set(interests[:, :SUBJECTS].argmax(axis=1))) == ((8, DIM), set(range(SUBJECTS)))
    space = pooled_space(MeanModel().news, 4)
    norms = np.linalg.norm(space.table, axis=1)
    assert norms.max() <= space.clip_norm
    assert np.mean(norms > 0.999 * space.clip_norm) == pytest.approx(0.5, abs=0.1)
    assert pooled_space(np.ones((3, 2), np.float32), 2).clip_norm == 1.0  # news that do not differ


def test_the_guess_is_good_without_noise_and_cautious_with_much():
    model = MeanModel()
    pooled = PooledInput(pooled_space(model.news, DIM).table, model.longest)
    histories = made_up_histories(model.news, 10, seed=9)
    told = pooled.inputs(histories).sums(pooled.table) / pooled.slots
    truth = model.users(histories)
    near = expected_users(model, model.news, pooled, 1e-6, seed=0).users(told.astype(np.float32))
    far = expected_users(model, model.news, pooled, 1e3, seed=0).users(told.astype(np.float32))
    spread = ((truth - truth.mean(axis=0)) ** 2).sum()
    assert ((truth - near) ** 2).sum() < 0.35 * spread
    assert ((far - far.mean(axis=0)) ** 2).sum() < 1e-6 * spread
