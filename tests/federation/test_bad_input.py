"""What can be wrong with a federation's files and places: one clear line each, exit 2, and nothing is lost."""

from __future__ import annotations

import shutil
import socket
import threading
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from tests.federation.loopback import basis_of, coordinating, free_port, known_in, lay_out_in, link_of
from veilrec.audit.contract_subject import ContractSubject
from veilrec.cli.federate import app
from veilrec.core.errors import BadInput
from veilrec.federation import federation, identity
from veilrec.federation.client import folder as device_folder
from veilrec.federation.coordinator.process import coordinate, locked
from veilrec.federation.facts import FederationFacts
from veilrec.federation.federation import CA, COORDINATOR, DEVICES, FACTS, FILE, TurnedAway
from veilrec.federation.helper import HelperAnswers
from veilrec.federation.identity import read_invitation
from veilrec.federation.link import live
from veilrec.federation.making import FederationOptions
from veilrec.federation.running import Up


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bad") / "base"
    lay_out_in(folder, basis_of(ContractSubject("fedmf"), "cohort.size=3", users=3, rounds=1))
    return folder


@pytest.fixture
def made(base: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "federation"
    shutil.copytree(base, folder)
    return folder


def changed(folder: Path, **entries: object) -> None:
    content = yaml.safe_load((folder / FILE).read_text())
    (folder / FILE).write_text(yaml.safe_dump(content | entries))


def first(folder: Path) -> Path:
    return sorted((folder / DEVICES).iterdir())[0]


@pytest.mark.parametrize("command", [["up"], ["status"], ["down"], ["rehearse"], ["coordinator"]])
def test_a_folder_that_is_no_federation_is_one_line(command: list[str], tmp_path: Path) -> None:
    for folder, words in ((tmp_path / "nowhere", "there is no federation"), (tmp_path, "is no federation")):
        done = CliRunner().invoke(app, [*command, str(folder)])
        assert isinstance(done.exception, BadInput)
        assert words in str(done.exception)
        assert done.exception.exit_code == 2


def test_nobody_is_told_to_remove_what_is_no_federation(made: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "result.json").write_text("{}")
    for folder in (tmp_path, tmp_path / "run", made / COORDINATOR, made / DEVICES):
        with pytest.raises(BadInput, match="is no federation: give the folder that `veilrec federate init` made$"):
            federation.read(folder)
    (made / FILE).unlink()
    with pytest.raises(BadInput, match="remove it and make it again"):
        federation.read(made)


def test_a_federation_in_place_of_a_device_is_told_which_devices_it_has(made: Path, tmp_path: Path) -> None:
    names = [place.name for place in sorted((made / DEVICES).iterdir())]
    for folder in (made, made / DEVICES):
        done = CliRunner().invoke(app, ["device", str(folder)])
        assert f"give one or more of {made / DEVICES / names[0]} to {names[-1]}" in str(done.exception)
    for command, words in (("device", "is no device: it has no device.json"), ("helper", "is no helper")):
        done = CliRunner().invoke(app, [command, str(made / COORDINATOR)])
        assert isinstance(done.exception, BadInput)
        assert words in str(done.exception)
    done = CliRunner().invoke(app, ["device", str(tmp_path / "nowhere")])
    assert "there is no device" in str(done.exception)


def test_what_is_said_can_be_typed_into_a_shell(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="make one with `veilrec federate init '.*/two words'`"):
        federation.read(tmp_path / "two words")


def test_watching_and_one_json_object_exclude_each_other(made: Path) -> None:
    done = CliRunner().invoke(app, ["status", str(made), "--watch", "--json"])
    assert "leave one of them out" in str(done.exception)
    assert not done.stdout


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ({"format": 9}, "has format 9"),
        ({"devices": "many"}, "devices: Input should be a valid integer"),
        ({"secagg": "magic"}, "secagg: Input should be"),
        ({"colour": "red"}, "colour: Unexpected keyword argument"),
        ({"address": "https://[foo bar:1"}, "address is"),
        ({"address": "https://127.0.0.1"}, "address is"),
        ({"address": 7}, "address: Input should be a valid string"),
    ],
)
def test_a_file_that_was_changed_by_hand_is_one_line(made: Path, entries: dict[str, object], words: str) -> None:
    changed(made, **entries)
    with pytest.raises(BadInput, match=words):
        federation.read(made)


def test_a_file_that_is_not_whole(made: Path) -> None:
    content = yaml.safe_load((made / FILE).read_text())
    del content["plan"]
    (made / FILE).write_text(yaml.safe_dump(content))
    with pytest.raises(BadInput, match="plan: Field required"):
        federation.read(made)
    (made / FILE).write_text("{")
    with pytest.raises(BadInput, match="cannot be read"):
        federation.read(made)
    (made / FILE).unlink()
    with pytest.raises(BadInput, match=f"no {FILE}"):
        federation.read(made)


def test_another_plan_is_refused_on_both_sides(made: Path) -> None:
    config = federation.read(made).config
    changed(made, config=config | {"local": config["local"] | {"dim": config["local"]["dim"] + 1}})
    with pytest.raises(BadInput, match="another plan"):
        known_in(made)


def test_the_coordinator_refuses_a_device_with_another_plan(made: Path) -> None:
    known = known_in(made)
    with coordinating(made, known):
        changed(made, plan="0" * 64)
        other = federation.read(made)
        link = link_of(first(made), known)
        link._federation = other
        with pytest.raises(TurnedAway, match="another version of the plan"):
            link.enrol(read_invitation(first(made)))
        changed(made, plan=known.federation.plan, id="0" * 32)
        link._federation = federation.read(made)
        with pytest.raises(TurnedAway, match="another federation"):
            link.enrol(read_invitation(first(made)))


def test_facts_that_are_missing_or_others(made: Path) -> None:
    (made / FACTS / "manifest.json").write_text("{}")
    with pytest.raises(BadInput, match="is not there"):
        known_in(made)
    shutil.rmtree(made / FACTS)
    with pytest.raises(BadInput, match="is not there"):
        known_in(made)


def test_facts_that_were_changed(made: Path) -> None:
    path = made / FACTS / "items.data.npy"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(BadInput, match="not that of this federation"):
        known_in(made)


def test_a_device_without_data_a_wrong_key_and_somebody_elses_data(made: Path) -> None:
    known, place = known_in(made), first(made)
    kept = (place / "data").read_bytes()
    (place / "data").unlink()
    with pytest.raises(BadInput, match="device without data"):
        device_folder.open_device(place, known)
    other = sorted((made / DEVICES).iterdir())[1]
    shutil.copy(other / "data", place / "data")
    with pytest.raises(BadInput, match="not the data of this device"):
        device_folder.open_device(place, known)
    (place / "data").write_bytes(kept)
    (place / "key").rename(place / "key.elsewhere")
    with pytest.raises(BadInput, match="no key here"):
        device_folder.open_device(place, known)
    (place / "key.elsewhere").rename(place / "key")
    device_folder.open_device(place, known).close()  # nothing was lost
    with pytest.raises(BadInput, match="is no device"):
        device_folder.open_device(made / COORDINATOR, known)


def test_a_device_of_a_real_federation_does_not_take_part_in_a_rehearsal(made: Path) -> None:
    changed(made, rehearsal=False)
    with pytest.raises(BadInput, match="rehearsal"):
        device_folder.open_device(first(made), known_in(made))


def test_an_invitation_that_is_none(made: Path) -> None:
    (first(made) / "invitation").write_text("come in\n")
    with pytest.raises(BadInput, match="no invitation"):
        read_invitation(first(made))


def test_another_authority_vouches_for_nobody(made: Path, tmp_path: Path) -> None:
    known = known_in(made)
    with coordinating(made, known):
        identity.make_certificates(made / CA, tmp_path / "c", tmp_path / "k", hosts=(), federation="other")
        link, said = link_of(first(made), known), list[str]()
        with pytest.raises(TurnedAway, match="not the coordinator of this federation"):
            live(link, None, said.append, threading.Event(), lambda: link.poll(0.0))  # type: ignore[arg-type]
    (made / CA).write_text("nothing")
    with pytest.raises(BadInput, match="no certificate of an authority"):
        link_of(first(made), known)


def test_a_port_that_is_taken_is_one_line(made: Path) -> None:
    known = known_in(made)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        changed(made, address=f"https://127.0.0.1:{taken.getsockname()[1]}")
        with pytest.raises(BadInput, match=r"cannot be used \(.*\): end what uses it, or write another port into"):
            coordinate(made, FederationFacts(made, federation.read(made)), lambda _: None)
    changed(made, address=f"https://127.0.0.1:{free_port()}")
    with coordinating(made, known_in(made)):  # as it says, another port in the file is all it takes
        link_of(first(made), known_in(made)).enrol(read_invitation(first(made)))
    assert known.federation.devices == 3


def test_two_coordinators_on_one_folder(made: Path) -> None:
    with locked(made / COORDINATOR), pytest.raises(BadInput, match="another coordinator runs"):
        coordinate(made, known_in(made), lambda _: None)


def test_a_coordinator_elsewhere_and_a_federation_without_devices(made: Path) -> None:
    shutil.rmtree(made / DEVICES)
    with pytest.raises(BadInput, match="holds no device"):
        Up(made, lambda _: None)
    shutil.rmtree(made / COORDINATOR)
    (made / COORDINATOR).mkdir()
    with pytest.raises(BadInput, match="no coordinator's folder"):
        coordinate(made, known_in(made), lambda _: None)


def test_what_init_refuses(tmp_path: Path) -> None:
    runner = CliRunner()
    data = "synthetic-ratings:users=20,items=200,seed=1"
    wishes = ["init", str(tmp_path / "f"), "--data", data]
    for more, words in (
        (["--method", "ease", "--devices", "5"], "name a federated method"),
        (["--method", "fedmf", "--devices", "50"], "--devices is 50"),
        (["--method", "dp-fedmf", "--devices", "5", "--least", "2", "--set", "cohort.sampling=fixed"], "whole cohorts"),
        (["--method", "veil", "--devices", "5", "--secagg", "helpers", "--shares"], "the server adds that of vote-rep"),
        (["--method", "dp-fedmf", "--devices", "5", "--least", "99"], "--least is 99, and a round has 5 devices at"),
        (["--method", "fedmf", "--devices", "5", "--set", "cohort.size=3", "--least", "4"], "has 3 devices at most"),
        (
            ["--method", "fedmf", "--devices", "5", "--least", "9", "--secagg", "helpers"],
            "sum of this plan needs 9 dev",
        ),
        (["--method", "fedmf", "--devices", "5", "--host", "http://foo bar/"], "no name and no IP address"),
        (["--method", "fedmf", "--devices", "5", "--host", ""], "no name and no IP address"),
    ):
        done = runner.invoke(app, [*wishes, *more, "--rounds", "2"])
        assert isinstance(done.exception, BadInput), done.output
        assert words in str(done.exception)
        assert not (tmp_path / "f").exists()


def test_a_helper_of_another_federation_and_one_without_a_register(tmp_path: Path) -> None:
    basis = basis_of(ContractSubject("fedmf"), "cohort.size=3", users=3, rounds=1)
    folders = []
    for name in ("one", "two"):
        folders.append(tmp_path / name)
        lay_out_in(folders[-1], basis, secagg="helpers")
    helpers = [folder / "helpers" / "helper-0" for folder in folders]
    with pytest.raises(BadInput, match="no helper of this federation"):
        HelperAnswers(helpers[1], federation.read(folders[0]))
    (helpers[0] / "register.json").unlink()
    with pytest.raises(BadInput, match="is no helper"):
        HelperAnswers(helpers[0], federation.read(folders[0]))


def test_the_folder_is_whole_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from veilrec.federation import making

    def fails(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(making, "_write_devices", fails)
    wishes = FederationOptions(method="fedmf", data="synthetic-ratings:users=20,items=200,seed=1", devices=5, rounds=1)
    with pytest.raises(OSError, match="No space"):
        making.make(tmp_path / "f", wishes)
    assert list(tmp_path.iterdir()) == []
