"""A refit: the rounds that were found, on everything that the other methods learn from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from veilrec.core.errors import BadInput
from veilrec.runs.checkpoint import read_config
from veilrec.runs.model_files import load_devices
from veilrec.runs.request import RunRequest, prepare
from veilrec.runs.training import search_folder, train, with_found_rounds

DATA = "synthetic-ratings:users=80,items=60,mean_history=8,seed=3"
ASKED = RunRequest("mf", DATA, seed=1, protocol="loo-full", rounds=6, evaluate_every=1, patience=1)


def run(request: RunRequest, out: Path, resume: bool) -> dict[str, Any]:
    return train(prepare(request), out, resume=resume)


def test_it_learns_from_as_much_as_a_run_that_never_stopped_early(tmp_path):
    out = tmp_path / "run"
    found = with_found_rounds(ASKED, out, run, resume=False)
    result = run(found, out, False)
    search = search_folder(out)
    assert result["rounds_from"] == str(search)
    assert (result["rounds"], result["stopped_early"]) == (found.rounds, False)
    everything = prepare(RunRequest("mf", DATA, seed=1, protocol="loo-full", rounds=found.rounds))
    assert np.array_equal(load_devices(out).trained_on.items, everything.split.train.items)
    assert len(load_devices(search).trained_on.items) == len(everything.split.train.items) - 80
    assert train(everything, tmp_path / "plain")["weights_sha256"] == result["weights_sha256"]
    assert (read_config(out)["patience"], read_config(search)["patience"]) == (None, 1)


def test_a_search_that_is_done_is_not_done_again(tmp_path):
    out = tmp_path / "run"
    found = with_found_rounds(ASKED, out, run, resume=False)

    def never(*asked):
        raise AssertionError(asked)

    assert with_found_rounds(ASKED, out, never, resume=True) == found


def test_there_has_to_be_something_to_find(tmp_path):
    with pytest.raises(BadInput, match="give --early-stop N with it"):
        with_found_rounds(RunRequest("mf", DATA), tmp_path / "run", run, resume=False)


def test_what_learns_in_one_go_has_nothing_to_search(tmp_path):
    with pytest.raises(BadInput, match="popularity learns in one go"):
        with_found_rounds(
            RunRequest("popularity", "synthetic-ratings", patience=2), tmp_path / "run", _never, resume=False
        )


def _never(*_: object) -> dict[str, object]:
    raise AssertionError("nothing is trained")
