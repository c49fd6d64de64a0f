"""From an experiment to what is to be run: panels with their data, rows in their presets, calibrations and seeds.

Data, packages and settings of all rows are checked here, before the first of them is trained.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from veilrec._extras import MissingPart, require
from veilrec._words import counted
from veilrec.data.datasets import find_dataset, full_spec, locate, parse, whereabouts
from veilrec.device.ways import PRIVATE, Serving
from veilrec.errors import BadInput, known_name, unknown_name
from veilrec.evaluate.protocols import PROTOCOLS
from veilrec.methods.base import Method, configure, preset_names, ready, setting_names
from veilrec.methods.registry import METHODS, get
from veilrec.report.reproduce.experiment import BOTH_PRESETS, CALIBRATIONS, TOTALS, Experiment, Panel, Quick, Row
from veilrec.report.reproduce.probes import Probe
from veilrec.runs.request import Request
from veilrec.runs.trials import Trial, folder_name

_QUICK_POINTS = 5  # of a quick curve
_NEEDED = ("numba", "polars", "matplotlib", "PIL")  # of every experiment: what it learns with, and what it draws with


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
    settings: tuple[str, ...] = ()  # name=value, of every row whose method has that setting
    skip_missing: bool = False  # leave out the rows that need what is not on this machine, instead of refusing all
    finished: bool = False  # train nothing: read what is there


@dataclass(frozen=True)
class Variant:
    """A row in one preset and one calibration; no trials where it cannot be run, and then why."""

    row: Row
    preset: str
    calibration: str | None
    trials: tuple[Trial, ...] = ()
    problem: str = ""
    missing: bool = False  # the problem is a package or file that is not on this machine
    notes: tuple[str, ...] = ()
    probes: tuple[Probe, ...] = ()  # what is measured of the trials instead of their own results

    @property
    def how(self) -> str:
        """Preset, calibration and way of serving in words."""
        if self.row.untrained:
            return "no training"
        return ", ".join(filter(None, (self.preset, self.calibration, _asked(self.row.serving))))

    def places(self) -> list[Path]:
        """Where its results lie, seed by seed."""
        return [probe.place for probe in self.probes] or [trial.folder for trial in self.trials]


def _asked(serving: Serving | None) -> str:
    """The way of serving, without its numbers: rows that differ in nothing else are one curve."""
    if serving is None:
        return ""
    if serving.mode not in PRIVATE:
        return f"asked: {serving.mode}"
    return f"asked: {serving.mode}, {serving.calibrated}"


@dataclass(frozen=True)
class Conditions:
    """What all rows of a panel are run under."""

    data: str
    protocol: str
    seeds: tuple[int, ...]
    presets: tuple[str, ...]  # only these
    calibrations: tuple[str, ...]  # only these, of methods that have them
    settings: tuple[str, ...]  # after those of a row
    quick: Quick | None  # None: at full length
    runs: Path  # folder of all runs
    only_the_end: bool = False  # is evaluated
    measured_by: str | None = None  # another protocol than the one that is trained for


@dataclass(frozen=True)
class StudyPanel:
    """A panel with the data that it really runs on, and how that is evaluated."""

    panel: Panel
    data: str
    protocol: str
    variants: tuple[Variant, ...]


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
        """In words: one, or that of every panel."""
        return ", ".join(dict.fromkeys(panel.protocol for panel in self.panels))

    def left_out(self) -> list[str]:
        """A line for every row that will not be run, and why."""
        every = ((panel, variant) for panel in self.panels for variant in panel.variants if variant.problem)
        return [f"{panel.panel.source}, {v.row.label} ({v.how}): {v.problem}" for panel, v in every]

    def trials(self) -> list[Trial]:
        """Every run, once."""
        every = (t for panel in self.panels for variant in panel.variants for t in variant.trials)
        return list({trial.folder: trial for trial in every}.values())

    def probes(self) -> list[Probe]:
        """Everything else that is measured, once."""
        every = (probe for panel in self.panels for variant in panel.variants for probe in variant.probes)
        return list({probe.place: probe for probe in every}.values())


def make_study(experiment: Experiment, options: Options, out: Path) -> Study:
    """Check what was asked, and find data and packages; nothing is run or written."""
    for module in _NEEDED:
        require(f"veilrec reproduce {experiment.name}", module)
    options = _checked(experiment, options)
    notes = [_quick_note(experiment)] if options.quick else []
    chosen = _panels(experiment, options, notes)
    seeds = (0,) if options.quick else tuple(range(options.seeds))
    panels = []
    for panel, data in chosen:
        dataset = data.partition(":")[0]
        protocol = panel.protocol or options.protocol or experiment.protocols.get(dataset, experiment.protocol)
        if panel.is_other_data(dataset):
            notes.append(
                f"The paper's numbers are of {panel.published_on}, ours of {dataset}: they cannot be compared."
            )
        conditions = Conditions(
            data,
            panel.trained_for or protocol,
            seeds,
            options.presets or experiment.usual_presets,
            options.calibrations or CALIBRATIONS,
            options.settings,
            experiment.quick if options.quick else None,
            out / "runs",
            experiment.only_the_end,
            protocol if panel.trained_for else None,
        )
        rows = [row for row in panel.rows if not options.methods or row.method in options.methods]
        variants = tuple(variant for row in rows for variant in variants_of(row, conditions))
        if variants:
            panels.append(StudyPanel(panel, data, protocol, variants))
    if chosen and not panels:
        raise BadInput(
            f"no row of {experiment.name} is left by --preset, --calibration and --method: leave one of them out"
        )
    study = Study(experiment, seeds, options.quick, tuple(panels), ())
    _refuse_missing(study, options)
    return replace(study, notes=tuple(dict.fromkeys((*notes, *_notes_of(study)))))


def _quick_note(experiment: Experiment) -> str:
    methods = [get(row.method).kind for panel in experiment.panels for row in panel.rows if row.method in METHODS]
    quick = experiment.quick
    epochs = f" ({counted(quick.epochs, 'epoch')} where all data lies in one place)" if "centralised" in methods else ""
    without = f", without {', '.join(quick.without)}" if quick.without else ""
    return f"Quick: {counted(quick.rounds, 'round')}{epochs} of one seed{without}: to see that it runs, not to quote."


def _checked(experiment: Experiment, options: Options) -> Options:
    """The same options with every name as its list writes it."""
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


def _nothing_to_train(experiment: Experiment, options: Options) -> Options:
    given = {
        "--data": options.data,
        "--protocol": options.protocol,
        "--preset": options.presets,
        "--calibration": options.calibrations,
        "--method": options.methods,
        "--set": options.settings,
    }
    if useless := [name for name, value in given.items() if value]:
        raise BadInput(f"{experiment.name} is calculated, and trains nothing: leave out {', '.join(useless)}")
    return replace(options, seeds=1, quick=False)


def _setting_names(method: Method[Any]) -> list[str]:
    return [*setting_names(method.config), "rounds"]


def _panels(experiment: Experiment, options: Options, notes: list[str]) -> list[tuple[Panel, str]]:
    experiment = _asked_protocol(experiment, options.protocol)
    if options.data is not None:
        return [(panel, options.data) for panel in _panels_on(experiment, options.data, options.quick)]
    if options.quick:
        data = _quick_data(experiment)
        return [(_quick_panel(panel, experiment.quick), data) for panel in _first(experiment)]
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
    """Of panels with protocols of their own, those with the one that was asked for, or the first with it instead."""
    if protocol is None or not any(panel.protocol for panel in experiment.panels):
        return experiment
    panels = tuple(panel for panel in experiment.panels if panel.protocol == protocol)
    if not panels:
        first = {panel.data: panel for panel in reversed(experiment.panels)}
        panels = tuple(replace(panel, protocol=protocol, trained_for="") for panel in reversed(first.values()))
    return replace(experiment, panels=panels)


def _quick_panel(panel: Panel, quick: Quick) -> Panel:
    """Without what small data is too small for, and without the paper's totals, which are of many more rounds."""
    rows = (
        replace(row, printed={name: number for name, number in row.printed.items() if name not in TOTALS})
        for row in panel.rows
        if (row.at or 0.0) <= quick.furthest
        and (row.at in quick.places or not (row.at and quick.places))
        and row.method not in quick.without
    )
    return replace(panel, rows=tuple(rows))


def _first(experiment: Experiment) -> list[Panel]:
    """The first panel, and the others on the same data."""
    return [panel for panel in experiment.panels if panel.dataset == experiment.panels[0].dataset]


def _panels_on(experiment: Experiment, data: str, quick: bool) -> list[Panel]:
    """The panels of that data set, or the first ones beside other data."""
    asked = parse(data)
    if asked.dataset.kind in ("ratings", "news"):
        locate(asked)
    elif asked.path is not None and not asked.path.exists():
        raise BadInput(f"{asked.path} is not there: give the path of a file, or of a folder from `veilrec data import`")
    same = [panel for panel in experiment.panels if panel.dataset == asked.dataset.name] or _first(experiment)
    return [_quick_panel(panel, experiment.quick) if quick else panel for panel in same]


def _quick_data(experiment: Experiment) -> str:
    quick = experiment.quick
    if quick.data is not None and whereabouts(find_dataset(quick.data)) is not None:
        return quick.data
    return quick.made_up


def variants_of(row: Row, conditions: Conditions) -> list[Variant]:
    """Every way in which a row is run."""
    presets = [preset for preset in row.presets if preset in conditions.presets]
    if conditions.quick is not None and "tuned" in presets:
        presets = ["tuned"]
    if row.method not in METHODS:
        problem = f"not available: this version has no method {row.method}"
        return [Variant(row, preset, None, problem=problem) for preset in presets[-1:]]
    method = get(row.method)
    has_them = "calibration" in method.config.model_fields
    calibrations = [c for c in row.calibrations if c in conditions.calibrations] if has_them else [None]
    return [
        _variant(method, row, preset, calibration, conditions) for preset in presets for calibration in calibrations
    ]


def _variant(method: Method[Any], row: Row, preset: str, calibration: str | None, conditions: Conditions) -> Variant:
    bare = Variant(row, preset, calibration)
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
    seeds = conditions.seeds[: row.seeds]
    trials = tuple(_trial(method, preset, settings, config, rounds, seed, conditions) for seed in seeds)
    if row.untrained:
        return replace(bare, probes=tuple(Probe(trial) for trial in trials), notes=notes)
    if row.serving is None:
        again = conditions.measured_by
        probes = tuple(Probe(trial, protocol=again) for trial in trials) if again else ()
        return replace(bare, trials=trials, notes=notes, probes=probes)
    probes = tuple(Probe(trial, replace(row.serving, seed=trial.request.seed)) for trial in trials)
    return replace(bare, trials=trials, notes=notes, probes=probes)


def _settings(
    method: Method[Any], row: Row, preset: str, calibration: str | None, conditions: Conditions
) -> tuple[str, ...]:
    settings, quick = row.settings, conditions.quick
    if quick is not None and method.kind == "federated":
        settings = (*quick.settings, *settings)
    if (preset, calibration) == ("tuned", "as-published"):
        settings = (*settings, *row.tuned_as_published)
    known = _setting_names(method)
    settings = (*settings, *(asked for asked in conditions.settings if asked.partition("=")[0].strip() in known))
    if quick is not None:  # it says how many there are
        settings = tuple(setting for setting in settings if setting.partition("=")[0].strip() != "rounds")
    return settings if calibration is None else (*settings, f"calibration={calibration}")


def _rounds(method: Method[Any], row: Row, usual: int, quick: Quick | None) -> int:
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
    conditions: Conditions,
) -> Trial:
    every = None if conditions.quick is None else max(1, rounds // _QUICK_POINTS)
    if conditions.only_the_end:
        every = rounds
    request = Request(
        method.name, conditions.data, seed, conditions.protocol, preset, settings, rounds, evaluate_every=every
    )
    return Trial(request, conditions.runs / folder_name(request, config, rounds))


def _refuse_missing(study: Study, options: Options) -> None:
    """Before anything is computed: rows that need what is not here, and a study of which nothing is left."""
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


def _labels(variants: Iterable[Variant]) -> Sequence[str]:
    return list(dict.fromkeys(f"{variant.row.label} ({variant.preset})" for variant in variants))


def _notes_of(study: Study) -> list[str]:
    """What the settings of rows bring along, each said once, with the rows that it is about."""
    about: dict[str, list[Variant]] = {}
    for panel in study.panels:
        for variant in panel.variants:
            for note in variant.notes:
                about.setdefault(note, []).append(variant)
    return [f"{', '.join(_labels(variants))}: {note}." for note, variants in about.items()]
