"""What tests of federations share: clients that do not pause, and no deadlines."""

import shutil

import pytest

from tests.federation.loopback import LONG, basis_of, lay_out_in
from veilrec.audit.contract_subject import ContractSubject


@pytest.fixture(scope="session")
def small_federation(tmp_path_factory):
    folder = tmp_path_factory.mktemp("small") / "base"
    basis = basis_of(ContractSubject("fedmf"), "cohort.size=3", users=3, rounds=1)
    lay_out_in(folder, basis, round_seconds=600.0)
    return folder


@pytest.fixture
def made(small_federation, tmp_path):
    """A federation of three clients and one round, to be changed."""
    return shutil.copytree(small_federation, tmp_path / "federation")


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr("veilrec.federation.link._DECLINED_PAUSE", 0.1)
    monkeypatch.setattr("veilrec.federation.link._POLL_SECONDS", 1.0)
    monkeypatch.setattr("veilrec.federation.federation.Federation.rpc_seconds", LONG)
