"""The toy experiment, run once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.report.reproduce.toys import TOY
from veilrec.report.reproduce.plan import Options, Plan, make_plan
from veilrec.report.reproduce.runner import execute
from veilrec.report.reproduce.summary import Summary, summarise


@pytest.fixture(scope="session")
def toy_plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    return make_plan(TOY, Options(quick=True), tmp_path_factory.mktemp("reproduce"))


@pytest.fixture(scope="session")
def toy_summary(toy_plan: Plan) -> Summary:
    return summarise(toy_plan, execute(toy_plan.trials(), say=lambda _: None))


@pytest.fixture
def no_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without any real data."""
    monkeypatch.setenv("VEILREC_DATA", str(tmp_path / "none"))
    monkeypatch.setenv("VEILREC_CACHE", str(tmp_path / "cache"))
