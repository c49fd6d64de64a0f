"""What a search may choose: ranges and choices of settings, from a file or by a rule.

The rule looks at what the preset has: rates within a factor of 10 either way, decays and ridges too, clip norms within
a factor of 4, the length of vectors half, same or double, local epochs and negatives from half to double; rounds of
private methods, whose noise depends on them, from half to double. A promise (epsilon, delta) is never searched for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from veilrec.errors import BadInput, unknown_name
from veilrec.methods.base import Config, Method, configure, leaves, setting_names

PROMISES = ("epsilon", "delta")
_DIGITS = 4  # of a number that was searched for: more say nothing
_SMALLEST_DECAY, _LARGEST_DECAY = 1e-5, 1e-1  # where the preset has none


@dataclass(frozen=True)
class Range:
    """From low to high, both included; whole numbers for a setting that counts."""

    low: float
    high: float
    log: bool = False
    whole: bool = False


@dataclass(frozen=True)
class Choice:
    """One of some values, as --set takes them."""

    values: tuple[str, ...]


Space = Mapping[str, Range | Choice]


def spelt(value: Any) -> str:
    """A value that was searched for, as --set takes it."""
    return f"{value:.{_DIGITS}g}" if isinstance(value, float) else str(value)


def describe(space: Space) -> dict[str, Any]:
    """A space as plain values, for a file."""
    return {name: list(part.values) if isinstance(part, Choice) else asdict(part) for name, part in space.items()}


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
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInput(f"--space {path} cannot be read ({error.strerror}): give a YAML file") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise BadInput(f"--space {path} is no YAML ({' '.join(str(error).split())})") from None
    if not isinstance(found, dict) or not found:
        raise BadInput(f"--space {path} has no settings: write lines such as `local.dim: [8, 16, 32]`")
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
    if not isinstance(given, Mapping):
        raise BadInput(f"{where} is {given!r}: give {{low: L, high: H}} or a list of values")
    for key in given:
        if key not in ("low", "high", "log"):
            raise BadInput(f"{where} has {key!r}: a range has low, high and log")
    low, high = (_number(f"{where}: {key}", given.get(key)) for key in ("low", "high"))
    log = given.get("log", False)
    if not isinstance(log, bool):
        raise BadInput(f"{where}: log is {log!r}: give true or false")
    if low >= high:
        raise BadInput(f"{where}: low is {low} and high is {high}: low has to be below high")
    if log and low <= 0:
        raise BadInput(f"{where}: low is {low}: on a logarithmic scale it has to be above 0")
    whole = isinstance(usual, int) and not isinstance(usual, bool)
    if whole and (low != int(low) or high != int(high)):
        raise BadInput(f"{where} counts something: low and high are whole numbers, not {low} and {high}")
    return Range(low, high, log, whole)


def _number(where: str, value: Any) -> float:
    try:
        number = float(value) if isinstance(value, str) else value  # YAML takes 1e-3 for a text
    except ValueError:
        number = None
    if isinstance(number, bool) or not isinstance(number, int | float) or not math.isfinite(number):
        raise BadInput(f"{where} is {value!r}: give a number")
    return number


def _check_ends(where: str, method: Method[Any], preset: str, dataset: str, name: str, part: Range | Choice) -> None:
    """Refuse a space that holds settings which no run could have."""
    ends = part.values if isinstance(part, Choice) else (spelt(part.low), spelt(part.high))
    for end in ends:
        if name == "rounds" and not _is_count(end):
            raise BadInput(f"{where}: {end} cannot be: give whole numbers of 1 or more")
        try:
            configure(method, preset=preset, dataset=dataset, settings=[f"{name}={end}"])
        except BadInput as error:
            raise BadInput(f"{where}: {end} cannot be: {error}") from None


def _is_count(text: str) -> bool:
    try:
        return int(text) >= 1
    except ValueError:
        return False
