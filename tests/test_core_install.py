"""The core alone: it runs, and gives what the compiled kernels give; what it lacks is named in one line."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

from tests import core_only

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "tests" / "core_only.py"
COMMAND = "from veilrec.cli.main import run; run()"
HIDE = f"from core_only import hide; hide({{}}); {COMMAND}"
# Sums of single-precision numbers in another order, and another library's logarithm and cosine.
ROUNDED = {"rtol": 2e-5, "atol": 2e-6}
PIP = ("install", "--quiet", "--disable-pip-version-check", "--no-compile", "--retries", "1", "--timeout", "15")


def run(python, *arguments):
    paths = {"PYTHONPATH": f"{ROOT / 'src'}:{SCRIPT.parent}", "PYTHONWARNINGS": "error::RuntimeWarning"}
    command = [python, *arguments]
    return subprocess.run(command, env=os.environ | paths, capture_output=True, text=True, timeout=120, check=False)


def needs(command, package, extra):
    return f"veilrec {command} needs {package}, which is not installed: pip install 'veilrec[{extra}]'\n"


@pytest.fixture(scope="module")
def core(tmp_path_factory):
    """The interpreter of an environment with the dependencies of the core and nothing else."""
    folder = tmp_path_factory.mktemp("core")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    python = folder / "bin" / "python"
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    pip = [sys.executable, "-m", "pip", "--python", str(python), *PIP, "-c", str(ROOT / "constraints.txt"), *wanted]
    done = subprocess.run(pip, capture_output=True, text=True, check=False)
    assert "ResolutionImpossible" not in done.stderr
    if done.returncode:
        pytest.skip(f"pip could not install the core: {done.stderr.strip().splitlines()[-1]}")
    return python


def check_results(python, out, *options):
    """The script's results are those of this process, in which everything is compiled."""
    done = run(python, str(SCRIPT), str(out), *options)
    assert done.returncode == 0, done.stderr
    with np.load(out) as found:
        assert found["imports.extras"].tolist() == []
        assert {"veilrec.wire.messages", "veilrec.privacy.ledger"} <= set(found["imports.modules"])
        assert found["charge.personal"].tolist() == [True, True, False]  # the ledger refuses the third message
        for check in core_only.CHECKS[1:]:
            for name, expected in check().items():
                same(check, name, found[f"{check.__name__}.{name}"], expected)


def same(check, name, found, expected):
    where = f"{check.__name__}.{name}"
    assert found.dtype == expected.dtype, where
    if np.issubdtype(expected.dtype, np.floating) and where != "draws.uniforms" and check is not core_only.code:
        np.testing.assert_allclose(found, expected, err_msg=where, **ROUNDED)
    else:
        np.testing.assert_array_equal(found, expected, err_msg=where)


def test_with_the_extras_out_of_sight_everything_gives_the_same(tmp_path):
    check_results(Path(sys.executable), tmp_path / "plain.npz", "--hide")


def test_what_a_command_lacks_is_one_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for hidden, arguments, package, extra in (
        ("", "train fedmf", "polars", "train"),
        ("", "data check csv:x.csv", "polars", "train"),
        ("", "demo", "matplotlib", "report"),
        ("", "audit laplace", "dp-accounting", "train"),
        ("'matplotlib'", "audit laplace --quick --plot x.svg", "matplotlib", "report"),
    ):
        done = run(Path(sys.executable), "-c", HIDE.format(hidden), *arguments.split())
        command = "data check" if arguments.startswith("data") else arguments.split(maxsplit=1)[0]
        assert (done.returncode, done.stdout, done.stderr) == (2, "", needs(command, package, extra)), arguments
        assert list(tmp_path.iterdir()) == [], arguments


def test_a_module_that_no_extra_brings_is_a_bug_and_looks_like_one():
    hidden = f"import sys; sys.modules['yaml'] = None; {COMMAND}"
    done = run(Path(sys.executable), "-c", hidden, "train", "fedmf")
    assert done.returncode == 1 and "Traceback" in done.stderr


@pytest.mark.slow
def test_the_dependencies_of_the_core_are_enough(core, tmp_path):
    check_results(core, tmp_path / "core.npz")
    for arguments in (["--help"], ["doctor"]):
        done = run(core, "-c", COMMAND, *arguments)
        assert done.returncode == 0 and done.stdout, done.stderr
    done = run(core, "-c", COMMAND, "train", "fedmf", "--out", str(tmp_path / "run"))
    assert (done.returncode, done.stderr) == (2, needs("train", "polars", "train"))
    assert not (tmp_path / "run").exists()
