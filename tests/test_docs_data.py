"""docs/data.md: the files of features on the page, and the commands that read them, as they stand there."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from veilrec.cli.main import app
from veilrec.data.datasets import load

PAGE = (Path(__file__).parent.parent / "docs" / "data.md").read_text(encoding="utf-8")


def blocks(kind: str) -> list[str]:
    """The blocks of the section on features."""
    section = PAGE.partition("## Features\n")[2].partition("\n## ")[0]
    return re.findall(rf"^```{kind}\n(.*?)^```", section, re.MULTILINE | re.DOTALL)


def test_the_example_of_features_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VEILREC_CACHE", str(tmp_path / "cache"))
    for name, text in zip(("clicks", "people", "films"), blocks("csv"), strict=True):
        Path(f"{name}.csv").write_text(text)
    Path("clicks.features.yaml").write_text(blocks("yaml")[0])
    told = ""
    for line in blocks("sh")[0].splitlines():
        done = CliRunner().invoke(app, shlex.split(line)[1:])
        assert done.exit_code == 0, done.output
        told = done.stdout
    shares = {feature["name"]: feature["unknown"] for feature in json.loads(told)["features"]}
    assert shares == pytest.approx({"age": 2 / 3, "country": 1 / 3, "likes": 1 / 3, "genres": 0.0})
    titles = load("csv:described").catalogue
    assert titles is not None and list(titles.titles) == ["Night Train (1999)", "A Day in June (1996)"]


def test_the_table_of_features_names_those_of_made_up_ratings() -> None:
    features = load("synthetic-ratings:users=50,items=60").features
    assert features is not None
    row = next(line for line in PAGE.splitlines() if line.startswith("| `synthetic-ratings` | `group`"))
    assert all(f"`{feature.name}`" in row for side in (features.users, features.items) for feature in side.features)
