"""`veilrec new method`: what it writes works, and nothing is overwritten."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import veilrec
from veilrec.core.errors import BadInput
from veilrec.methods.plugins import write_template
from veilrec.methods.registry import get


def test_the_written_package_says_what_it_is(tmp_path: Path) -> None:
    written = write_template("My-Method2", tmp_path / "here")
    assert written.name == "my-method2"
    assert {str(p.relative_to(written.folder)) for p in written.folder.rglob("*") if p.is_file()} == set(written.files)
    project = tomllib.loads((written.folder / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["veilrec.methods"] == {"my-method2": "my_method2:METHOD"}
    assert get(str(written.folder / written.module)).name == "my-method2"
    assert not any("$" in (written.folder / file).read_text() for file in written.files)


def test_it_trains_and_its_run_opens(tmp_path: Path) -> None:
    written = write_template("mine", tmp_path / "mine")
    file = str(written.folder / written.module)
    run = veilrec.train(file, "synthetic-ratings:users=150,items=200,seed=1", rounds=2, out=tmp_path / "run")
    assert run.result["method"] == "mine"
    assert len(veilrec.open(tmp_path / "run").recommend(["i001"], k=4)) == 4


def test_it_is_in_the_style_of_the_house(tmp_path: Path) -> None:
    pytest.importorskip("ruff", reason="the extra dev is not installed")
    written = write_template("mine", tmp_path / "mine")
    settings = Path(__file__).parents[2] / "pyproject.toml"
    theirs = ("--config", "lint.isort.known-third-party=['veilrec']")  # outside of the house, it is another's package
    for what in (["check", "--ignore", "D103,S101"], ["format", "--check"]):
        command = [sys.executable, "-m", "ruff", *what, "--config", str(settings), *theirs, str(written.folder)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("my_method", "cannot be the name of a method: use small letters"),
        ("Bad Name!", "'Bad Name!' cannot be the name"),
        ("", "cannot be the name"),
        ("-x", "cannot be the name"),
        ("a--b", "cannot be the name"),
        ("../x", "cannot be the name"),
        ("FedMF", "fedmf is the name of a method that is there already"),
        ("json", "would make a Python module json, a name that is taken"),
        ("class", "a name that is taken"),
    ],
)
def test_names_that_cannot_be(name: str, told: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=told):
        write_template(name, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    kept = tmp_path / "mine" / "notes.txt"
    kept.parent.mkdir()
    kept.write_text("mine")
    with pytest.raises(BadInput, match="exists already"):
        write_template("mine", tmp_path / "mine")
    assert [path.name for path in kept.parent.iterdir()] == ["notes.txt"]
