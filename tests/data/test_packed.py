"""A population that is saved and loaded is the same, field by field; nothing half-written is left."""

from __future__ import annotations

import json
from dataclasses import fields, is_dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from veilrec._csr import Csr
from veilrec.data import packed
from veilrec.data.folders import new_folder
from veilrec.data.population import Catalogue, Impressions, Interactions, Population
from veilrec.data.strings import Strings
from veilrec.errors import BadInput

TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=6)


def same(one, other) -> bool:
    """Equality of nested dataclasses, mappings, tuples, strings and arrays."""
    if isinstance(one, np.ndarray):
        return isinstance(other, np.ndarray) and one.dtype == other.dtype and np.array_equal(one, other)
    if isinstance(one, Strings):
        return list(one) == list(other)
    if is_dataclass(one):
        return all(same(getattr(one, field.name), getattr(other, field.name)) for field in fields(one))
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, tuple):
        return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other, strict=True))
    return one == other


def random_rows(rng: np.random.Generator, n_rows: int, n_items: int) -> Csr:
    offsets = np.concatenate([[0], np.cumsum(rng.integers(0, 4, n_rows))]).astype(np.int64)
    return Csr(offsets, rng.integers(0, n_items, offsets[-1]).astype(np.int32))


def random_impressions(rng: np.random.Generator, n_users: int, n_items: int, oracle: bool) -> Impressions:
    n = int(rng.integers(0, 5))
    shown, histories = random_rows(rng, n, n_items), random_rows(rng, 3, n_items)
    size = len(shown.items)
    return Impressions(
        users=rng.integers(0, n_users, n).astype(np.int32),
        times=rng.integers(0, 10**9, n),
        shown=shown,
        clicked=rng.integers(0, 2, size).astype(np.uint8),
        histories=histories,
        history_of=rng.integers(0, 3, n).astype(np.int32),
        oracle=rng.random(size).astype(np.float32) if oracle else None,
    )


@st.composite
def populations(draw) -> Population:
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    users = draw(st.lists(TEXT, min_size=1, max_size=5))
    items = draw(st.lists(TEXT, min_size=1, max_size=5))
    log = random_rows(rng, len(users), len(items))
    size, n_items = len(log.items), len(items)
    context = draw(st.lists(TEXT, max_size=3, unique=True))
    splits = draw(st.lists(TEXT, max_size=2, unique=True))
    column = Strings.of(draw(st.lists(TEXT, min_size=n_items, max_size=n_items)))
    vectors = (Strings.of(["Q1"]), rng.random((1, 3)).astype(np.float32))
    catalogue = Catalogue(
        titles=column,
        categories=column,
        subcategories=draw(st.sampled_from([None, column])),
        abstracts=draw(st.sampled_from([None, column])),
        entities=draw(st.sampled_from([None, column])),
        entity_vectors=draw(st.sampled_from([None, vectors])),
    )
    fixed = (np.zeros(len(users), np.int32), np.zeros((len(users), 99), np.int32))
    return Population(
        name=draw(TEXT),
        users=Strings.of(users),
        items=Strings.of(items),
        interactions=Interactions(
            log.offsets,
            log.items,
            rng.random(size).astype(np.float32) if draw(st.booleans()) else None,
            rng.integers(0, 10**9, size) if draw(st.booleans()) else None,
            {name: rng.integers(0, 3, size).astype(np.int32) for name in context},
            {name: Strings.of(["a", "é", ""]) for name in context[:1]},
        ),
        impressions={name: random_impressions(rng, len(users), n_items, draw(st.booleans())) for name in splits},
        catalogue=draw(st.sampled_from([None, catalogue])),
        facts=draw(st.dictionaries(TEXT, st.integers(-(2**40), 2**40) | TEXT | st.floats(allow_nan=False), max_size=3)),
        fixed_test=draw(st.sampled_from([None, fixed])),
    )


@settings(max_examples=40, deadline=None)
@given(population=populations())
def test_every_field_survives(tmp_path_factory, population):
    folder = tmp_path_factory.mktemp("packed") / "population"
    packed.save(population, folder)
    loaded = packed.load(folder)
    assert same(population, loaded)
    assert isinstance(loaded.interactions.items.base, np.memmap)  # mapped, not read
    assert [path.name for path in folder.parent.iterdir()] == ["population"]


def small() -> Population:
    log = Interactions(np.array([0, 2]), np.array([0, 1], np.int32))
    return Population("small", Strings.of(["u"]), Strings.of(["a", "b"]), log)


def test_an_existing_folder_is_never_overwritten(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    with pytest.raises(BadInput, match="exists already"):
        packed.save(small(), tmp_path / "mine")
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "years of work"
    (tmp_path / "empty").mkdir()
    packed.save(small(), tmp_path / "empty")
    assert packed.is_packed(tmp_path / "empty")


def test_nothing_half_written_is_left(tmp_path):
    def write_and_fail() -> None:
        with new_folder(tmp_path / "out") as part:
            (part / "one.npy").write_bytes(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_and_fail()
    assert list(tmp_path.iterdir()) == []


def test_damage_is_named(tmp_path):
    folder = tmp_path / "p"
    with pytest.raises(BadInput, match="no packed population"):
        packed.load(folder)
    packed.save(small(), folder)
    (folder / "users.data.npy").unlink()
    with pytest.raises(BadInput, match=r"users\.data\.npy is missing or damaged"):
        packed.load(folder)
    np.save(folder / "users.data.npy", np.zeros(7, np.uint8))
    with pytest.raises(BadInput, match="not what the manifest says"):
        packed.load(folder)
    manifest = json.loads((folder / "manifest.json").read_text()) | {"format": 99}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(BadInput, match="format 99"):
        packed.load(folder)
