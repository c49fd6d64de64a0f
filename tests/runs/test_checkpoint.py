import numpy as np
import pytest

from veilrec.core.errors import BadInput
from veilrec.runs import checkpoint
from veilrec.runs.checkpoint import Progress


def test_a_state_comes_back_as_it_was_and_only_the_newest_stays(tmp_path):
    state = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.array([1, 2], np.int64)}
    progress = Progress(rounds_done=7, up_bytes=2**40, best_value=0.5, metrics={"hr@10": 0.25})
    for rounds in (3, 20, 100):
        checkpoint.save(checkpoint.checkpoint_path(tmp_path, rounds), state, progress)
    newest = checkpoint.newest(tmp_path)
    assert newest == checkpoint.checkpoint_path(tmp_path, 100)
    checkpoint.prune(tmp_path, keep={newest})
    assert list((tmp_path / "checkpoints").iterdir()) == [newest]
    loaded, read = checkpoint.load(newest)
    assert read == progress
    assert checkpoint.digest(loaded) == checkpoint.digest(state)


def test_the_digest_sees_every_name_shape_and_bit():
    base = {"a": np.zeros((2, 3), np.float32)}
    others = [
        {"b": np.zeros((2, 3), np.float32)},
        {"a": np.zeros((3, 2), np.float32)},
        {"a": np.zeros((2, 3), np.float64)},
        {"a": np.full((2, 3), -0.0, np.float32)},
    ]
    assert len({checkpoint.digest(state) for state in [base, *others]}) == 5


@pytest.mark.parametrize("content", [b"", b"not a state", b"\x10\x00\x00\x00\x00\x00\x00\x00{}"])
def test_a_damaged_state_is_refused_in_one_line(tmp_path, content):
    path = tmp_path / "state.safetensors"
    path.write_bytes(content)
    with pytest.raises(BadInput, match="not a state of a veilrec run"):
        checkpoint.load(path)
