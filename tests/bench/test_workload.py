from __future__ import annotations

import numpy as np

from veilrec.bench.workload import ml_100k


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
