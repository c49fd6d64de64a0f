"""With Flower itself, where it is installed (`make test-flower`): thin nodes behind the filter, over TLS."""

from importlib.util import find_spec

import pytest

from tests.federation.test_processes import init, told, veilrec
from veilrec.federation.flower_messages import write_app


def test_the_app_names_our_parts(tmp_path):
    write_app(tmp_path / "app", tmp_path)
    project = (tmp_path / "app" / "pyproject.toml").read_text()
    assert f'federation = "{tmp_path}"' in project
    assert "flower_server import server_app" in (tmp_path / "app" / "federation" / "server.py").read_text()


@pytest.mark.skipif(find_spec("flwr") is not None, reason="Flower is installed")
def test_without_flower_one_line_says_what_to_install(tmp_path):
    init(tmp_path / "f", "fedmf", "--clients", "3", "--rounds", "1", "--trust", "server")
    said = veilrec("federate", "up", str(tmp_path / "f"), "--transport", "flower", code=2).stderr
    assert said.count("\n") == 1 and "pip install 'veilrec[flower]'" in said


def test_a_federation_by_way_of_flower_has_the_weights_of_its_simulation(tmp_path):
    pytest.importorskip("flwr", reason="Flower is not installed: make test-flower")
    init(tmp_path / "f", "fedmf", "--clients", "4", "--rounds", "2", "--rehearsal", "--trust", "server")
    veilrec("federate", "up", str(tmp_path / "f"), "--transport", "flower", timeout=300.0)
    assert told("federate", "rehearse", str(tmp_path / "f"))["same"]
