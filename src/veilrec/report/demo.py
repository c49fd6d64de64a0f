"""The demo without its terminal output: scenarios, runs, an audited and served release, findings and the report."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import yaml

from veilrec._version import __version__
from veilrec.client.recommender import Mode, Recommendations, RecommenderClient, ServerLink
from veilrec.client.released import offers_of
from veilrec.core.errors import BadInput, VeilrecError, counted
from veilrec.core.files import replacing, write_json, write_text
from veilrec.data.datasets import load
from veilrec.data.population import Population
from veilrec.methods.base import leaves
from veilrec.report.html import refuse_foreign
from veilrec.report.labels import human_bytes, spelt
from veilrec.report.page import ReportPart, RunSummary, Story, main_metric, read_run, render_parts, scores
from veilrec.report.person import Person, example_person
from veilrec.report.plots import colour_numbers, over_bytes, picture
from veilrec.runs.release import ReleaseOptions, make_release
from veilrec.runs.release_model import open_client
from veilrec.runs.request import RunRequest
from veilrec.runs.saved import open_model
from veilrec.wire.releases import Release
from veilrec.wire.signing import fingerprint, new_key

_K = 10
_START_SECONDS = 60.0
_COMMAND = "from veilrec.cli.main import run; run()"
_MODES: dict[Mode, str] = {
    "none-sent": "nothing is sent: on-device ranking",
    "interest": "one interest by randomised response; the client ranks the answer",
    "attention": "a noisy mix of interests; the server ranks",
    "pooled": "a noisy sum of the history; the server ranks",
    "nobody": "nothing is sent: non-personalised",
}


@dataclass(frozen=True)
class ModeResult:
    """Answer of one serving mode, and how it compares with on-device ranking."""

    mode: Mode
    answer: Recommendations
    same: int  # how many of the ten on-device ranking chooses as well
    fitting: int  # how many are of the categories that the person reads most

    @property
    def sent_bytes(self) -> int:
        """Size of the query."""
        return 0 if self.answer.sent is None else len(self.answer.sent)

    def to_json(self) -> dict[str, Any]:
        """Return what `veilrec demo --json` prints."""
        return {
            "mode": self.mode,
            "used": self.answer.mode,
            "sent_bytes": self.sent_bytes,
            "guarantee": None if self.answer.guarantee is None else self.answer.guarantee.to_json(),
            "same_as_on_the_client": self.same,
            "of_favourite_categories": self.fitting,
            "items": [item.id for item in self.answer.items],
        }

    def row(self) -> list[object]:
        """Return the table row of the report."""
        guarantee = "none" if self.answer.guarantee is None else self.answer.guarantee.line()
        if self.answer.sent is None:
            guarantee = "epsilon 0: nothing is sent"
        cells = [(self.mode, _MODES[self.mode]), str(self.sent_bytes), ("", guarantee)]
        return [*cells, f"{self.same} of {_K}", f"{self.fitting} of {_K}"]


@dataclass(frozen=True)
class ServiceDemo:
    """A released model with its audit, and the answers of every serving mode."""

    audit: dict[str, Any] | None  # None: not audited by the demo
    release: Release
    history: Sequence[str]
    results: Sequence[ModeResult]

    def to_json(self) -> dict[str, Any]:
        """Return what `veilrec demo --json` prints."""
        return {
            "audit": self.audit and {"method": self.audit["method"], "holds": self.audit["holds"]},
            "release": {
                "name": self.release.name,
                "version": self.release.version,
                "family": self.release.family,
                "key": self.release.key.hex(),
            },
            "read": len(self.history),
            "asked": [one.to_json() for one in self.results],
        }

    def rows(self) -> list[list[object]]:
        """Return the table rows of the report, one for each serving mode."""
        return [one.row() for one in self.results]

    def audit_words(self) -> str:
        """Summarise the audit in sentences; empty without one."""
        if self.audit is None:
            return ""
        held, verdict = sum(check["holds"] for check in self.audit["checks"]), self.audit["holds"]
        words = f"{held} of {len(self.audit['checks'])} checks hold; it {'holds' if verdict else 'DOES NOT HOLD'}."
        canary = self.audit.get("canary")
        if canary:
            bound = f"epsilon >= {canary['epsilon_lower']:.2f}"
            words += f" A canary in a whole training proves {bound}, in the terms of the guarantee."
        return words

    def release_words(self) -> str:
        """Describe the release in sentences: size, key, guarantee, what a client verifies."""
        release, files = self.release, self.release.manifest["files"]
        size = sum(about["bytes"] for about in files.values())
        return (
            f"Released as {release.name}, version {release.version}: {size:,} bytes in {counted(len(files), 'file')},"
            f" signed by key {fingerprint(release.key)}. {release.guarantee.promise()}. A client verifies the"
            " signature, every hash and every shape, and never accepts an older version after a newer one."
        )


def audit_plan(method: str, seed: int) -> dict[str, Any]:
    """Audit a method's plan quickly."""
    from veilrec.audit.method import audit_method

    return audit_method(method, quick=True, seed=seed).to_json()


def sign_release(run: Path, folder: Path) -> Release:
    """Release a run, signed with a new key."""
    return make_release(run, folder, new_key(folder.with_name(f"{folder.name}.key")), ReleaseOptions())


@contextmanager
def serve_release(release: Path) -> Iterator[str]:
    """Run `veilrec serve` in a process of its own on a free local port; yield its address."""
    command = [sys.executable, "-c", _COMMAND, "serve", str(release), "--port", "0", "--json"]
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)  # noqa: S603
        try:
            line = process.stdout.readline() if process.stdout else ""
            address = str(json.loads(line)["address"]) if line else ""
            if not address or not _ready(address):
                log.seek(0)
                raise VeilrecError(f"the server does not start: {log.read()[-500:].strip() or 'it says nothing'}")
            yield address
        finally:
            process.terminate()
            try:
                process.wait(15.0)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _ready(address: str) -> bool:
    until = time.monotonic() + _START_SECONDS
    while time.monotonic() < until:
        try:
            with urlopen(f"{address}/readyz", timeout=2.0) as answer:  # noqa: S310
                return bool(answer.status == 200)
        except (URLError, OSError):
            time.sleep(0.1)
    return False


def query_all(
    release: Release, address: str | None, history: Sequence[str], category_of: dict[str, str]
) -> list[ModeResult]:
    """Query in every serving mode that a release offers, as a new client each, with the same history.

    Args:
        release: the model, and the serving modes that it offers.
        address: of the server; None for a release that is only ranked on the device.
        history: item ids, the latest last.
        category_of: category of every item id.
    """
    offered = {*offers_of(release), "none-sent", "nobody"}
    read = [category_of.get(item, "") for item in history]
    favourites = sorted(set(read), key=lambda name: -read.count(name))[:3]
    found: list[ModeResult] = []
    own: set[str] = set()
    for mode in _MODES:
        if mode not in offered:
            continue
        with _client(release, address) as client:
            client.read(*history)
            answer = client.recommend(_K, mode)
        own = {item.id for item in answer.items} if mode == "none-sent" else own
        same = sum(item.id in own for item in answer.items)
        fitting = sum(category_of.get(item.id, "") in favourites for item in answer.items)
        found.append(ModeResult(mode, answer, same, fitting))
    return found


@contextmanager
def _client(release: Release, address: str | None) -> Iterator[RecommenderClient]:
    with (
        tempfile.TemporaryDirectory(prefix="veilrec-client-") as state,
        open_client(Path(state), release, server=None if address is None else ServerLink(address)) as client,
    ):
        yield client


MARK = "demo.json"  # a folder with this file in it is a former demo, and may be replaced


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
    serves: str | None = None  # the method whose run is released and ranked with on a client
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
    known = yaml.safe_load(Path(__file__).with_name("demo.yaml").read_text(encoding="utf-8"))
    return tuple(_scenario(name, seed, **about) for name, about in known.items() if kind in ("all", name))


def _scenario(
    kind: str, seed: int, *, data: str, protocol: str, trainings: list[dict[str, Any]], notes: list[str], **about: Any
) -> DemoScenario:
    seeded = f"{data},seed={seed}"
    made = []
    for training in trainings:
        request = RunRequest(**training["request"], data=seeded, seed=seed, protocol=protocol)
        made.append(DemoTraining(replace(request, settings=tuple(request.settings)), training["aim"]))
    return DemoScenario(kind, seed=seed, data=seeded, trainings=tuple(made), notes=tuple(notes), **about)


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
    work: Path | None = None
    try:
        work = Path(tempfile.mkdtemp(dir=out.parent, prefix=f".{out.name}.", suffix=".part"))
        yield work
    except OSError as error:
        raise BadInput(
            f"the demo has stopped and left nothing behind ({error.strerror or error}): free some space, or choose"
            " other places with --out and --report"
        ) from None
    finally:
        if work is not None:
            shutil.rmtree(work, ignore_errors=True)


def find(scenario: DemoScenario, work: Path) -> DemoFinding:
    """Compare the trained runs of a scenario, and recommend to one person."""
    population = load(scenario.data)
    folders = [work / training.folder for training in scenario.trainings]
    return DemoFinding(
        scenario,
        [read_run(folder) for folder in folders],
        _best_possible(population),
        example_person([open_model(folder) for folder in folders], population),
    )


def history_of(finding: DemoFinding, work: Path) -> list[str]:
    """Return the item ids of the person's history, the latest last."""
    model = open_model(work / str(finding.scenario.serves))
    row = model.clients.users.find(finding.person.user)
    used = model.clients.used.row(row) if row is not None else ()
    return [model.items[item] for item in used]


def categories_of(finding: DemoFinding) -> dict[str, str]:
    """Map every item id to its category."""
    population = load(finding.scenario.data)
    if population.catalogue is None:
        return {}
    return dict(zip(population.items, population.catalogue.categories, strict=True))


def keep(
    findings: Sequence[DemoFinding],
    work: Path,
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
            write_text(work / picture_name(finding.scenario), picture(chart))
    write_json(work / MARK, {"veilrec_demo": __version__} | made)
    with replacing(report) as page:
        whole = render_parts("veilrec demo", parts, summary=_FOREWORD, command=command, services=services)
        page.write_text(whole, encoding="utf-8")
        _move(work, out)
    return made


_FOREWORD = (
    "All people, films and news here are synthetic, which is why the best possible value is known. The runs"
    " were simulated, and hid nothing from whoever ran them: they show what the same training hides on real clients."
)


def _move(work: Path, out: Path) -> None:
    """Move everything to `out`; other files there stay."""
    out.mkdir(exist_ok=True)
    for made in sorted(work.iterdir()):
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
                f"{price}: {run.method}, {run.guarantee.promise()}, reached {value:.3f}, {change}."
                f" {_what_differs(main, run)}"
            )
    baselines = " and ".join(f"{label} reaches {values[metric]:.3f}" for label, values in main.baselines.items())
    return " ".join([*sentences, f"Without learning, {baselines}."])


def _what_differs(main: RunSummary, private: RunSummary) -> str:
    """List what differs between two runs beside the noise: the difference is not the price of noise alone."""
    ours, theirs = dict(leaves(main.config)), dict(leaves(private.config))
    other = [
        f"{name} {value} and {theirs[name]}"
        for name, value in ours.items()
        if value != theirs.get(name, value) and not name.startswith("cohort.")
    ]
    settings = f", and settings differ ({', '.join(other)})" if other else ""
    rounds = f"{main.method} had {main.participation()}, {private.method} {private.participation()}"
    return f"That is not the price of noise alone: {rounds}{settings}."
