"""A model adapted to somebody: kept for the owner alone, and asked without learning again."""

from __future__ import annotations

import stat
from pathlib import Path

import numpy as np
import pytest

import veilrec
from veilrec.core.errors import BadInput
from veilrec.runs.saved import open_personal

DATA = "synthetic-ratings:users=120,items=200,seed=1"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> veilrec.Run:
    return veilrec.train("popularity-head", DATA, out=tmp_path_factory.mktemp("runs") / "head", seed=1)


@pytest.fixture(scope="module")
def history(run: veilrec.Run) -> list[str]:
    return [run.model.items[number] for number in (3, 17, 40, 41)]


def test_an_adapted_model_gives_what_recommend_gives(run: veilrec.Run, history: list[str]) -> None:
    assert run.adapt(history).recommend(8) == run.recommend(history, k=8)
    assert not {one.item for one in run.adapt(history).recommend(20)} & set(history)


def test_adapting_changes_the_list(run: veilrec.Run, history: list[str]) -> None:
    nobody = run.adapt([])
    assert not nobody.weights.any()  # the head starts at zero, and without items there is nothing to learn from
    assert run.adapt(history).weights.any()


def test_a_saved_one_is_the_owners_alone_and_gives_the_same_list(
    run: veilrec.Run, history: list[str], tmp_path: Path
) -> None:
    personal = run.adapt(history)
    personal.save(tmp_path / "me.safetensors")
    assert stat.S_IMODE((tmp_path / "me.safetensors").stat().st_mode) == 0o600
    again = open_personal(tmp_path / "me.safetensors", run.model)
    assert again.history == tuple(history)
    assert np.array_equal(again.weights, personal.weights)
    assert again.recommend(8) == personal.recommend(8)


def test_nothing_personal_is_in_the_folder_that_may_be_shared(run: veilrec.Run, history: list[str]) -> None:
    weights = run.adapt(history).weights.tobytes()
    shared = [path.read_bytes() for path in (run.folder / "model").iterdir()]
    assert shared
    assert not any(weights in content for content in shared)


def test_one_adapted_from_another_model_is_refused(run: veilrec.Run, history: list[str], tmp_path: Path) -> None:
    run.adapt(history).save(tmp_path / "me.safetensors")
    other = veilrec.train("popularity-head", DATA, out=tmp_path / "other", seed=2)
    with pytest.raises(BadInput, match="adapted from another model"):
        open_personal(tmp_path / "me.safetensors", other.model)


def test_a_damaged_file_is_refused_in_one_line(run: veilrec.Run, tmp_path: Path) -> None:
    (tmp_path / "me.safetensors").write_bytes(b"not a model")
    with pytest.raises(BadInput, match="cannot be read"):
        open_personal(tmp_path / "me.safetensors", run.model)


def test_a_method_that_adapts_nothing_says_so(tmp_path: Path) -> None:
    run = veilrec.train("popularity", DATA, out=tmp_path / "popularity", seed=1)
    with pytest.raises(BadInput, match="no weights that adapt"):
        run.adapt([])
