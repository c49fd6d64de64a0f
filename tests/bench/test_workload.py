from __future__ import annotations

import numpy as np

from tests.bench.toys import LOCAL, contest
from veilrec.bench.workload import ml_100k, read_workload


def test_without_the_files_there_is_a_population_of_the_same_shape(monkeypatch, tmp_path):
    monkeypatch.delenv("VEILREC_DATA", raising=False)
    monkeypatch.setenv("VEILREC_CACHE", str(tmp_path))
    ratings = ml_100k()
    assert ratings.source == "synthetic in the shape of ml-100k"
    assert (len(ratings.train), ratings.n_items, len(ratings.train.items)) == (943, 1682, 100_000)
    assert ratings.train.lengths().min() >= 20
    assert ratings.train.items.max() < 1682
    pairs = ratings.train.row_numbers() * 1682 + ratings.train.items
    assert len(np.unique(pairs)) == 100_000, "a user has an item twice"
    assert np.median(ratings.train.lengths()) < ratings.train.lengths().mean(), "lengths are not skewed"


def test_workload_survives_the_way_to_another_process(tmp_path):
    _, workload = contest(LOCAL["ncf"])
    workload.save(tmp_path / "workload.npz")
    again = read_workload(tmp_path / "workload.npz")
    assert again.local == workload.local
    assert again.cohort == workload.cohort
    assert np.array_equal(again.train.items, workload.train.items)
    for name, values in workload.public.items():
        assert np.array_equal(again.public[name], values)
    assert np.array_equal(again.private["user"], workload.private["user"])
