"""The front door: fast help, versions, no heavy imports, one line per error."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from veilrec.cli import main, methods
from veilrec.cli.main import app
from veilrec.cli.output import metrics_table
from veilrec.methods.registry import METHODS, PAPERS, listed

HEAVY = ("torch", "numba", "llvmlite", "polars", "matplotlib", "PIL", "scipy", "dp_accounting", "opendp")
MOST_SECONDS = 0.3  # for `import veilrec`


def imported_by(code: str) -> set[str]:
    program = f"import sys; {code}; print('\\n'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_the_module_is_the_command():
    command = [sys.executable, "-m", "veilrec", "train", "nothing"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("veilrec: ")
    assert done.stderr.count("\n") == 1


def test_import_veilrec_is_light():
    assert not {*HEAVY, "numpy"} & imported_by("import veilrec")


def test_import_veilrec_is_fast():
    timed = [sys.executable, "-X", "importtime", "-c", "import veilrec"]
    lines = subprocess.run(timed, capture_output=True, text=True, check=True).stderr.splitlines()
    columns = [[cell.strip() for cell in line.removeprefix("import time:").split("|")] for line in lines]
    (microseconds,) = [int(total) for _, total, name in columns if name == "veilrec"]
    assert microseconds < 1e6 * MOST_SECONDS


def test_the_command_line_starts_without_heavy_parts():
    assert not set(HEAVY) & imported_by("import veilrec.cli.main")


def test_every_command_has_help_with_an_example_or_a_sentence():
    runner = CliRunner()
    for command in ("demo", "data", "methods", "train", "evaluate", "recommend", "doctor"):
        result = runner.invoke(app, [command, "--help"])
        assert result.exit_code == 0
        assert len(result.output) > 100


def test_version():
    result = CliRunner().invoke(app, ["--version"])
    assert result.output.startswith("veilrec ")


def test_methods_json_has_the_promised_fields():
    result = CliRunner().invoke(app, ["methods", "--json"])
    listed = json.loads(result.output)["methods"]
    assert {"fedmf", "fedncf", "fcf", "popularity", "random", "mf", "ncf", "ease"} <= {m["name"] for m in listed}
    for method in listed:
        assert {"name", "paper", "model", "datasets", "guarantee", "measured"} <= set(method)


def test_doctor_json():
    findings = json.loads(CliRunner().invoke(app, ["doctor", "--json"]).output)
    assert {"veilrec", "machine", "parts", "data", "problems"} <= set(findings)
    assert findings["problems"] == []


def test_doctor_for_people():
    assert "Data sets" in CliRunner().invoke(app, ["doctor"]).output


def shown(renderable: object, width: int) -> str:
    target = io.StringIO()
    Console(file=target, width=width).print(renderable)
    return target.getvalue()


def test_doctor_keeps_brackets_and_cuts_nothing_off():
    text = shown(methods._table("Parts", ("part", "version"), [("pfl", "pip install 'veilrec[bench]'")]), 30)
    assert "'veilrec[bench]'" in text
    assert "…" not in text


def test_methods_are_a_line_each_and_fit_into_80_columns(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "80")
    lines = CliRunner().invoke(app, ["methods"]).output.splitlines()
    assert max(len(line) for line in lines) <= 80
    assert set(METHODS) <= {line.split()[0] for line in lines}
    assert len(lines) == len(METHODS) + len(PAPERS) + 1
    monkeypatch.delenv("COLUMNS")
    whole = CliRunner().invoke(app, ["methods"]).output
    assert all(entry["summary"] in whole for entry in listed())


def test_one_method_is_told_in_full():
    text = CliRunner().invoke(app, ["methods", "DP-FedMF"]).output
    assert text.count("-DP per") == text.count("trusting:") == 1
    for words in ("privacy.epsilon=8.0", "tuned@ml-1m: rounds=15", "hr@10=0.515", "Algorithm 2"):
        assert words in text
    about = json.loads(CliRunner().invoke(app, ["methods", "fedmf", "--json"]).output)
    assert (about["name"], about["private_relative"]) == ("fedmf", "dp-fedmf")


def test_filters_of_methods():
    told = json.loads(CliRunner().invoke(app, ["methods", "--private", "--data", "ML-1M", "--json"]).output)
    assert {"dp-fedmf"} <= {entry["name"] for entry in told["methods"]}
    assert all(entry["private"] for entry in told["methods"])
    assert "No method is left" in CliRunner().invoke(app, ["methods", "--private", "--paper", "references"]).output
    assert "leave them out" in str(CliRunner().invoke(app, ["methods", "fedmf", "--private"]).exception)


def test_the_list_of_methods_and_completion_import_nothing_heavy():
    listed()  # the index is in the cache from now on
    for code in (
        "from veilrec.cli.methods import methods; methods()",
        "from veilrec.cli.output import method_names; method_names('fed')",
    ):
        assert not {*HEAVY, "numpy", "pydantic"} & imported_by(code)


def test_ranking_imports_neither_numba_nor_scipy():
    assert not {"numba", "scipy", "torch", "polars"} & imported_by("import veilrec.runs.saved")


def test_a_title_wider_than_its_table_stays_on_one_line():
    title = "fedmf on [mine], a data set with a long name, loo-99, seed 0"
    assert title in shown(metrics_table(title, {"fedmf": {"hr@10": 0.5}}), 80).splitlines()[0]


@pytest.mark.parametrize(
    ("raised", "code", "words"),
    [
        (PermissionError(13, "Permission denied", "/runs/x"), 2, "/runs/x cannot be used (Permission denied)"),
        (OSError("no such device"), 2, "no such device"),
        (MemoryError(), 2, "not enough memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), 2, "not enough memory"),
        (SystemExit(130), 130, "veilrec: interrupted"),
    ],
)
def test_trouble_is_one_line(
    raised: BaseException, code: int, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def fail() -> None:
        raise raised

    monkeypatch.setattr(main, "app", fail)
    with pytest.raises(SystemExit) as leaving:
        main.run()
    said = capsys.readouterr().err
    assert leaving.value.code == code
    assert words in said
    assert said.count("\n") == 1


def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path, monkeypatch, capsys):
    log = tmp_path / "clicks.csv"
    log.write_text("user,item\nu,a\nv,b\n")
    monkeypatch.setattr(sys, "argv", ["veilrec", "data", "import", str(log), "--out", str(log / "packed")])
    with pytest.raises(SystemExit) as leaving:
        main.run()
    assert leaving.value.code == 2
    assert "cannot be used" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [log]
