"""What the coordinator keeps of secure sums, and what an audit finds in it."""

import shutil
import sqlite3
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from tests.federation import loopback
from tests.wire.raising import raises
from veilrec.audit.contract_subject import ContractSubject
from veilrec.cli.federate import app
from veilrec.core.errors import BadInput
from veilrec.core.schema import FIRST_REPORT_SUM, place_of_sum
from veilrec.federation import auditing
from veilrec.federation.auditing import audit
from veilrec.federation.federation import COORDINATOR, HELPERS
from veilrec.federation.secagg.helpers import JOURNAL
from veilrec.federation.secagg.transcripts import Known, decode_transcript
from veilrec.server import round_store
from veilrec.wire.messages import BadMessage

pytestmark = pytest.mark.usefixtures("quick")
CLIENTS, ROUNDS = 5, 2


@pytest.fixture(scope="module")
def over(tmp_path_factory):
    """Federations of veil that are over: a sum of reports and two rounds each."""
    made = {}
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("veilrec.federation.link._POLL_SECONDS", 2.0)
        for secagg in ("helpers", "pairs"):
            made[secagg] = tmp_path_factory.mktemp(secagg) / "trial"
            basis = loopback.basis_of(ContractSubject("veil"), "cohort.size=0", users=CLIENTS, rounds=ROUNDS)
            loopback.lay_out_in(made[secagg], basis, secagg=secagg, minimum_messages=3, round_seconds=loopback.LONG)
            loopback.run_all(made[secagg])
    return made


@pytest.fixture
def trial(over, tmp_path):
    def copied(secagg):
        return shutil.copytree(over[secagg], tmp_path / secagg)

    return copied


def transcripts(folder):
    database = sqlite3.connect(folder / COORDINATOR / "coordinator.sqlite")
    rows = dict(database.execute("SELECT number, content FROM transcripts"))
    database.close()
    return rows


def write(path, statement, *values):
    database = sqlite3.connect(path)
    database.execute(statement, values)
    database.commit()
    database.close()


def changed(folder, number, **changes):
    """Put another transcript in the place of one."""
    one = decode_transcript(transcripts(folder)[place_of_sum(number)])
    content = replace(one, **changes).encode()
    path = folder / COORDINATOR / "coordinator.sqlite"
    write(path, "UPDATE transcripts SET content = ? WHERE number = ?", content, place_of_sum(number))


@pytest.mark.parametrize("secagg", ["helpers", "pairs"])
def test_all_sums_of_an_honest_run_hold_and_have_transcripts_without_vectors(over, secagg):
    found = audit(over[secagg])
    assert (found.sums, found.fewest, found.void, found.problems) == (1 + ROUNDS, CLIENTS, 0, ())
    done = CliRunner().invoke(app, ["audit", str(over[secagg])])
    assert done.exit_code == 0
    assert "3 secure sums over 5 clients or more: all of them hold" in done.stderr
    assert max(map(len, transcripts(over[secagg]).values())) < 4000  # a vector has 8 bytes for each of many numbers
    if secagg == "helpers":
        for helper in sorted((over[secagg] / HELPERS).iterdir()):
            assert audit(over[secagg], helper).problems == ()


def test_whatever_is_changed_in_a_transcript_of_helpers_is_named(trial):
    folder = trial("helpers")
    one = decode_transcript(transcripts(folder)[0])
    request, proposal = one.request, one.proposal
    few = replace(request, claims=request.claims[:2])
    swapped = replace(request, claims=(replace(request.claims[0], number=1), *request.claims[1:])[1:])
    louder = replace(proposal, terms=proposal.terms.about(b"louder", request.cohort))
    other_claim = replace(request.claims[0], signature=bytes(64))
    for changes, words in (
        ({"request": few}, "over 2 clients"),
        ({"request": replace(request, cohort=request.cohort[:-1])}, "not the one whose digest was signed"),
        ({"request": replace(request, cohort=request.cohort[:-1])}, "counted who are not on its list"),
        ({"proposal": louder}, "asked about another digest"),
        ({"proposal": replace(proposal, helpers=proposal.helpers[::-1])}, "its helpers are not those"),
        ({"request": replace(request, claims=(other_claim, *request.claims[1:]))}, "client 0 has not signed"),
        ({"answers": one.answers[:1]}, "helper 1 has not signed an answer"),
        ({"request": swapped}, "helper 0 has not signed an answer for this list"),
    ):
        changed(folder, 0, **{"request": request, "proposal": proposal, "answers": one.answers, **changes})
        assert any(words in problem for problem in audit(folder).problems), words
    done = CliRunner().invoke(app, ["audit", str(folder)])
    assert done.exit_code == 1
    assert "round 0: " in done.stderr


def test_whatever_is_changed_in_a_transcript_of_pairs_is_named(trial):
    folder = trial("pairs")
    one = decode_transcript(transcripts(folder)[1])
    other = replace(one.adverts[2], signature=bytes(64))
    for changes, words in (
        ({"survivors": one.survivors[:2]}, "over 2 clients"),
        ({"survivors": one.survivors[1:]}, "have signed its list"),
        ({"adverts": (*one.adverts[:2], other, *one.adverts[3:])}, "client 2 has not signed"),
        ({"adverts": one.adverts[1:]}, "not those who may be counted"),
        ({"signatures": {0: bytes(64)}}, "0 clients have signed its list"),
    ):
        changed(
            folder, 1, **{"survivors": one.survivors, "adverts": one.adverts, "signatures": one.signatures, **changes}
        )
        assert any(words in problem for problem in audit(folder).problems), words


@pytest.mark.parametrize("secagg", ["helpers", "pairs"])
def test_a_bit_of_a_transcript_that_turned_is_noticed_wherever_it_is(over, secagg, monkeypatch):
    known = []

    def kept(*facts):
        known.append(Known(*facts))
        return known[-1]

    monkeypatch.setattr(auditing, "Known", kept)
    audit(over[secagg])
    content = transcripts(over[secagg])[0]
    for place in range(0, len(content), 5):
        turned = bytearray(content)
        turned[place] ^= 1 << place % 8
        try:
            assert list(decode_transcript(bytes(turned)).problems(*known)), place
        except BadMessage:
            continue


def test_missing_transcripts_and_a_helper_that_remembers_otherwise_are_named(trial):
    folder, path = trial("helpers"), "coordinator.sqlite"
    helper = folder / HELPERS / "helper-0"
    write(folder / COORDINATOR / path, "DELETE FROM transcripts WHERE number = 1")
    assert audit(folder).problems == ("round 1: it has no transcript",)
    assert "round 1: helper-0 has answered it, and it has no transcript" in audit(folder, helper).problems
    write(helper / JOURNAL, "UPDATE rounds SET request = ? WHERE number = 0", bytes(32))
    assert "round 0: helper-0 has answered for another list of clients" in audit(folder, helper).problems
    write(helper / JOURNAL, "DELETE FROM rounds WHERE number < 0")
    assert "sum 0 of reports: helper-0 has not answered it" in audit(folder, helper).problems
    write(folder / COORDINATOR / path, "DELETE FROM transcripts WHERE number < 0")
    assert "sum 0 of reports: it has no transcript" not in audit(folder).problems  # the oldest may have had no room
    raises(BadInput, "no secure sums", audit, plain(folder.parent / "plain"))


def plain(folder):
    loopback.lay_out_in(folder, loopback.basis_of(ContractSubject("fedmf"), "cohort.size=0", users=3, rounds=1))
    return folder


def test_transcripts_have_a_bound_and_the_oldest_go_first(trial, monkeypatch):
    folder = trial("helpers")
    rows = transcripts(folder)
    assert min(rows) == place_of_sum(FIRST_REPORT_SUM)
    monkeypatch.setattr(round_store, "TRANSCRIPT_BYTES", sum(map(len, rows.values())) - 1)
    store = round_store.RoundStore.__new__(round_store.RoundStore)
    store._database = sqlite3.connect(folder / COORDINATOR / "coordinator.sqlite", isolation_level=None)
    store.add_transcript(1, rows[1])
    assert [decode_transcript(content).terms.round_number for content in store.transcripts()] == [0, 1]
    store.add_transcript(2, b"")  # a sum that was not opened
    assert len(store.transcripts()) == 2
    store._database.close()
