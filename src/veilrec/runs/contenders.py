"""Methods as a comparison names them: `fedmf`, `dp-fedmf:privacy.epsilon=4`, `mf:best.yaml`, `mine.py:damping=0.5`.

Behind the colon stand what only this one has: settings, `rounds=N`, `preset=P`, or a file as `train --config` reads it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from veilrec.data.datasets import DATASETS
from veilrec.errors import BadInput, unknown_name, written_name
from veilrec.methods.base import configure, ready, setting_names
from veilrec.methods.registry import METHODS, full_name, get, short_name
from veilrec.runs.config_file import make_request, read_config_file
from veilrec.runs.request import Request, in_full

_FILE = re.compile(r"(.+?\.py(?::[^\W\d]\w*(?=:|$))?)(?::(.*))?$")  # FILE.py or FILE.py:NAME, and what is set
_COMMAS = re.compile(r",(?![^\[]*\])")  # but not those of a list such as [16, 8]


@dataclass(frozen=True)
class Contender:
    """A method with the settings that it runs under; its request has no seed yet."""

    label: str
    request: Request


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
    twice = [
        spec.label for number, spec in enumerate(parsed) if spec.label in {other.label for other in parsed[:number]}
    ]
    if twice:
        raise BadInput(f"{twice[0]} is given twice: give each once, or with other settings")
    fitting, notes = _shared(settings, parsed)
    contenders = []
    for spec in parsed:
        own = (*fitting[spec.label], *spec.settings)
        asked = {name: value for name, value in given.items() if value is not None}
        asked |= {"method": spec.method, **spec.options}
        one_step = get(spec.method).rounds == 1  # such as ease, which is solved and done
        if one_step or any(setting.partition("=")[0].strip() == "rounds" for setting in own):
            asked.pop("rounds", None)
        file = None
        if spec.file is not None:
            file = read_config_file(spec.file)
            if "preset" in file.asked and "preset" not in spec.options:
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


def _check(request: Request) -> None:
    """Refuse what cannot be trained before anything is."""
    method, dataset = get(request.method), request.data.partition(":")[0]
    config, _ = configure(method, preset=request.preset, dataset=dataset, settings=request.settings)
    if dataset in DATASETS and dataset not in method.datasets:
        raise BadInput(
            f"{method.name} does not learn from {dataset}, but from {', '.join(method.datasets)}: leave it out, or give"
            " other --data"
        )
    ready(method, config)
