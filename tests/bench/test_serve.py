"""The benchmark of the index, on a toy: everything runs, and what is promised is compared with what is found."""

from __future__ import annotations

import json

import numpy as np
import pytest

from veilrec.bench import serve, serve_peers
from veilrec.bench.serve import MILLION, Options
from veilrec.bench.serve_items import Items, anti_correlated
from veilrec.errors import BadInput
from veilrec.server.index.oracle import best_of, scores_of


@pytest.fixture
def items():
    generator = np.random.default_rng(0)
    vectors = generator.normal(size=(3000, 8)).astype(np.float32)
    interests = generator.normal(size=(3, 8)).astype(np.float32)
    weights = generator.dirichlet(np.ones(3), 40).astype(np.float32)
    return Items(vectors, interests, generator.integers(0, 4, 3000).astype(np.int32), weights, "made up")


def test_all_tasks_run_and_nothing_is_wrong(items, monkeypatch):
    monkeypatch.setattr(serve, "trained_items", lambda count, questions, quick: items)
    said = []
    report = json.loads(json.dumps(serve.measured(Options(3000, quick=True, peers=False), said.append)))
    names = [task["name"] for task in report["tasks"]]
    assert names == ["best-10", "filter-0.1%", "anti-correlated-8", "new-item", "reachable-65k", "open"]
    for task in report["tasks"]:
        assert task["mismatches"] == 0
        assert task["missed"] == []
        assert {"median_us", "p99_us", "memory_mb", "build_s", "ratios"} <= set(task)
    assert set(report["tasks"][0]["ratios"]) == {"flat_scan", "numpy"}
    assert report["source"] == "made up"
    assert said


def test_a_flat_scan_is_exact(items):
    values = np.round(items.vectors @ items.interests.T)
    ask = serve_peers.flat_scan(values, 10)
    for weights in items.weights:
        assert ask(weights).tolist() == best_of(scores_of(values, weights), 10).tolist()


def test_peers_that_are_not_here_are_named(monkeypatch):
    monkeypatch.setattr(serve_peers, "find_spec", lambda name: None)
    assert serve_peers.missing() == [
        f"{name} is not installed, and left out: pip install -c constraints-bench.txt {name}"
        for name in ("faiss-cpu", "hnswlib")
    ]


def test_peers_find_the_same(items):
    pytest.importorskip("faiss", reason="faiss-cpu is not installed")
    pytest.importorskip("hnswlib", reason="hnswlib is not installed")
    values = items.vectors @ items.interests.T
    graph = serve_peers.Graph(items.vectors, items.interests, 10).ask(1024)
    flat = serve_peers.faiss_flat(items.vectors, items.interests, 10)
    for weights in items.weights:
        right = set(best_of(scores_of(values, weights), 10).tolist())
        assert set(flat(weights).tolist()) == right
        assert len(set(graph(weights).tolist()) & right) >= 8


def test_what_is_not_kept_is_said():
    task = {"name": "best-10", "median_us": 101.0, "mismatches": 1, "memory_mb": 39.0, "build_s": 11.0}
    task |= {"ratios": {"flat_scan": 9.0, "hnswlib_ef64": 0.9, "hnswlib_ef16": 0.5}}
    task["recall"] = {"hnswlib_ef64": 0.9, "hnswlib_ef16": 0.5}
    assert serve.missed(task, MILLION) == [
        "mismatches: 0",
        "median_us <= 100",
        "build_s <= 10",
        "flat_scan >= 10",
        "hnswlib_ef64 >= 1",
    ]
    assert serve.missed(task, 65_000) == ["mismatches: 0"]


def test_hard_values_have_a_sum_near_one():
    values = anti_correlated(1000, 8)
    assert values.shape == (1000, 8)
    assert abs(float(values.sum(axis=1).mean()) - 1.0) < 0.01
    assert (np.corrcoef(values.T)[np.triu_indices(8, 1)] < 0.0).all()


@pytest.mark.parametrize("count", [0, 999, 10_000_000])
def test_numbers_of_items_that_cannot_be_made_are_refused(count):
    with pytest.raises(BadInput, match="--items"):
        serve.run(Options(count), print)
