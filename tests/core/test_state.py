"""States on disk: every type comes back, and no second copy is made on the way."""

import tracemalloc

import numpy as np
import pytest
from safetensors.numpy import save_file

from veilrec.client.local_training import OwnItems
from veilrec.client.rankers import PopularityRanker
from veilrec.core.csr import Csr
from veilrec.core.errors import BadInput
from veilrec.core.plan import Plan
from veilrec.core.schema import Schema, Tensor
from veilrec.core.state import StoredState, fill
from veilrec.privacy.mechanisms.sums import NoNoise
from veilrec.runs import checkpoint
from veilrec.runs.checkpoint import Progress
from veilrec.server.aggregation import ServerRate
from veilrec.server.round_specs import CohortSettings
from veilrec.simulation.simulation import Seeds, Simulation

STATE = {
    "wide": np.arange(6.0).reshape(2, 3),
    "usual": np.arange(6, dtype=np.float32).reshape(2, 3),
    "half": np.ones((2, 2), np.float16),
    "short": np.arange(3, dtype=np.int16),
    "flags": np.array([True, False, True]),
    "one": np.array(7, np.int64),
    "none": np.empty((0, 4), np.float32),
    "bytes": np.arange(5, dtype=np.uint8),
}
CLIENTS, WIDTH = 1000, 500  # 2 MB of each client's own state, twice


class Keeper:
    """A trainer whose clients keep much."""

    keeps_state = True

    def fresh_private_state(self, clients, draws_seed):
        return {name: np.zeros((len(clients), WIDTH), np.float32) for name in ("one", "other")}

    def learn(self, cohort, model, spec):
        raise AssertionError("nobody learns here")


def keepers():
    schema = Schema((Tensor("items", (3, 2), True),))
    plan = Plan(
        schema=schema,
        start={"items": np.zeros((3, 2), np.float32)},
        trainer=Keeper(),
        mechanism=NoNoise(schema),
        rounds=1,
        cohort=CohortSettings(size=10),
        aggregation="mean",
        server=ServerRate(),
        ranker=PopularityRanker(),
    )
    train = Csr(np.arange(CLIENTS + 1), np.zeros(CLIENTS, np.int32))
    return Simulation(plan, OwnItems(train), train, Seeds.all_from(0))


def max_on_top(work):
    """The most bytes that were held beyond what was held before."""
    tracemalloc.start()
    work()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def test_every_type_comes_back(tmp_path):
    save_file(STATE, tmp_path / "state", metadata={"a": "b"})
    stored = StoredState(tmp_path / "state")
    assert stored.metadata == {"a": "b"}
    assert set(stored) == set(STATE)
    assert len(stored) == len(STATE)
    for name, array in STATE.items():
        assert stored[name].dtype == array.dtype
        assert stored[name].shape == array.shape
        assert np.array_equal(stored[name], array)


def test_a_place_is_filled_whatever_its_layout_if_its_shape_and_type_fit(tmp_path):
    for order in ["C", "F"]:
        save_file(STATE, tmp_path / "state")
        for state in (STATE, StoredState(tmp_path / "state")):
            place = np.zeros((2, 3), order=order)
            fill(place, state, "wide")
            assert np.array_equal(place, STATE["wide"])
    save_file(STATE, tmp_path / "state")
    for place in (np.zeros((3, 2)), np.zeros((2, 3), np.float32)):
        with pytest.raises(ValueError, match="wide has shape"):
            StoredState(tmp_path / "state").read_into("wide", place)


def test_saving_and_going_on_hold_no_second_copy(tmp_path):
    stopped, resumed = keepers(), keepers()
    for seed, values in enumerate(stopped.private.values()):
        values[...] = np.random.default_rng(seed).standard_normal(values.shape)
    path = tmp_path / "state"
    one_array = CLIENTS * WIDTH * 4
    assert max_on_top(lambda: checkpoint.save(path, stopped.state(), Progress(3))) < one_array / 4
    assert max_on_top(lambda: checkpoint.restore(resumed, path)) < one_array / 4
    assert checkpoint.digest(resumed.state()) == checkpoint.digest(stopped.state())


def test_states_of_other_settings_and_files_cut_short_are_refused(tmp_path):
    checkpoint.save(tmp_path / "state", keepers().state(), Progress(3))
    other = keepers()
    other.private["one"] = np.zeros((CLIENTS, WIDTH + 1), np.float32)
    with pytest.raises(BadInput, match="does not fit the settings"):
        checkpoint.restore(other, tmp_path / "state")
    save_file(STATE, tmp_path / "state")
    stored = StoredState(tmp_path / "state")
    content = (tmp_path / "state").read_bytes()
    (tmp_path / "state").write_bytes(content[:-5])
    with pytest.raises(BadInput, match="became shorter"):
        dict(stored)
    with pytest.raises(BadInput, match="not a state of a veilrec run"):
        checkpoint.load(tmp_path / "state")
