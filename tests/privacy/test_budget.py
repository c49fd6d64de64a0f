"""The calculators: [vec] values of privacy-math.md sections 1, 3 and 5."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from veilrec.core.errors import BadInput
from veilrec.privacy.accounting import Rounds
from veilrec.privacy.accounting.gaussian import delta_gaussian, mu_for
from veilrec.privacy.budget import Budget, Cost, Wish, epsilon_of_training, noise_of_message
from veilrec.privacy.events import (
    GaussianEvent,
    LaplaceEvent,
    NonPrivateEvent,
    PureEvent,
    SampledEvent,
    TreeEvent,
    repeated,
)


def account(accounting="zcdp", epsilon=2.0, **settings):
    chosen = {"unit": "click", "adjacency": "replace-one", "delta": 1e-6} | settings
    return Budget(epsilon=epsilon, accounting=accounting, **chosen)


def click_cost(budget, event):
    return budget.cost(event, "click", "replace-one")


def fitting(budget, event, at_most):
    cost, total = click_cost(budget, event), Cost()
    for messages in range(at_most):
        if not budget.allows(total := total.plus(cost), total):
            return messages
    return at_most


def test_limits_and_reports_of_section_9():
    limits = [
        (2.0, 0.448335, 0.100502, 0.088153),
        (4.0, 0.837859, 0.351004, 0.311065),
        (8.0, 1.531545, 1.172815, 1.052358),
    ]
    for epsilon, mu, rho, rho_mixed in limits:
        assert math.sqrt(account("gaussian", epsilon).limit) == pytest.approx(mu, abs=1e-6)
        assert account("gaussian", epsilon).limit / 2 == pytest.approx(rho, abs=1e-6)
        assert account("zcdp", epsilon).limit == pytest.approx(rho_mixed, abs=1e-6)
    assert mu_for(1.0, 1e-6) == pytest.approx(0.236704, abs=1e-6)
    for messages, exact, zcdp in (
        (10, 3.5247, 3.7735),
        (30, 6.5848, 7.0233),
        (100, 13.507, 14.334),
        (365, 31.040, 32.703),
    ):
        query = repeated(GaussianEvent(mu_for(1.0, 1e-6)), messages)
        for budget, epsilon in ((account("gaussian"), exact), (account("zcdp"), zcdp)):
            assert budget.spent(click_cost(budget, query)) == (pytest.approx(epsilon, rel=5e-5), 1e-6)


@pytest.mark.parametrize("accounting", ["zcdp", "gaussian"])
@pytest.mark.parametrize("messages", [1, 2, 3, 7, 30, 100, 365, 1000])
def test_as_many_messages_fit_as_were_planned(accounting, messages):
    budget = account(accounting)
    squared = budget.limit / messages * (1.0 - (messages + 4) * 2.0**-52)  # every sum is rounded up
    mu = math.sqrt(squared if accounting == "gaussian" else 2.0 * squared)
    assert fitting(budget, GaussianEvent(mu), 2 * messages) == messages


def test_pure_messages_fit_by_their_sum_or_by_their_squares():
    assert fitting(account(), PureEvent(0.5), 100) == 4  # one alone has rho 0.125, more than the limit
    assert fitting(account(), PureEvent(0.01), 2000) == 1763  # 0.088153 / 0.00005
    assert account().spent(Cost(loss=0.125, pure=0.5)) == (0.5, 0.0)
    total = click_cost(account(), PureEvent(0.5)).plus(click_cost(account(), GaussianEvent(1e-6)))
    assert total.pure == math.inf
    assert not account().allows(total, total)


@given(st.floats(0.001, 30.0))
def test_a_pure_event_is_covered_by_its_gaussian_cost(epsilon):
    mu = math.sqrt(click_cost(account("gaussian"), PureEvent(epsilon)).loss)
    grid = np.linspace(0.0, epsilon, 50)
    response = -np.expm1(grid - epsilon) / (1.0 + math.exp(-epsilon))  # (e^eps - e^x) / (1 + e^eps)
    assert (delta_gaussian(grid, mu) >= response * (1 - 1e-9) - 1e-12).all()


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 2.0, 5.0, 40.0])
def test_a_pure_event_is_covered_by_its_rho(epsilon):
    orders = np.concatenate((1.0 + np.logspace(-4, 3, 200), [1e5]))
    log_q = -np.logaddexp(0.0, epsilon)
    one, other = orders * epsilon + log_q, -(orders - 1.0) * epsilon + log_q
    divergence = np.logaddexp(one, other) / (orders - 1.0)
    assert (divergence <= click_cost(account(), PureEvent(epsilon)).loss * orders * (1 + 1e-9)).all()


def test_sampling_is_charged_as_if_everybody_took_part_and_plaintext_has_no_cost():
    sampled = SampledEvent(0.2, 0.01, "padding")
    for accounting in ("zcdp", "gaussian"):
        budget = account(accounting)
        assert click_cost(budget, sampled) == click_cost(budget, GaussianEvent(0.2))
    assert click_cost(account("gaussian"), TreeEvent(4.0, 2048)).loss == pytest.approx(12 / 16)
    assert click_cost(account(), LaplaceEvent(0.3)) == click_cost(account(), PureEvent(0.3))
    with pytest.raises(BadInput, match="in plaintext"):
        account().cost(NonPrivateEvent(), "click", "replace-one")


def test_what_hides_more_is_charged_for_what_is_hidden_in_it():
    for message, of, steps in [
        (("click", "replace-one"), ("click", "replace-one"), 1),
        (("click", "add-remove"), ("click", "add-remove"), 1),
        (("click", "add-remove"), ("click", "replace-one"), 2),
        (("click", "replace-one"), ("click", "add-remove"), None),
        (("history", "replace-one"), ("click", "add-remove"), 1),
        (("history", "replace-one"), ("click", "replace-one"), 1),
        (("user", "add-remove"), ("click", "add-remove"), 2),
        (("user", "add-remove"), ("history", "replace-one"), 2),
        (("click", "replace-one"), ("history", "replace-one"), None),
        (("history", "add-remove"), ("user", "add-remove"), None),
    ]:
        for accounting in ("zcdp", "gaussian"):
            budget = account(accounting, unit=of[0], adjacency=of[1])
            for kind in (GaussianEvent, PureEvent):
                cost = budget.cost(kind(0.3), *message)
                wanted = None if steps is None else budget.cost(kind(0.3 * steps), *of)
                assert cost == wanted, (message, of)


def test_a_lifetime_budget_outlasts_the_periods():
    budget = account(epsilon=1.0, lifetime_epsilon=1.5)
    once, twice = Cost(1.0, 1.0), Cost(2.0, 2.0)
    assert budget.allows(once, once)
    assert not budget.allows(once, twice)
    assert budget.remaining(Cost(1.0, 0.25)) == 0.75


@given(st.lists(st.floats(0.0, 1e6), max_size=30))
def test_sums_are_never_rounded_down(losses):
    from fractions import Fraction

    total = Cost()
    for loss in losses:
        total = total.plus(Cost(loss, 0.0))
    assert Fraction(total.loss) >= sum(map(Fraction, losses))
    assert total.loss <= sum(losses) * (1 + 1e-13) + 1e-300


def test_bad_budgets_and_wishes_are_refused():
    for settings, message in [
        ({"epsilon": 0.0}, "epsilon is 0.0"),
        ({"epsilon": math.nan}, "epsilon is nan"),
        ({"delta": 1.0}, "delta is 1.0"),
        ({"delta": 0.0}, "delta is 0.0"),
        ({"lifetime_epsilon": 1.0}, "at least the 2.0"),
        ({"lifetime_epsilon": -1.0}, "lifetime_epsilon is -1.0"),
        ({"unit": "clicks"}, "unknown unit 'clicks': did you mean click"),
        ({"adjacency": "any"}, "unknown adjacency"),
        ({"accounting": "magic"}, "unknown accounting"),
        ({"trust": "everybody"}, "unknown trust"),
    ]:
        with pytest.raises(BadInput, match=message):
            account(**settings)
    for wish, message in [
        ({"mechanism": "gauss", "epsilon": 1.0}, "did you mean gaussian"),
        ({"mechanism": "gaussian", "epsilon": 0.0, "delta": 1e-6}, "epsilon is 0"),
        ({"mechanism": "gaussian", "epsilon": -2.0, "delta": 1e-6}, "epsilon is -2"),
        ({"mechanism": "gaussian", "epsilon": 1.0}, "give --delta"),
        ({"mechanism": "gaussian", "epsilon": 1.0, "delta": 1.0}, "delta is 1"),
        ({"mechanism": "laplace", "epsilon": 1.0, "delta": 0.0}, "delta is 0"),
        ({"mechanism": "gaussian", "epsilon": 1.0, "delta": 1e-6, "sensitivity": 0.0}, "sensitivity is 0"),
        ({"mechanism": "attention", "epsilon": 1.0, "sensitivity": 1.0}, "takes no --sensitivity"),
        ({"mechanism": "attention", "epsilon": 1.0, "clip_norm": 0.0}, "clip_norm is 0"),
        ({"mechanism": "attention", "epsilon": 1.0, "basis": 0}, "basis is 0"),
        ({"mechanism": "attention", "epsilon": 1.0, "pad_probability": 1.0}, "pad_probability is 1"),
        ({"mechanism": "label", "epsilon": 1.0}, "needs --candidates"),
        ({"mechanism": "k-ary", "epsilon": 1.0, "candidates": 1}, "needs --candidates"),
        ({"mechanism": "randomised-response", "epsilon": 1000.0}, "no finite epsilon describes that"),
        ({"mechanism": "label", "epsilon": 1.0, "candidates": 5, "pad_probability": 0.5}, "takes no --padding"),
    ]:
        with pytest.raises(BadInput, match=message):
            noise_of_message(Wish(**wish))


def test_noise_of_the_notes():
    for wish, name, value in [
        ({"mechanism": "gaussian", "epsilon": 1, "delta": 1e-6}, "sigma", 4.224679),
        ({"mechanism": "gaussian", "epsilon": 1, "delta": 1e-6, "sensitivity": 0.04}, "sigma", 0.168987),
        ({"mechanism": "attention", "epsilon": 1, "delta": 1e-6, "pad_probability": 0.5}, "sigma", 3.998930),
        ({"mechanism": "attention", "epsilon": 1, "delta": 1e-6}, "sigma", 5.974598),
        ({"mechanism": "attention", "epsilon": 10, "delta": 1e-3, "pad_probability": 0.5}, "sigma", 0.525477),
        ({"mechanism": "attention", "epsilon": 1, "pad_probability": 0.5}, "scale", 1.342390),
        ({"mechanism": "attention", "epsilon": 1, "clip_norm": 0.4}, "scale", 1.258506),
        ({"mechanism": "attention", "epsilon": 1, "clip_norm": 0.8, "basis": 3}, "scale", 1.8),
        ({"mechanism": "laplace", "epsilon": 0.5, "sensitivity": 3.0}, "scale", 6.0),
        ({"mechanism": "randomised-response", "epsilon": 2}, "keep_probability", 0.880797),
        ({"mechanism": "k-ary", "epsilon": 1, "candidates": 5}, "keep_probability", 0.4046),
        ({"mechanism": "k-ary", "epsilon": 5, "candidates": 5}, "keep_probability", 0.9738),
        ({"mechanism": "label", "epsilon": 1, "candidates": 37}, "keep_probability", 0.070207),
        ({"mechanism": "label", "epsilon": 2, "candidates": 37}, "keep_probability", 0.170298),
        ({"mechanism": "label", "epsilon": 4, "candidates": 37}, "keep_probability", 0.602641),
    ]:
        plan = noise_of_message(Wish(**wish))
        digits = len(str(value).partition(".")[2])
        assert plan.settings[name] == pytest.approx(value, abs=0.51 * 10**-digits + 2e-7), wish
        assert plan.guarantee.epsilon == wish["epsilon"], wish
        assert plan.guarantee.basis == "proven"


def test_what_a_plan_protects():
    rounds = Rounds(rounds=1000, sampling="poisson", population=4800, cohort=30)
    guarantee = epsilon_of_training(1.0, 1e-6, rounds).guarantee
    assert guarantee.epsilon == pytest.approx(1.2978, abs=1e-4)
    assert (guarantee.unit, guarantee.adjacency, guarantee.scope) == ("user", "add-remove", "whole run")
    plain = noise_of_message(Wish(mechanism="attention", epsilon=1.0, delta=1e-6)).guarantee
    padded = noise_of_message(Wish(mechanism="attention", epsilon=1.0, delta=1e-6, pad_probability=0.5)).guarantee
    assert (plain.unit, padded.unit) == ("history", "click")
    assert any("Padding" in caveat for caveat in padded.caveats)
    laplace = noise_of_message(Wish(mechanism="laplace", epsilon=1.0, delta=1e-6)).guarantee
    assert (laplace.delta, "delta 0" in laplace.caveats[-1]) == (0.0, True)  # one that is not needed is not spent
    bit = noise_of_message(Wish(mechanism="randomised-response", epsilon=2.0)).guarantee
    assert (bit.unit, bit.adjacency) == ("click", "add-remove")
    chances = noise_of_message(Wish(mechanism="k-ary", epsilon=1.5, candidates=9)).settings
    assert chances["keep_probability"] + 8 * chances["other_probability"] == pytest.approx(1.0)
    assert math.log(chances["keep_probability"] / chances["other_probability"]) == pytest.approx(1.5)
