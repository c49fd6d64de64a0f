"""The table of docs/privacy.md: how much noise a tree puts on the sum of all rounds, beside other ways."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

from veilrec.core.schema import Schema, Tensor
from veilrec.methods.private import PrivacySettings, noisy_sum, tree_sum
from veilrec.privacy.accounting.gaussian import mu_for
from veilrec.server.round_specs import CohortSettings

PAGE = Path(__file__).parents[2] / "docs" / "privacy.md"
ROW = re.compile(r"^\| ([\d,]+) \| ([\d,]+) \| ([\d,]+) \| (\d+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|$", re.MULTILINE)
ROWS = [tuple(float(cell.replace(",", "")) for cell in row) for row in ROW.findall(PAGE.read_text(encoding="utf-8"))]


def test_the_noise_is_as_the_page_says() -> None:
    assert len(ROWS) == 3
    for row in ROWS:
        devices, size, rounds, turns = (int(number) for number in row[:4])
        privacy = PrivacySettings(epsilon=8.0, delta=1e-6, clip_norm=1.0)
        schema = Schema((Tensor("layer", (10,), by_row=False),))
        by_turns = CohortSettings(size=size, sampling="turns")
        tree = tree_sum(privacy, by_turns, schema, rounds=rounds, devices=devices)
        whole, rest = divmod(rounds, tree.steps)
        nodes = whole * tree.steps.bit_count() + rest.bit_count()  # that the sum of all rounds is made of
        drawn = CohortSettings(size=size, sampling="poisson")
        poisson = noisy_sum(privacy, drawn, schema, rounds=rounds, devices=devices, keeps_state=False)
        assert by_turns.most_turns(rounds, devices) == turns
        alone = math.sqrt(turns * rounds) / mu_for(8.0, 1e-6)
        found = (tree.sigma * math.sqrt(nodes), poisson.sigma * math.sqrt(rounds), alone)
        assert found == pytest.approx(row[4:], abs=0.051)
