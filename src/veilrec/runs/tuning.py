"""A search for good settings, by Optuna, on validation items only: the test part is cut off before anything is learnt.

Every trial is a training of its own. Those that a kill interrupted go on from their checkpoint; Optuna's journal and
the results of trials lie in the folder of the search.

What a search may choose: ranges and choices of settings, from a file or by a rule.

The rule looks at what the preset has: rates within a factor of 10 either way, decays and ridges too, clip norms within
a factor of 4, the length of vectors half, same or double, local epochs and negatives from half to double; rounds of
private methods, whose noise depends on them, from half to double. A promise (epsilon, delta) is never searched for.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from pydantic import ConfigDict, FiniteFloat, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as pydantic_dataclass

from veilrec._version import __version__
from veilrec.core.errors import BadInput, VeilrecError, counted, unknown_name
from veilrec.core.files import write_json, write_text
from veilrec.core.resources import require
from veilrec.data.datasets import load
from veilrec.evaluation.evaluator import evaluate
from veilrec.evaluation.protocols import default_protocol
from veilrec.methods.base import Config, Method, configure, learning_rates, leaves, setting_names, speaks_of
from veilrec.methods.registry import code_of, get
from veilrec.runs import loop
from veilrec.runs.config_file import read_names, write_request
from veilrec.runs.evaluation import baseline
from veilrec.runs.loop import Interrupted
from veilrec.runs.request import RunRequest, absolute, in_full, prepare
from veilrec.runs.trials import Say, check_jobs, in_processes

if TYPE_CHECKING:
    import optuna


PROMISES = ("epsilon", "delta")
_DIGITS = 4  # of a number that was searched for: more say nothing
_SMALLEST_DECAY, _LARGEST_DECAY = 1e-5, 1e-1  # where the preset has none


@pydantic_dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class Range:
    """From low to high, both included; whole numbers for a setting that counts."""

    low: FiniteFloat
    high: FiniteFloat
    log: bool = False
    whole: bool = False

    def __post_init__(self) -> None:
        if self.low >= self.high:
            raise ValueError("low has to be below high")
        if self.log and self.low <= 0:
            raise ValueError("on a logarithmic scale low has to be above 0")
        if self.whole and (self.low != int(self.low) or self.high != int(self.high)):
            raise ValueError("it counts something: low and high are whole numbers")


@dataclass(frozen=True)
class Choice:
    """One of some values, as --set takes them."""

    values: tuple[str, ...]


Space = Mapping[str, Range | Choice]


def spelt(value: Any) -> str:
    """A value that was searched for, as --set takes it."""
    return f"{value:.{_DIGITS}g}" if isinstance(value, float) else str(value)


def default_space(method: Method[Any], config: Config, rounds: int) -> Space:
    """What is usually worth a search around the settings that a run would have."""
    space: dict[str, Range | Choice] = {}
    for name, value in leaves(config.model_dump()):
        part = _usual(name.rpartition(".")[2], value)
        if part is not None:
            space[name] = part
    if not space:
        raise BadInput(f"{method.name} has no settings with a usual range: give --space FILE")
    if method.rounds_are_fixed:
        space["rounds"] = _around(rounds)
    return space


def _usual(name: str, value: Any) -> Range | Choice | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if name == "decay" and value == 0.0:
        return Range(_SMALLEST_DECAY, _LARGEST_DECAY, log=True)
    if (name.endswith("rate") and name != "adapt_rate") or name in ("decay", "ridge"):
        return Range(value / 10, value * 10, log=True)
    if name == "clip_norm":
        return Range(value / 4, value * 4, log=True)
    if name == "dim":
        return Choice(tuple(str(n) for n in sorted({max(1, value // 2), value, value * 2})))
    if name in ("epochs", "negatives"):
        return _around(int(value))
    return None


def _around(value: int) -> Range:
    return Range(max(1, value // 2), max(2, value * 2), log=True, whole=True)


def read_space(path: Path, method: Method[Any], preset: str, dataset: str) -> Space:
    """A YAML file: `name: {low: L, high: H, log: true}` or `name: [choices]`."""
    found = read_names("--space", path, "local.dim: [8, 16, 32]")
    known = [*setting_names(method.config), "rounds"]
    config, rounds = configure(method, preset=preset, dataset=dataset)
    values = {**dict(leaves(config.model_dump())), "rounds": rounds}
    space: dict[str, Range | Choice] = {}
    for name, given in found.items():
        where = f"--space {path}: {name}"
        if name not in known:
            raise BadInput(f"--space {path}: {unknown_name(f'setting of {method.name}', str(name), known)}")
        if name.rpartition(".")[2] in PROMISES:
            raise BadInput(f"{where} is a promise and not searched for: choose it, with --set {name}=VALUE")
        space[name] = _choice(where, given) if isinstance(given, list) else _range(where, given, values.get(name))
        _check_ends(where, method, preset, dataset, name, space[name])
    return space


def _choice(where: str, given: list[Any]) -> Choice:
    if not given or any(isinstance(value, Mapping) for value in given):
        raise BadInput(f"{where} is {given!r}: give one or more values, such as [8, 16, 32]")
    texts = tuple(str(value) for value in given)
    if len(set(texts)) < len(texts):
        raise BadInput(f"{where} is {given!r}: give each value once")
    return Choice(texts)


def _range(where: str, given: Any, usual: Any) -> Range:
    whole = {"whole": True} if isinstance(usual, int) and not isinstance(usual, bool) else {}
    try:
        return TypeAdapter(Range).validate_python({**given, **whole} if isinstance(given, Mapping) else given)
    except ValidationError as error:
        first = error.errors()[0]
        place, said = "".join(f", {part}" for part in first["loc"]), first["msg"].removeprefix("Value error, ")
        problem = f"{where}{place}: {said} (found {first['input']!r:.60})"
        raise BadInput(f"{problem}; give {{low: L, high: H, log: true}} or a list of values") from None


def _check_ends(where: str, method: Method[Any], preset: str, dataset: str, name: str, part: Range | Choice) -> None:
    """Refuse a space that holds settings which no run could have."""
    ends = part.values if isinstance(part, Choice) else (spelt(part.low), spelt(part.high))
    for end in ends:
        if name == "rounds" and not (end.isdecimal() and int(end) >= 1):
            raise BadInput(f"{where}: {end} cannot be: give whole numbers of 1 or more")
        try:
            configure(method, preset=preset, dataset=dataset, settings=[f"{name}={end}"])
        except BadInput as error:
            raise BadInput(f"{where}: {end} cannot be: {error}") from None


PATIENCE = 5  # evaluations without gain after which a trial ends, where rounds are free
MAX_TRIALS = 100_000
BEST = "best.yaml"
_SEARCH, _JOURNAL, _RESULT = "search.yaml", "optuna.journal", "trial.json"
# Another seed has other test items, which this search may have seen.
SPLIT_BY_SEED = ("ratio-8-2", "holdout-users", "holdout-users-liked", "holdout-records")


@dataclass(frozen=True)
class Attempt:
    """One trial: what is trained, where, and its number in Optuna's study."""

    number: int
    request: RunRequest
    folder: Path


@dataclass(frozen=True)
class Score:
    """What came of a trial: the validation metric, and after how many rounds; or why there is none."""

    value: float | None
    rounds: int = 0
    seconds: float = 0.0
    problem: str = ""


@dataclass(frozen=True)
class Tuned:
    """The end of a search."""

    request: RunRequest  # the best settings, to train with
    metric: str
    value: float  # on validation items
    popularity: float  # the same metric of the items' counts
    at_start: float | None  # the same metric with the preset's own settings, where the space holds them
    trials: int
    failed: int
    private: bool  # whether a run with these settings promises anything
    folder: Path

    def caveat(self) -> str:
        """What has to be said about settings that were searched for; beside a promise, that it does not cover them."""
        chosen = (
            f"The settings were chosen by {counted(self.trials, 'trial')} on the validation items of the same people"
        )
        return f"{chosen} without noise: no epsilon covers that choice." if self.private else f"{chosen}."


def tune(
    request: RunRequest,
    *,
    space: Path | None = None,
    trials: int = 20,
    out: Path | None = None,
    jobs: int = 1,
    say: Say = lambda _: None,
) -> Tuned:
    """Search until there are so many trials in the folder, going on with those that are there."""
    require("veilrec tune", "optuna")
    check_jobs(jobs)
    if not 1 <= trials <= MAX_TRIALS:
        raise BadInput(f"--trials is {trials}: it must be from 1 to {MAX_TRIALS:,}")
    request = in_full(request)
    method, dataset = get(request.method), request.dataset
    config, rounds = request.configured()
    if space is None:
        chosen = _without(default_space(method, config, rounds), request)
    else:
        chosen = read_space(space, method, request.preset, dataset)
        _refuse_both(space, chosen, request)
    request = replace(
        request,
        data=absolute(request.data),
        protocol=request.protocol or default_protocol(load(request.data)),
        patience=None if method.rounds_are_fixed else PATIENCE,
    )
    prepared = prepare(replace(request, patience=None), searching=True)  # refuses what no trial could be
    metric, split = prepared.schedule.watch, prepared.split
    popularity = evaluate(split.test, split.train, baseline("popularity", split, request.seed))[metric]
    folder = out or Path(os.environ.get("VEILREC_RUNS", "runs")) / f"tune-{method.name}-{dataset}"
    usual = {**dict(leaves(config.model_dump())), "rounds": rounds}
    private = method.guarantee(config).basis != "none"
    if private:
        say(f"{method.name}: a search looks at people's validation items without noise; no guarantee covers it.")
    if _inside(chosen, usual) is None:
        say(f"The preset {request.preset} lies outside of the space: its own settings are not tried.")
    with _alone(folder):
        _open(folder, request, chosen)
        search = _Search(folder, request, chosen, trials, usual)
        try:
            search.go_on(jobs, metric, say)
        except Interrupted as stop:
            raise Interrupted(f"{stop}; the same command goes on from there") from None
        return _finish(search, metric, popularity, private=private)


def _given(request: RunRequest) -> dict[str, str]:
    """Options of the command line by the settings that they give."""
    given = {setting.partition("=")[0].strip(): f"--set {setting}" for setting in request.settings}
    return given if request.rounds is None else given | {"rounds": f"--rounds {request.rounds}"}


def _without(space: Space, request: RunRequest) -> Space:
    """A setting that the user gave is not searched for."""
    left = {name: part for name, part in space.items() if name not in _given(request)}
    if not left:
        raise BadInput("every setting with a usual range is given by --set: give --space FILE, or fewer of them")
    return left


def _refuse_both(file: Path, space: Space, request: RunRequest) -> None:
    """A setting is searched for or given, not both."""
    given = _given(request)
    both = [name for name in space if name in given]
    if both:
        raise BadInput(f"--space {file} searches for {both[0]}, and {given[both[0]]} gives it: leave one of them out")


def _without_validators(request: RunRequest) -> RunRequest:
    """A trial is judged by what training does, also where validation clients would have kept the start instead."""
    if "validators" not in get(request.method).config.model_fields or speaks_of(request.settings, "validators"):
        return request
    return replace(request, settings=(*request.settings, "validators.share=0"))


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Nobody else searches in this folder; a lock that goes with its process."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise BadInput(f"another search is at work in {folder}: wait for it, or give another --out") from None
        (folder / f"{_JOURNAL}.lock").unlink(missing_ok=True)  # of one that was killed
        yield


def _open(folder: Path, request: RunRequest, space: Space) -> None:
    """Write what the search is, or see that it is the one that was asked for."""
    asked = {**asdict(request), "settings": list(request.settings), "caveats": list(request.caveats)}
    code = code_of(request.method)
    plain = {name: list(part.values) if isinstance(part, Choice) else asdict(part) for name, part in space.items()}
    today = {"veilrec": __version__, **asked, **({} if code is None else {"code": code}), "space": plain}
    path = folder / _SEARCH
    if not path.exists():
        others = [path.name for path in folder.iterdir() if path.name != ".lock"]
        if others:
            raise BadInput(f"{folder} holds something else ({others[0]}): choose another --out")
        write_text(path, yaml.safe_dump(today, sort_keys=False, allow_unicode=True))
        return
    try:
        saved = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError):
        saved = None
    if not isinstance(saved, dict):
        raise BadInput(f"{path} is damaged: choose another --out")
    for name, value in today.items():
        if saved.get(name) != value:
            raise BadInput(
                f"cannot go on with the search in {folder}: its {name} is {saved.get(name)!r}, now asked for {value!r};"
                " ask for the same, or choose another --out"
            )


class _Search:
    """Optuna's study, and the trials that it asks for."""

    def __init__(self, folder: Path, request: RunRequest, space: Space, trials: int, usual: Mapping[str, Any]) -> None:
        import optuna
        from optuna.storages.journal import JournalFileBackend

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.folder, self.request, self.space, self.trials = folder, request, space, trials
        journal = folder / _JOURNAL
        _cut_torn_line(journal)
        storage = optuna.storages.JournalStorage(JournalFileBackend(str(journal)))
        self.study = optuna.create_study(storage=storage, study_name="tune", direction="maximize", load_if_exists=True)
        states = optuna.trial.TrialState
        self._complete, self._fail = states.COMPLETE, states.FAIL
        first = [trial for trial in self.study.trials if trial.number == 0]
        if not first and (start := _inside(space, usual)) is not None:
            self.study.enqueue_trial(start, user_attrs={"start": True})
        for lost in self.study.get_trials(states=(states.RUNNING,)):
            self.study.tell(lost.number, state=states.FAIL)
            self.study.enqueue_trial(lost.params, user_attrs=lost.user_attrs)
        self.running: dict[int, optuna.Trial] = {}

    def done(self) -> list[optuna.trial.FrozenTrial]:
        """Trials with an outcome; those that a kill cut off were begun anew and do not count."""
        trials = self.study.get_trials(deepcopy=False)
        return [t for t in trials if t.state == self._complete or "problem" in t.user_attrs]

    def go_on(self, jobs: int, metric: str, say: Say) -> None:
        """Try until there are enough."""
        before = len(self.done())
        if before:
            say(f"{counted(before, 'trial')} of {self.trials} done before.")
        waiting = self._waiting()
        finished = in_processes(try_one, waiting, jobs) if jobs > 1 else ((one, try_one(one)) for one in waiting)
        for attempt, score in finished:
            self._tell(attempt, score)
            rounds = [f"rounds={attempt.request.rounds}"] if "rounds" in self.space else []
            settings = " ".join([*attempt.request.settings[len(self.request.settings) :], *rounds])
            came = score.problem or f"{metric} {score.value:.4f} on validation items, best {self.study.best_value:.4f}"
            say(f"trial {len(self.done())}/{self.trials}: {came}; {settings}; {score.seconds:.0f} s")

    def attempt(self, number: int, params: Mapping[str, Any]) -> Attempt:
        """What a trial trains; a choice of rounds is one of the request."""
        settings = [f"{name}={spelt(value)}" for name, value in params.items() if name != "rounds"]
        request = replace(self.request, settings=(*self.request.settings, *settings))
        if "rounds" in params:
            request = replace(request, rounds=int(params["rounds"]))
        digest = hashlib.sha256(json.dumps([request.settings, request.rounds]).encode()).hexdigest()[:12]
        return Attempt(number, request, self.folder / "trials" / digest)

    def _waiting(self) -> Iterator[Attempt]:
        from optuna.samplers import TPESampler

        while (begun := len(self.done()) + len(self.running)) < self.trials:
            # By seed and place alone, so that a search that was killed goes on as if it had not been.
            key = hashlib.sha256(f"{self.request.seed} {begun}".encode()).digest()
            self.study.sampler = TPESampler(seed=int.from_bytes(key[:4], "big"), constant_liar=True)
            trial = self.study.ask()
            params = {name: _suggest(trial, name, self.space[name]) for name in self.space}
            self.running[trial.number] = trial
            yield self.attempt(trial.number, params)

    def _tell(self, attempt: Attempt, score: Score) -> None:
        trial = self.running.pop(attempt.number)
        if score.value is None:
            trial.set_user_attr("problem", score.problem)
            self.study.tell(trial, state=self._fail)
        else:
            self.study.tell(trial, score.value)


def _suggest(trial: optuna.Trial, name: str, part: Any) -> Any:
    if isinstance(part, Choice):
        return trial.suggest_categorical(name, part.values)
    if part.whole:
        return trial.suggest_int(name, int(part.low), int(part.high), log=part.log)
    return trial.suggest_float(name, part.low, part.high, log=part.log)


def _inside(space: Space, usual: Mapping[str, Any]) -> dict[str, Any] | None:
    """The preset's own settings as a point of the space, where it holds them."""
    start: dict[str, Any] = {}
    for name, part in space.items():
        value = usual.get(name)
        if isinstance(part, Choice):
            if str(value) not in part.values:
                return None
            start[name] = str(value)
        else:
            if not isinstance(value, int | float) or not part.low <= value <= part.high:
                return None
            start[name] = value
    return start


def _cut_torn_line(journal: Path) -> None:
    """A kill in the middle of a line leaves a piece of it, which would spoil the next one."""
    if journal.exists():
        content = journal.read_bytes()
        if content and not content.endswith(b"\n"):
            with journal.open("r+b") as target:
                target.truncate(content.rfind(b"\n") + 1)


def try_one(attempt: Attempt) -> Score:
    """Train one and measure it on validation items; read it where that was done before."""
    result = attempt.folder / _RESULT
    attempt.folder.mkdir(parents=True, exist_ok=True)
    with (attempt.folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another process may be training the same settings: wait and read them
        if result.exists():
            return Score(**json.loads(result.read_text(encoding="utf-8")))
        try:
            score = _train(attempt)
        except Interrupted:
            raise
        except VeilrecError as error:
            score = Score(None, problem=f"failed: {error}")
        write_json(result, asdict(score))
        shutil.rmtree(attempt.folder / "checkpoints", ignore_errors=True)
        return score


def _train(attempt: Attempt) -> Score:
    request, fixed = _without_validators(attempt.request), attempt.request.patience is None
    prepared = prepare(replace(request, patience=None), searching=True)
    split, schedule = prepared.split, prepared.schedule
    schedule = replace(schedule, patience=request.patience)
    if fixed:
        schedule = replace(schedule, evaluate_every=schedule.rounds)  # only the last round counts
    progress = loop.run(
        attempt.folder,
        prepared.trainer,
        schedule,
        lambda model: evaluate(split.test, split.train, model),
        split_name="valid",
        resume=True,
        rates=learning_rates(prepared.method.config),
    )
    if fixed or progress.best_value is None:
        return Score(progress.metrics[schedule.watch], progress.rounds_done, round(progress.seconds, 3))
    return Score(progress.best_value, progress.best_round, round(progress.seconds, 3))


def _finish(search: _Search, metric: str, popularity: float, *, private: bool) -> Tuned:
    done = search.done()
    problems: Sequence[str] = [trial.user_attrs["problem"] for trial in done if "problem" in trial.user_attrs]
    if len(problems) == len(done):
        raise VeilrecError(f"no trial could be trained; the first: {problems[0]}")
    best = search.study.best_trial  # the highest value; of equal ones the first
    attempt = search.attempt(best.number, best.params)
    score = try_one(attempt)
    starts = [trial.value for trial in done if "start" in trial.user_attrs and trial.value is not None]
    tuned = Tuned(
        request=replace(attempt.request, rounds=score.rounds, patience=None),
        metric=metric,
        value=float(best.value or 0.0),
        popularity=popularity,
        at_start=starts[0] if starts else None,
        trials=len(done),
        failed=len(problems),
        private=private,
        folder=search.folder,
    )
    tuned = replace(tuned, request=replace(tuned.request, caveats=(tuned.caveat(),), searched=attempt.request.data))
    head = (
        f"# The best of {counted(tuned.trials, 'trial')}: {metric} {tuned.value:.4f} on validation items"
        f" (popularity: {popularity:.4f}).\n"
    )
    write_text(search.folder / BEST, head + write_request(tuned.request))
    return tuned
