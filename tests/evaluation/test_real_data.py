"""Numbers on the real files, which the repository does not hold."""

from __future__ import annotations

import os
import time
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from veilrec.core.arrays import Floats, Indices, Offsets
from veilrec.core.csr import Csr
from veilrec.core.errors import BadInput
from veilrec.data.datasets import load
from veilrec.data.population import Population
from veilrec.evaluation.evaluator import evaluate, personalisation
from veilrec.evaluation.protocols import make_split


@cache
def data(name: str) -> Population:
    folder = os.environ.get("VEILREC_DATA")
    if not folder or not (Path(folder) / name).is_dir():
        pytest.skip(f"needs {name} in the folder that VEILREC_DATA names")
    return load(name)


class Popularity:
    def __init__(self, train: Csr, n_items: int) -> None:
        self.n_items = n_items
        self.counts = np.bincount(train.items, minlength=n_items).astype(np.float32)

    def score_all(self, users: Offsets) -> Floats:
        return np.tile(self.counts, (len(users), 1))

    def score_some(self, users: Offsets, items: Indices) -> Floats:
        return self.counts[items]

    def fold_in(self, histories: Csr) -> Popularity:
        return self


def popularity(name: str, protocol: str, *, validation: bool = False) -> dict[str, float]:
    split = make_split(data(name), protocol, seed=1, validation=validation)
    return evaluate(split.test, split.train, Popularity(split.train, split.n_items))


def test_popularity_with_the_published_negatives_of_ml_1m():
    # With every tie won it is .454/.254, with every tie lost .452/.253.
    if data("ml-1m").fixed_test is None:
        pytest.skip("needs the folder ncf in ml-1m")
    metrics = popularity("ml-1m", "loo-99")
    assert metrics["hr@10"] == pytest.approx(0.452, abs=5e-4)
    assert metrics["ndcg@10"] == pytest.approx(0.253, abs=5e-4)
    assert metrics["cases"] == 6_040


@pytest.mark.parametrize("protocol", ["loo-full", "ratio-8-2"])
def test_a_validation_part_hardly_changes_what_popularity_scores(protocol):
    without, with_one = (popularity("ml-1m", protocol, validation=asked) for asked in (False, True))
    assert with_one["ndcg@10"] == pytest.approx(without["ndcg@10"], rel=0.02)


def test_full_ranking_of_ml_1m_takes_seconds():
    popularity("ml-1m", "loo-full")  # compiles
    start = time.perf_counter()
    popularity("ml-1m", "loo-full")
    assert time.perf_counter() - start < 5.0


def test_held_out_users_of_frappe():
    metrics = popularity("frappe", "holdout-users")
    assert 0 < metrics["hr@5"] < metrics["hr@30"] < 1


def test_mind_sample():
    folder = Path(os.environ.get("VEILREC_DATA", "")) / "mind" / "MINDsmall_textsample"
    if not folder.is_dir():
        pytest.skip("needs mind/MINDsmall_textsample in the folder that VEILREC_DATA names")
    people = load(f"mind:{folder}")
    split = make_split(people, "mind", seed=1, validation=True)
    assert len(split.train_impressions) + len(split.valid) == len(people.impressions["train"])
    metrics = evaluate(split.test, split.train, Popularity(split.train, split.n_items))
    assert metrics["cases"] + metrics["skipped"] == 908
    assert abs(metrics["auc"] - 0.5) < 0.1


def test_popularity_of_what_new_people_like_and_of_what_they_use():
    # The same people but for one, who likes fewer than two; what was rated lower is out of the way.
    liked, used = (popularity("ml-1m", protocol) for protocol in ("holdout-users-liked", "holdout-users"))
    assert (liked["cases"], used["cases"]) == (1_207, 1_208)
    assert used["hr@10"] == pytest.approx(0.0796, abs=5e-4)
    assert liked["hr@10"] == pytest.approx(0.1050, abs=5e-4)


def test_how_often_an_app_was_used_is_no_rating():
    with pytest.raises(BadInput, match=r"those of frappe go from 1 to 28752 \(counts of uses are none\)"):
        make_split(data("frappe"), "holdout-users-liked", seed=1)


def test_popularity_does_not_change_with_what_is_given():
    split = make_split(data("frappe"), "holdout-users", seed=1)
    found = personalisation(split, Popularity(split.train, split.n_items), 1)
    assert found[0].judgement.known.max() == 0
    assert all(given.judgement.means() == found[-1].judgement.means() for given in found)
