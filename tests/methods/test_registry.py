"""The table of methods."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.methods.tastes import ON_RATINGS
from veilrec.core.errors import BadInput
from veilrec.data.datasets import DATASETS
from veilrec.methods.privrec.common import WITH_FEATURES
from veilrec.methods.registry import METHODS, all_methods, full_name, get
from veilrec.runs.request import RunRequest, prepare


def test_every_entry_leads_to_a_method_of_that_name() -> None:
    assert [method.name for method in all_methods()] == list(METHODS)


def test_an_unknown_name_gets_the_nearest_ones() -> None:
    with pytest.raises(
        BadInput,
        match=r"unknown method 'fedfm': did you mean .*fedmf.* known are .* and \d+ more: see `veilrec methods`$",
    ):
        get("fedfm")


def test_every_data_set_that_a_method_names_is_one() -> None:
    for method in all_methods():
        assert set(method.datasets) <= set(DATASETS)


@pytest.mark.parametrize("typed", ["FEDMF", "FedMF", " fedmf "])
def test_names_are_matched_without_case(typed: str) -> None:
    assert get(typed) is get("fedmf")
    assert full_name(typed) == "fedmf"
    assert full_name("dp_fedmf") == "dp-fedmf"


@pytest.fixture(scope="module")
def own_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Seven days of impressions, four of eight items each, without titles."""
    lines = [
        {
            "user": f"u{user}",
            "time": f"2026-01-0{day}T10:00:00Z",
            "shown": [f"n{(user + day + k) % 8}" for k in range(4)],
            "clicked": [f"n{(user + day) % 8}"],
        }
        for day in range(1, 8)
        for user in range(12)
    ]
    path = tmp_path_factory.mktemp("own") / "log.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.mark.parametrize("name", [name for name in ON_RATINGS if get(name).datasets != WITH_FEATURES])
def test_a_method_that_knows_items_by_their_ids_learns_from_impressions(name: str, own_log: Path) -> None:
    assert "impressions" in get(name).datasets
    everybody = ("cohort.size=0",) if "cohort" in get(name).config.model_fields else ()
    prepared = prepare(RunRequest(name, f"impressions:{own_log}", rounds=1, settings=everybody))
    report = prepared.trainer.step(0)
    counts_only = any(exemption.check == "learns" for exemption in get(name).exemptions)
    assert report.loss is None or report.loss > 0.0 or counts_only


def test_the_table_imports_no_method() -> None:
    script = (
        "import sys; from veilrec.methods.registry import METHODS;"
        "print([m for m in sys.modules if m.startswith(('veilrec.methods.priv_fedmf_sub', 'veilrec.methods.news'))])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_describing_every_method_needs_no_torch() -> None:
    script = (
        "import sys; from veilrec.methods.registry import describe; from veilrec.methods.registry import all_methods;"
        "print(len([describe(m) for m in all_methods()]), 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(len(METHODS)), "False"]
