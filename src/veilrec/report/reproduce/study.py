"""From an experiment to what is to be run: panels with their data, rows in their presets, calibrations and seeds.

Data, packages and settings of all rows are checked here, before the first row is trained.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from veilrec._version import __version__
from veilrec.client.queries import PRIVATE, Serving
from veilrec.core.errors import BadInput, counted, known_name, unknown_name
from veilrec.core.resources import MissingPart, require
from veilrec.data.datasets import find_dataset, full_spec, locate, parse, whereabouts
from veilrec.evaluation.protocols import PROTOCOLS
from veilrec.methods.base import Method, configure, preset_names, ready, setting_names
from veilrec.methods.registry import METHODS, get
from veilrec.report.reproduce.experiment import (
    BOTH_PRESETS,
    CALIBRATIONS,
    TOTALS,
    Experiment,
    ExperimentPanel,
    ExperimentRow,
    QuickVersion,
)
from veilrec.runs.request import RunRequest
from veilrec.runs.trials import RunTrial, folder_name, title

_QUICK_POINTS = 5  # of a quick curve
_NEEDED = ("numba", "polars", "matplotlib", "PIL")  # packages of every experiment, for training and for plots


@dataclass(frozen=True)
class StudyOptions:
    """Options of `veilrec reproduce`."""

    seeds: int = 3
    quick: bool = False
    data: str | None = None  # instead of the experiment's
    protocol: str | None = None
    presets: tuple[str, ...] = ()  # only these; empty: all
    calibrations: tuple[str, ...] = ()  # likewise, of methods that have them
    methods: tuple[str, ...] = ()  # likewise
    settings: tuple[str, ...] = ()  # name=value, of every row whose method has that setting
    skip_missing: bool = False  # leave out the rows that need what is not on this machine, instead of refusing all
    finished: bool = False  # train nothing: read what is there

    @property
    def all_seeds(self) -> tuple[int, ...]:
        """The seeds of every row."""
        return (0,) if self.quick else tuple(range(self.seeds))


@dataclass(frozen=True)
class Probe:
    """A measurement of a trial beside its own result: before training, as it is served, or by another protocol."""

    trial: RunTrial
    serving: Serving | None = None  # None, and no protocol: before the first round, which needs no run
    protocol: str | None = None  # the same model evaluated by another one, whose test items it has not seen

    @property
    def place(self) -> Path:
        """File that keeps the measurement; its name changes with everything that decides the result."""
        mode = self.protocol or ("untrained" if self.serving is None else self.serving.mode)
        asked = mode if self.serving is None else asdict(self.serving)
        decisive = json.dumps([__version__, self.trial.folder.name, asked])
        digest = hashlib.sha256(decisive.encode()).hexdigest()[:8]
        return self.trial.folder.parent.parent / "measured" / f"{self.trial.folder.name}-{mode}-{digest}.json"

    @property
    def title(self) -> str:
        """Short description for progress lines."""
        if self.protocol is not None:
            return f"{title(self.trial)}: by {self.protocol}"
        if self.serving is None:
            return f"{title(self.trial)}: before the first round"
        return f"{title(self.trial)}: served by {describe_serving(self.serving)}"

    @property
    def needs_run(self) -> bool:
        """Whether there must be a trained model."""
        return self.serving is not None or self.protocol is not None


def describe_serving(serving: Serving) -> str:
    """Name the serving mode with the options that were set, but for the seed."""
    options = {name: value for name, value in asdict(serving).items() if name not in ("mode", "seed")}
    chosen = [
        f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}"
        for name, value in options.items()
        if value is not None
    ]
    return " ".join((serving.mode, *chosen))


@dataclass(frozen=True)
class RowVariant:
    """A row in one preset and one calibration; without trials and with a problem where it cannot be run."""

    row: ExperimentRow
    preset: str
    calibration: str | None
    trials: tuple[RunTrial, ...] = ()
    problem: str = ""
    missing: bool = False  # the problem is a package or file that is not on this machine
    notes: tuple[str, ...] = ()
    probes: tuple[Probe, ...] = ()  # what is measured of the trials instead of their own results

    @property
    def how(self) -> str:
        """Preset, calibration and serving mode in words."""
        if self.row.untrained:
            return "no training"
        return ", ".join(filter(None, (self.preset, self.calibration, _asked(self.row.serving))))

    def places(self) -> list[Path]:
        """List the places of its results, seed by seed."""
        return [probe.place for probe in self.probes] or [trial.folder for trial in self.trials]


def _asked(serving: Serving | None) -> str:
    """Name the serving mode without its numbers: rows that differ in nothing else are one curve."""
    if serving is None:
        return ""
    if serving.mode not in PRIVATE:
        return f"asked: {serving.mode}"
    return f"asked: {serving.mode}, {serving.calibrated}"


@dataclass(frozen=True)
class PanelConditions:
    """Data, protocol, seeds and choices that all rows of a panel share."""

    experiment: Experiment
    options: StudyOptions
    data: str
    protocol: str  # that is trained for
    measured_by: str | None  # another protocol
    runs: Path  # folder of all runs

    @property
    def quick(self) -> QuickVersion | None:
        """The quick version; None: at full length."""
        return self.experiment.quick if self.options.quick else None


@dataclass(frozen=True)
class StudyPanel:
    """A panel with the data that it really runs on, and how that is evaluated."""

    panel: ExperimentPanel
    data: str
    protocol: str
    variants: tuple[RowVariant, ...]


@dataclass(frozen=True)
class Study:
    """An experiment with everything that is to be run for it."""

    experiment: Experiment
    seeds: tuple[int, ...]
    quick: bool
    panels: tuple[StudyPanel, ...]
    notes: tuple[str, ...]

    @property
    def protocol(self) -> str:
        """The protocols of all panels in words, each once."""
        return ", ".join(dict.fromkeys(panel.protocol for panel in self.panels))

    def left_out(self) -> list[str]:
        """Say of every row that will not be run why."""
        every = ((panel, variant) for panel in self.panels for variant in panel.variants if variant.problem)
        return [f"{panel.panel.source}, {v.row.label} ({v.how}): {v.problem}" for panel, v in every]

    def trials(self) -> list[RunTrial]:
        """List every run once."""
        every = (t for panel in self.panels for variant in panel.variants for t in variant.trials)
        return list({trial.folder: trial for trial in every}.values())

    def probes(self) -> list[Probe]:
        """List every measurement beside the runs' own results once."""
        every = (probe for panel in self.panels for variant in panel.variants for probe in variant.probes)
        return list({probe.place: probe for probe in every}.values())


def make_study(experiment: Experiment, options: StudyOptions, out: Path) -> Study:
    """Resolve an experiment and the user's options to runs; nothing is run or written.

    Raises:
        BadInput: An option is unknown, or data or a package is missing.
    """
    for module in _NEEDED:
        require(f"veilrec reproduce {experiment.name}", module)
    options = _checked(experiment, options)
    notes = [_quick_note(experiment, options.presets)] if options.quick else []
    chosen = _panels(experiment, options, notes)
    panels = []
    for panel, data in chosen:
        dataset = data.partition(":")[0]
        protocol = panel.protocol or options.protocol or experiment.protocols.get(dataset, experiment.protocol)
        if panel.is_other_data(dataset):
            notes.append(
                f"The paper's numbers are of {panel.published_on}, ours of {dataset}: they cannot be compared."
            )
        trained_for, again = (panel.trained_for, protocol) if panel.trained_for else (protocol, None)
        conditions = PanelConditions(experiment, options, data, trained_for, again, out / "runs")
        rows = [row for row in panel.rows if not options.methods or row.method in options.methods]
        variants = tuple(variant for row in rows for variant in variants_of(row, conditions))
        if variants:
            panels.append(StudyPanel(panel, data, protocol, variants))
    if chosen and not panels:
        raise BadInput(
            f"no row of {experiment.name} is left by --preset, --calibration and --method: leave one of them out"
        )
    study = Study(experiment, options.all_seeds, options.quick, tuple(panels), ())
    _refuse_missing(study, options)
    return replace(study, notes=tuple(dict.fromkeys((*notes, *_notes_of(study)))))


def _quick_note(experiment: Experiment, asked: tuple[str, ...]) -> str:
    methods = [get(row.method).kind for panel in experiment.panels for row in panel.rows if row.method in METHODS]
    quick, usual = experiment.quick, () if asked else experiment.usual_presets
    epochs = f" ({counted(quick.epochs, 'epoch')} where all data lies in one place)" if "centralised" in methods else ""
    without = f", without {', '.join(quick.without)}" if quick.without else ""
    both = any(len(set(row.presets) & set(usual)) > 1 for panel in experiment.panels for row in panel.rows)
    tuned = ", preset tuned where there is one (--preset paper for the other)" if both else ""
    return (
        f"Quick: {counted(quick.rounds, 'round')}{epochs} of one seed{without}{tuned}: to see that it runs, not to"
        " quote."
    )


def _checked(experiment: Experiment, options: StudyOptions) -> StudyOptions:
    """Check the options and spell every name as its list does."""
    if options.seeds < 1:
        raise BadInput(f"--seeds is {options.seeds}: it must be 1 or more")
    if not experiment.panels:
        return _nothing_to_train(experiment, options)
    methods = tuple(dict.fromkeys(row.method for panel in experiment.panels for row in panel.rows))
    options = replace(
        options,
        data=None if options.data is None else full_spec(options.data),
        protocol=None if options.protocol is None else known_name("protocol", options.protocol, PROTOCOLS),
        presets=tuple(known_name("preset", name, BOTH_PRESETS) for name in options.presets),
        calibrations=tuple(known_name("calibration", name, CALIBRATIONS) for name in options.calibrations),
        methods=tuple(known_name(f"method of {experiment.name}", name, methods) for name in options.methods),
    )
    every = {name for method in options.methods or methods if method in METHODS for name in _setting_names(get(method))}
    for setting in options.settings:
        name, equals, _ = setting.partition("=")
        if not equals:
            raise BadInput(f"--set {setting}: expected name=value, for example --set text.words=glove")
        if name.strip() not in every:
            raise unknown_name(f"setting of any method of {experiment.name}", name.strip(), sorted(every))
    return options


def _nothing_to_train(experiment: Experiment, options: StudyOptions) -> StudyOptions:
    flags = ("data", "protocol", "preset", "calibration", "method", "set")
    given = (options.data, options.protocol, options.presets, options.calibrations, options.methods, options.settings)
    if useless := [f"--{flag}" for flag, value in zip(flags, given, strict=True) if value]:
        raise BadInput(f"{experiment.name} is calculated, and trains nothing: leave out {', '.join(useless)}")
    return replace(options, seeds=1, quick=False)


def _setting_names(method: Method[Any]) -> list[str]:
    return [*setting_names(method.config), "rounds"]


def _panels(experiment: Experiment, options: StudyOptions, notes: list[str]) -> list[tuple[ExperimentPanel, str]]:
    experiment = _asked_protocol(experiment, options.protocol)
    if options.data is not None:
        return [(panel, options.data) for panel in _panels_on(experiment, options.data, options.quick)]
    if options.quick:
        quick = experiment.quick
        real = quick.data if quick.data and whereabouts(find_dataset(quick.data)) is not None else None
        data = real or quick.synthetic
        return [(_quick_panel(panel, quick), data) for panel in _first(experiment)]
    found = []
    for panel in experiment.panels:
        try:
            if find_dataset(panel.dataset).kind != "synthetic":
                locate(parse(panel.data))
        except BadInput as error:
            if panel.required:
                raise BadInput(f"{error}; or try --quick, or other data with --data NAME:PATH") from None
            notes.append(f"{panel.source} is left out: {panel.data} was not found.")
            continue
        found.append((panel, panel.data))
    return found


def _asked_protocol(experiment: Experiment, protocol: str | None) -> Experiment:
    """Keep the panels of a protocol; where panels have protocols but none has this one, evaluate the first by it."""
    if protocol is None or not any(panel.protocol for panel in experiment.panels):
        return experiment
    panels = tuple(panel for panel in experiment.panels if panel.protocol == protocol)
    if not panels:
        first = {panel.data: panel for panel in reversed(experiment.panels)}
        panels = tuple(replace(panel, protocol=protocol, trained_for="") for panel in reversed(first.values()))
    return replace(experiment, panels=panels)


def _quick_panel(panel: ExperimentPanel, quick: QuickVersion) -> ExperimentPanel:
    """Drop rows that need more data or time, and the paper's totals, which are of many more rounds."""
    rows = (
        replace(row, printed={name: number for name, number in row.printed.items() if name not in TOTALS})
        for row in panel.rows
        if (row.at or 0.0) <= quick.furthest
        and (row.at in quick.places or not (row.at and quick.places))
        and row.method not in quick.without
    )
    return replace(panel, rows=tuple(rows))


def _first(experiment: Experiment) -> list[ExperimentPanel]:
    """Select the first panel and the others on the same data."""
    return [panel for panel in experiment.panels if panel.dataset == experiment.panels[0].dataset]


def _panels_on(experiment: Experiment, data: str, quick: bool) -> list[ExperimentPanel]:
    """Select the panels of that data set; for other data, the first ones."""
    asked = parse(data)
    if asked.dataset.kind in ("ratings", "news"):
        locate(asked)
    elif asked.path is not None and not asked.path.exists():
        raise BadInput(f"{asked.path} is not there: give the path of a file, or of a folder from `veilrec data import`")
    same = [panel for panel in experiment.panels if panel.dataset == asked.dataset.name] or _first(experiment)
    return [_quick_panel(panel, experiment.quick) if quick else panel for panel in same]


def variants_of(row: ExperimentRow, conditions: PanelConditions) -> list[RowVariant]:
    """Make a variant of a row for each preset and calibration."""
    options = conditions.options
    wanted = options.presets or conditions.experiment.usual_presets
    # A preset that belongs to one row stands where tuned ones are asked for.
    presets = [name for name in row.presets if (name if name in BOTH_PRESETS else "tuned") in wanted]
    if conditions.quick is not None and not options.presets and "tuned" in presets:
        presets = ["tuned"]
    if row.method not in METHODS:
        problem = f"not available: this version has no method {row.method}"
        return [RowVariant(row, preset, None, problem=problem) for preset in presets[-1:]]
    method = get(row.method)
    has_them = "calibration" in method.config.model_fields
    asked = options.calibrations or CALIBRATIONS
    calibrations = [name for name in row.calibrations if name in asked] if has_them else [None]
    return [
        _variant(method, row, preset, calibration, conditions) for preset in presets for calibration in calibrations
    ]


def _variant(
    method: Method[Any], row: ExperimentRow, preset: str, calibration: str | None, conditions: PanelConditions
) -> RowVariant:
    bare = RowVariant(row, preset, calibration)
    dataset = conditions.data.partition(":")[0]
    if preset not in preset_names(method):
        return replace(bare, problem=f"not available: {method.name} has no preset {preset}")
    if dataset not in method.datasets:
        learns = ", ".join(method.datasets)
        return replace(bare, problem=f"not available: {method.name} does not learn from {dataset}, but from {learns}")
    settings = _settings(method, row, preset, calibration, conditions)
    try:
        config, rounds = configure(method, preset=preset, dataset=dataset, settings=settings)
    except BadInput as error:
        return replace(bare, problem=f"not available: {error}")
    try:
        notes = ready(method, config)
    except (BadInput, MissingPart) as error:
        return replace(bare, problem=f"left out: {error}", missing=True)
    rounds = _rounds(method, row, rounds, conditions.quick)
    seeds = conditions.options.all_seeds[: row.seeds]
    trials = tuple(_trial(method, preset, settings, config, rounds, seed, conditions) for seed in seeds)
    probes: tuple[Probe, ...] = ()
    if row.untrained:
        return replace(bare, probes=tuple(Probe(trial) for trial in trials), notes=notes)
    if row.serving is not None:
        probes = tuple(Probe(trial, replace(row.serving, seed=trial.request.seed)) for trial in trials)
    elif conditions.measured_by is not None:
        probes = tuple(Probe(trial, protocol=conditions.measured_by) for trial in trials)
    return replace(bare, trials=trials, notes=notes, probes=probes)


def _settings(
    method: Method[Any], row: ExperimentRow, preset: str, calibration: str | None, conditions: PanelConditions
) -> tuple[str, ...]:
    settings, quick = row.settings, conditions.quick
    if quick is not None and method.kind == "federated":
        settings = (*quick.settings, *settings)
    if (preset, calibration) == ("tuned", "as-published"):
        settings = (*settings, *row.tuned_as_published)
    known = _setting_names(method)
    settings = (
        *settings,
        *(asked for asked in conditions.options.settings if asked.partition("=")[0].strip() in known),
    )
    if quick is not None:  # it says how many there are
        settings = tuple(setting for setting in settings if setting.partition("=")[0].strip() != "rounds")
    return settings if calibration is None else (*settings, f"calibration={calibration}")


def _rounds(method: Method[Any], row: ExperimentRow, usual: int, quick: QuickVersion | None) -> int:
    if row.rounds is not None or quick is None:
        return row.rounds or usual
    return min(usual, quick.rounds if method.kind == "federated" else quick.epochs)


def _trial(
    method: Method[Any],
    preset: str,
    settings: tuple[str, ...],
    config: Any,
    rounds: int,
    seed: int,
    conditions: PanelConditions,
) -> RunTrial:
    every = None if conditions.quick is None else max(1, rounds // _QUICK_POINTS)
    if conditions.experiment.only_the_end:
        every = rounds
    request = RunRequest(
        method.name, conditions.data, seed, conditions.protocol, preset, settings, rounds, evaluate_every=every
    )
    return RunTrial(request, conditions.runs / folder_name(request, config, rounds))


def _refuse_missing(study: Study, options: StudyOptions) -> None:
    """Raise where rows need missing data or packages, or where no row can be run."""
    every = [variant for panel in study.panels for variant in panel.variants]
    missing = [variant for variant in every if variant.missing]
    if missing and not options.skip_missing:
        labels = ", ".join(_labels(missing))
        needed = "; ".join(dict.fromkeys(variant.problem.removeprefix("left out: ") for variant in missing))
        raise BadInput(
            f"{study.experiment.name} cannot be run as a whole: {needed} (needed by {labels});"
            " or give --skip-missing to run the other rows"
        )
    if every and not any(variant.trials or variant.probes for variant in every):
        problems = "; ".join(dict.fromkeys(variant.problem for variant in every))
        raise BadInput(f"no row of {study.experiment.name} can be run: {problems}")


def _labels(variants: Iterable[RowVariant]) -> Sequence[str]:
    return list(dict.fromkeys(f"{variant.row.label} ({variant.preset})" for variant in variants))


def _notes_of(study: Study) -> list[str]:
    """Collect the notes that settings of rows bring along, each once, with the rows that it is about."""
    about: dict[str, list[RowVariant]] = {}
    for panel in study.panels:
        for variant in panel.variants:
            for note in variant.notes:
                about.setdefault(note, []).append(variant)
    return [f"{', '.join(_labels(variants))}: {note}." for note, variants in about.items()]
