"""What an extra brings is named as it is declared."""

import re
import subprocess
import sys
import threading
import tomllib
from pathlib import Path

import numpy as np
import pytest

from veilrec.core import resources
from veilrec.core.errors import BadInput

DECLARED = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]


def names(requirements):
    return {re.split(r"[\[<>=]", requirement)[0] for requirement in requirements}


@pytest.mark.parametrize("module", resources.PARTS)
def test_an_extra_brings_what_it_is_named_for(module):
    package, extra = resources.PARTS[module]
    assert package in names(DECLARED["optional-dependencies"][extra])
    assert package not in names(DECLARED["dependencies"])


def test_a_missing_module_is_bad_input_and_what_python_calls_it(monkeypatch):
    missing = resources.missing_part("reading", ModuleNotFoundError(name="polars.io"))
    assert isinstance(missing, BadInput)
    assert isinstance(missing, ModuleNotFoundError)
    assert missing.name == "polars"
    assert str(missing) == "reading needs polars, which is not installed: pip install 'veilrec[train]'"
    stale = resources.missing_part("training", ModuleNotFoundError(name="veilrec.no_more"))
    assert str(stale).startswith("training: compiled code of another version")
    for name in (None, "", "nosuch", "numbers"):
        assert resources.missing_part("reading", ModuleNotFoundError(name=name)) is None
    resources.require("counting", "math")
    monkeypatch.setattr(resources, "find_spec", lambda name: None)
    with pytest.raises(resources.MissingPart, match="counting needs numba"):
        resources.require("counting", "numba")


@pytest.mark.parametrize(("asked", "threads"), [("1", 1), ("3", 3), ("0", None), ("many", None), ("", None)])
def test_the_environment_says_how_many(monkeypatch, asked, threads):
    monkeypatch.setenv("OMP_NUM_THREADS", asked)
    assert resources.available() >= 1 if threads is None else resources.available() == threads


def test_parts_are_even():
    for work, count, parts in [
        ([], 3, []),
        ([5], 3, [(0, 1)]),
        ([1, 1, 1, 1], 1, [(0, 4)]),
        ([1, 1, 1, 1], 2, [(0, 2), (2, 4)]),
        ([9, 1, 1, 1], 2, [(0, 1), (1, 4)]),
        ([1, 1, 1, 9], 2, [(0, 3), (3, 4)]),
        ([0, 0], 2, [(0, 2)]),
    ]:
        assert resources.even_parts(np.array(work, np.int64), count) == parts, (work, count)


def test_several_tasks_run_at_once_and_an_error_arrives():
    both = threading.Barrier(2, timeout=10)
    resources.run_all([both.wait, both.wait])
    resources.run_all([])

    def fail():
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        resources.run_all([fail, lambda: None])


def test_a_table_may_take_half_of_the_memory_and_no_more(monkeypatch):
    monkeypatch.setattr(resources, "machine_memory", lambda: 8_000)
    resources.require_room(10, 100)
    with pytest.raises(BadInput, match="a table of 10 rows of 101 numbers takes"):
        resources.require_room(10, 101)


def test_the_peak_is_that_of_the_process_and_not_of_whoever_started_it():
    size = 256 << 20
    held = bytearray(b"x" * size)  # written, so that it is really held
    mine = resources.peak_rss_mb()
    say = "from veilrec.core.resources import peak_rss_mb; print(peak_rss_mb())"
    child = float(subprocess.run([sys.executable, "-c", say], capture_output=True, text=True, check=True).stdout)
    assert len(held) == size
    assert mine > 256
    assert 5 < child < 200
