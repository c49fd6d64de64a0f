"""Files with which other operators run a helper: whole, naming commands that there are, working with the core."""

import configparser
import shlex
import shutil
import subprocess
import sys

import pytest

from tests.docker_steps import ROOT, copied, is_sent, read_steps
from tests.federation import loopback
from tests.test_core_install import HIDE
from veilrec.audit.contract_subject import ContractSubject

UNIT, STEPS = ROOT / "deploy" / "helper.service", read_steps(ROOT / "deploy" / "helper.Dockerfile")
pytestmark = pytest.mark.usefixtures("quick")


def unit():
    read = configparser.ConfigParser(interpolation=None)
    read.optionxform = str
    read.read(UNIT, encoding="utf-8")
    return read


def entry():
    (words,) = [step.words for step in STEPS if step.name == "ENTRYPOINT"]
    return words


def test_the_image_is_built_of_what_is_sent_with_the_core_alone_and_has_no_rights():
    sources = [name for names, _ in copied(STEPS) for name in names]
    assert all((ROOT / name).exists() and is_sent(name) for name in sources)
    (install,) = [step.text for step in STEPS if "pip install" in step.text]
    assert install.endswith("-c constraints.txt .")  # no extra
    names = [step.name for step in STEPS]
    assert names.index("USER") > max(number for number, name in enumerate(names) if name == "RUN")
    assert [step.text for step in STEPS if step.name == "USER"] == ["veilrec"]
    assert "EXPOSE" not in names


def test_the_unit_and_the_image_run_the_same_command_in_the_folder_of_the_helper(tmp_path):
    service = unit()["Service"]
    words = shlex.split(service["ExecStart"])
    assert words[0] == "/opt/veilrec/bin/veilrec" and words[1:] == entry()[1:]
    (folder,) = [step.text for step in STEPS if step.name == "WORKDIR" and step.text != "/source"]
    assert [step.text for step in STEPS if step.name == "VOLUME"] == [folder]
    assert service["WorkingDirectory"] == f"/var/lib/{service['StateDirectory']}"
    assert service["Restart"] == "on-failure"  # it ends with code 0 when the federation is over
    assert service["ProtectSystem"] == "strict" and service["NoNewPrivileges"] == "yes"
    if checker := shutil.which("systemd-analyze"):
        here = tmp_path / UNIT.name  # what it starts is not installed on this machine
        here.write_text(UNIT.read_text(encoding="utf-8").replace(words[0], "/bin/true"), encoding="utf-8")
        done = subprocess.run([checker, "verify", here], capture_output=True, text=True, check=False, timeout=60)
        assert (done.returncode, done.stderr) == (0, "")


def test_a_helper_works_with_the_core_and_the_files_that_its_operator_gets(tmp_path):
    made, there = tmp_path / "made", tmp_path / "there"
    basis = loopback.basis_of(ContractSubject("fedmf"), "cohort.size=0", users=3, rounds=2)
    loopback.lay_out_in(made, basis, secagg="helpers", helpers=1, round_seconds=loopback.LONG)
    there.mkdir()
    for name in ("federation.yaml", "ca.pem"):
        shutil.copy(made / name, there)
    shutil.move(made / "helpers" / "helper-0", there / "helper")
    program = [sys.executable, "-c", HIDE.format(""), *entry()[1:]]
    paths = {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT / 'tests'}", "PATH": "/usr/bin:/bin"}
    with subprocess.Popen(program, cwd=there, env=paths, stderr=subprocess.PIPE, text=True) as helper:
        try:
            loopback.run_all(made)
            said = helper.communicate(timeout=loopback.LONG)[1]
        finally:
            helper.kill()
    assert helper.returncode == 0, said
    known = loopback.known_in(made)
    with loopback.opened(sorted((made / "clients").iterdir())[0], known) as client:
        assert client.spent()
