"""Every federated method over bytes: real devices and a coordinator give the simulation's model, noise included."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.real_rounds import SECRET, RealRun
from veilrec._arrays import Floats
from veilrec.data.population import Catalogue
from veilrec.methods.registry import get
from veilrec.simulate.simulation import Simulation

from . import tiny_news
from .tastes import ON_RATINGS, build, same, small_problem

FEDERATED = [name for name in ON_RATINGS if get(name).kind == "federated"]
PRIVATE = [name for name in FEDERATED if "calibration" in get(name).config.model_fields]
# Further ways of taking part and of asking, which go through other code on both sides.
OTHER_WAYS = {
    "fedmf-lean parts": ("row_share=0.5", "server.momentum=0.5"),
    "dp-fedmf fixed": ("cohort.sampling=fixed",),
    "dp-fedmf poisson": ("cohort.sampling=poisson",),
    "priv-fedmf-sub click": ("selection.unit=click", "cohort.sampling=fixed"),
    "priv-fedmf-sub poisson-click": ("selection.unit=click", "cohort.sampling=poisson"),
    "priv-fedmf-sub:as-published cohort": ("selection.reports=cohort", "selection.fresh=true"),
    "fedmf-sub-rr everybody": ("selection.fresh=true",),
}
VARIANTS = [*FEDERATED, *(f"{name}:as-published" for name in PRIVATE), *OTHER_WAYS]
ON_NEWS = ("fednewsrec:none", "fednewsrec:as-published", "fednewsrec:proven", "fednewsrec-head:proven")
ROUNDS, DEVICES, COHORT = 3, 24, 12


def simulation(variant: str, *settings: str) -> Simulation:
    """Every device with noise of its own, as real ones have."""
    name = variant.split(maxsplit=1)[0]
    chosen: Sequence[str] = (f"cohort.size={COHORT}", *OTHER_WAYS.get(variant, ()), *settings)
    trainer = build(name, small_problem(DEVICES), chosen, secret=SECRET)
    assert isinstance(trainer, Simulation)
    return trainer


def run_both(simulated: Simulation, folder: Path) -> tuple[RealRun, Mapping[str, Any]]:
    """Some rounds of both; every byte that the simulation counts is sent."""
    real = RealRun(folder, simulated.plan, simulated.data, simulated.seeds)
    for number in range(ROUNDS):
        told, done = simulated.step(number), real.step()
        assert (told.devices, told.down_bytes) == (done.devices, done.down_bytes)
        assert (told.up_bytes, told.selection_bytes) == (done.up_bytes, done.report_bytes)
        assert done.messages == done.devices
        assert not done.refused
    return real, real.coordinator.standing.state()


@pytest.mark.parametrize("variant", VARIANTS)
def test_real_rounds_give_the_model_and_the_bytes_of_the_simulation(variant: str, tmp_path: Path) -> None:
    simulated = simulation(variant)
    real, state = run_both(simulated, tmp_path)
    assert same(dict(state), simulated.standing.state())
    assert len(real.devices) > COHORT  # the cohorts differ from round to round
    for name, device in real.devices.items():
        number = int(name.split()[1])
        assert same(dict(device.private), {key: values[[number]] for key, values in simulated.private.items()})
    real.close()


@pytest.fixture
def made_up_sentences(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sentence vectors without the language model, whose package need not be there."""

    def vectors(catalogue: Catalogue) -> Floats:
        return np.random.default_rng(4).standard_normal((len(catalogue.titles), 384), np.float32) / 384**0.5

    monkeypatch.setattr("veilrec.methods.news.sentences.whole_vectors", vectors)


@pytest.mark.parametrize("variant", ON_NEWS)
@pytest.mark.usefixtures("made_up_sentences")
def test_real_rounds_of_news_methods_give_the_model_of_the_simulation(variant: str, tmp_path: Path) -> None:
    name, calibration = variant.split(":")
    settings = (f"calibration={calibration}", "cohort.size=8", "server.optimiser=sgd", "server.rate=0.05")
    simulated = tiny_news.build(name, settings, secret=SECRET)
    assert isinstance(simulated, Simulation)
    real, state = run_both(simulated, tmp_path)
    wanted = simulated.standing.state()
    assert state.keys() == wanted.keys()
    for key, values in wanted.items():  # a cohort multiplies larger matrices, whose sums are in another order
        assert np.linalg.norm(state[key] - values) <= 1e-6 * np.linalg.norm(values) + 1e-9
    real.close()


@pytest.mark.parametrize("variant", [f"{name}:as-published" for name in PRIVATE])
def test_the_noise_of_a_message_is_a_secret_of_its_device(variant: str) -> None:
    first, other = simulation(variant), simulation(variant)
    other.seeds = replace(other.seeds, secret=bytes(32))
    reports = first.step(0), other.step(0)
    assert len({report.devices for report in reports}) == 1
    assert not same(first.standing.state(), other.standing.state())
    assert all(np.isfinite(values).all() for values in other.state().values())
