from __future__ import annotations

import pytest

from tests.bench.toys import LOCAL, contest
from veilrec.bench import peers
from veilrec.bench.measure import Options
from veilrec.bench.simulate import TASKS
from veilrec.errors import VeilrecError

SMALL = Options(repeats=1, quick=True, peers=False)


def test_a_peer_that_fails_is_a_note_and_null(monkeypatch, capsys):
    pytest.importorskip("pfl", reason="the extra `bench` is not installed")
    pytest.importorskip("flwr", reason="the extra `bench` is not installed")
    from veilrec.bench import pfl_peer

    def fail(*_: object) -> None:
        raise RuntimeError("not today\nsecond line")

    monkeypatch.setattr(pfl_peer, "PflPeer", fail)
    monkeypatch.setattr(peers, "run_flower", fail)
    result = peers.fedmf_own_items("fedmf-ml-100k", Options(repeats=1, quick=True, peers=True)).to_json()
    assert result["ratios"]["pfl"] is None
    assert result["ratios"]["flower"] is None
    assert result["ratios"]["plain_loop"] > 1
    assert result["notes"] == [
        "pfl did not run: RuntimeError: not today",
        "Flower did not run: RuntimeError: not today",
    ]
    assert capsys.readouterr().err.splitlines() == result["notes"]


def test_peers_that_are_not_installed_are_null(monkeypatch):
    monkeypatch.setattr(peers, "installed", lambda _package: None)
    result = peers.fedmf_own_items("fedmf-ml-100k", Options(repeats=1, quick=True, peers=True)).to_json()
    assert result["ratios"]["pfl"] is None
    assert len(result["notes"]) == 2
    assert all("pip install 'veilrec[bench]'" in note for note in result["notes"])


@pytest.mark.parametrize("name", ["fedmf-ml-100k-negatives", "fedncf-ml-100k"])
def test_tasks_against_the_plain_loop_run(name):
    result = TASKS[name].run(name, SMALL).to_json()
    assert result["ratios"]["plain_loop"] > 1
    assert result["ratios"]["numba_limit"] > 0
    assert result["devices_per_round"] == 100


def test_flower_that_takes_too_long_or_fails_is_one_line(monkeypatch, tmp_path):
    _, workload = contest(LOCAL["mf"])
    monkeypatch.setattr(peers, "_FLOWER_SECONDS", 0.01)
    with pytest.raises(VeilrecError, match=r"stopped after 0\.01 s"):
        peers.run_flower(workload, 1, tmp_path)
    monkeypatch.setattr(peers, "_FLOWER_SECONDS", 60.0)
    monkeypatch.setattr(peers.sys, "executable", "/bin/false")
    with pytest.raises(VeilrecError, match="ended with code 1: it said nothing"):
        peers.run_flower(workload, 1, tmp_path)
