"""What a federation leaves behind: one that learnt nothing is no success."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from veilrec.cli.federate import app
from veilrec.federation.federation import FILE
from veilrec.federation.loopback import free_port, run_all
from veilrec.federation.making import FederationOptions, make
from veilrec.federation.running import Up


def test_a_federation_whose_rounds_were_all_void_says_so_and_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, data = tmp_path / "f", "synthetic-ratings:users=20,items=200,seed=1"
    make(folder, FederationOptions(method="fedmf", data=data, devices=3, rounds=1, round_seconds=1.0, port=free_port()))
    content = yaml.safe_load((folder / FILE).read_text())
    (folder / FILE).write_text(yaml.safe_dump(content | {"minimum_messages": 4}))
    monkeypatch.setattr(Up, "run", lambda up, _: run_all(up.folder))
    done = CliRunner().invoke(app, ["up", str(folder), "--json"])
    assert done.exit_code == 1
    assert "Nothing was learnt: every round was void (1 of 1)" in done.stderr
    result = json.loads(done.stdout)["result"]
    assert result["federation"]["void_rounds"] == 1
    assert result["warnings"][0].startswith("Nothing was learnt")
    assert json.loads((folder / "run" / "result.json").read_text())["warnings"] == result["warnings"]
    again = CliRunner().invoke(app, ["up", str(folder), "--json"])
    assert json.loads(again.stdout) == {"folder": str(folder / "run"), "seconds": 0.0, "result": result}
