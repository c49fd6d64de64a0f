"""Several methods on one data set: trained where they are not yet, measured on the same cases, and tested in pairs.

Methods as a comparison names them: `fedmf`, `dp-fedmf:privacy.epsilon=4`, `mf:best.yaml`, `mine.py:damping=0.5`.

Behind the colon stand what only this one has: settings, `rounds=N`, `preset=P`, or a file as `train --config` reads it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from veilrec.core.arrays import Doubles
from veilrec.core.errors import BadInput, VeilrecError, counted, unknown_name, written_name
from veilrec.data import datasets
from veilrec.data.datasets import DATASETS, load
from veilrec.data.population import Population
from veilrec.evaluation.evaluator import EvaluationResult, evaluate_cases
from veilrec.evaluation.metrics import FLIPS, holm, sign_flip_test
from veilrec.evaluation.protocols import default_protocol, make_split
from veilrec.evaluation.split import Split
from veilrec.methods.base import ready, setting_names
from veilrec.methods.plugins import is_file
from veilrec.methods.registry import METHODS, full_name, get, short_name
from veilrec.privacy.guarantee import Guarantee, no_guarantee
from veilrec.runs.checkpoint import read_result
from veilrec.runs.config_file import make_request, read_config_file
from veilrec.runs.evaluation import BASELINES, baseline, refuse_changed_data, usual_guarantee
from veilrec.runs.request import RunRequest, data_facts, in_full, read_trained
from veilrec.runs.saved import open_model
from veilrec.runs.trials import Follow, RunTrial, Say, complete, find_finished, finished_runs, folder_name

_FILE = re.compile(r"(.+?\.py(?::[^\W\d]\w*(?=:|$))?)(?::(.*))?$")  # FILE.py or FILE.py:NAME, and what is set
_COMMAS = re.compile(r",(?![^\[]*\])")  # but not those of a list such as [16, 8]


@dataclass(frozen=True)
class Contender:
    """A method with the settings that it runs under; its request has no seed yet."""

    label: str
    request: RunRequest


@dataclass(frozen=True)
class _Spec:
    label: str
    name: str  # of the method, as --set knows it
    method: str  # the same, or the file that it is in
    settings: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)  # preset
    file: Path | None = None


def make_contenders(
    specs: Sequence[str], given: Mapping[str, Any], settings: Sequence[str] = ()
) -> tuple[list[Contender], list[str]]:
    """The contenders, all checked, and what the user may want to know.

    `given` are fields of every request (data, protocol, preset, rounds); of `settings`, `name=value` is for every
    method that has it and `METHOD.name=value` for one.
    """
    if not specs:
        raise BadInput("give at least one method to compare, such as fedmf; see `veilrec methods`")
    parsed = [_parse(spec) for spec in specs]
    labels = [spec.label for spec in parsed]
    for label in labels:
        if labels.count(label) > 1:
            raise BadInput(f"{label} is given twice: give each once, or with other settings")
    fitting, notes = _shared(settings, parsed)
    contenders = []
    for spec in parsed:
        own = (*fitting[spec.label], *spec.settings)
        asked = {name: value for name, value in given.items() if value is not None}
        asked |= {"method": spec.method, **spec.options}
        one_step = get(spec.method).rounds == 1  # such as ease, which is solved and done
        if one_step or any(setting.partition("=")[0].strip() == "rounds" for setting in own):
            asked.pop("rounds", None)
        file = None if spec.file is None else read_config_file(spec.file)
        if file is not None and "preset" in file.asked and "preset" not in spec.options:
            asked.pop("preset", None)
        request, more = make_request(file, asked, own)
        notes += [f"{spec.label}: {note}" for note in more]
        request = in_full(request)
        _check(request)
        contenders.append(Contender(spec.label, request))
    return contenders, notes


def _parse(spec: str) -> _Spec:
    method, rest = _method_of(spec.strip())
    name = short_name(method)
    settings: list[str] = []
    options: dict[str, Any] = {}
    file = None
    for part in (text.strip() for text in _COMMAS.split(rest) if text.strip()):
        key, equals, value = part.partition("=")
        if not equals:
            file = Path(part)
            if not file.exists():
                raise BadInput(
                    f"{spec}: {part} is neither name=value nor a file: write {name}:NAME=VALUE,NAME=VALUE, or"
                    f" {name}:best.yaml"
                )
        elif key.strip() == "preset":
            options["preset"] = value.strip()
        else:
            settings.append(f"{key.strip()}={value.strip()}")
    parts = [*settings, *(f"{key}={value}" for key, value in options.items()), *([str(file)] if file else [])]
    return _Spec(f"{name}:{','.join(parts)}" if parts else name, name, method, tuple(settings), options, file)


def _method_of(spec: str) -> tuple[str, str]:
    """The method as the list writes it, or the whole path of its file; and what stands behind it."""
    found = _FILE.match(spec)
    name, rest = (found[1], found[2] or "") if found else (spec.partition(":")[0], spec.partition(":")[2])
    return full_name(name), rest


def _shared(settings: Sequence[str], specs: Sequence[_Spec]) -> tuple[dict[str, list[str]], list[str]]:
    """Which of the settings each contender takes, and which of them do not reach everybody."""
    taken: dict[str, list[str]] = {spec.label: [] for spec in specs}
    notes = []
    for setting in settings:
        name, equals, _ = setting.partition("=")
        if not equals or not name.strip():
            raise BadInput(f"--set {setting}: expected name=value, for example --set local.epochs=3")
        first, _, rest = name.strip().partition(".")
        known = written_name(first, [*(spec.name for spec in specs), *METHODS])
        if rest and known is not None:
            for_one = [spec for spec in specs if spec.name == known]
            if not for_one:
                names = ", ".join(dict.fromkeys(spec.name for spec in specs))
                raise BadInput(f"--set {setting}: {first} is not compared; compared are {names}")
            for spec in for_one:
                taken[spec.label].append(setting.strip().removeprefix(f"{first}."))
            continue
        having = [spec for spec in specs if name.strip() in _names(spec.method)]
        if not having:
            every = sorted({one for spec in specs for one in _names(spec.method)})
            compared = ", ".join(dict.fromkeys(spec.name for spec in specs))
            raise BadInput(f"--set {setting} fits none of {compared}: {unknown_name('setting', name.strip(), every)}")
        for spec in having:
            taken[spec.label].append(setting)
        without = [spec.label for spec in specs if spec not in having]
        if without:
            notes.append(f"--set {setting} is for {', '.join(s.label for s in having)}; not for {', '.join(without)}")
    return taken, notes


def _names(method: str) -> list[str]:
    return [*setting_names(get(method).config), "rounds"]


def _check(request: RunRequest) -> None:
    """Refuse what cannot be trained before anything is."""
    method, dataset = get(request.method), request.dataset
    config, _ = request.configured()
    if dataset in DATASETS and dataset not in method.datasets:
        raise BadInput(
            f"{method.name} does not learn from {dataset}, but from {', '.join(method.datasets)}: leave it out, or give"
            " other --data"
        )
    ready(method, config)


COUNTS = ("cases", "skipped")  # reported beside the metrics, and not metrics
LEVEL = 0.05  # corrected p-values below it are called a difference
MAX_SEEDS = 1000


@dataclass(frozen=True)
class Spread:
    """A metric over seeds; the standard deviation is that of a sample, and of one seed there is none."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Over seeds."""
        return float(np.mean(self.values))

    @property
    def sd(self) -> float | None:
        """Standard deviation over seeds, of a sample (n - 1)."""
        return float(np.std(self.values, ddof=1)) if len(self.values) > 1 else None


@dataclass(frozen=True)
class ComparisonEntry:
    """One line of a comparison: a method, or a baseline, over all seeds."""

    label: str
    method: str
    kind: str  # federated, centralised or baseline
    metrics: Mapping[str, Spread] = field(default_factory=dict)
    guarantee: Guarantee = field(default_factory=no_guarantee)
    preset: str = ""
    settings: tuple[str, ...] = ()
    rounds: int | None = None
    runs: tuple[Path, ...] = ()  # a folder a seed
    seconds: float | None = None  # of training, mean over seeds
    down_bytes: float | None = None  # to all clients over the whole run, mean over seeds
    up_bytes: float | None = None
    problem: str = ""  # why there are no metrics


@dataclass(frozen=True)
class PairedDifference:
    """Two lines beside each other on the same users; a difference above 0 is in favour of the first."""

    first: str
    second: str
    difference: float
    p_value: float
    corrected: float  # by Holm, for all pairs of the comparison


@dataclass(frozen=True)
class MethodComparison:
    """What came of it."""

    data: str
    dataset: str
    protocol: str
    seeds: tuple[int, ...]
    metric: str  # that is tested and drawn
    entries: tuple[ComparisonEntry, ...]  # in the order asked for, baselines last
    pairs: tuple[PairedDifference, ...]
    users: int  # who were asked, in any seed
    cases: int  # that were asked in the first seed
    folder: Path
    notes: tuple[str, ...] = ()

    @property
    def measured(self) -> tuple[ComparisonEntry, ...]:
        """The entries that could be trained."""
        return tuple(entry for entry in self.entries if not entry.problem)

    @property
    def best(self) -> ComparisonEntry:
        """The highest mean of the tested metric."""
        return max(self.measured, key=lambda entry: entry.metrics[self.metric].mean)

    @property
    def table(self) -> list[dict[str, Any]]:
        """A row an entry with plain values, for a data frame: metric, metric_sd, and the whole guarantee as text."""
        rows = []
        for entry in self.entries:
            row: dict[str, Any] = {
                "method": entry.label,
                "kind": entry.kind,
                "guarantee": entry.guarantee.promise() if not entry.problem else "",
                "seeds": len(self.seeds),
            }
            for name, spread in entry.metrics.items():
                row |= {name: spread.mean, f"{name}_sd": spread.sd}
            numbers = {"seconds": entry.seconds, "down_bytes": entry.down_bytes, "up_bytes": entry.up_bytes}
            rows.append(row | numbers | {"problem": entry.problem})
        return rows

    def how_tested(self) -> str:
        """The test in words."""
        return (
            f"Paired sign-flip permutation test of {self.metric} over {self.users:,} users, two-sided, {FLIPS:,} draws:"
            " the differences of a user, over all cases and seeds, keep or change their sign together. p-values are"
            f" corrected by Holm for {counted(len(self.pairs), 'pair')}; below {LEVEL:g} is called a difference. The"
            " test is about other users for these trained models; how much training itself varies, the spread over"
            " seeds says."
        )

    def how_long(self) -> str:
        """The rounds and presets that were trained with; those of each method where they differ."""
        trained = [entry for entry in self.measured if entry.rounds is not None]
        if not trained:
            return ""
        return f"rounds (epochs): {_each(trained, 'rounds')}; preset: {_each(trained, 'preset')}"

    def how_spread(self) -> str:
        """What stands behind the plus-minus sign."""
        n = len(self.seeds)
        if n == 1:
            return "One seed: there is no spread over seeds."
        return f"Mean ± standard deviation over n = {n} seeds (sample, n - 1)."


def _each(entries: Sequence[ComparisonEntry], name: str) -> str:
    """A value that all have, or that of each."""
    values = [getattr(entry, name) for entry in entries]
    if len(set(values)) == 1:
        return str(values[0])
    return ", ".join(f"{entry.label} {value}" for entry, value in zip(entries, values, strict=True))


def runs_folder() -> Path:
    """$VEILREC_RUNS, or runs."""
    return Path(os.environ.get("VEILREC_RUNS", "runs"))


def compare(
    methods: Sequence[str],
    data: str,
    *,
    seeds: int = 3,
    protocol: str | None = None,
    preset: str | None = None,
    rounds: int | None = None,
    settings: Sequence[str] = (),
    metric: str | None = None,
    out: Path | None = None,
    jobs: int = 1,
    say: Say = lambda _: None,
    follow: Follow | None = None,
) -> MethodComparison:
    """Train what is missing, `jobs` runs at once; runs of the same request that are finished are read."""
    if not 1 <= seeds <= MAX_SEEDS:
        raise BadInput(f"--seeds is {seeds}: it must be from 1 to {MAX_SEEDS:,}")
    asked = [name for name in methods if written_name(name, BASELINES) is None]  # those two are always there, once
    given = {"data": data, "protocol": protocol, "preset": preset, "rounds": rounds}
    if not asked:
        raise BadInput(f"{' and '.join(BASELINES)} stand in every comparison: give at least one other method")
    contenders, notes = make_contenders(asked, given, settings)
    for note in notes:
        say(note)
    population = load(data)
    protocol = protocol or default_protocol(population)
    splits = [make_split(population, protocol, seed=seed) for seed in range(seeds)]
    baselines = {
        name: [evaluate_cases(s.test, s.train, baseline(name, s, seed)) for seed, s in enumerate(splits)]
        for name in BASELINES
    }
    first = baselines[BASELINES[0]]
    tested = metric or ("ndcg@10" if splits[0].test.impressions is None else "auc")
    if tested not in first[0].values:
        raise unknown_name(f"metric of {protocol}", tested, first[0].values)
    folder = out or runs_folder() / f"compare-{datasets.short_name(data)}"  # shared by comparisons of the same data
    trials, there = _trials(contenders, protocol, seeds, data_facts(population, splits[0]), folder)
    if there:
        say(f"{counted(len(there), 'run')} of {seeds * len(contenders)} finished before and read again.")
    missing = [trial for row in trials for trial in row if trial.folder not in there]
    problems = complete(missing, jobs=jobs, say=say, follow=follow)

    entries: list[ComparisonEntry] = []
    judged: dict[str, list[EvaluationResult]] = {}
    for contender, row in zip(contenders, trials, strict=True):
        problem = next((problems[trial.folder] for trial in row if trial.folder in problems), "")
        if problem:
            problem = problem.removeprefix("failed: ")
            method = contender.request.method
            entries.append(ComparisonEntry(contender.label, short_name(method), get(method).kind, problem=problem))
            continue
        judged[contender.label] = [_judge_run(t, s, population) for t, s in zip(row, splits, strict=True)]
        entries.append(_entry(contender, row, judged[contender.label]))
    if not judged:
        raise VeilrecError(f"nothing could be trained: {entries[0].label}: {entries[0].problem}")
    entries += [
        ComparisonEntry(name, name, get(name).kind, _spreads(found), usual_guarantee(name))
        for name, found in baselines.items()
    ]
    return MethodComparison(
        data=data,
        dataset=population.name,
        protocol=protocol,
        seeds=tuple(range(seeds)),
        metric=tested,
        entries=tuple(entries),
        pairs=_pairs(judged | baselines, tested, population.n_users),
        users=len(np.unique(np.concatenate([j.users for j in first]))),
        cases=len(first[0]),
        folder=folder,
        notes=tuple(notes),
    )


def _trials(
    contenders: Sequence[Contender], protocol: str, seeds: int, today: Mapping[str, int], folder: Path
) -> tuple[list[list[RunTrial]], set[Path]]:
    """The run of every contender and seed, in this folder or wherever it is finished already; and which of them are."""
    finished = finished_runs(folder / "runs", runs_folder(), *runs_folder().glob("*/runs"))
    rows, there = [], set()
    for contender in contenders:
        row = []
        for seed in range(seeds):
            request = replace(contender.request, seed=seed, protocol=protocol)
            trial = RunTrial(request, folder / "runs" / folder_name(request, *request.configured(), today), today)
            if (found := find_finished(trial, finished)) is not None:
                there.add(found)
                trial = replace(trial, folder=found)
            row.append(trial)
        rows.append(row)
    return rows, there


def _judge_run(trial: RunTrial, split: Split, population: Population) -> EvaluationResult:
    method = trial.request.method
    model = open_model(trial.folder, method if is_file(method) else None)
    refuse_changed_data(trial.folder, read_trained(trial.folder), model, population)
    return evaluate_cases(split.test, split.train, model.for_users)


def _entry(contender: Contender, row: Sequence[RunTrial], evaluations: Sequence[EvaluationResult]) -> ComparisonEntry:
    results = [read_result(trial.folder) for trial in row]
    guarantees = [Guarantee.from_json(result["guarantee"]) for result in results]
    weakest = max(guarantees, key=lambda g: (g.honest_epsilon or 0.0, g.epsilon or 0.0))  # it holds for every seed
    caveats = dict.fromkeys(words for guarantee in guarantees for words in guarantee.caveats)
    traffic = [result["communication"] for result in results]
    sends = any(entry["up_bytes"] for entry in traffic)
    r = contender.request
    return ComparisonEntry(
        label=contender.label,
        method=short_name(r.method),
        kind=get(r.method).kind,
        metrics=_spreads(evaluations),
        guarantee=replace(weakest, caveats=tuple(caveats)),
        preset=r.preset,
        settings=r.settings,
        rounds=results[0]["rounds"],
        runs=tuple(trial.folder for trial in row),
        seconds=float(np.mean([result["seconds"] for result in results])),
        down_bytes=float(np.mean([entry["down_bytes"] for entry in traffic])) if sends else None,
        up_bytes=float(np.mean([entry["up_bytes"] for entry in traffic])) if sends else None,
    )


def _spreads(evaluations: Sequence[EvaluationResult]) -> dict[str, Spread]:
    means = [result.means() for result in evaluations]
    return {name: Spread(tuple(one[name] for one in means)) for name in means[0] if name not in COUNTS}


def _pairs(judged: Mapping[str, Sequence[EvaluationResult]], metric: str, n_users: int) -> tuple[PairedDifference, ...]:
    """Every method beside every other, and beside popularity."""
    names = [name for name in judged if name not in BASELINES]
    both = [*combinations(names, 2), *((name, BASELINES[0]) for name in names)]
    differences = np.column_stack([_difference(judged[a], judged[b], metric, n_users) for a, b in both])
    asked = np.unique(np.concatenate([result.users for result in judged[BASELINES[0]]]))
    p_values = sign_flip_test(differences[asked])
    corrected = holm(p_values.tolist())
    means = differences.sum(axis=0)
    return tuple(
        PairedDifference(a, b, float(mean), float(p), c)
        for (a, b), mean, p, c in zip(both, means, p_values, corrected, strict=True)
    )


def _difference(
    first: Sequence[EvaluationResult], second: Sequence[EvaluationResult], metric: str, n_users: int
) -> Doubles:
    """What each user adds to the difference of the means over cases and seeds."""
    total = np.zeros(n_users)
    for a, b in zip(first, second, strict=True):
        difference = (a.values[metric] - b.values[metric]) / (len(a) * len(first))
        total += np.bincount(a.users, difference, minlength=n_users)
    return total
