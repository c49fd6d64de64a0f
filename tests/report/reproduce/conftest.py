"""The toy experiment, run once, and what its tests share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.report.reproduce.toys import TOY, quiet
from veilrec.report.reproduce.results import StudySummary, execute, summarise
from veilrec.report.reproduce.study import Study, StudyOptions, make_study


@pytest.fixture(scope="session")
def toy_study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    return make_study(TOY, StudyOptions(quick=True), tmp_path_factory.mktemp("reproduce"))


@pytest.fixture(scope="session")
def toy_summary(toy_study: Study) -> StudySummary:
    return summarise(toy_study, execute(toy_study.trials(), say=quiet))


@pytest.fixture
def no_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without any real data."""
    monkeypatch.setenv("VEILREC_DATA", str(tmp_path / "none"))
    monkeypatch.setenv("VEILREC_CACHE", str(tmp_path / "cache"))
