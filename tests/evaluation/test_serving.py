import numpy as np
import pytest

from tests.evaluation.served import DIM, NEWS, MeanModel, categories
from veilrec.client.queries import Serving, Sizes, make_mechanism
from veilrec.core.errors import BadInput
from veilrec.evaluation.serving import SIMULATED, composed, guarantee_of, in_categories, make_plan
from veilrec.privacy.mechanisms.attention import PrivateAttention
from veilrec.privacy.mechanisms.interests import EmbeddingNoise, PooledInterest

WRONG = [
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
]


@pytest.mark.parametrize(("wrong", "match"), WRONG)
def test_what_cannot_be_served_is_refused_in_words(wrong, match):
    with pytest.raises(BadInput, match=match):
        Serving(**wrong)


@pytest.mark.parametrize(
    ("basis", "how", "match"),
    [
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
    ],
)
def test_what_does_not_fit_the_model_is_refused(basis, how, match):
    model = MeanModel(basis)
    if basis is not None and basis > DIM:
        model.basis = np.ones((basis, DIM))
    with pytest.raises(BadInput, match=match):
        make_plan(Serving(**how), model, categories())


def test_usual_noise_and_normalisation_and_categories():
    assert Serving(mode="attention", epsilon=1.0).law == "laplace"
    assert Serving(mode="attention", epsilon=1.0, delta=1e-6).law == "gaussian"
    laplace = make_mechanism(Serving(mode="attention", epsilon=1.0, delta=1e-6, noise="laplace"), Sizes())
    assert laplace.claimed_delta == 0.0
    assert Serving(mode="attention", epsilon=1.0).normalisation == "simplex"
    assert Serving(mode="attention", epsilon=1.0, calibration="as-published").normalisation == "softplus"
    np.testing.assert_array_equal(in_categories(("HEALTH",), ["health", "", "sport"]), [True, False, False])
    with pytest.raises(BadInput, match="no categories"):
        in_categories(("health",), None)


def test_noise_is_what_the_mathematics_says():
    """Vectors of the notes, section 1: theta 1, (1, 1e-6) for a history, and 50 slots for a click."""
    attention = make_mechanism(Serving(mode="attention", epsilon=1.0, delta=1e-6), Sizes())
    assert isinstance(attention, PrivateAttention)
    assert attention.noise.scale == pytest.approx(5.974598, abs=1e-5)
    pooled = make_mechanism(Serving(mode="pooled", epsilon=1.0, delta=1e-6), Sizes())
    assert isinstance(pooled, PooledInterest)
    assert pooled.sigma == pytest.approx(0.168987, rel=3e-5)
    vector = make_mechanism(Serving(mode="vector", epsilon=1.0, calibration="as-published"), Sizes(dim=400))
    assert isinstance(vector, EmbeddingNoise)
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


@pytest.mark.parametrize(("mode", "unit"), [("pooled", "click"), ("interest", "history"), ("vector", "history")])
def test_what_is_proven_says_so_and_that_a_measurement_protects_nobody(mode, unit):
    stated = promise(mode=mode, epsilon=2.0, delta=1e-6)
    assert (stated.basis, stated.unit, stated.scope, stated.trust) == ("proven", unit, "per message", "nobody")
    assert stated.epsilon == 2.0
    assert SIMULATED in stated.caveats


def test_nothing_sent_a_plain_vector_and_sensitive_categories():
    nothing = guarantee_of(Serving(mode="none-sent"), None)
    assert (nothing.epsilon, nothing.delta, nothing.basis) == (0.0, 0.0, "proven")
    assert guarantee_of(Serving(mode="plain"), None).basis == "none"
    first = promise(mode="pooled", epsilon=1.0, delta=1e-6, sensitive=("health", "politics")).caveats[0]
    assert "Only clicks on health, politics are covered" in first
    assert "told exactly" in first


def together(**how):
    serving = Serving(**how)
    return composed(serving, make_mechanism(serving, Sizes()))


@pytest.mark.parametrize(("queries", "epsilon"), [(10, 3.5247), (30, 6.5848), (100, 13.507), (365, 31.040)])
def test_queries_add_up_as_in_section_9(queries, epsilon):
    found = together(mode="attention", epsilon=1.0, delta=1e-6, queries=queries)
    assert found.epsilon == pytest.approx(epsilon, rel=1e-3)
    assert (found.scope, found.delta) == ("lifetime", 1e-6)


def test_pure_queries_add_up_and_what_is_repeated_costs_once():
    pure = together(mode="interest", epsilon=1.0, queries=30)
    assert (pure.epsilon, pure.delta) == (pytest.approx(30.0), 0.0)
    assert together(mode="interest", epsilon=1.0, delta=1e-6, queries=30).epsilon < 29.0
    once = together(mode="interest", epsilon=1.0, queries=30, memoised=True)
    assert (once.epsilon, once.scope) == (pytest.approx(1.0), "per message")  # of one period, not of a lifetime
    assert "every new version costs as much again" in once.caveats[0]
    assert together(mode="interest", epsilon=1.0) is None
