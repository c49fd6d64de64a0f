"""What the package stands on: hashed pins, and a bill of materials of an environment.

    python tools/supply_chain.py hashes            write hashes/demo.txt and hashes/test.txt, from the registry of pip
    python tools/supply_chain.py install demo      install these pins, each file checked; other platforms: say so
    python tools/supply_chain.py isolation         the option of pip by which our own build needs nothing else
    python tools/supply_chain.py materials [FILE]  a CycloneDX bill of what is installed, to FILE or standard output

Hashes are of wheels for one version of Python and one platform, which the files name; elsewhere `constraints.txt` alone
holds the versions. torch is left out: its builds for processors and for GPUs have one version and differ by registry.
No address is written down, so that any registry will do that has the same files.
"""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PARTS = {"demo": "train,report,release,serve", "test": "dev"}  # a file of hashes for each; later ones add to earlier
LEFT_OUT = frozenset({"torch", "veilrec"})
BUILD = ("hatchling", "editables")  # of our own wheel
_PIN = re.compile(r"(?P<name>[\w.-]+)==(?P<version>[\w.!+-]+) --hash=sha256:(?P<hash>[0-9a-f]{64})")
_NAME = re.compile(r"[-_.]+")


def normalised(name: str) -> str:
    """The name of a package as registries compare it."""
    return _NAME.sub("-", name).lower()


def here() -> str:
    """Version of Python and platform that wheels are for."""
    libc = "glibc" if platform.libc_ver()[0] == "glibc" else "other libc"
    python = f"{platform.python_implementation()} {sys.version_info.major}.{sys.version_info.minor}"
    return f"{python}, {platform.system()} {platform.machine()}, {libc}"


def pins(part: str, root: Path = ROOT) -> dict[str, tuple[str, str]]:
    """Version and hash of every package in a file of hashes."""
    lines = [line for line in (root / "hashes" / f"{part}.txt").read_text("utf-8").splitlines() if line[:1] != "#"]
    matches = [_PIN.fullmatch(line) for line in lines]
    if None in matches:
        raise SystemExit(f"hashes/{part}.txt: {lines[matches.index(None)]!r} is no name==version --hash=sha256:...")
    return {normalised(pin["name"]): (pin["version"], pin["hash"]) for pin in matches if pin is not None}


def write_hashes() -> None:
    """Ask pip what it would install, and write down the hashes of the files."""
    known: set[str] = set()
    for part, extras in PARTS.items():
        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder) / "report.json"
            wanted = [f"{ROOT}[{extras}]", *BUILD, "--only-binary", ":all:", "-c", str(ROOT / "constraints.txt")]
            options = ["--quiet", "--dry-run", "--ignore-installed", "--report", str(report)]
            subprocess.run([sys.executable, "-m", "pip", "install", *options, *wanted], check=True)
            found = json.loads(report.read_text("utf-8"))["install"]
        lines = {}
        for one in found:
            name, version = normalised(one["metadata"]["name"]), one["metadata"]["version"]
            if name not in LEFT_OUT and name not in known:
                lines[name] = (
                    f"{name}=={version} --hash=sha256:{one['download_info']['archive_info']['hashes']['sha256']}"
                )
        known |= set(lines)
        head = f"# {here()}\n# written by: python tools/supply_chain.py hashes; without {', '.join(sorted(LEFT_OUT))}\n"
        (ROOT / "hashes").mkdir(exist_ok=True)
        text = head + "".join(f"{lines[name]}\n" for name in sorted(lines))
        (ROOT / "hashes" / f"{part}.txt").write_text(text, encoding="utf-8")


def install(part: str, options: Sequence[str] = (), root: Path = ROOT) -> bool:
    """Install the pins of a file, each wheel checked against its hash; False where they are for another platform."""
    path = root / "hashes" / f"{part}.txt"
    made_for = path.read_text("utf-8").partition("\n")[0].removeprefix("# ")
    if made_for != here():
        print(f"hashes/{part}.txt is for {made_for}; this is {here()}: versions alone are checked", file=sys.stderr)
        return False
    checked = ["--require-hashes", "--no-deps", "--only-binary", ":all:", "-r", str(path)]
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", *checked, *options], check=True)
    return True


def _needed(name: str, extras: frozenset[str]) -> Iterator[tuple[str, frozenset[str]]]:
    """The installed packages that one needs here, each with the extras that it needs of it."""
    from packaging.requirements import Requirement  # what the pins bring; `install` runs before there are any

    for line in distribution(name).requires or ():
        found = Requirement(line)
        wanted = found.marker is None or any(found.marker.evaluate({"extra": extra}) for extra in ("", *extras))
        if wanted and _installed(found.name) is not None:
            yield normalised(found.name), frozenset(map(normalised, found.extras))


def _installed(name: str) -> Distribution | None:
    try:
        return distribution(name)
    except PackageNotFoundError:
        return None


def closure(extras: str) -> dict[str, set[str]]:
    """All installed packages that veilrec with these extras needs, with what each of them needs."""
    edges: dict[str, set[str]] = {}
    waiting, seen = [("veilrec", frozenset(map(normalised, extras.split(","))))], set()
    while waiting:
        name, wanted = waiting.pop()
        if (name, wanted) in seen:
            continue
        seen.add((name, wanted))
        needed = list(_needed(name, wanted))
        edges.setdefault(name, set()).update(one for one, _ in needed if one != name)
        waiting += needed
    return edges


def materials(extras: str = "all") -> dict[str, Any]:
    """A bill of materials in the form of CycloneDX 1.5: packages, versions, licences, hashes, and who needs whom."""
    hashes = {name: pin for part in PARTS for name, pin in pins(part).items()}
    edges = closure(extras)
    components = [_component(name, hashes) for name in sorted(edges) if name != "veilrec"]
    made = os.environ.get("SOURCE_DATE_EPOCH")
    moment = datetime.now(UTC) if made is None else datetime.fromtimestamp(int(made), UTC)
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "timestamp": moment.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "component": _component("veilrec", {}) | {"type": "application"},
            "properties": [{"name": "veilrec:environment", "value": here()}],
        },
        "components": components,
        "dependencies": [
            {"ref": _reference(name), "dependsOn": sorted(map(_reference, edges[name]))} for name in sorted(edges)
        ],
    }


def _reference(name: str) -> str:
    return f"pkg:pypi/{name}@{distribution(name).version}"


def _component(name: str, hashes: dict[str, tuple[str, str]]) -> dict[str, Any]:
    known, reference = distribution(name), _reference(name)
    found: dict[str, Any] = {"type": "library", "bom-ref": reference, "name": name, "version": known.version}
    found["purl"] = reference
    fields = known.metadata.json
    licence = str(fields.get("license_expression") or fields.get("license") or "")
    if licence and "\n" not in licence:
        found["licenses"] = [{"license": {"name": licence}}]
    version, digest = hashes.get(name, ("", ""))
    if version == known.version:
        found["hashes"] = [{"alg": "SHA-256", "content": digest}]
    return found


def main(arguments: Sequence[str]) -> None:
    """Do what the first argument says."""
    match list(arguments):
        case ["hashes"]:
            write_hashes()
        case ["install", part, *options] if part in PARTS:
            install(part, options)
        case ["isolation"]:
            print("--no-build-isolation" if all(find_spec(name) is not None for name in BUILD) else "")
        case ["materials", *rest] if len(rest) < 2:
            text = json.dumps(materials(), indent=2) + "\n"
            Path(rest[0]).write_text(text, encoding="utf-8") if rest else sys.stdout.write(text)
        case _:
            raise SystemExit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
