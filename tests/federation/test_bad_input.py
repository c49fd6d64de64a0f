"""What can be wrong with a federation's files and places: one clear line each, exit 2, and nothing is lost."""

import os
import shutil
import socket
from dataclasses import replace

import pytest
import yaml
from typer.testing import CliRunner

from tests.federation.loopback import basis_of, coordinating, free_port, known_in, lay_out_in, link_of, run_all
from tests.harm import harmed
from tests.harm import refused as one_line
from tests.wire.raising import raises
from veilrec.audit.contract_subject import ContractSubject
from veilrec.cli.federate import app
from veilrec.core.errors import BadInput
from veilrec.federation import federation, identity, making
from veilrec.federation.client import folder as client_folder
from veilrec.federation.coordinator.process import STATUS, coordinate
from veilrec.federation.facts import FederationFacts
from veilrec.federation.federation import CA, CLIENTS, COORDINATOR, FACTS, FILE, Away, TurnedAway
from veilrec.federation.helper import HelperAnswers
from veilrec.federation.identity import read_invitation
from veilrec.federation.making import FederationOptions
from veilrec.federation.running import Up


def changed(folder, **entries):
    content = yaml.safe_load((folder / FILE).read_text())
    (folder / FILE).write_text(yaml.safe_dump(content | entries))


def first(folder):
    return sorted((folder / CLIENTS).iterdir())[0]


def refused(*command):
    done = CliRunner().invoke(app, command)
    assert isinstance(done.exception, BadInput), done.output
    assert (done.exception.exit_code, done.stdout) == (2, "")
    return str(done.exception)


def test_what_is_no_federation_and_no_client_is_one_line(made, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "result.json").write_text("{}")
    for command in ("up", "status", "down", "rehearse", "coordinator"):
        assert "there is no federation" in refused(command, str(tmp_path / "nowhere"))
        for folder in (tmp_path, tmp_path / "run", made / COORDINATOR, made / CLIENTS):
            line = refused(command, str(folder))  # nobody is told to remove it
            assert line.endswith("is no federation: give the folder that `veilrec federate init` made")
    raises(BadInput, "make one with `veilrec federate init '.*/two words'`", federation.read, tmp_path / "two words")
    assert "leave one of them out" in refused("status", str(made), "--watch", "--json")
    names = [place.name for place in sorted((made / CLIENTS).iterdir())]
    for folder in (made, made / CLIENTS):
        assert f"give one or more of {made / CLIENTS / names[0]} to {names[-1]}" in refused("client", str(folder))
    for command, words in (("client", "is no client: it has no client.json"), ("helper", "is no helper")):
        assert words in refused(command, str(made / COORDINATOR))
    assert "there is no client" in refused("client", str(tmp_path / "nowhere"))


def test_a_file_that_was_changed_by_hand_is_one_line(made):
    right = yaml.safe_load((made / FILE).read_text())
    for entries, words in (
        ({"format": 9}, "has format 9"),
        ({"clients": "many"}, "clients: Input should be a valid integer"),
        ({"secagg": "magic"}, "secagg: Input should be"),
        ({"colour": "red"}, "colour: Unexpected keyword argument"),
        *(({"address": odd}, "address is") for odd in ("https://[foo bar:1", "https://127.0.0.1")),
        ({"address": 7}, "address: Input should be a valid string"),
        ({"plan": None}, "plan: Input should be a valid string"),
    ):
        (made / FILE).write_text(yaml.safe_dump(right | entries))
        raises(BadInput, words, federation.read, made)
    (made / FILE).write_text("{")
    raises(BadInput, "cannot be read", federation.read, made)
    (made / FILE).unlink()
    raises(BadInput, f"no {FILE}.*remove it and make it again", federation.read, made)
    local = right["config"]["local"]
    (made / FILE).write_text(yaml.safe_dump(right | {"config": right["config"] | {"local": local | {"dim": 99}}}))
    raises(BadInput, "another plan", known_in, made)


def test_the_coordinator_refuses_another_plan_and_a_client_another_coordinator(made, tmp_path):
    known, place = known_in(made), first(made)
    with coordinating(made, known):
        link = link_of(place, known)
        for change, words in (({"plan": "0" * 64}, "version of the plan"), ({"id": "0" * 32}, "another federation")):
            link._federation = replace(known.federation, **change)
            raises(TurnedAway, words, link.enrol, read_invitation(place))
        raises(BadInput, "another coordinator runs", coordinate, made, known, lambda _: None)
        identity.make_certificates(made / CA, tmp_path / "c", tmp_path / "k", hosts=(), federation="other")
        raises(Away, "is not known as the coordinator of this federation", link_of(place, known).poll, 0.0)
    (made / CA).write_text("nothing")
    raises(BadInput, "no certificate of an authority", link_of, place, known)


def test_facts_that_were_changed_or_are_missing(made):
    path = made / FACTS / "items.data.npy"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    raises(BadInput, "not that of this federation", known_in, made)
    (made / FACTS / "manifest.json").write_text("{}")
    raises(BadInput, "is not there", known_in, made)
    shutil.rmtree(made / FACTS)
    raises(BadInput, "is not there", known_in, made)


def test_folders_of_clients_and_coordinators_that_are_not_whole(made):
    known, place = known_in(made), first(made)
    kept = (place / "data").read_bytes()
    (place / "data").unlink()
    raises(BadInput, "client without data", client_folder.open_client, place, known)
    other = sorted((made / CLIENTS).iterdir())[1]
    shutil.copy(other / "data", place / "data")
    raises(BadInput, "not the data of this device", client_folder.open_client, place, known)
    (place / "data").write_bytes(kept)
    (place / "key").rename(place / "key.elsewhere")
    raises(BadInput, "no key here", client_folder.open_client, place, known)
    (place / "key.elsewhere").rename(place / "key")
    client_folder.open_client(place, known).close()  # nothing was lost
    (place / "invitation").write_text("come in\n")
    raises(BadInput, "no invitation", read_invitation, place)
    raises(BadInput, "is no client", client_folder.open_client, made / COORDINATOR, known)
    changed(made, rehearsal=False)
    raises(BadInput, "rehearsal", lambda: client_folder.open_client(place, known_in(made)))
    shutil.rmtree(made / CLIENTS)
    raises(BadInput, "holds no client", Up, made, lambda _: None)
    (made / COORDINATOR / "secret").unlink()
    raises(BadInput, "no coordinator's folder", coordinate, made, known, lambda _: None)


@pytest.fixture(scope="module")
def private_federation(tmp_path_factory):
    folder = tmp_path_factory.mktemp("private")
    settings = ("cohort.size=3", "cohort.sampling=fixed", "privacy.epsilon=8")
    lay_out_in(folder, basis_of(ContractSubject("dp-fedmf"), *settings, users=6, rounds=3), secagg="helpers")
    return folder


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("guarantee.epsilon", 0.01),
        ("guarantee.delta", 1e-9),
        ("guarantee.unit", "click"),
        ("guarantee.adjacency", "add-remove"),
        ("guarantee.scope", "lifetime"),
        ("guarantee.trust", "nobody"),
        ("guarantee.basis", "as published"),
        ("guarantee.caveats", []),
        ("budget.epsilon", 100.0),
        ("budget.delta", 1e-9),
        ("budget.trust", "nobody"),
        ("unprotected", True),
        ("clients", 60),
        ("rounds", 1),
        ("rehearsal", False),
        ("secagg", "none"),
        ("config.cohort.size", 6),
        ("config.privacy.epsilon", 16.0),
    ],
)
def test_nobody_takes_the_word_of_a_federation_file_for_what_its_plan_promises(
    private_federation, tmp_path, name, value
):
    made = shutil.copytree(private_federation, tmp_path / "federation")
    content = yaml.safe_load((made / FILE).read_text())
    *above, last = name.split(".")
    place = content
    for part in above:
        place = place[part]
    before, place[last] = place.get(last), value
    (made / FILE).write_text(yaml.safe_dump(content))
    assert before != value
    with pytest.raises(BadInput) as refused:
        known_in(made)
    line = str(refused.value)
    assert "\n" not in line
    if (above and above[0] in ("guarantee", "budget")) or name in ("unprotected", "clients"):
        assert f"{name} {value}, and its plan comes to {before}" in line


def test_a_port_that_is_taken_is_one_line(made):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        changed(made, address=f"https://127.0.0.1:{taken.getsockname()[1]}")
        with pytest.raises(BadInput, match=r"cannot be used \(.*\): end what uses it, or write another port into"):
            coordinate(made, FederationFacts(made, federation.read(made)), lambda _: None)
    changed(made, address=f"https://127.0.0.1:{free_port()}")
    with coordinating(made, known_in(made)):  # as it says, another port in the file is all it takes
        link_of(first(made), known_in(made)).enrol(read_invitation(first(made)))


def test_what_init_refuses(tmp_path):
    data = "synthetic-ratings:users=20,items=200,seed=1"
    for method, more, words in (
        ("ease", [], "name a federated method"),
        ("fedmf", ["--clients", "50"], "--clients is 50"),
        ("dp-fedmf", ["--least", "2", "--set", "cohort.sampling=fixed"], "whole cohorts"),
        ("dp-fedmf", ["--least", "2", "--set", "cohort.size=3"], "a void round would tell how many were drawn"),
        ("veil", ["--distributed-noise"], "is now --trust noisy-sums"),
        ("dp-fedmf", ["--least", "99"], "--least is 99, and a round has 5 clients at"),
        ("fedmf", ["--set", "cohort.size=3", "--least", "4"], "has 3 clients at most"),
        ("fedmf", ["--least", "9", "--secagg", "helpers"], "sum of this plan needs 9 clients"),
        ("fedmf", ["--host", "http://foo bar/"], "no name and no IP address"),
        ("fedmf", ["--host", ""], "no name and no IP address"),
    ):
        five = [] if "--clients" in more else ["--clients", "5"]
        asked = ["--method", method, "--data", data, "--rounds", "2", *five, *more]
        assert words in refused("init", str(tmp_path / "f"), *asked)
        assert not (tmp_path / "f").exists()


def test_a_helper_of_another_federation_and_one_without_a_register(tmp_path):
    basis = basis_of(ContractSubject("fedmf"), "cohort.size=3", users=3, rounds=1)
    one, _ = (lay_out_in(tmp_path / name, basis, secagg="helpers") for name in ("one", "two"))
    helpers = [tmp_path / name / "helpers" / "helper-0" for name in ("one", "two")]
    raises(BadInput, "not what helper-0 was invited to", HelperAnswers, helpers[1], one)
    (helpers[0] / "register.json").unlink()
    raises(BadInput, "is no helper", HelperAnswers, helpers[0], one)


def test_the_folder_is_whole_or_not_there(tmp_path, monkeypatch):
    def fails(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(making, "_write_clients", fails)
    wishes = FederationOptions(method="fedmf", data="synthetic-ratings:users=20,items=200,seed=1", clients=5, rounds=1)
    raises(OSError, "No space", making.make, tmp_path / "f", wishes)
    assert list(tmp_path.iterdir()) == []


def test_a_harmed_file_of_a_client_gives_one_line_or_the_same_message_and_no_fresh_budget(made, tmp_path):
    older = shutil.copytree(first(made), tmp_path / "older")
    before = os.umask(0o022)
    run_all(made)
    os.umask(before)
    known, place = known_in(made), first(made)
    shutil.copy(sorted((made / CLIENTS).iterdir())[1] / "key", older / "key")  # put back: that of another client

    def go_on(folder):
        with client_folder.open_client(folder, known) as client:
            read_invitation(folder)
            return client.take_part(b"", 0), client.spent()[0].messages, identity.identity_of(folder).public

    wanted = go_on(shutil.copytree(place, tmp_path / "whole"))
    went_on = set()
    for name, harm, work in harmed(place, older, tmp_path / "work"):
        line, found = one_line(lambda work=work: go_on(work))
        assert line is not None or found[:2] == wanted[:2], (name, harm)
        went_on |= {(name, harm)} if line is None else set()
    unneeded = {name for name, _ in went_on} - {"ledger.seq", "identity.key"}
    assert unneeded <= {"lock", "identity.key.pub"}, went_on
    assert ("identity.key", "removed") in went_on  # the coordinator refuses another key in its place
    with pytest.raises(BadInput, match="has taken part"):
        work = shutil.copytree(place, tmp_path / "begun")
        for path in work.glob("ledger*"):
            path.unlink()
        go_on(work)
    for path in (path for above in (CLIENTS, COORDINATOR) for path in (made / above).rglob("*")):
        assert path.stat().st_mode & 0o077 == 0 or path.suffix in (".pub", ".pem") or path.name == STATUS, path
