"""`veilrec check method` and `veilrec new method`: a line a check, JSON, exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from veilrec.cli.main import app
from veilrec.core.errors import BadInput


def run(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, list(words), catch_exceptions=False)
    return done.exit_code, done.stdout


def test_a_line_a_check_and_its_meaning() -> None:
    code, text = run("check", "method", "FedMF", "--only", "Resume", "--only", "audit")
    assert code == 0
    resume, audit, end = text.splitlines()
    assert resume.split(maxsplit=1) == [
        "holds",
        "resume: a resumed training gives the same bits as an uninterrupted one",
    ]
    assert audit.startswith("does not apply")
    assert end == "fedmf keeps the contract."


def test_a_broken_method_is_code_1_in_words_and_in_json(tmp_path: Path) -> None:
    assert run("new", "method", "mine", "--out", str(tmp_path / "mine"))[0] == 0
    file = tmp_path / "mine" / "src" / "mine.py"
    file.write_text(file.read_text().replace("Field(gt=0.0, le=1.0)", "Field()"))
    code, text = run("check", "method", str(file), "--only", "settings")
    assert code == 1
    assert "broken          settings:" in text
    assert "--set damping=nan is taken" in text
    assert text.splitlines()[-1] == "mine breaks 1 of 1."
    code, text = run("check", "method", str(file), "--only", "settings", "--json")
    told = json.loads(text)
    assert (code, told["method"], told["holds"]) == (1, "mine", False)
    assert set(told["checks"][0]) == {"check", "calibration", "means", "verdict", "found", "seconds"}


def test_unknown_names_are_refused() -> None:
    with pytest.raises(BadInput, match="unknown method 'fedmff': did you mean fedmf"):
        run("check", "method", "fedmff")
    with pytest.raises(BadInput, match="unknown check 'cohorts': did you mean cohort"):
        run("check", "method", "fedmf", "--only", "cohorts")


def test_new_says_what_to_do_next(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    code, text = run("new", "method", "mine", "--out", str(folder))
    assert code == 0
    assert f"veilrec check method {folder}/src/mine.py" in text
    code, text = run("new", "method", "other", "--out", str(tmp_path / "other"), "--json")
    assert json.loads(text)["files"][0] == "pyproject.toml"
    with pytest.raises(BadInput, match="exists already"):
        run("new", "method", "mine", "--out", str(folder))
