"""The toy experiment, run once, and what its tests share."""

import pytest

from tests.report.reproduce.toys import TOY, run
from veilrec.report.reproduce.results import summarise
from veilrec.report.reproduce.study import StudyOptions, make_study


@pytest.fixture(scope="session")
def toy_study(tmp_path_factory):
    return make_study(TOY, StudyOptions(quick=True), tmp_path_factory.mktemp("reproduce"))


@pytest.fixture(scope="session")
def toy_summary(toy_study):
    return summarise(toy_study, run(toy_study))


@pytest.fixture
def no_data(tmp_path, monkeypatch):
    """A machine without any real data."""
    monkeypatch.setenv("VEILREC_DATA", str(tmp_path / "none"))
    monkeypatch.setenv("VEILREC_CACHE", str(tmp_path / "cache"))
