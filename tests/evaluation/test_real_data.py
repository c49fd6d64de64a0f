"""Numbers on the real files, which the repository does not hold."""

import os
from functools import cache
from pathlib import Path

import pytest

from veilrec.core.errors import BadInput
from veilrec.data.datasets import load
from veilrec.evaluation.evaluator import evaluate, personalisation
from veilrec.evaluation.protocols import make_split
from veilrec.runs.evaluation import baseline


@cache
def data(name):
    folder = os.environ.get("VEILREC_DATA")
    if not folder or not (Path(folder) / name.partition(":")[0]).is_dir():
        pytest.skip(f"needs {name} in the folder that VEILREC_DATA names")
    return load(name)


def popularity(name, protocol, *, validation=False):
    split = make_split(data(name), protocol, seed=1, validation=validation)
    return evaluate(split.test, split.train, baseline("popularity", split, 1))


def test_popularity_of_ml_1m():
    # With the published negatives; with every tie won it is .454/.254, with every tie lost .452/.253.
    if data("ml-1m").fixed_test is None:
        pytest.skip("needs the folder ncf in ml-1m")
    metrics = popularity("ml-1m", "loo-99")
    assert metrics["hr@10"] == pytest.approx(0.452, abs=5e-4)
    assert metrics["ndcg@10"] == pytest.approx(0.253, abs=5e-4)
    assert metrics["cases"] == 6_040
    # The same new people but for one, who likes fewer than two; what was rated lower is out of the way.
    liked, used = (popularity("ml-1m", protocol) for protocol in ("holdout-users-liked", "holdout-users"))
    assert liked["cases"] == used["cases"] == 1_225
    assert used["hr@10"] == pytest.approx(0.0766, abs=5e-4)
    assert liked["hr@10"] == pytest.approx(0.1021, abs=5e-4)
    without, with_one = (popularity("ml-1m", "ratio-8-2", validation=asked) for asked in (False, True))
    assert with_one["ndcg@10"] == pytest.approx(without["ndcg@10"], rel=0.02)


def test_new_people_of_frappe():
    metrics = popularity("frappe", "holdout-users")
    assert 0 < metrics["hr@5"] < metrics["hr@30"] < 1
    split = make_split(data("frappe"), "holdout-users", seed=1)
    found = personalisation(split, baseline("popularity", split, 1), 1)
    assert found[0].result.known.max() == 0
    assert all(given.result.means() == found[-1].result.means() for given in found)
    with pytest.raises(BadInput, match=r"those of frappe have no scale and go from 1 to 28752 \(counts of uses"):
        make_split(data("frappe"), "holdout-users-liked", seed=1)


def test_mind_sample():
    folder = Path(os.environ.get("VEILREC_DATA", "")) / "mind" / "MINDsmall_textsample"
    if not folder.is_dir():
        pytest.skip("needs mind/MINDsmall_textsample in the folder that VEILREC_DATA names")
    people = load(f"mind:{folder}")
    split = make_split(people, "mind", seed=1, validation=True)
    assert len(split.train_impressions) + len(split.valid) == len(people.impressions["train"])
    metrics = evaluate(split.test, split.train, baseline("popularity", split, 1))
    assert metrics["cases"] + metrics["skipped"] == 908
    assert abs(metrics["auc"] - 0.5) < 0.1
