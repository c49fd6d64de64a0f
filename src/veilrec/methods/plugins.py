"""Plugins: methods of installed packages, methods in files, and the scaffold of a new one (`veilrec new method`).

A package registers its methods as entry points of the group `veilrec.methods`. Their names are known without importing
anything; an import error is reported when the method is requested, and affects no other.
"""

from __future__ import annotations

import hashlib
import importlib.util
import keyword
import re
import sys
import traceback
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

from veilrec._version import __version__
from veilrec.core.errors import BadInput, VeilrecError, written_name

if TYPE_CHECKING:
    from veilrec.methods.base import Method

GROUP = "veilrec.methods"
_USUAL = "METHOD"  # what a file calls its method unless told otherwise
_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")


def check_name(name: str, typed: str | None = None) -> None:
    """Raise BadInput for a name that cannot be a method, a folder and a part of a command."""
    if not _NAME.fullmatch(name):
        raise BadInput(
            f"{(typed or name)!r} cannot be the name of a method: use small letters and digits, with single dashes"
            " between, starting with a letter, for example my-method"
        )


@dataclass(frozen=True)
class PluginMethod:
    """A method of an installed package."""

    name: str
    package: str  # with its version
    entry: EntryPoint

    def method(self) -> Method[Any]:
        """Import the method; raise BadInput that names the package on any error."""
        try:
            found = self.entry.load()
        except Exception as error:
            raise BadInput(
                f"the method {self.name} of the package {self.package} cannot be imported ({_reason(error)}):"
                " mend the package, or uninstall it"
            ) from None
        return _checked(found, f"{self.entry.value} of the package {self.package}", self.name)


@dataclass(frozen=True)
class InstalledPlugins:
    """Plugins by name, and one line for each that is refused."""

    found: Mapping[str, PluginMethod]
    refused: tuple[str, ...]


def installed(ours: Collection[str]) -> InstalledPlugins:
    """Find the plugins of installed packages; names of built-in methods and duplicates are refused."""
    return _sorted_out(tuple(ours))


@cache
def _sorted_out(ours: tuple[str, ...]) -> InstalledPlugins:
    by_name: dict[str, list[PluginMethod]] = {}
    for entry in entry_points(group=GROUP):
        package = f"{entry.dist.name} {entry.dist.version}" if entry.dist is not None else "an unknown package"
        by_name.setdefault(entry.name, []).append(PluginMethod(entry.name, package, entry))
    found, refused = {}, []
    for name, candidates in sorted(by_name.items()):
        packages = " and ".join(sorted({one.package for one in candidates}))
        if written_name(name, ours) is not None:
            refused.append(f"{packages} brings a method {name}, which is the name of a built-in one: it is left out")
        elif not _NAME.fullmatch(name):
            refused.append(
                f"{packages} brings a method {name!r}: small letters, digits and dashes only; it is left out"
            )
        elif len({one.entry.value for one in candidates}) > 1:
            refused.append(f"{packages} all bring a method {name}: none is taken; uninstall all but one")
        else:
            found[name] = candidates[0]
    return InstalledPlugins(found, tuple(refused))


def is_file(name: str) -> bool:
    """Whether a method is named by a file: FILE.py or FILE.py:NAME."""
    return _parts(name) is not None


def whole_path(name: str) -> str:
    """Absolute path of a file and the attribute in it, as FILE.py:NAME."""
    path, attribute = _parts(name) or (name, _USUAL)
    return f"{Path(path).expanduser().resolve()}:{attribute}"


def digest(name: str) -> str:
    """Digest of the file of a method, to detect changes."""
    path, attribute = _parts(whole_path(name)) or (name, _USUAL)
    return f"{hashlib.sha256(Path(path).read_bytes()).hexdigest()}:{attribute}"


def of_file(name: str) -> Method[Any]:
    """Run a file and return the method in it."""
    path, attribute = _parts(whole_path(name)) or (name, _USUAL)
    module = _run(Path(path))
    found = getattr(module, attribute, None)
    if found is None:
        raise BadInput(f"{path} has no {attribute}: write FILE.py:NAME with the name of a Method in it")
    return _checked(found, f"{attribute} in {path}")


@cache
def _run(path: Path) -> Any:
    if not path.is_file():
        raise BadInput(f"{path} is not there: give the file of a method, or a name from `veilrec methods`")
    digest = hashlib.sha256(str(path).encode()).hexdigest()[:12]
    spec = importlib.util.spec_from_file_location(f"veilrec_method_{digest}", path)
    if spec is None or spec.loader is None:
        raise BadInput(f"{path} cannot be read as Python: give a file with a Method in it")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and pydantic look their module up
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[spec.name]
        line = next((f"line {at.lineno}, " for at in reversed(_frames(error)) if at.filename == str(path)), "")
        raise BadInput(f"{path} cannot be run ({line}{_reason(error)}): mend it and try again") from None
    return module


def _checked(found: object, where: str, name: str | None = None) -> Method[Any]:
    from veilrec.methods.base import Method

    if not isinstance(found, Method):
        raise BadInput(
            f"{where} is no Method but a {type(found).__name__}: see docs/researcher.md for how to write one"
        )
    check_name(found.name)
    if name is not None and found.name != name:
        raise BadInput(f"{where} is registered as {name} and calls itself {found.name}: give both one name")
    return found


def _parts(name: str) -> tuple[str, str] | None:
    if name.endswith(".py"):
        return name, _USUAL
    path, colon, attribute = name.rpartition(":")
    return (path, attribute) if colon and path.endswith(".py") and attribute.isidentifier() else None


def _reason(error: Exception) -> str:
    told = (str(error).splitlines() or [""])[0]
    return told if isinstance(error, VeilrecError) else f"{type(error).__name__}: {told}"


def _frames(error: Exception) -> traceback.StackSummary:
    return traceback.extract_tb(error.__traceback__)


@dataclass(frozen=True)
class Written:
    """The scaffold that was written."""

    name: str
    folder: Path
    module: str  # the file with the method, in the folder
    files: tuple[str, ...]


def write_template(name: str, out: Path | None = None) -> Written:
    """Write the scaffold of a method into a new folder: a small package that trains, with its tests."""
    from veilrec.core.files import new_folder, refuse_existing
    from veilrec.methods.registry import names

    typed, name = name, name.strip().lower()
    check_name(name, typed)
    if written_name(name, names()) is not None:
        raise BadInput(f"{name} is the name of a method that is there already: choose another")
    module = name.replace("-", "_")
    if keyword.iskeyword(module) or _is_taken(module):
        raise BadInput(f"{name} would make a Python module {module}, a name that is taken: choose another")
    folder = Path(name) if out is None else out
    refuse_existing(folder)
    kind = "".join(part.capitalize() for part in name.split("-"))
    values = {"name": name, "module": module, "kind": kind, "version": __version__}
    files = {
        "pyproject.toml": "pyproject.toml.txt",
        f"src/{module}.py": "method.py.txt",
        f"tests/test_{module}.py": "test.py.txt",
        "README.md": "README.md.txt",
    }
    with new_folder(folder) as part:
        for path, template in files.items():
            text = (Path(__file__).parent / "scaffold" / template).read_text(encoding="utf-8")
            (part / path).parent.mkdir(exist_ok=True)
            (part / path).write_text(Template(text).substitute(values), encoding="utf-8")
    return Written(name, folder, f"src/{module}.py", tuple(files))


def _is_taken(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return True
