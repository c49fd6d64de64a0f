"""A refit: the rounds that were found, on everything that the other methods learn from."""

import numpy as np
import pytest

from veilrec.core.errors import BadInput
from veilrec.runs.checkpoint import read_config
from veilrec.runs.model_files import load_clients
from veilrec.runs.request import RunRequest, prepare
from veilrec.runs.training import search_folder, train, with_found_rounds

DATA = "synthetic-ratings:users=80,items=60,mean_history=8,seed=3"
ASKED = RunRequest("mf", DATA, seed=1, protocol="loo-full", rounds=6, evaluate_every=1, patience=1)


def run(request, out, resume):
    return train(prepare(request), out, resume=resume)


def test_it_learns_from_as_much_as_a_run_that_never_stopped_early(tmp_path):
    out = tmp_path / "run"
    found = with_found_rounds(ASKED, out, run, resume=False)
    assert with_found_rounds(ASKED, out, _never, resume=True) == found  # a search is not done again
    result = run(found, out, False)
    search = search_folder(out)
    assert result["rounds_from"] == str(search)
    assert (result["rounds"], result["stopped_early"]) == (found.rounds, False)
    everything = prepare(RunRequest("mf", DATA, seed=1, protocol="loo-full", rounds=found.rounds))
    assert np.array_equal(load_clients(out).trained_on.items, everything.split.train.items)
    assert len(load_clients(search).trained_on.items) == len(everything.split.train.items) - 80
    assert train(everything, tmp_path / "plain")["weights_sha256"] == result["weights_sha256"]
    assert (read_config(out)["patience"], read_config(search)["patience"]) == (None, 1)


def test_there_has_to_be_something_to_find(tmp_path):
    for request, words in (
        (RunRequest("mf", DATA), "give --early-stop N with it"),
        (RunRequest("popularity", "synthetic-ratings", patience=2), "popularity learns in one go"),
    ):
        with pytest.raises(BadInput, match=words):
            with_found_rounds(request, tmp_path / "run", _never, resume=False)


def _never(*_):
    raise AssertionError("nothing is trained")
