"""Engines: what is asked of them, and the same model from each."""

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from veilrec.core.errors import BadInput
from veilrec.runs import training
from veilrec.runs.request import RunRequest, prepare
from veilrec.runs.training import Engine, hired

SMALL = RunRequest("fedmf", "synthetic-ratings:users=120,items=200,seed=3", settings=("cohort.size=30",), rounds=3)


def test_processes_train_the_same_model(tmp_path):
    digests = []
    for place, engine in enumerate((Engine(), Engine("processes", 2))):
        prepared = prepare(SMALL)
        with hired(prepared, engine):
            digests.append(training.train(prepared, tmp_path / str(place))["weights_sha256"])
        assert prepared.trainer.crew is None
    assert digests[0] == digests[1]


def test_what_no_engine_can_do_is_refused(monkeypatch, tmp_path):
    for settings, words in (
        ({"workers": 2}, "--engine processes or ray"),
        ({"name": "processes", "address": "auto"}, "use --engine ray"),
        ({"name": "ray", "shared": Path("nowhere")}, "no such folder"),
    ):
        with pytest.raises(BadInput, match=words):
            Engine(**settings)
    monkeypatch.setattr("veilrec.simulation.workers.require", lambda who, module: None)
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: False))
    central, far = replace(SMALL, method="ease", settings=(), rounds=None), "127.0.0.1:1"
    for request, engine, words in (
        (central, Engine("processes", 1), "ease has all data in one place"),
        (SMALL, Engine("ray", 1, address=far), "--address needs --shared"),
        (SMALL, Engine("ray", 1, address=far, shared=tmp_path), "no Ray cluster answers there"),
    ):
        with pytest.raises(BadInput, match=words), hired(prepare(request), engine):
            pass
    monkeypatch.setattr(training, "source_of", lambda name: "mine.py")
    with pytest.raises(BadInput, match="leave --engine out"), hired(prepare(SMALL), Engine("processes", 1)):
        pass
