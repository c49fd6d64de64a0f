"""FedNCF: its presets, what it counts, and that it needs no torch."""

from __future__ import annotations

import pytest

from tests.methods.tastes import build, small_problem
from veilrec.methods.base import configure
from veilrec.methods.priv_fedmf_sub.fedncf import FEDNCF, FedNcfConfig


def configured(*settings: str, preset: str = "tuned", dataset: str = "") -> tuple[FedNcfConfig, int]:
    return configure(FEDNCF, preset=preset, dataset=dataset, settings=settings)


def test_the_paper_preset_has_the_papers_item_parameters() -> None:
    config, rounds = configured(preset="paper", dataset="ml-100k")
    assert config.local.shape.row == FEDNCF.item_parameters == 160
    assert (config.local.batch, config.cohort.size, rounds) == (256, 100, 400)
    config, _ = configured(preset="paper", dataset="ml-1m")
    assert (config.local.batch, config.cohort.size) == (512, 200)
    assert {config.local.user_rate, config.local.item_rate, config.local.network_rate} == {0.0005}


def test_widths_of_layers_can_be_set() -> None:
    config, _ = configured("local.layers=12,6", "local.mlp=4")
    assert config.local.shape.network()["layer1.weight"] == (12, 8)
    assert config.local.shape.network()["layer2.weight"] == (6, 12)


@pytest.mark.parametrize("settings", [("aggregation=mean",), ("local.optimiser=sgd", "local.reduction=sum")])
def test_the_loss_falls(settings: tuple[str, ...]) -> None:
    trainer = build("fedncf", small_problem(), [*settings, "local.user_rate=0.05"])
    losses = [trainer.step(number).loss or 0.0 for number in range(12)]
    assert losses[-1] < 0.9 * losses[0]
