"""A service to ask, in this process or in one of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.serving.toys import Asked, served, toy


@pytest.fixture
def ask(tmp_path: Path) -> Iterator[Asked]:
    asked = served(toy(tmp_path / "release"), tmp_path)
    yield asked
    asked.close()
