"""Further ways of taking part over bytes; that every method's real rounds give its simulation is in the contract."""

from dataclasses import replace

import numpy as np
import pytest

from tests.methods.tastes import build, small_problem
from veilrec.audit.contract import CLIENTS, REAL_COHORT, real_beside, real_rounds
from veilrec.audit.contract_subject import SECRET, ContractSubject, same

# Ways of taking part and of asking that go through other code on both sides.
OTHER_WAYS = [
    ("fedmf-lean", None, ("row_share=0.5", "server.momentum=0.5")),
    ("dp-fedmf", "proven", ("cohort.sampling=fixed",)),
    ("dp-fedmf", "proven", ("cohort.sampling=poisson",)),
    ("priv-fedmf-sub", "proven", ("selection.unit=click", "cohort.sampling=fixed")),
    ("priv-fedmf-sub", "proven", ("selection.unit=click", "cohort.sampling=poisson")),
    ("priv-fedmf-sub", "as-published", ("selection.reports=cohort", "selection.fresh=true")),
    ("fedmf-sub-rr", None, ("selection.fresh=true",)),
]


def simulation(variant, *settings):
    """Every client with noise of its own, as real ones have."""
    return build(variant, small_problem(CLIENTS), (f"cohort.size={REAL_COHORT}", *settings), secret=SECRET)


@pytest.mark.parametrize(("name", "calibration", "settings"), OTHER_WAYS)
def test_real_rounds_give_the_model_and_the_bytes_of_the_simulation(name, calibration, settings):
    real_rounds(ContractSubject(name, calibration), *settings)


def test_the_cohorts_of_real_rounds_differ():
    with real_beside(simulation("fedmf")) as real:
        assert len(real.clients) > REAL_COHORT


@pytest.mark.parametrize("name", ["dp-fedmf", "priv-fedmf-sub", "dp-privrec"])
def test_the_noise_of_a_message_is_a_secret_of_its_client(name):
    first, other = (simulation(f"{name}:as-published") for _ in range(2))
    other.seeds = replace(other.seeds, secret=bytes(32))
    reports = first.step(0), other.step(0)
    assert len({report.clients for report in reports}) == 1
    assert not same(first.server_state.state(), other.server_state.state())
    assert all(np.isfinite(values).all() for values in other.state().values())
