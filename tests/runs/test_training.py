"""From a request to a trainer: what is settled before anything is learnt."""

import json
from dataclasses import replace

import numpy as np
import pytest

from veilrec.core.errors import BadInput
from veilrec.evaluation.evaluator import evaluate_cases
from veilrec.privacy.accounting import Rounds
from veilrec.privacy.accounting.accountant import epsilon_for
from veilrec.runs import checkpoint, evaluation
from veilrec.runs.checkpoint import read_config
from veilrec.runs.evaluation import evaluate_run
from veilrec.runs.model_files import load_clients
from veilrec.runs.request import RunRequest, prepare
from veilrec.runs.training import search_folder, train, with_found_rounds

SMALL = "synthetic-ratings:users=40,items=60,mean_history=8,seed=3"
REQUEST = RunRequest("fedmf", SMALL, protocol="loo-full", rounds=1)


def test_the_usual_cohort_shrinks_to_everybody_where_no_privacy_depends_on_it(tmp_path):
    prepared = prepare(REQUEST)
    (note,) = prepared.notes
    assert note.startswith("every round has all 40 clients instead of the usual 100")
    assert prepared.config.cohort.size == 40
    assert train(prepared, tmp_path / "run")["communication"]["up_bytes"] > 0
    assert read_config(tmp_path / "run")["config"]["cohort"]["size"] == 40
    prepared = prepare(replace(REQUEST, data="synthetic-ratings:users=120,items=60,mean_history=8,seed=3"))
    assert (prepared.config.cohort.size, prepared.notes) == (100, ())


def test_the_final_model_is_asked_once_and_measured_as_by_evaluate(tmp_path, monkeypatch):
    asked, request = [], replace(REQUEST, rounds=3, evaluate_every=2)
    monkeypatch.setattr(evaluation, "evaluate_cases", lambda *given: asked.append(given) or evaluate_cases(*given))
    result = train(prepare(request), tmp_path / "run")
    assert len(asked) == 2  # popularity and chance: what the last round saw of the model is enough
    again = train(prepare(request), tmp_path / "run", resume=True)
    assert len(asked) == 5  # nothing was left to train, and so nothing was seen
    assert again["metrics"] == result["metrics"] == evaluate_run(tmp_path / "run")["metrics"]
    last = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])["metrics"]
    assert last.items() < result["metrics"].items()


FEW = r"cohort.size is 100, but only 40 clients can learn: use --set cohort.size=40,"


def test_what_cannot_be_trained_is_refused():
    for change, words in (
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
    ):
        with pytest.raises(BadInput, match=words):
            prepare(replace(REQUEST, **change))


def test_digest_and_noise_of_a_run_can_be_checked_by_hand(tmp_path):
    data = "synthetic-ratings:users=200,items=60,mean_history=10,seed=1"
    request = RunRequest("dp-fedmf", data, protocol="loo-full", rounds=3, settings=("cohort.size=50",))
    result = train(prepare(request), tmp_path)
    state, progress = checkpoint.load(checkpoint.newest(tmp_path))
    assert (progress.rounds_done, checkpoint.digest(state)) == (3, result["weights_sha256"])
    noise = result["noise"]
    plan = Rounds(rounds=3, sampling="poisson", population=noise["population"], cohort=noise["cohort"])
    assert 0.998 * 8.0 <= epsilon_for(noise["noise_multiplier"], 1e-6, plan) <= 8.0
    assert (noise["cohort"], noise["sigma"] > 0.0) == (50, True)


ASKED = RunRequest("mf", SMALL, seed=1, protocol="loo-full", rounds=6, evaluate_every=1, patience=1)


def test_it_learns_from_as_much_as_a_run_that_never_stopped_early(tmp_path):
    out = tmp_path / "run"

    def run(request, out, resume):
        return train(prepare(request), out, resume=resume)

    found = with_found_rounds(ASKED, out, run, resume=False)
    assert with_found_rounds(ASKED, out, None, resume=True) == found  # a search is not done again
    result = run(found, out, resume=False)
    search = search_folder(out)
    assert result["rounds_from"] == str(search)
    assert (result["rounds"], result["stopped_early"]) == (found.rounds, False)
    everything = prepare(RunRequest("mf", SMALL, seed=1, protocol="loo-full", rounds=found.rounds))
    assert np.array_equal(load_clients(out).trained_on.items, everything.split.train.items)
    assert len(load_clients(search).trained_on.items) == len(everything.split.train.items) - 40
    assert train(everything, tmp_path / "plain")["weights_sha256"] == result["weights_sha256"]
    assert (read_config(out)["patience"], read_config(search)["patience"]) == (None, 1)


def test_there_has_to_be_something_to_find(tmp_path):
    for request, words in (
        (RunRequest("mf", SMALL), "give --early-stop N with it"),
        (RunRequest("popularity", "synthetic-ratings", patience=2), "popularity learns in one go"),
    ):
        with pytest.raises(BadInput, match=words):
            with_found_rounds(request, tmp_path / "run", None, resume=False)
