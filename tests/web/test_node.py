"""The built module under node: against the vectors, and a client whose server fails."""

import shutil
import subprocess
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent


@pytest.mark.parametrize("checks", ["vectors.test.mjs", "client.test.mjs"])
def test_the_built_module_passes_its_node_tests(checks):
    node = shutil.which("node")
    if node is None:
        pytest.skip("there is no node; the same checks run in the browser")
    version = subprocess.run([node, "--version"], capture_output=True, text=True, check=True).stdout
    if int(version.lstrip("v").split(".")[0]) < 20:
        pytest.skip(f"node {version.strip()} cannot check Ed25519; the same checks run in the browser")
    command = [node, "--test", str(FOLDER / checks)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "# fail 0" in done.stdout or "fail 0" in done.stdout
