"""A saved catalogue answers as before; a file that was changed is refused in one line."""

from __future__ import annotations

import numpy as np
import pytest

from tests.serving.index.test_catalogue import DIM, assert_same, both, made
from veilrec.core.errors import BadInput
from veilrec.serving.index.catalogue import ItemIndex, open_arrays, open_catalogue, save, write_arrays


@pytest.fixture
def changed():
    one, other = both(700)
    for number in range(50):
        about = {"category": number % 5, "region": number % 3, "prior": float(number % 4), "expires": float(number)}
        vector = np.full(DIM, number % 7, np.float32)
        assert one.put(vector, **about) == other.put(vector, **about)
    for number in (3, 4, 710):
        one.remove(number)
        other.remove(number)
    return one, other


def test_a_catalogue_comes_back_as_it_was(tmp_path, changed):
    one, other = changed
    save(one, tmp_path / "index")
    generator = np.random.default_rng(0)
    opened = open_catalogue(tmp_path / "index", check=True)
    for again in (one, opened):
        assert_same(again, other, generator)
    assert opened.version == one.version
    assert opened.expire(20.0) == other.expire(20.0) > 0
    assert opened.put(np.ones(DIM, np.float32)) == other.put(np.ones(DIM, np.float32)) == 750
    opened.remove(5)
    other.remove(5)
    assert_same(opened, other, generator)
    opened.merge()
    assert_same(opened, other, generator)
    assert len(open_catalogue(tmp_path / "index")) == 747, "nothing was written into the file"


def test_vectors_may_stay_where_they_are(tmp_path):
    vectors, interests, _ = made()
    one = ItemIndex.of(vectors, interests)
    save(one, tmp_path / "small", vectors=False)
    save(one, tmp_path / "large")
    assert (tmp_path / "small").stat().st_size + vectors.nbytes <= (tmp_path / "large").stat().st_size + 256
    asked = vectors[3], 5
    opened = open_catalogue(tmp_path / "small", vectors)
    assert opened.best_by_vector(*asked)[0].tolist() == one.best_by_vector(*asked)[0].tolist()
    with pytest.raises(BadInput, match="needs the vectors that it was made of"):
        open_catalogue(tmp_path / "small")
    with pytest.raises(BadInput, match="needs the vectors that it was made of"):
        open_catalogue(tmp_path / "small", vectors[:-1])


def test_any_damage_is_refused_in_one_line(tmp_path, changed):
    path, broken = tmp_path / "index", tmp_path / "broken"
    save(changed[0], path)
    content = path.read_bytes()
    generator = np.random.default_rng(1)
    header = 48 + int.from_bytes(content[40:48], "little")
    places = [*generator.integers(0, header, 60).tolist(), *generator.integers(header, len(content), 60).tolist()]
    for place in places:
        wrong = bytearray(content)
        wrong[place] ^= 1 << int(generator.integers(8))
        broken.write_bytes(wrong)
        if place < header:
            with pytest.raises(BadInput, match="is damaged") as refused:
                open_catalogue(broken)
            assert "\n" not in str(refused.value)
        else:
            try:
                open_catalogue(broken, check=True)
            except BadInput as refused:
                assert "is not what was written" in str(refused)
            else:
                assert not any(_covers(content, header, place)), "only what fills the gaps may change"
    for length in (0, 7, 30, 47, 48, 100, header, header + 1, len(content) - 1):
        broken.write_bytes(content[:length])
        with pytest.raises(BadInput, match="is damaged"):
            open_catalogue(broken)
    broken.write_bytes(content + b"x")
    with pytest.raises(BadInput, match="is damaged"):
        open_catalogue(broken)


def _covers(content, header, place):
    import json

    about = json.loads(content[48:header])
    for array in about["arrays"].values():
        size = int(np.prod(array["shape"])) * np.dtype(array["type"]).itemsize
        yield array["begin"] <= place - header < array["begin"] + size


def test_what_is_no_index_or_of_another_version_is_refused(tmp_path):
    path = tmp_path / "index"
    with pytest.raises(BadInput, match="cannot be used"):
        open_catalogue(path)
    with pytest.raises(BadInput, match="cannot be used"):
        open_catalogue(tmp_path)
    write_arrays(path, {"a": np.zeros(3, np.float32)}, {"format": 99})
    with pytest.raises(BadInput, match="another version"):
        open_catalogue(path)
    write_arrays(path, {"a": np.zeros(3, np.complex64)}, {})
    with pytest.raises(BadInput, match="is damaged"):
        open_arrays(path)


def test_arrays_of_every_shape_come_back(tmp_path):
    arrays = {
        "empty": np.zeros((0, 4), np.float32),
        "flat": np.arange(5, dtype=np.int64),
        "cube": np.arange(24, dtype=np.uint8).reshape(2, 3, 4),
        "sliced": np.arange(20, dtype=np.int32)[::2],
    }
    write_arrays(tmp_path / "file", arrays, {"x": 1})
    stored = open_arrays(tmp_path / "file", check=True)
    assert stored.facts == {"x": 1}
    for name, array in arrays.items():
        assert stored.arrays[name].dtype == array.dtype
        assert np.array_equal(stored.arrays[name], array)
        assert stored.arrays[name].ctypes.data % 64 == 0 or not array.size


def test_without_interests(tmp_path):
    vectors, _, category = made()
    save(ItemIndex.of(vectors, None, category=category), tmp_path / "index")
    opened = open_catalogue(tmp_path / "index")
    assert (
        opened.best_by_vector(vectors[0], 3)[0].tolist()
        == ItemIndex.of(vectors, None).best_by_vector(vectors[0], 3)[0].tolist()
    )
