"""The demo without its terminal output: scenarios, output folders, findings and the report."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from veilrec._version import __version__
from veilrec.core.errors import BadInput, counted
from veilrec.core.files import replacing, write_json, write_text
from veilrec.data.datasets import load
from veilrec.data.population import Population
from veilrec.report.demo_service import ServiceDemo
from veilrec.report.html import refuse_foreign
from veilrec.report.page import ReportPart, Story, render_parts, scores
from veilrec.report.person import Person, example_person
from veilrec.report.plots import colour_numbers, over_bytes, picture
from veilrec.report.run_summary import RunSummary, main_metric, read_run
from veilrec.report.units import human_bytes, spelt
from veilrec.runs.request import RunRequest
from veilrec.runs.saved import open_model

MARK = "demo.json"  # a folder with this file in it is a former demo, and may be replaced
EPSILON, VEIL_EPSILON = 8, 1  # of dp-fedmf and veil: per user, add-remove, whole run, trusting the server, proven


@dataclass(frozen=True)
class DemoTraining:
    """One run of the demo, and why."""

    request: RunRequest
    aim: str

    @property
    def folder(self) -> str:
        """Name of the run's folder within the demo's."""
        return self.request.method


@dataclass(frozen=True)
class DemoScenario:
    """Synthetic data, and what the demo trains on it; the first training is the one that others are compared with."""

    kind: str
    title: str
    seed: int
    data: str
    what: str  # the data in words
    trainings: tuple[DemoTraining, ...]
    notes: tuple[str, ...]
    serves: str | None = None  # the method whose run is released and ranked with on a device
    release: str = ""  # the folder of that release, in the demo's
    audits: bool = False  # whether the plan of that run is attacked first


@dataclass(frozen=True)
class DemoFinding:
    """Results of a scenario."""

    scenario: DemoScenario
    runs: Sequence[RunSummary]
    best_possible: Mapping[str, float]
    person: Person

    @property
    def metric(self) -> str:
        """The metric that methods are compared by."""
        return main_metric(self.runs[0].metrics)

    @property
    def scores(self) -> dict[str, Mapping[str, float]]:
        """Method or baseline -> metrics."""
        return {name: values for name, (_, values) in scores(self.runs).items()}

    def summary(self) -> str:
        """Summarise the results in sentences."""
        return _summary(self.runs, self.metric)

    def as_json(self) -> dict[str, Any]:
        """Return this scenario's part of what `veilrec demo --json` prints."""
        main = self.runs[0]
        return {
            "kind": self.scenario.kind,
            "data": self.scenario.data,
            "protocol": main.protocol,
            "metrics": {run.label: run.metrics for run in self.runs},
            "baselines": main.baselines,
            "best_possible": dict(self.best_possible),
            "rounds": {run.label: run.rounds for run in self.runs},
            "communication": {run.label: {"down_bytes": run.down_bytes, "up_bytes": run.up_bytes} for run in self.runs},
            "guarantees": {run.label: run.guarantee.to_json() for run in self.runs},
            "person": self.person.to_json(),
            "picture": picture_name(self.scenario),
        }


def picture_name(scenario: DemoScenario) -> str:
    """Name the file of a scenario's plot in the demo's folder."""
    return f"{scenario.kind}.svg"


def choose_scenarios(kind: str, seed: int) -> tuple[DemoScenario, ...]:
    """Choose the scenarios of a kind of data, or of all kinds."""
    known = {"ratings": _films, "news": _news}
    return tuple(make(seed) for name, make in known.items() if kind in ("all", name))


def _films(seed: int) -> DemoScenario:
    data = f"synthetic-ratings:users=4000,items=800,mean_history=40,seed={seed}"
    return DemoScenario(
        "ratings",
        "Films that people watched",
        seed,
        data,
        "4,000 people, each with three genres that they like, and 800 films",
        (
            DemoTraining(
                RunRequest(
                    "fedmf", data, seed, "loo-99", settings=("local.decay=0.02",), rounds=300, evaluate_every=20
                ),
                "Train fedmf: in every round 100 simulated clients train locally and send updates.",
            ),
            DemoTraining(
                RunRequest("dp-fedmf", data, seed, "loo-99", settings=(f"privacy.epsilon={EPSILON}",)),
                "Train dp-fedmf: a smaller model in few rounds of all clients, with noise that bounds what it"
                " reveals about any one user.",
            ),
            DemoTraining(
                RunRequest("veil", data, seed, "loo-99", settings=(f"privacy.epsilon={VEIL_EPSILON}",), noise="secure"),
                "Train veil: public genres, ratings and titles, a few private sums, and everything personal on the"
                " client; an epsilon that is eight times smaller.",
            ),
            DemoTraining(
                RunRequest("mf", data, seed, "loo-99", settings=("decay=0.015",), rounds=22, evaluate_every=11),
                "Train mf, the same model with everybody's data in one place, to see what federation costs.",
            ),
        ),
        (
            "Settings were chosen on validation items of synthetic data with seed 11, and for dp-fedmf and veil on"
            " other data.",
            "veil reads what is public of the films (genres, ratings of critics, titles) and every history in its"
            " order, on its client; fedmf, dp-fedmf and mf read neither. Its noise comes from a secret, so every demo"
            " has another, and the model may be published.",
        ),
        serves="veil",
        release="release-films",
    )


def _news(seed: int) -> DemoScenario:
    data = f"synthetic-news:users=5000,seed={seed}"
    return DemoScenario(
        "news",
        "News that people were shown",
        seed,
        data,
        "5,000 readers and a week of news, the last day of which is the test",
        (
            DemoTraining(
                RunRequest("privaterec", data, seed, "mind", evaluate_every=5, noise="secure"),
                "Train privaterec, which reads titles, with a proof: every client sends a clipped gradient, and the"
                " server adds noise from a cryptographic source to their sum.",
            ),
            DemoTraining(
                RunRequest("fm", data, seed, "mind", evaluate_every=5),
                "Train fm, a factorisation machine over words, with everybody's clicks in one place.",
            ),
        ),
        (
            "About half of what is shown on the test day was never clicked before: only a method that reads titles can"
            " rank it. privaterec knows public vectors of the titles before it learns, and fm does not. Its noise comes"
            " from a secret, so that every demo has another, and the model may be published.",
        ),
        serves="privaterec",
        release="release",
        audits=True,
    )


def check_places(out: Path, report: Path) -> None:
    """Refuse to overwrite anything but a former demo, before any work."""
    refuse_foreign(report)
    if out.is_symlink() or (out.exists() and not out.is_dir()):
        raise BadInput(f"{out} is not a folder: choose another --out")
    if out.is_dir() and any(out.iterdir()) and not (out / MARK).is_file():
        raise BadInput(f"{out} is not empty and no former demo (it has no {MARK}): choose another --out")
    for option, folder in (("--report", report.parent), ("--out", out if out.is_dir() else out.parent)):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                pass
        except OSError as error:
            place = report if option == "--report" else out
            raise BadInput(f"{place} cannot be written ({error.strerror}): choose another {option}") from None


@contextmanager
def workshop(out: Path) -> Iterator[Path]:
    """Create a folder beside `out` to train in, and remove it in the end, also after failures."""
    room: Path | None = None
    try:
        room = Path(tempfile.mkdtemp(dir=out.parent, prefix=f".{out.name}.", suffix=".part"))
        yield room
    except OSError as error:
        raise BadInput(
            f"the demo has stopped and left nothing behind ({error.strerror or error}): free some space, or choose"
            " other places with --out and --report"
        ) from None
    finally:
        if room is not None:
            shutil.rmtree(room, ignore_errors=True)


def find(scenario: DemoScenario, room: Path) -> DemoFinding:
    """Compare the trained runs of a scenario, and recommend to one person."""
    population = load(scenario.data)
    folders = [room / training.folder for training in scenario.trainings]
    return DemoFinding(
        scenario,
        [read_run(folder) for folder in folders],
        _best_possible(population),
        example_person([open_model(folder) for folder in folders], population),
    )


def history_of(finding: DemoFinding, room: Path) -> list[str]:
    """Return the item ids of the person's history, the latest last."""
    model = open_model(room / str(finding.scenario.serves))
    row = model.devices.users.find(finding.person.user)
    used = model.devices.used.row(row) if row is not None else ()
    return [model.items[item] for item in used]


def categories_of(finding: DemoFinding) -> dict[str, str]:
    """Map every item id to its category."""
    population = load(finding.scenario.data)
    if population.catalogue is None:
        return {}
    return dict(zip(population.items, population.catalogue.categories, strict=True))


def keep(
    findings: Sequence[DemoFinding],
    room: Path,
    out: Path,
    report: Path,
    command: str,
    services: Sequence[tuple[ServiceDemo, str]] = (),
) -> dict[str, Any]:
    """Write report, plots and demo.json, and move the runs to `out`: all of it or nothing.

    Each service comes with the command that serves it.
    """
    parts = [
        ReportPart(f.runs, Story(f.scenario.title, f.summary(), "", f.best_possible, f.person, f.scenario.notes))
        for f in findings
    ]
    made = {
        "seed": findings[0].scenario.seed,
        "parts": [finding.as_json() for finding in findings],
        "report": str(report),
        "out": str(out),
        "services": {service.release.method: service.to_json() for service, _ in services},
    }
    numbers = colour_numbers(run for finding in findings for run in finding.runs)
    for finding in findings:
        chart = over_bytes(finding.runs, finding.metric, finding.best_possible, numbers)
        if chart is not None:
            write_text(room / picture_name(finding.scenario), picture(chart))
    write_json(room / MARK, {"veilrec_demo": __version__} | made)
    with replacing(report) as page:
        whole = render_parts("veilrec demo", parts, summary=_FOREWORD, command=command, services=services)
        page.write_text(whole, encoding="utf-8")
        _move(room, out)
    return made


_FOREWORD = (
    "All people, films and news here are synthetic, which is why the best possible value is known. A simulated run"
    " protects nobody: it shows what the same training would protect on real devices."
)


def _move(room: Path, out: Path) -> None:
    """Move everything to `out`; other files there stay."""
    out.mkdir(exist_ok=True)
    for made in sorted(room.iterdir()):
        target = out / made.name
        if target.is_dir():
            shutil.rmtree(target)
        made.replace(target)


def _best_possible(population: Population) -> dict[str, float]:
    """Return the metrics of ranking by the probabilities that the data was drawn from."""
    prefix = "oracle_"
    return {
        name.removeprefix(prefix): float(value) for name, value in population.facts.items() if name.startswith(prefix)
    }


def _summary(runs: Sequence[RunSummary], metric: str) -> str:
    main, others = runs[0], runs[1:]
    reached = main.metrics[metric]
    sentences = [
        f"{counted(main.users, 'simulated client')} trained {main.method} together in {counted(main.rounds, 'round')}"
        f" and reached {spelt(metric)} {reached:.3f}; they sent {human_bytes(main.up_bytes)} of updates and none of"
        " their data."
    ]
    for run in others:
        value = run.metrics[metric]
        if run.guarantee.basis == "none":
            sentences.append(f"{run.method}, with all data in one place, reached {value:.3f}.")
        else:
            change = f"{abs(reached - value):.3f} {'less' if value < reached else 'more'}"
            price = "The price of privacy" if value < reached else "Privacy at no price"
            sentences.append(
                f"{price}: {run.method}, {run.guarantee.line()}, reached {value:.3f}, {change}."
                f" {_what_differs(main, run)}"
            )
    baselines = " and ".join(f"{label} reaches {values[metric]:.3f}" for label, values in main.baselines.items())
    return " ".join([*sentences, f"Without learning, {baselines}."])


def _what_differs(main: RunSummary, private: RunSummary) -> str:
    """List what differs between two runs beside the noise: the difference is not the price of noise alone."""
    ours, theirs = _flat(main.config), _flat(private.config)
    other = [f"{name} {ours[name]} and {theirs[name]}" for name in ours if ours[name] != theirs.get(name, ours[name])]
    settings = f", and settings differ ({', '.join(other)})" if other else ""
    rounds = f"{main.method} had {main.participation()}, {private.method} {private.participation()}"
    return f"That is not the price of noise alone: {rounds}{settings}."


def _flat(config: Mapping[str, Any], group: str = "") -> dict[str, Any]:
    """Flatten settings to full names such as local.dim, without client sampling."""
    flat: dict[str, Any] = {}
    for name, value in config.items():
        if name != "cohort":
            flat |= _flat(value, f"{group}{name}.") if isinstance(value, Mapping) else {f"{group}{name}": value}
    return flat
