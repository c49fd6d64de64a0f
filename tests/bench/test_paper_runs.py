from __future__ import annotations

import pytest

from veilrec.bench import paper_runs, simulate
from veilrec.bench.options import Options
from veilrec.bench.tasks import TASKS
from veilrec.data.synthetic_ratings import generate

QUICK = Options(repeats=1, quick=True, peers=False)
ROWS = ("priv-fedmf-sub-ml-1m", "priv-fedncf-sub-compress-ml-1m")


@pytest.mark.parametrize("name", ROWS)
def test_some_rounds_tell_what_400_take(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    few = generate(users=220, items=160, mean_history=8.0, seed=1)
    monkeypatch.setattr(paper_runs, "ml_1m", lambda: ("toy", few))
    result = TASKS[name].run(name, QUICK).to_json()
    assert (result["name"], result["dataset"], result["devices_per_round"]) == (name, "toy", 200)
    assert result["seconds_of_400_rounds"] == pytest.approx(400 * result["seconds_per_round"], abs=0.1)
    assert result["cpu_seconds_of_400_rounds"] > 0.0
    assert simulate.promised(name)["peak_rss_mb"] == "<= 4000"
    assert simulate.missed(name, result | {"seconds_of_400_rounds": 1e4}) == ["seconds_of_400_rounds"]
