"""The benchmark of the index, on a toy: everything runs, and what is promised is compared with what is found."""

import json

import numpy as np
import pytest

import _serve_peers as serve_peers
import serve
from _serve_items import Items
from serve import Options
from veilrec.serving.index.blocks import best_of, scores_of


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
    assert names == ["best-10", "filter-0.1%", "anti-correlated-8", "new-item", "reachable-65k"]
    for task in report["tasks"]:
        assert (task["mismatches"], task["missed"]) == (0, [])
        assert {"median_us", "p99_us", "memory_mb", "build_s", "ratios"} <= set(task)
    assert set(report["tasks"][0]["ratios"]) == {"flat_scan", "numpy"} and report["source"] == "made up" and said


def test_peers_find_the_same(items):
    pytest.importorskip("faiss", reason="faiss-cpu is not installed")
    pytest.importorskip("hnswlib", reason="hnswlib is not installed")
    values = items.vectors @ items.interests.T
    graph = serve_peers.Graph(items.vectors, items.interests, 10).ask(1024)
    flat = serve_peers.faiss_flat(items.vectors, items.interests, 10)
    for weights in items.weights:
        right = set(best_of(scores_of(values, weights), 10).tolist())
        assert set(flat(weights).tolist()) == right and len(set(graph(weights).tolist()) & right) >= 8
