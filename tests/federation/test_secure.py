"""Secure sums over the real service: the weights of the open ones, and void rounds where a helper is lost."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.federation.loopback import basis_of, known_in, lay_out_in, run_all, simulated
from veilrec.audit.contract_subject import ContractSubject, same, subjects
from veilrec.core.errors import BadInput
from veilrec.federation import federation
from veilrec.federation.facts import with_distributed_noise
from veilrec.federation.federation import DEVICES, BadTask, FederationTask, joined
from veilrec.federation.finishing import read_end
from veilrec.federation.helper import HelperAnswers
from veilrec.federation.identity import Invitation, identity_of, read_invitation
from veilrec.federation.making import Basis
from veilrec.federation.secagg.helpers import Helper
from veilrec.privacy.mechanisms.distributed import NoiseShares
from veilrec.wire.signing import BadSignature


def private(*settings: str) -> Basis:
    return basis_of(ContractSubject("dp-fedmf"), "cohort.size=0", *settings, users=5, rounds=2)


@pytest.mark.parametrize("wishes", [{}, {"shares": True, "silent": 0.3}], ids=["server's noise", "noise in shares"])
def test_sums_under_masks_are_those_of_the_simulation(wishes: dict[str, object], tmp_path: Path) -> None:
    basis = private()
    made = lay_out_in(tmp_path, basis, secagg="helpers", minimum_messages=3, **wishes)
    assert made.guarantee["trust"] == f"server sees only {'noisy ' if made.shares else ''}sums"
    if made.shares:
        from dataclasses import replace

        basis = replace(basis, plan=with_distributed_noise(basis.plan, NoiseShares(made.least, made.silent)))
    run_all(tmp_path)
    ended = read_end(tmp_path, known_in(tmp_path))
    assert [report.messages for report in ended.history] == [5, 5]
    assert same(ended.state, dict(simulated(tmp_path, basis).standing.state()))


@pytest.mark.parametrize("signs", [False, True])
def test_a_helper_that_does_not_answer_or_signs_another_answer_voids_the_round_and_the_next_one_goes_on(
    signs: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    basis = basis_of(ContractSubject("fedmf"), "cohort.size=0", users=4, rounds=2)
    lay_out_in(tmp_path, basis, secagg="helpers", round_seconds=2.0)
    answer = Helper.answer

    def lost(self: Helper, request: bytes) -> bytes:
        if int.from_bytes(request[32:36], "little") > 0:
            return answer(self, request)
        if not signs:
            raise BadInput("lost")
        said = answer(self, request)
        return said[:-1] + bytes([said[-1] ^ 1])

    monkeypatch.setattr(Helper, "answer", lost)
    monkeypatch.setattr("veilrec.federation.link._DECLINED_PAUSE", 0.2)
    run_all(tmp_path)
    ended = read_end(tmp_path, known_in(tmp_path))
    assert [report.void for report in ended.history] == [True, False]


def test_a_helper_believes_an_invitation_and_nobody_else(tmp_path: Path) -> None:
    lay_out_in(tmp_path, basis_of(ContractSubject("fedmf"), "cohort.size=0", users=3, rounds=1), secagg="helpers")
    made, place = federation.read(tmp_path), sorted((tmp_path / DEVICES).iterdir())[0]
    helping = HelperAnswers(tmp_path / "helpers" / "helper-0", made)
    key = identity_of(place).public

    def told(invitation: Invitation, place_number: int = 0) -> bytes:
        entry = {"place": place_number, "key": key.hex(), "endorsement": invitation.endorse(made.id, key).hex()}
        return joined(b"", json.dumps([entry]).encode())

    with pytest.raises(BadSignature):  # the coordinator made somebody up
        helping.answer(FederationTask("open", 0), told(Invitation.new(place.name)))
    with pytest.raises(BadTask, match="nobody has announced it here"):
        helping.answer(FederationTask("open", 0), told(read_invitation(place), 99))
    with pytest.raises(BadTask, match="does not do this"):
        helping.answer(FederationTask("round", 0), b"")
    helping.close()


@pytest.mark.parametrize(
    ("name", "settings", "wishes", "words"),
    [
        ("dp-fedmf", ("cohort.size=3",), {}, "Poisson sample"),
        ("fednewsrec", ("cohort.size=0",), {}, "gain-sum. reaches the server one by one"),
        ("veil", ("cohort.size=0",), {"shares": True}, "the server adds that of vote-reports"),
        ("privrec", ("cohort.size=3",), {"secagg": "pairs"}, "a round has 3 of 5 devices"),
        ("fedmf", ("cohort.size=3",), {"shares": True}, "prove something"),
        ("fedmf", ("cohort.size=3",), {"shares": True, "secagg": "none"}, "--secagg helpers"),
        ("fedmf", ("cohort.size=2",), {"secagg": "pairs"}, "use helpers"),
        ("fedmf", ("cohort.size=4",), {"secagg": "pairs", "minimum_messages": 5}, "--least is 5"),
        ("fedmf", ("cohort.size=4",), {"secagg": "pairs", "lost": 0.6}, "have to stay to the end"),
    ],
)
def test_secure_sums_that_would_promise_too_much_are_refused(
    name: str, settings: tuple[str, ...], wishes: dict[str, object], words: str, tmp_path: Path
) -> None:
    with pytest.raises(BadInput, match=words):
        lay_out_in(tmp_path, basis_of(subjects(name)[0], *settings, users=5), **{"secagg": "helpers", **wishes})


def test_a_fixed_cohort_under_masks_needs_every_one_of_its_devices(tmp_path: Path) -> None:
    basis = basis_of(ContractSubject("dp-fedmf"), "cohort.size=3", "cohort.sampling=fixed", users=5, rounds=1)
    assert lay_out_in(tmp_path, basis, secagg="helpers").least == 3
    shutil.rmtree(tmp_path)
