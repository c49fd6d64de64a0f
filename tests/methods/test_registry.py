"""The table of methods."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from veilrec.errors import BadInput
from veilrec.methods.registry import METHODS, all_methods, describe, get


def test_every_entry_leads_to_a_method_of_that_name() -> None:
    assert [method.name for method in all_methods()] == list(METHODS)


def test_an_unknown_name_gets_the_nearest_ones() -> None:
    with pytest.raises(BadInput, match=r"unknown method 'fedfm': did you mean .*fedmf.* known are .*ease"):
        get("fedfm")


def test_descriptions_are_complete_and_are_json() -> None:
    for method in all_methods():
        described = describe(method)
        assert set(described) == {
            "name", "kind", "paper", "model", "summary", "datasets", "guarantee", "measured",
            "presets", "rounds",
        }  # fmt: skip
        assert json.loads(json.dumps(described)) == described
        assert described["paper"]
        assert described["datasets"]
        assert "tuned" in described["presets"]
        assert isinstance(described["measured"], bool)


def test_the_table_imports_no_method() -> None:
    script = (
        "import sys; from veilrec.methods.registry import METHODS;"
        "print([m for m in METHODS.values() if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_describing_every_method_needs_no_torch() -> None:
    script = (
        "import sys; from veilrec.methods.registry import all_methods, describe;"
        "print(len([describe(m) for m in all_methods()]), 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(len(METHODS)), "False"]
