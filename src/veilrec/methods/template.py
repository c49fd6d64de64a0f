"""Scaffold of a custom method for `veilrec new method`: a small package that trains, with its tests."""

from __future__ import annotations

import keyword
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from string import Template

from veilrec._version import __version__
from veilrec.core.errors import BadInput, written_name
from veilrec.core.files import new_folder, refuse_existing
from veilrec.methods.plugins import check_name
from veilrec.methods.registry import names


@dataclass(frozen=True)
class Written:
    """The scaffold that was written."""

    name: str
    folder: Path
    module: str  # the file with the method, in the folder
    files: tuple[str, ...]


def write_template(name: str, out: Path | None = None) -> Written:
    """Write the scaffold of a method into a new folder."""
    typed, name = name, name.strip().lower()
    check_name(name, typed)
    if written_name(name, names()) is not None:
        raise BadInput(f"{name} is the name of a method that is there already: choose another")
    module = name.replace("-", "_")
    if keyword.iskeyword(module) or _is_taken(module):
        raise BadInput(f"{name} would make a Python module {module}, a name that is taken: choose another")
    folder = Path(name) if out is None else out
    refuse_existing(folder)
    kind = "".join(part.capitalize() for part in name.split("-"))
    values = {"name": name, "module": module, "kind": kind, "version": __version__}
    files = {
        "pyproject.toml": _PYPROJECT,
        f"src/{module}.py": _METHOD,
        f"tests/test_{module}.py": _TEST,
        "README.md": _README,
    }
    with new_folder(folder) as part:
        for path, text in files.items():
            (part / path).parent.mkdir(exist_ok=True)
            (part / path).write_text(Template(text).substitute(values), encoding="utf-8")
    return Written(name, folder, f"src/{module}.py", tuple(files))


def _is_taken(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):
        return True


_PYPROJECT = """\
[build-system]
requires = ["hatchling>=1.24"]
build-backend = "hatchling.build"

[project]
name = "$name"
version = "0.1.0"
description = "A method for veilrec."
requires-python = ">=3.11"
dependencies = ["veilrec[train]>=$version"]

# veilrec finds the method by this: `veilrec train $name`.
[project.entry-points."veilrec.methods"]
$name = "$module:METHOD"

[tool.hatch.build.targets.wheel]
only-include = ["src/$module.py"]
sources = ["src"]

[tool.pytest.ini_options]
pythonpath = ["src"]
testpaths = ["tests"]
"""

_METHOD = '''\
"""$kind: federated matrix factorisation whose clients send a part of their update: put your own idea there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, PositiveInt
from veilrec.client import mf
from veilrec.client.local_training import Cohort, LocalResults, OwnItems
from veilrec.client.rankers import MfRanker
from veilrec.core.plan import Aggregation, Plan
from veilrec.core.schema import RoundSpec
from veilrec.methods.base import EVERY_DATASET, Config, Method, Problem
from veilrec.privacy.guarantee import Guarantee, no_guarantee
from veilrec.privacy.mechanisms.sums import NoNoise
from veilrec.server.round_specs import CohortSettings
from veilrec.server.aggregation import ServerRate


class ${kind}Config(Config):
    """Settings of $kind; each can be changed with --set."""

    local: mf.MfSettings = mf.MfSettings()
    damping: Annotated[float, Field(gt=0.0, le=1.0)] = 0.9  # the part of its change that a device sends
    cohort: CohortSettings = CohortSettings()
    aggregation: Aggregation = "row-sqrt"  # how the changes of a round are added up
    server: ServerRate = ServerRate()
    adapt_epochs: PositiveInt = 20  # local epochs with which a new user joins the finished model


class ${kind}LocalTrainer:
    """What a device does: here, matrix factorisation, and then a part of the change.

    It is written for many devices at once. Whatever is drawn is keyed by (draws_seed, round, device), so that a cohort
    of 50 gives what 50 cohorts of one give.
    """

    keeps_state = True  # a user's vector stays on the device from round to round

    def __init__(self, settings: mf.MfSettings, damping: float) -> None:
        self._factorise = mf.MfLocalTrainer(settings)
        self._damping = np.float32(damping)

    def fresh_private_state(self, devices: NDArray[np.int64], draws_seed: int) -> dict[str, NDArray[np.float32]]:
        """A vector for each device that takes part for the first time."""
        return self._factorise.fresh_private_state(devices, draws_seed)

    def learn(
        self, cohort: Cohort[OwnItems], model: Mapping[str, NDArray[np.float32]], about: RoundSpec
    ) -> LocalResults:
        """Learn from each device's items; the model that the server sent is not changed."""
        learned = self._factorise.learn(cohort, model, about)
        tables = {n: replace(rows, values=rows.values * self._damping) for n, rows in learned.uploads.tables.items()}
        return replace(learned, uploads=replace(learned.uploads, tables=tables))


def plan(config: ${kind}Config, problem: Problem) -> Plan:
    """Put the parts together; a plan holds nothing of any user."""
    local, seed = config.local, problem.public_seed
    schema = mf.schema(problem.n_items, local.dim)
    return Plan(
        schema=schema,
        start=mf.start_weights(problem.n_items, local.dim, local.start, seed),
        learner=${kind}LocalTrainer(local, config.damping),
        mechanism=NoNoise(schema),
        rounds=problem.rounds,
        cohort=config.cohort,
        aggregation=config.aggregation,
        server=config.server,
        ranker=MfRanker(replace(local, epochs=config.adapt_epochs), seed),
    )


def guarantee(config: ${kind}Config) -> Guarantee:
    """Nothing is promised; say in plain words what that means."""
    return no_guarantee(
        "The server sees the change of every item row that a device touched: it can tell which items a user has.",
        "A simulated run protects nobody.",
    )


METHOD = Method(
    name="$name",
    kind="federated",
    paper="mine",
    model="matrix factorisation",
    summary="fedmf whose devices send a part of their change",
    datasets=EVERY_DATASET,
    config=${kind}Config,
    plan=plan,
    guarantee=guarantee,
    rounds=200,
    presets={"small": {"rounds": 40, "local": {"dim": 16}}},
    private_relative="dp-fedmf",
)
'''

_TEST = '''\
"""$kind keeps the contract of all methods, trains, and its run opens again."""

from __future__ import annotations

from pathlib import Path

import pytest
import veilrec
from veilrec.audit.contract import Check, cases, try_check
from veilrec.audit.contract_subject import Subject

FILE = str(Path(__file__).parent.parent / "src" / "$module.py")
CASES = [pytest.param(check, subject, id=check.name) for check, subject in cases(FILE)]


@pytest.mark.parametrize(("check", "subject"), CASES)
def test_keeps_the_contract(check: Check, subject: Subject) -> None:
    outcome = try_check(check, subject)
    assert outcome.verdict != "broken", outcome.found


def test_trains_and_recommends(tmp_path: Path) -> None:
    run = veilrec.train(FILE, "synthetic-ratings:users=200,items=200", rounds=5, out=tmp_path / "run")
    assert run.result["method"] == "$name"
    opened = veilrec.open(run.folder, method=FILE)
    assert len(opened.recommend(["i001", "i002"], k=5)) == 5
'''

_README = """\
# $name

A method for [veilrec](https://github.com/veilrec/veilrec), in `src/$module.py`.

    veilrec check method src/$module.py
    veilrec train src/$module.py --data synthetic-ratings
    python -m pytest

Installed (`pip install -e .`), it is `veilrec train $name`, and stands in `veilrec methods`.
"""
