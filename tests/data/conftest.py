"""Real data sets are read where VEILREC_DATA points; every test has its own, empty cache."""

import os
from pathlib import Path

import pytest


@pytest.fixture
def real():
    """The folder of a real data set, or a skip with the reason."""

    def find(name):
        root = os.environ.get("VEILREC_DATA")
        if not root:
            pytest.skip(f"{name} is needed: set VEILREC_DATA to the folder that holds {name}/")
        folder = Path(root) / name
        if not folder.is_dir():
            pytest.skip(f"{name} is needed, and {folder} is not there")
        return folder

    return find


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    """An empty cache folder for this test alone."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("VEILREC_CACHE", str(folder))
    return folder
