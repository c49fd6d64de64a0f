"""From a request to a trainer: what is settled before anything is learnt."""

import json
from dataclasses import replace

import pytest

from veilrec.core.errors import BadInput
from veilrec.evaluation.evaluator import evaluate_cases
from veilrec.privacy.accounting import Rounds
from veilrec.privacy.accounting.accountant import epsilon_for
from veilrec.runs import checkpoint, evaluation
from veilrec.runs.checkpoint import read_config
from veilrec.runs.evaluation import evaluate_run
from veilrec.runs.request import RunRequest, prepare
from veilrec.runs.training import train

SMALL = "synthetic-ratings:users=40,items=60,mean_history=8,seed=3"
REQUEST = RunRequest("fedmf", SMALL, protocol="loo-full", rounds=1)


def test_the_usual_cohort_shrinks_to_everybody_where_no_privacy_depends_on_it(tmp_path):
    prepared = prepare(REQUEST)
    (note,) = prepared.notes
    assert note.startswith("every round has all 40 clients instead of the usual 100")
    assert prepared.config.cohort.size == 40
    assert train(prepared, tmp_path / "run")["communication"]["up_bytes"] > 0
    assert read_config(tmp_path / "run")["config"]["cohort"]["size"] == 40


def test_the_final_model_is_asked_once_and_measured_as_by_evaluate(tmp_path, monkeypatch):
    asked, request = [], replace(REQUEST, rounds=3, evaluate_every=2)
    monkeypatch.setattr(evaluation, "validator", lambda *given: asked.append(given) or evaluate_cases(*given))
    result = train(prepare(request), tmp_path / "run")
    assert len(asked) == 2  # popularity and chance: what the last round saw of the model is enough
    again = train(prepare(request), tmp_path / "run", resume=True)
    assert len(asked) == 5  # nothing was left to train, and so nothing was seen
    assert again["metrics"] == result["metrics"] == evaluate_run(tmp_path / "run")["metrics"]
    last = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])["metrics"]
    assert last.items() < result["metrics"].items()


def test_a_cohort_that_fits_stays():
    prepared = prepare(replace(REQUEST, data="synthetic-ratings:users=120,items=60,mean_history=8,seed=3"))
    assert (prepared.config.cohort.size, prepared.notes) == (100, ())


FEW = r"cohort.size is 100, but only 40 clients can learn: use --set cohort.size=40,"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        # a cohort that was asked for, or that privacy depends on, never shrinks
        ({"settings": ("cohort.size=100",)}, FEW),
        ({"method": "dp-fedmf", "preset": "paper", "settings": ("calibration=proven",)}, FEW),
        ({"method": "dp-fedmf", "preset": "paper"}, FEW),
        *(
            ({name: number}, f"is {number}: it must be from 1 to 2,147,483,647")
            for name in ("rounds", "evaluate_every", "checkpoint_every", "patience")
            for number in (0, -1, 10**20)
        ),
        ({"settings": ("local.dim=2000000000",)}, r"a table of 60 rows of 2,000,000,000 numbers takes 480.0 GB"),
        ({"method": "dp-fedmf", "patience": 2}, "which no noise covers"),
    ],
)
def test_what_cannot_be_trained_is_refused(change, words):
    with pytest.raises(BadInput, match=words):
        prepare(replace(REQUEST, **change))


@pytest.fixture(scope="module")
def proven_run(tmp_path_factory):
    out = tmp_path_factory.mktemp("proven") / "run"
    data = "synthetic-ratings:users=200,items=60,mean_history=10,seed=1"
    request = RunRequest("dp-fedmf", data, protocol="loo-full", rounds=3, settings=("cohort.size=50",))
    train(prepare(request), out)
    return out


def test_digest_and_noise_of_a_run_can_be_checked_by_hand(proven_run):
    result = json.loads((proven_run / "result.json").read_text())
    state, progress = checkpoint.load(checkpoint.newest(proven_run))
    assert progress.rounds_done == 3
    assert checkpoint.digest(state) == result["weights_sha256"]
    noise = result["noise"]
    plan = Rounds(rounds=3, sampling="poisson", population=noise["population"], cohort=noise["cohort"])
    assert 0.998 * 8.0 <= epsilon_for(noise["noise_multiplier"], 1e-6, plan) <= 8.0
    assert noise["cohort"] == 50
    assert noise["sigma"] > 0.0
