"""What an extra brings is named as it is declared."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from veilrec.core import resources
from veilrec.core.errors import BadInput

DECLARED = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[\[<>=]", requirement)[0] for requirement in requirements}


@pytest.mark.parametrize("module", resources._PARTS)
def test_an_extra_brings_what_it_is_named_for(module: str) -> None:
    package, extra = resources._PARTS[module]
    assert package in names(DECLARED["optional-dependencies"][extra])
    assert package not in names(DECLARED["dependencies"])


def test_a_missing_module_is_both_bad_input_and_what_python_calls_it() -> None:
    missing = resources.missing_part("reading", ModuleNotFoundError(name="polars.io"))
    assert isinstance(missing, BadInput)
    assert isinstance(missing, ModuleNotFoundError)
    assert missing.name == "polars"
    assert str(missing) == "reading needs polars, which is not installed: pip install 'veilrec[train]'"


def test_compiled_code_of_another_version_is_told_apart() -> None:
    stale = resources.missing_part("training", ModuleNotFoundError(name="veilrec.no_more"))
    assert str(stale).startswith("training: compiled code of another version")


@pytest.mark.parametrize("name", [None, "", "nosuch", "numbers"])
def test_no_extra_is_named_for_anything_else(name: str | None) -> None:
    assert resources.missing_part("reading", ModuleNotFoundError(name=name)) is None


def test_what_is_installed_is_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    resources.require("counting", "math")
    monkeypatch.setattr(resources, "find_spec", lambda name: None)
    with pytest.raises(resources.MissingPart, match="counting needs numba"):
        resources.require("counting", "numba")
