"""A federated and a centralised run, small enough to train in a second."""

import pytest

from veilrec.report.page import read_run
from veilrec.runs.request import RunRequest, prepare
from veilrec.runs.training import train

DATA = "synthetic-ratings:users=150,items=200,mean_history=12,seed=3"


@pytest.fixture(scope="session")
def run_folders(tmp_path_factory):
    base = tmp_path_factory.mktemp("runs")
    federated = RunRequest("fedmf", DATA, rounds=4, settings=("cohort.size=20",), evaluate_every=2)
    requests = {"fedmf": federated, "mf": RunRequest("mf", DATA, rounds=3)}
    for name, request in requests.items():
        train(prepare(request), base / name)
    return {name: base / name for name in requests}


@pytest.fixture(scope="session")
def runs(run_folders):
    return [read_run(folder) for folder in run_folders.values()]
