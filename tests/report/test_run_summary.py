from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from veilrec.core.errors import BadInput
from veilrec.report.page import RunSummary, main_metric, read_run


def test_a_run_is_read_with_its_curve_and_its_traffic(runs: list[RunSummary], run_folders: dict[str, Path]) -> None:
    run = runs[0]
    result = json.loads((run_folders["fedmf"] / "result.json").read_text())
    assert (run.method, run.kind, run.rounds, run.split) == ("fedmf", "federated", 4, "test")
    assert [point.round for point in run.points] == [2, 4]
    assert run.metrics == result["metrics"]
    assert run.points[-1].up_bytes == run.up_bytes == result["communication"]["up_bytes"] > 0
    assert run.bytes_per_participation() == (run.down_bytes / 80, run.up_bytes / 80)  # 4 rounds of 20 clients
    assert run.guarantee.line() == "no privacy guarantee"
    assert "--set cohort.size=20" in run.command()
    assert "--noise" not in run.command()
    assert "--noise secure" in replace(run, noise="secure").command()
    assert runs[1].kind == "centralised"


def test_the_main_metric_is_that_of_the_protocol() -> None:
    assert main_metric({"auc": 0.5, "ndcg@10": 0.1, "cases": 3.0}) == "auc"
    assert main_metric({"ndcg@10": 0.1, "hr@10": 0.3}) == "hr@10"
    assert main_metric({"cases": 1.0, "recall@7": 0.1}) == "recall@7"


@pytest.mark.parametrize(
    ("file", "content", "says"),
    [
        ("config.yaml", None, "no run of veilrec"),
        ("result.json", None, "not finished"),
        ("result.json", "{", "damaged"),
        ("result.json", "[]", "damaged"),
        ("result.json", '{"method": "fedmf"}', "is damaged"),
        ("metrics.jsonl", None, "missing"),
        ("metrics.jsonl", '{"round": 1}\n', "line 1"),
    ],
)
def test_a_damaged_run_is_named(
    run_folders: dict[str, Path], tmp_path: Path, file: str, content: str | None, says: str
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(run_folders["fedmf"], folder)
    (folder / file).unlink()
    if content is not None:
        (folder / file).write_text(content)
    with pytest.raises(BadInput, match=says):
        read_run(folder)


@pytest.mark.parametrize(
    "change", [{"metrics": "x"}, {"metrics": {}}, {"metrics": {"hr@10": "x"}}, {"baselines": None}, {"seconds": None}]
)
def test_numbers_that_are_none_are_named(
    run_folders: dict[str, Path], tmp_path: Path, change: dict[str, object]
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(run_folders["fedmf"], folder)
    path = folder / "result.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(BadInput, match="not a whole run"):
        read_run(folder)
