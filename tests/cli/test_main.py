"""The front door: fast help, versions, no heavy imports, one line per error."""

from __future__ import annotations

import json
import subprocess
import sys

from typer.testing import CliRunner

from veilrec.cli.main import app

HEAVY = ("torch", "numba", "polars", "matplotlib", "scipy", "dp_accounting", "opendp")


def imported_by(code: str) -> set[str]:
    program = f"import sys; {code}; print('\\n'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_import_veilrec_is_light():
    assert not set(HEAVY) & imported_by("import veilrec")


def test_the_command_line_starts_without_heavy_parts():
    assert not set(HEAVY) & imported_by("import veilrec.cli.main")


def test_every_command_has_help_with_an_example_or_a_sentence():
    runner = CliRunner()
    for command in ("demo", "data", "methods", "train", "evaluate", "recommend", "bench", "doctor"):
        result = runner.invoke(app, [command, "--help"])
        assert result.exit_code == 0
        assert len(result.output) > 100


def test_version():
    result = CliRunner().invoke(app, ["--version"])
    assert result.output.startswith("veilrec ")


def test_methods_json_has_the_promised_fields():
    result = CliRunner().invoke(app, ["methods", "--json"])
    listed = json.loads(result.output)["methods"]
    assert {"fedmf", "fedncf", "fcf", "popularity", "random", "mf", "ncf", "ease"} <= {
        m["name"] for m in listed
    }
    for method in listed:
        assert {"name", "paper", "model", "datasets", "guarantee", "measured"} <= set(method)


def test_doctor_json():
    findings = json.loads(CliRunner().invoke(app, ["doctor", "--json"]).output)
    assert {"veilrec", "machine", "parts", "data", "problems"} <= set(findings)
    assert findings["problems"] == []


def test_doctor_for_people():
    assert "Data sets" in CliRunner().invoke(app, ["doctor"]).output
