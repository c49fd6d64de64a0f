"""Deep gradient compression: nothing is lost, only late."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from veilrec.client.local_training import Cohort, LocalResults, OwnItems
from veilrec.client.ncf import ERROR, MOMENTUM, DgcLocalTrainer, DgcSettings
from veilrec.core.arrays import Floats, Offsets
from veilrec.core.csr import Csr
from veilrec.core.schema import ClientUpdates, RoundSpec, Rows, Schema, Tensor

SCHEMA = Schema((Tensor("items", (6, 2), True), Tensor("layer", (4, 5), False)))
DEVICES = np.array([3, 8])
DATA = OwnItems(Csr(np.array([0, 1, 2]), np.array([0, 1], np.int32)))


def about(number: int, public_seed: int | None) -> RoundSpec:
    """A round about everything, or about a tenth of the layer."""
    return (
        RoundSpec(number) if public_seed is None else RoundSpec(number, public_seed=public_seed, shares={"layer": 0.1})
    )


class Fixed:
    """Learns the same every round."""

    def __init__(self) -> None:
        self.layer = 0.01 * np.random.default_rng(0).standard_normal((2, 4, 5)).astype(np.float32)

    keeps_state = True

    def fresh_private_state(self, devices: Offsets, draws_seed: int) -> dict[str, Floats]:
        return {"user": np.ones((len(devices), 1), np.float32)}

    def learn(self, cohort: Cohort[OwnItems], model: Mapping[str, Floats], about: RoundSpec) -> LocalResults:
        rows = Rows(np.array([0, 2, 3]), np.array([1, 4, 0], np.int32), np.ones((3, 2), np.float32))
        uploads = ClientUpdates(about.number, 2, {"items": rows}, {"layer": self.layer.copy()})
        return LocalResults(uploads, np.array([1, 1]), np.zeros(2, np.float32))


def run(public_seed: int | None, momentum: float, rounds: int = 40) -> tuple[Floats, dict[str, Floats], ClientUpdates]:
    learner = DgcLocalTrainer(Fixed(), DgcSettings(0.1, momentum, 1.0), SCHEMA)
    private = learner.fresh_private_state(DEVICES, 0)
    sent = np.zeros((2, 20), np.float32)
    model = {"items": np.zeros((6, 2), np.float32)}
    for number in range(rounds):
        uploads = learner.learn(Cohort(DEVICES, DATA, private, 0), model, about(number, public_seed)).uploads
        rows = uploads.entries["layer"]
        assert np.diff(rows.offsets).tolist() == [2, 2]
        sent[np.repeat([0, 1], 2), rows.index] += rows.values[:, 0]
    return sent, private, uploads


@pytest.mark.parametrize("public_seed", [None, 7])
def test_what_is_not_sent_is_kept(public_seed: int | None) -> None:
    sent, private, uploads = run(public_seed, momentum=0.0)
    assert np.allclose(sent + private[ERROR], 40 * Fixed().layer.reshape(2, -1), rtol=1e-3, atol=1e-5)
    assert np.linalg.norm(private[ERROR]) < np.linalg.norm(sent)
    assert "layer" not in uploads.dense
    assert set(private) == {"user", MOMENTUM, ERROR}


def test_momentum_is_cleared_where_something_was_sent() -> None:
    _, private, uploads = run(None, momentum=0.9)
    rows = uploads.entries["layer"]
    device = np.repeat([0, 1], 2)
    assert np.all(private[MOMENTUM][device, rows.index] == 0.0)
    assert np.all(private[ERROR][device, rows.index] == 0.0)


def test_local_clipping_bounds_what_is_accumulated() -> None:
    learner = DgcLocalTrainer(Fixed(), DgcSettings(0.1, 0.0, 1e-3), SCHEMA)
    private = learner.fresh_private_state(DEVICES, 0)
    model = {"items": np.zeros((6, 2), np.float32)}
    uploads = learner.learn(Cohort(DEVICES, DATA, private, 0), model, about(0, 1)).uploads
    sent = np.zeros((2, 20), np.float32)
    sent[np.repeat([0, 1], 2), uploads.entries["layer"].index] = uploads.entries["layer"].values[:, 0]
    assert np.linalg.norm(sent + private[ERROR], axis=1) == pytest.approx([1e-3, 1e-3], rel=1e-4)


def test_rows_are_cut_as_published_and_whole_where_a_seed_chooses() -> None:
    _, _, published = run(None, 0.0, rounds=1)
    _, _, public = run(7, 0.0, rounds=1)
    assert np.diff(published.entries["items"].offsets).tolist() == [2, 2]  # a tenth of 12 entries, rounded up
    assert "items" in public.tables
