"""Run requests in files: config.yaml of a run, best.yaml of a search, or one written by the user.

The file has the names of a request (method, data, seed, protocol, preset, settings, rounds, ...). config.yaml also says
what all settings came to (`config`): what the method's defaults or presets of today would give otherwise is set as the
file has it, so that the same file gives the same model.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import yaml
from pydantic import TypeAdapter, ValidationError

from veilrec.core.errors import BadInput, unknown_name, written_name
from veilrec.methods.base import leaves
from veilrec.methods.plugins import is_file
from veilrec.methods.registry import exists, full_name, short_name, source_of
from veilrec.runs.checkpoint import CONFIG
from veilrec.runs.request import RunRequest

_ASKED = tuple(part.name for part in fields(RunRequest))
_OF_DATA = ("cut", "rating_scale", "users", "items", "rows")
_TOLD = ("veilrec", "method_from", "config", "nominal_people", *_OF_DATA)  # what config.yaml says beside what was asked
KNOWN = (*_ASKED, *_TOLD)


@dataclass(frozen=True)
class ConfigFile:
    """What a file asks for."""

    path: Path
    asked: Mapping[str, Any]  # fields of a request
    method_from: str = ""  # where a method of others lies: a package, or a file, which is run only if the user names it
    config: Mapping[str, Any] = field(default_factory=dict)  # what all settings came to; empty where it does not say


def read_config_file(path: Path) -> ConfigFile:
    """Read a file, or config.yaml of the folder of a run; names that mean nothing are refused."""
    path = path / CONFIG if path.is_dir() else path
    found = read_names("--config", path, "method: fedmf")
    unknown = [str(name) for name in found if name not in KNOWN]
    if unknown:
        more = f" (and {len(unknown) - 1} more: {', '.join(unknown[1:])})" if len(unknown) > 1 else ""
        raise BadInput(f"--config {path}: {unknown_name('name', unknown[0], KNOWN)}{more}")
    asked = {name: value for name, value in found.items() if name in _ASKED}
    if isinstance(asked.get("start_from"), dict):  # as config.yaml has it
        asked["start_from"] = asked["start_from"].get("run")
    asked["settings"] = as_settings(found.get("settings") or (), f"--config {path}: settings")
    config = found.get("config") or {}
    if not isinstance(config, dict):
        raise BadInput(f"--config {path}: config is {config!r}: it is what settings came to, by name; leave it out")
    return ConfigFile(path, asked, str(found.get("method_from") or ""), config)


def read_names(option: str, path: Path, example: str) -> dict[str, Any]:
    """Read a YAML file of names with values."""
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInput(f"{option} {path} cannot be read ({error.strerror}): give a YAML file") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise BadInput(f"{option} {path} is no YAML ({' '.join(str(error).split())}): give a YAML file") from None
    if not isinstance(found, dict) or not found:
        raise BadInput(f"{option} {path} is no list of names and values: write lines such as `{example}`")
    return found


def as_settings(given: Mapping[str, Any] | Iterable[str], where: str = "settings") -> tuple[str, ...]:
    """Settings as --set takes them, from a mapping or from texts "name=value"."""
    if isinstance(given, Mapping):
        return tuple(f"{name}={_spelt(value)}" for name, value in leaves(given))
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise BadInput(f"{where} are {given!r}: give a list of name=value, or names with values")
    texts = tuple(given)
    wrong = [text for text in texts if not isinstance(text, str)]
    if wrong:
        raise BadInput(f"{where}: {wrong[0]!r} is no name=value")
    return texts


def make_request(
    file: ConfigFile | None, given: Mapping[str, Any], settings: Sequence[str] = ()
) -> tuple[RunRequest, tuple[str, ...]]:
    """A request by what was given, which wins, and a file; beside it what the user may want to know.

    `given` has fields of a request but for the settings, which come over those of the file.
    """
    if file is None:
        return _checked({**given, "settings": tuple(settings)}, "the command"), ()
    asked = dict(file.asked)
    if any(_name(setting) == "rounds" for setting in settings):
        asked.pop("rounds", None)
    _check_method(file, given.get("method"))
    kept = [setting for setting in asked.pop("settings") if _name(setting) not in {_name(s) for s in settings}]
    request = _checked({**asked, **given, "settings": (*kept, *settings)}, f"--config {file.path}")
    elsewhere = [name for name in ("data", "preset") if name in given and given[name] != asked.get(name, given[name])]
    if not file.config:
        return request, ()
    if elsewhere:
        return request, (f"with another {' and '.join(elsewhere)} than the file's, only its settings are taken over",)
    return _as_it_was(file, request, {_name(setting) for setting in settings})


def _check_method(file: ConfigFile, named: str | None) -> None:
    """A file and the user speak of one method; a method that lies in a file is run only if the user names that file."""
    wanted = file.asked.get("method")
    if not isinstance(wanted, str):
        return
    if named is not None:
        mine = short_name(named)
        same = full_name(named) == full_name(wanted) if is_file(wanted) else written_name(mine, [wanted]) is not None
        if not same:
            raise BadInput(f"{file.path} is for {wanted}, and {mine} was asked for: leave one of them out")
        return
    if is_file(wanted) or (file.method_from and not exists(wanted)):
        where = wanted if is_file(wanted) else file.method_from.removesuffix(":METHOD")
        raise BadInput(
            f"{file.path} is of a method in {where}, and no --config makes code run by itself: if you trust that file,"
            f" name it, veilrec train {where} --config {file.path}"
        )


def _as_it_was(file: ConfigFile, request: RunRequest, over: set[str]) -> tuple[RunRequest, tuple[str, ...]]:
    """The request with settings for all that today's defaults and presets would give otherwise."""
    now = dict(leaves(request.configured()[0].model_dump(mode="json")))
    then = dict(leaves(file.config))
    changed = {name: value for name, value in then.items() if name not in over and now.get(name, ...) != value}
    if not changed:
        return request, ()
    kept = [setting for setting in request.settings if _name(setting) not in changed]
    exact = replace(request, settings=(*kept, *as_settings(changed)))
    exact.configured()  # refuses settings that the method does not have
    few = ", ".join(f"{name}={_spelt(value)}" for name, value in list(changed.items())[:3])
    more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
    return exact, (f"set as in the file, otherwise than by default: {few}{more}",)


def _checked(values: Mapping[str, Any], where: str) -> RunRequest:
    if values.get("method") is None:
        raise BadInput(f"{where} names no method: give one, such as fedmf; see `veilrec methods`")
    if values.get("data") is None:
        raise BadInput(f"{where} names no data: give --data; see `veilrec data list`")
    try:
        return TypeAdapter(RunRequest).validate_python(dict(values))
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"])
        raise BadInput(f"{where}: {name} is {first['input']!r}: {first['msg'].lower()}") from None


def _name(setting: str) -> str:
    return setting.partition("=")[0].strip()


def _spelt(value: Any) -> str:
    """A value as --set reads it."""
    return json.dumps(value) if isinstance(value, list | tuple) or value is None else str(value)


def write_request(request: RunRequest, told: Mapping[str, Any] | None = None) -> str:
    """A file that asks for this request, as YAML; only what is not usual."""
    usual = asdict(RunRequest(request.method, request.data))
    asked: dict[str, Any] = {"method": request.method}
    if is_file(request.method):
        asked = {"method": short_name(request.method), "method_from": source_of(request.method)}
    for name, value in asdict(request).items():
        if name == "data" or value != usual[name]:
            asked[name] = list(value) if isinstance(value, tuple) else str(value) if isinstance(value, Path) else value
    return yaml.safe_dump({**asked, **(told or {})}, sort_keys=False, allow_unicode=True)
