from __future__ import annotations

import pytest

from veilrec.bench import ours_alone, simulate
from veilrec.bench.measure import Options
from veilrec.bench.simulate import TASKS
from veilrec.data.synthetic_ratings import generate

SMALL = Options(repeats=1, quick=True, peers=False)
ROWS = ("priv-fedmf-sub-ml-1m", "priv-fedncf-sub-compress-ml-1m")


@pytest.mark.parametrize("name", ROWS)
def test_some_rounds_tell_what_400_take(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    few = generate(users=220, items=160, mean_history=8.0, seed=1)
    monkeypatch.setattr(ours_alone, "ml_1m", lambda: ("toy", few))
    result = TASKS[name].run(name, SMALL).to_json()
    assert (result["name"], result["dataset"], result["devices_per_round"]) == (name, "toy", 200)
    assert result["seconds_of_400_rounds"] == pytest.approx(400 * result["seconds_per_round"], abs=0.1)
    assert result["cpu_seconds_of_400_rounds"] > 0.0
    assert simulate.promised(name)["peak_rss_mb"] == "<= 4000"
    assert simulate.missed(name, result | {"seconds_of_400_rounds": 1e4}) == ["seconds_of_400_rounds"]


def test_a_large_population_reports_its_ratio(monkeypatch):
    monkeypatch.setattr(ours_alone, "_MANY_QUICK", 20_000)
    result = TASKS["population-1m"].run("population-1m", SMALL).to_json()
    assert result["users"] == 20_000
    assert result["ratio_to_10k"] > 0


def test_the_whole_run_reports_its_time_and_quality(monkeypatch):
    monkeypatch.setattr(ours_alone, "ml_1m", lambda: ("toy", generate(users=400, items=300, seed=1)))
    result = TASKS["fedmf-ml-1m-400-rounds"].run("fedmf-ml-1m-400-rounds", SMALL).to_json()
    assert result["rounds"] == 40
    assert result["total_seconds"] == pytest.approx(40 * result["seconds_per_round"], abs=0.01)
    assert 0 < result["evaluation_seconds"] < result["total_seconds"]
    assert result["cpu_seconds"] > 0
    assert result["hr@10"] > 0.1


def test_without_the_files_the_whole_run_has_a_population_of_the_same_shape(monkeypatch, tmp_path):
    monkeypatch.delenv("VEILREC_DATA", raising=False)
    monkeypatch.setenv("VEILREC_CACHE", str(tmp_path))
    source, population = ours_alone.ml_1m()
    assert source == "synthetic in the shape of ml-1m"
    assert (population.n_users, population.n_items) == (6040, 3706)
    assert len(population.interactions) == pytest.approx(1_000_209, rel=0.1)
