"""From an experiment to runs: which data, which presets and calibrations, which seeds, and what cannot be run."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from veilrec import __version__
from veilrec.data.registry import find_dataset
from veilrec.data.spec import locate, parse, whereabouts
from veilrec.errors import BadInput, unknown_name
from veilrec.evaluate.protocols import PROTOCOLS
from veilrec.methods.base import Method, configure, preset_names
from veilrec.methods.registry import METHODS, get
from veilrec.methods.training import Request, absolute
from veilrec.report.reproduce.experiment import BOTH_PRESETS, Experiment, Panel, Row

_QUICK_POINTS = 5  # of a quick curve


@dataclass(frozen=True)
class Options:
    """What the user asked for."""

    seeds: int = 3
    quick: bool = False
    data: str | None = None  # instead of the experiment's
    protocol: str | None = None
    presets: tuple[str, ...] = ()  # only these; empty: all


@dataclass(frozen=True)
class Trial:
    """One run and its folder, whose name says what is in it and changes with every setting."""

    request: Request
    folder: Path


@dataclass(frozen=True)
class Variant:
    """A row in one preset and one calibration; no trials where it cannot be run, and then why."""

    row: Row
    preset: str
    calibration: str | None
    trials: tuple[Trial, ...] = ()
    problem: str = ""

    @property
    def how(self) -> str:
        """Preset and calibration in words."""
        return ", ".join(filter(None, (self.preset, self.calibration)))


@dataclass(frozen=True)
class PlannedPanel:
    """A panel with the data that it really runs on."""

    panel: Panel
    data: str
    variants: tuple[Variant, ...]


@dataclass(frozen=True)
class Plan:
    """Everything that is to be run."""

    experiment: Experiment
    protocol: str
    seeds: tuple[int, ...]
    quick: bool
    panels: tuple[PlannedPanel, ...]
    notes: tuple[str, ...]

    def trials(self) -> list[Trial]:
        """Every run, once."""
        every = (t for panel in self.panels for variant in panel.variants for t in variant.trials)
        return list({trial.folder: trial for trial in every}.values())


def make_plan(experiment: Experiment, options: Options, out: Path) -> Plan:
    """Check what was asked and find the data; nothing is run or written."""
    _check(options)
    notes: list[str] = []
    chosen = _panels(experiment, options, notes)
    protocol = options.protocol or experiment.protocol
    seeds = (0,) if options.quick else tuple(range(options.seeds))
    planned = [
        PlannedPanel(
            panel,
            data,
            tuple(
                variant
                for row in panel.rows
                for variant in _variants(row, data, protocol, seeds, experiment, options, out / "runs")
            ),
        )
        for panel, data in chosen
    ]
    return Plan(experiment, protocol, seeds, options.quick, tuple(planned), tuple(notes))


def _check(options: Options) -> None:
    if options.seeds < 1:
        raise BadInput(f"--seeds is {options.seeds}: it must be 1 or more")
    if options.protocol is not None and options.protocol not in PROTOCOLS:
        raise unknown_name("protocol", options.protocol, PROTOCOLS)
    for preset in options.presets:
        if preset not in BOTH_PRESETS:
            raise unknown_name("preset", preset, BOTH_PRESETS)


def _panels(experiment: Experiment, options: Options, notes: list[str]) -> list[tuple[Panel, str]]:
    if options.data is not None:
        return [_panel_on(experiment, options.data, notes)]
    if options.quick:
        return [(experiment.panels[0], _quick_data(experiment, notes))]
    found = []
    for panel in experiment.panels:
        try:
            locate(parse(panel.data))
        except BadInput as error:
            if panel.required:
                raise BadInput(f"{error}; or try --quick, or other data with --data NAME:PATH") from None
            notes.append(f"{panel.source} is left out: {panel.data} was not found.")
            continue
        found.append((panel, panel.data))
    return found


def _panel_on(experiment: Experiment, data: str, notes: list[str]) -> tuple[Panel, str]:
    """The panel of that data set, or the first one beside other data."""
    asked = parse(data)
    if asked.dataset.kind in ("ratings", "news"):
        locate(asked)
    for panel in experiment.panels:
        if panel.data == asked.dataset.name:
            return panel, data
    first = experiment.panels[0]
    notes.append(_other_data(first, asked.dataset.name))
    return first, data


def _quick_data(experiment: Experiment, notes: list[str]) -> str:
    quick, first = experiment.quick, experiment.panels[0]
    data = quick.made_up
    if quick.data is not None and whereabouts(find_dataset(quick.data)) is not None:
        data = quick.data
    notes.append(
        f"Quick: {quick.rounds} rounds, one seed, on {data}. To see that it runs; the numbers mean nothing."
    )
    if data != first.data:
        notes.append(_other_data(first, data.partition(":")[0]))
    return data


def _other_data(panel: Panel, name: str) -> str:
    return f"The paper's numbers are of {panel.published_on}, ours of {name}: they cannot be compared."


def _variants(
    row: Row, data: str, protocol: str, seeds: Sequence[int], experiment: Experiment, options: Options, runs: Path
) -> list[Variant]:  # fmt: skip
    presets = [p for p in row.presets if not options.presets or p in options.presets]
    if options.quick and "tuned" in presets:
        presets = ["tuned"]
    if row.method not in METHODS:
        problem = f"not available: this version has no method {row.method}"
        return [Variant(row, preset, None, problem=problem) for preset in presets[-1:]]
    method = get(row.method)
    calibrations = row.calibrations if "calibration" in method.config.model_fields else (None,)
    return [
        _variant(method, row, data, protocol, seeds, experiment, options.quick, preset, calibration, runs)
        for preset in presets
        for calibration in calibrations
    ]


def _variant(
    method: Method[Any], row: Row, data: str, protocol: str, seeds: Sequence[int], experiment: Experiment,
    quick: bool, preset: str, calibration: str | None, runs: Path,
) -> Variant:  # fmt: skip
    if preset not in preset_names(method):
        return Variant(
            row, preset, calibration, problem=f"not available: {method.name} has no preset {preset}"
        )
    settings = row.settings + ((f"calibration={calibration}",) if calibration else ())
    rounds = None
    if quick:
        federated = method.kind == "federated"
        rounds = experiment.quick.rounds if federated else experiment.quick.epochs
        settings = (*settings, *(experiment.quick.settings if federated else ()))
    try:
        trials = tuple(
            _trial(
                Request(
                    method.name,
                    data,
                    seed,
                    protocol,
                    preset,
                    settings,
                    rounds,
                    evaluate_every=None if rounds is None else max(1, rounds // _QUICK_POINTS),
                ),
                runs,
            )
            for seed in seeds
        )
    except BadInput as error:
        return Variant(row, preset, calibration, problem=f"not available: {error}")
    return Variant(row, preset, calibration, trials)


def _trial(request: Request, runs: Path) -> Trial:
    method, dataset = get(request.method), request.data.partition(":")[0]
    config, rounds = configure(method, preset=request.preset, dataset=dataset, settings=request.settings)
    decisive = [
        __version__, request.method, absolute(request.data), request.protocol, request.preset,
        list(request.settings), request.rounds or rounds, request.evaluate_every, config.model_dump(mode="json"),
    ]  # fmt: skip
    digest = hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()[:8]
    name = f"{request.method}-{dataset}-{request.preset}-{digest}-seed{request.seed}"
    return Trial(request, runs / name)
