"""With Flower itself, where it is installed (`make test-flower`): thin nodes behind the filter, over TLS."""

import json
import subprocess
import sys

import pytest

from tests.federation.loopback import free_port
from veilrec.federation.flower_messages import write_app

DATA = "synthetic-ratings:users=30,items=300"
OURSELVES = (sys.executable, "-c", "from veilrec.cli.main import run; run()")


def veilrec(*arguments):
    return subprocess.run([*OURSELVES, *arguments], capture_output=True, text=True, timeout=300, check=False)


def test_the_app_names_our_parts(tmp_path):
    write_app(tmp_path / "app", tmp_path)
    project = (tmp_path / "app" / "pyproject.toml").read_text()
    assert f'federation = "{tmp_path}"' in project
    assert "flower_server import server_app" in (tmp_path / "app" / "federation" / "server.py").read_text()


def test_without_flower_one_line_says_what_to_install(tmp_path):
    try:
        import flwr  # noqa: F401
    except ImportError:
        made = ("--method", "fedmf", "--data", DATA, "--clients", "3", "--rounds", "1")
        assert veilrec("federate", "init", str(tmp_path / "f"), *made).returncode == 0
        done = veilrec("federate", "up", str(tmp_path / "f"), "--transport", "flower")
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
        assert "pip install 'veilrec[flower]'" in done.stderr
    else:
        pytest.skip("Flower is installed")


def test_a_federation_by_way_of_flower_has_the_weights_of_its_simulation(tmp_path):
    pytest.importorskip("flwr", reason="Flower is not installed: make test-flower")
    folder = str(tmp_path / "f")
    made = ("--method", "fedmf", "--data", DATA, "--clients", "4", "--rounds", "2")
    done = veilrec("federate", "init", folder, *made, "--rehearsal", "--port", str(free_port()))
    assert done.returncode == 0, done.stderr
    done = veilrec("federate", "up", folder, "--transport", "flower")
    assert done.returncode == 0, done.stderr
    found = json.loads(veilrec("federate", "rehearse", folder, "--json").stdout)
    assert found["same"], found
