"""The demo apart from its words on a terminal: what is trained, where it may be written, what comes of it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from veilrec._files import write_json, write_text
from veilrec._version import __version__
from veilrec._words import counted
from veilrec.data.datasets import load
from veilrec.data.population import Population
from veilrec.errors import BadInput
from veilrec.privacy.guarantee import Guarantee
from veilrec.report.html import refuse_foreign
from veilrec.report.page import Example, Story, scores, write_report
from veilrec.report.plots import over_rounds, picture
from veilrec.report.run_summary import RunSummary, main_metric, read_run
from veilrec.report.units import human_bytes, spelt
from veilrec.runs.request import Request
from veilrec.runs.saved import SavedModel, open_model

MARK = "demo.json"  # a folder with this file in it is a former demo, and may be replaced
PICTURE = "curves.svg"
_SHOWN_HISTORY, _SHOWN_ITEMS, _FEWEST_ITEMS = 10, 10, 10


@dataclass(frozen=True)
class Scenario:
    """What the demo trains, and why."""

    kind: str
    seed: int
    data: str
    what: str  # the data in words
    main: str  # the federated method
    requests: tuple[Request, ...]
    aims: tuple[str, ...]  # one sentence for each request
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Finding:
    """What came of it."""

    scenario: Scenario
    out: Path
    report: Path
    protocol: str
    scores: Mapping[str, Mapping[str, float]]  # method or baseline -> metrics
    best_possible: Mapping[str, float]
    user: str
    recommended: Sequence[tuple[str, str]]  # (item id, title)
    rounds: int
    down_bytes: int
    up_bytes: int
    guarantee: Guarantee

    def as_json(self) -> dict[str, Any]:
        """What `veilrec demo --json` prints."""
        trained = [request.method for request in self.scenario.requests]
        return {
            "kind": self.scenario.kind,
            "data": self.scenario.data,
            "seed": self.scenario.seed,
            "protocol": self.protocol,
            "method": self.scenario.main,
            "rounds": self.rounds,
            "metrics": {name: values for name, values in self.scores.items() if name in trained},
            "baselines": {name: values for name, values in self.scores.items() if name not in trained},
            "best_possible": dict(self.best_possible),
            "communication": {"down_bytes": self.down_bytes, "up_bytes": self.up_bytes},
            "guarantee": self.guarantee.to_json(),
            "recommendations": {
                "user": self.user,
                "items": [{"item": item, "title": title} for item, title in self.recommended],
            },
            "report": str(self.report),
            "out": str(self.out),
            "picture": str(self.out / PICTURE),
        }


def choose_scenario(kind: str, seed: int) -> Scenario:
    """What to train for a kind of data; the settings for news are the methods' own."""
    if kind == "ratings":
        data = f"synthetic-ratings:users=4000,items=800,mean_history=40,seed={seed}"
        return Scenario(
            kind,
            seed,
            data,
            "4,000 users, each with three interests that drift, and 800 items",
            "fedmf",
            (
                Request("fedmf", data, seed, "loo-99", settings=("local.decay=0.02",), rounds=300),
                Request("mf", data, seed, "loo-99", settings=("decay=0.015",), rounds=22),
                Request("ease", data, seed, "loo-99", settings=("ridge=600",)),
            ),
            (
                "Train fedmf: in every round 100 simulated devices learn, and send what they changed.",
                "Train mf, the same model with everybody's data in one place, to see what federation costs.",
                "Train ease, a strong centralised method.",
            ),
            ("Settings were chosen on validation items of data made up with seed 11.",),
        )
    data = f"synthetic-news:users=2000,seed={seed}"
    return Scenario(
        kind,
        seed,
        data,
        "2,000 readers and a week of news; the last day is the test",
        "fedmf",
        (Request("fedmf", data, seed, "mind", rounds=150, evaluate_every=30), Request("ease", data, seed, "mind")),
        (
            "Train fedmf: in every round 100 simulated devices learn, and send what they changed.",
            "Train ease, a strong centralised method, with everybody's data in one place.",
        ),
        (
            "Every method here knows a news item by its id alone, and about half of what is shown on the test"
            " day was never clicked before: all stay near chance (0.5). News need methods that read text.",
        ),
    )


def check_places(scenario: Scenario, out: Path, report: Path) -> None:
    """Refuse to overwrite what is no former demo, before any work; then make room in the folder."""
    refuse_foreign(report)
    if out.is_symlink() or (out.exists() and not out.is_dir()):
        raise BadInput(f"{out} is not a folder: choose another --out")
    if out.is_dir() and any(out.iterdir()) and not (out / MARK).is_file():
        raise BadInput(f"{out} is not empty and no former demo (it has no {MARK}): choose another --out")
    try:
        report.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=report.parent):
            pass
    except OSError as error:
        raise _unwritable(report, error) from None
    try:
        for request in scenario.requests:
            folder = out / request.method
            if folder.exists():
                shutil.rmtree(folder)
        write_json(out / MARK, {"veilrec_demo": __version__, "finished": False})
    except OSError as error:
        raise BadInput(f"{out} cannot be written ({error.strerror}): choose another --out") from None


def finish(scenario: Scenario, out: Path, report: Path, command: str) -> Finding:
    """Compare the trained runs, recommend to one user, write report, picture and demo.json."""
    runs = [read_run(out / request.method) for request in scenario.requests]
    population = load(scenario.data)
    main, metric = runs[0], main_metric(runs[0].metrics)
    best = _best_possible(population)
    example = _example(open_model(out / scenario.main), population)
    story = Story(
        title=f"veilrec demo: {scenario.main} on {main.dataset}",
        summary=_summary(runs, metric),
        command=command,
        best_possible=best,
        examples=(example,),
        notes=scenario.notes,
    )
    finding = Finding(
        scenario,
        out,
        report,
        main.protocol,
        {name: values for name, (_, values) in scores(runs).items()},
        best,
        example.user,
        example.recommended,
        main.rounds,
        main.down_bytes,
        main.up_bytes,
        main.guarantee,
    )
    try:
        write_report(report, runs, story)
        write_text(out / PICTURE, picture(over_rounds(runs, metric, best)))
        write_json(out / MARK, {"veilrec_demo": __version__, "finished": True} | finding.as_json())
    except OSError as error:
        raise _unwritable(report, error) from None
    return finding


def _unwritable(report: Path, error: OSError) -> BadInput:
    return BadInput(f"the report cannot be written to {report} ({error.strerror}): choose another --report")


def _best_possible(population: Population) -> dict[str, float]:
    """What the probabilities that made up the data reach themselves."""
    prefix = "oracle_"
    return {
        name.removeprefix(prefix): float(value) for name, value in population.facts.items() if name.startswith(prefix)
    }


def _example(model: SavedModel, population: Population) -> Example:
    """The first user with enough items: chosen by no result."""
    used = model.devices.used
    index = int(np.argmax(used.lengths() >= _FEWEST_ITEMS))
    user = population.users[index]
    found = [population.items.find(best.item) for best in model.recommend_user(user, _SHOWN_ITEMS)]
    return Example(
        method=model.method,
        user=user,
        history=[_named(population, int(item)) for item in used.row(index)[::-1][:_SHOWN_HISTORY]],
        recommended=[_named(population, item) for item in found if item is not None],
    )


def _named(population: Population, item: int) -> tuple[str, str]:
    """An item's id, and its title with the category behind it."""
    known = population.catalogue
    return population.items[item], f"{known.titles[item]} ({known.categories[item]})" if known else ""


def _summary(runs: Sequence[RunSummary], metric: str) -> str:
    main, name = runs[0], spelt(metric)
    others = ", ".join(f"{run.method} with all data in one place {run.metrics[metric]:.3f}" for run in runs[1:])
    baselines = " and ".join(f"{label} {values[metric]:.3f}" for label, values in main.baselines.items())
    return (
        f"{counted(main.users, 'simulated device')} trained {main.method} together in"
        f" {counted(main.rounds, 'round')} and reached"
        f" {name} {main.metrics[metric]:.3f}, beside {others}; {baselines}. Users' vectors stayed on their"
        f" devices; {human_bytes(main.up_bytes)} of item changes left them."
        f" Privacy: {main.guarantee.line()}; a simulated run protects nobody."
    )
