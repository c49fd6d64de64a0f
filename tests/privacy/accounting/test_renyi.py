"""Renyi and zCDP: [vec] values of privacy-math.md sections 2, 5 and 9."""

import math

import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.privacy_accountant import NeighboringRelation
from dp_accounting.rdp import RdpAccountant

from veilrec.privacy.accounting import epsilon_of, epsilon_renyi, epsilon_zcdp, rho_max
from veilrec.privacy.accounting.composition import ORDERS
from veilrec.privacy.events import (
    ComposedEvent,
    GaussianEvent,
    LaplaceEvent,
    PureEvent,
    SampledEvent,
    TreeEvent,
    repeated,
)


@pytest.mark.parametrize(("noise", "epsilon"), [(7.0, 2.39201), (4.0, 4.44078)])
def test_trees_of_section_2(noise, epsilon):
    theirs = (
        RdpAccountant(ORDERS, NeighboringRelation.REPLACE_SPECIAL)
        .compose(dp_event.SingleEpochTreeAggregationDpEvent(noise, 2048))
        .get_epsilon(1e-6)
    )
    ours = epsilon_renyi(TreeEvent(noise, 2048), 1e-6)
    assert ours == pytest.approx(epsilon, abs=5e-6)
    assert ours == pytest.approx(theirs, abs=1e-9)
    assert epsilon_of(TreeEvent(noise, 2048), 1e-6) < ours


def test_sampled_rounds_of_section_5():
    for population, cohort, fixed, poisson in [
        (4800, 5, 0.8993, 0.8712),
        (4800, 10, 1.1547, 1.0218),
        (4800, 20, 1.7092, 1.3317),
        (4800, 30, 2.4460, 1.6819),
        (760, 2, 1.2751, 1.1208),
        (760, 8, 4.2451, 2.5533),
        (760, 15, 8.5109, 4.8052),
    ]:
        for sampling, wanted in (("fixed", fixed), ("poisson", poisson)):
            event = repeated(SampledEvent(1.0, cohort / population, sampling), 1000)
            assert epsilon_renyi(event, 1e-6) == pytest.approx(wanted, abs=1e-4), event


def test_zcdp_of_section_9():
    for queries, epsilon in ((10, 3.7735), (30, 7.0233), (100, 14.334), (365, 32.703)):
        assert epsilon_zcdp(queries * 0.236704**2 / 2, 1e-6) == pytest.approx(epsilon, abs=5e-4)
    for budget, rho in ((2.0, 0.088153), (4.0, 0.311065), (8.0, 1.052358)):
        assert rho_max(budget, 1e-6) == pytest.approx(rho, abs=5e-7)
        assert epsilon_zcdp(rho_max(budget, 1e-6), 1e-6) <= budget
    assert epsilon_zcdp(0.0, 1e-6) == 0.0


def test_the_two_accountants_agree_within_their_looseness():
    for event in [
        repeated(GaussianEvent(0.3), 5),
        repeated(LaplaceEvent(0.3), 20),
        repeated(PureEvent(0.3), 20),
        repeated(SampledEvent(1.0, 0.05, "poisson"), 50),
        repeated(SampledEvent(1.0, 0.05, "padding"), 50),
        ComposedEvent(((GaussianEvent(0.5), 3), (LaplaceEvent(0.1), 10), (PureEvent(0.2), 5))),
    ]:
        tight, loose = epsilon_of(event, 1e-6), epsilon_renyi(event, 1e-6)
        assert tight <= loose <= 2.5 * tight, event


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0])
def test_answers_are_the_worst_of_pure_mechanisms(epsilon):
    response = dp_event.RandomizedResponseDpEvent(2.0 / (math.exp(epsilon) + 1.0), 2)
    accountant = RdpAccountant(ORDERS, NeighboringRelation.REPLACE_ONE).compose(response, 7)
    assert epsilon_renyi(repeated(PureEvent(epsilon), 7), 1e-6) == pytest.approx(accountant.get_epsilon(1e-6), rel=1e-6)
    assert np.all(epsilon_of(LaplaceEvent(epsilon), 1e-6) <= epsilon)
