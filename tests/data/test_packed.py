"""A population that is saved and loaded is the same, field by field; what was read once is mapped ever after.

A changed file, a damaged entry or an unwritable cache never gives a wrong answer.
"""

import json
import logging
from dataclasses import fields, is_dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from veilrec.core.csr import Csr
from veilrec.core.errors import BadInput
from veilrec.core.features import Feature, Features, without_rows
from veilrec.data import own_csv, packed, synthetic_news, synthetic_ratings
from veilrec.data.packed import remembered
from veilrec.data.population import (
    Impressions,
    Interactions,
    ItemTable,
    Population,
    Strings,
    pack_interactions,
    some_users,
)

TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=6)


def same(one, other):
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


def random_rows(rng, n_rows, n_items):
    offsets = np.concatenate([[0], np.cumsum(rng.integers(0, 4, n_rows))]).astype(np.int64)
    return Csr(offsets, rng.integers(0, n_items, offsets[-1]).astype(np.int32))


def random_impressions(rng, n_users, n_items, oracle):
    n = int(rng.integers(0, 5))
    shown, histories = random_rows(rng, n, n_items), random_rows(rng, 3, n_items)
    users, times = rng.integers(0, n_users, n).astype(np.int32), rng.integers(0, 10**9, n)
    clicked = rng.integers(0, 2, len(shown.items)).astype(np.uint8)
    scores = rng.random(len(shown.items)).astype(np.float32) if oracle else None
    return Impressions(users, times, shown, clicked, histories, rng.integers(0, 3, n).astype(np.int32), scores)


@st.composite
def populations(draw):
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    users = draw(st.lists(TEXT, min_size=1, max_size=5))
    items = draw(st.lists(TEXT, min_size=1, max_size=5))
    log = random_rows(rng, len(users), len(items))
    size, n_items = len(log.items), len(items)
    ratings = rng.random(size).astype(np.float32) if draw(st.booleans()) else None
    times = rng.integers(0, 10**9, size) if draw(st.booleans()) else None
    splits = draw(st.lists(st.sampled_from(["train", "dev"]), unique=True))
    column = Strings.of(draw(st.lists(TEXT, min_size=n_items, max_size=n_items)))
    vectors = (Strings.of(["Q1"]), rng.random((1, 3)).astype(np.float32))
    further = [draw(st.sampled_from([None, given])) for given in (column, column, column, vectors)]
    catalogue = ItemTable(column, column, *further)
    tags = Feature("tags", "categories", tuple(draw(st.lists(TEXT.filter(bool), unique=True, max_size=3))))
    side = without_rows((tags, Feature("n", "number", low=-1.5, high=2)))
    features = Features(side.strangers(len(users)), without_rows((), n_items))
    fixed = (np.zeros(len(users), np.int32), np.zeros((len(users), 99), np.int32))
    return Population(
        name=draw(TEXT),
        users=Strings.of(users),
        items=Strings.of(items),
        interactions=Interactions(log.offsets, log.items, ratings, times),
        impressions={name: random_impressions(rng, len(users), n_items, draw(st.booleans())) for name in splits},
        catalogue=draw(st.sampled_from([None, catalogue])),
        facts=draw(st.dictionaries(TEXT, st.integers(-(2**40), 2**40) | TEXT | st.floats(allow_nan=False), max_size=3)),
        features=draw(st.sampled_from([None, features])),
        fixed_test=draw(st.sampled_from([None, fixed])),
    )


@settings(max_examples=40)
@given(population=populations())
def test_every_field_survives(tmp_path_factory, population):
    folder = tmp_path_factory.mktemp("packed") / "population"
    packed.save(population, folder)
    loaded = packed.load(folder)
    assert same(population, loaded)
    assert isinstance(loaded.interactions.items.base, np.memmap)  # mapped, not read
    assert loaded.features is None or isinstance(loaded.features.users.codes.base, np.memmap)
    assert [path.name for path in folder.parent.iterdir()] == ["population"]


def small():
    log = Interactions(np.array([0, 2]), np.array([0, 1], np.int32))
    return Population("small", Strings.of(["u"]), Strings.of(["a", "b"]), log)


def test_a_folder_with_something_else_in_it_and_damage_are_named(tmp_path):
    (tmp_path / "mine").touch()
    with pytest.raises(BadInput, match="exists already"):
        packed.save(small(), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
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


class CountedReader:
    """Reads a csv file and counts how often."""

    def __init__(self, path):
        self.path, self.times = path, 0

    def __call__(self):
        self.times += 1
        return own_csv.read_csv(self.path)


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("user,item\nu,a\nu,b\nv,a\n")
    return path


def test_what_was_read_comes_from_the_cache_until_file_reader_or_entry_change(log, cache, monkeypatch):
    reader = CountedReader(log)
    first, second = (remembered("csv", [log], reader) for _ in range(2))
    assert list(first.items) == list(second.items) == ["a", "b"]
    assert reader.times == 1
    log.write_text(log.read_text() + "v,c\n")
    assert list(remembered("csv", [log], reader).items) == ["a", "b", "c"]
    assert reader.times == 2
    for entry in (cache / "populations").iterdir():
        (entry / "users.data.npy").write_bytes(b"")
    assert list(remembered("csv", [log], reader).users) == ["u", "v"]
    assert reader.times == 3
    before = len(list((cache / "populations").iterdir()))
    monkeypatch.setattr(packed, "_digest_of_readers", lambda: "0" * 64)
    remembered("csv", [log], reader)
    assert reader.times == 4
    assert len(list((cache / "populations").iterdir())) == before  # the old entry is replaced


def test_two_may_write_the_same_entry_and_an_unwritable_cache_costs_one_line(log, tmp_path, monkeypatch, caplog):
    reader = CountedReader(log)

    def read_while_another_finishes():
        remembered("csv", [log], reader)
        return reader()

    assert list(remembered("csv", [log], read_while_another_finishes).users) == ["u", "v"]
    assert reader.times == 2
    assert not caplog.records
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("VEILREC_CACHE", str(tmp_path / "file" / "cache"))
    with caplog.at_level(logging.WARNING, logger="veilrec"):
        assert list(remembered("csv", [log], reader).users) == ["u", "v"]
    (record,) = caplog.records
    assert "cannot be used" in record.getMessage() and "\n" not in record.getMessage()


ROWS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 6), st.integers(1, 5)), max_size=40)


@given(ROWS)
def test_the_rating_of_a_pair_is_its_last_one(rows):
    users, items, ratings = (np.array([row[part] for row in rows], np.int32) for part in range(3))
    log = pack_interactions(users, items, 5, ratings=ratings.astype(np.float32))
    last = {(user, item): rating for user, item, rating in rows}
    asked = [(user, item) for user in range(6) for item in range(9)]  # some beyond what the log has
    found = log.ratings_of(*np.array(asked, np.int64).T)
    assert found.dtype == np.float32
    for pair, rating in zip(asked, found.tolist(), strict=True):
        assert rating == last[pair] if pair in last else np.isnan(rating)
    assert sorted((u, i) for u in range(5) for i in log.pairs().row(u)) == sorted(last)


def test_ratings_features_times_and_impressions_go_with_their_users():
    everybody, chosen = synthetic_ratings.generate(users=30, items=50, seed=1), np.array([3, 4, 20], np.int64)
    some = some_users(everybody, chosen)
    assert (some.n_users, some.n_items) == (3, everybody.n_items)
    assert list(some.users) == [everybody.users[int(user)] for user in chosen]
    for place, user in enumerate(chosen):
        rows, mine = (slice(*p.interactions.offsets[u : u + 2]) for p, u in ((everybody, user), (some, place)))
        for name in ("items", "ratings", "times"):
            one, other = getattr(some.interactions, name)[mine], getattr(everybody.interactions, name)[rows]
            assert np.array_equal(one, other)
    assert np.array_equal(some.features.users.codes, everybody.features.users.codes[chosen])
    everybody, chosen = synthetic_news.generate(users=20, news=200, seed=1), np.array([1, 7, 8], np.int64)
    some = some_users(everybody, chosen)
    for name, split in everybody.impressions.items():
        kept, rows = some.impressions[name], np.flatnonzero(np.isin(split.users, chosen))
        assert chosen[kept.users].tolist() == split.users[rows].tolist()
        for place, row in enumerate(rows.tolist()):
            assert np.array_equal(kept.shown.row(place), split.shown.row(row))
            mine, theirs = kept.histories.row(kept.history_of[place]), split.histories.row(split.history_of[row])
            assert np.array_equal(mine, theirs)
        assert len(kept.histories) <= len(split.histories)
