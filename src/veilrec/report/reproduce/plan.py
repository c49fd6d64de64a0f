"""From an experiment to runs: which panels, on which data, with how many seeds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from veilrec._words import counted
from veilrec.data.registry import find_dataset
from veilrec.data.spec import locate, parse, whereabouts
from veilrec.errors import BadInput, unknown_name
from veilrec.evaluate.protocols import PROTOCOLS
from veilrec.report.reproduce.experiment import BOTH_PRESETS, CALIBRATIONS, Experiment, Panel
from veilrec.report.reproduce.variants import Conditions, Trial, Variant, variants_of


@dataclass(frozen=True)
class Options:
    """What the user asked for."""

    seeds: int = 3
    quick: bool = False
    data: str | None = None  # instead of the experiment's
    protocol: str | None = None
    presets: tuple[str, ...] = ()  # only these; empty: all
    calibrations: tuple[str, ...] = ()  # likewise, of methods that have them
    methods: tuple[str, ...] = ()  # likewise


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
    _check(experiment, options)
    notes: list[str] = []
    if options.quick:
        notes.append(
            f"Quick: {counted(experiment.quick.rounds, 'round')} of one seed: to see that it runs, not to quote."
        )
    chosen = _panels(experiment, options, notes)
    protocol = options.protocol or experiment.protocol
    seeds = (0,) if options.quick else tuple(range(options.seeds))
    planned = []
    for panel, data in chosen:
        conditions = Conditions(
            data,
            protocol,
            seeds,
            options.presets or BOTH_PRESETS,
            options.calibrations or CALIBRATIONS,
            experiment.quick if options.quick else None,
            out / "runs",
        )
        rows = [row for row in panel.rows if not options.methods or row.method in options.methods]
        variants = tuple(variant for row in rows for variant in variants_of(row, conditions))
        if not variants:
            raise BadInput(
                f"no row of {experiment.name} is left by --preset, --calibration and --method: leave one of them out"
            )
        planned.append(PlannedPanel(panel, data, variants))
    return Plan(experiment, protocol, seeds, options.quick, tuple(planned), tuple(notes))


def _check(experiment: Experiment, options: Options) -> None:
    if options.seeds < 1:
        raise BadInput(f"--seeds is {options.seeds}: it must be 1 or more")
    if options.protocol is not None and options.protocol not in PROTOCOLS:
        raise unknown_name("protocol", options.protocol, PROTOCOLS)
    known = (("preset", options.presets, BOTH_PRESETS), ("calibration", options.calibrations, CALIBRATIONS))
    for kind, asked, names in known:
        for name in asked:
            if name not in names:
                raise unknown_name(kind, name, names)
    methods = tuple(dict.fromkeys(row.method for panel in experiment.panels for row in panel.rows))
    for name in options.methods:
        if name not in methods:
            raise unknown_name(f"method of {experiment.name}", name, methods)


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
    notes += _other_data(first, asked.dataset.name)
    return first, data


def _quick_data(experiment: Experiment, notes: list[str]) -> str:
    quick, first = experiment.quick, experiment.panels[0]
    data = quick.made_up
    if quick.data is not None and whereabouts(find_dataset(quick.data)) is not None:
        data = quick.data
    if data != first.data:
        notes += _other_data(first, data.partition(":")[0])
    return data


def _other_data(panel: Panel, name: str) -> list[str]:
    if not panel.published_on:
        return []
    return [f"The paper's numbers are of {panel.published_on}, ours of {name}: they cannot be compared."]
