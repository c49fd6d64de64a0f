"""The second half of the demo: audit a plan, release the model, serve it, query it in every serving mode."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

from veilrec.client.recommender import Mode, Recommendations, RecommenderClient, ServerLink
from veilrec.client.released import offers_of
from veilrec.core.errors import VeilrecError, counted
from veilrec.runs.release import ReleaseOptions, make_release
from veilrec.runs.release_model import open_device
from veilrec.wire.releases import Release
from veilrec.wire.signing import fingerprint, new_key

_K = 10
_START_SECONDS = 60.0
_COMMAND = "from veilrec.cli.main import run; run()"
_MODES: dict[Mode, str] = {
    "none-sent": "nothing is sent: on-device ranking",
    "interest": "one interest by randomised response; the device ranks the answer",
    "attention": "a noisy mix of interests; the server ranks",
    "pooled": "a noisy sum of the history; the server ranks",
    "plain": "the exact user vector; the server ranks",
    "nobody": "nothing is sent: non-personalised",
}


@dataclass(frozen=True)
class ModeResult:
    """Answer of one serving mode, and how it compares with on-device ranking."""

    mode: Mode
    answer: Recommendations
    same: int  # how many of the ten on-device ranking chooses as well
    fitting: int  # how many are of the categories that the person reads most

    @property
    def sent_bytes(self) -> int:
        """Size of the query."""
        return 0 if self.answer.sent is None else len(self.answer.sent)

    def to_json(self) -> dict[str, Any]:
        """Return what `veilrec demo --json` prints."""
        return {
            "mode": self.mode,
            "used": self.answer.mode,
            "sent_bytes": self.sent_bytes,
            "guarantee": None if self.answer.guarantee is None else self.answer.guarantee.to_json(),
            "same_as_on_the_device": self.same,
            "of_favourite_categories": self.fitting,
            "items": [item.id for item in self.answer.items],
        }

    def row(self) -> list[object]:
        """Return the table row of the report."""
        guarantee = "none" if self.answer.guarantee is None else self.answer.guarantee.line()
        if self.answer.sent is None:
            guarantee = "epsilon 0: nothing is sent"
        cells = [(self.mode, _MODES[self.mode]), str(self.sent_bytes), ("", guarantee)]
        return [*cells, f"{self.same} of {_K}", f"{self.fitting} of {_K}"]


@dataclass(frozen=True)
class ServiceDemo:
    """A released model with its audit, and the answers of every serving mode."""

    audit: dict[str, Any] | None  # None: not audited by the demo
    release: Release
    history: Sequence[str]
    results: Sequence[ModeResult]

    def to_json(self) -> dict[str, Any]:
        """Return what `veilrec demo --json` prints."""
        return {
            "audit": self.audit and {"method": self.audit["method"], "holds": self.audit["holds"]},
            "release": {
                "name": self.release.name,
                "version": self.release.version,
                "family": self.release.family,
                "key": self.release.key.hex(),
            },
            "read": len(self.history),
            "asked": [one.to_json() for one in self.results],
        }

    def rows(self) -> list[list[object]]:
        """Return the table rows of the report, one for each serving mode."""
        return [one.row() for one in self.results]

    def audit_words(self) -> str:
        """Summarise the audit in sentences; empty without one."""
        if self.audit is None:
            return ""
        held, verdict = sum(check["holds"] for check in self.audit["checks"]), self.audit["holds"]
        words = f"{held} of {len(self.audit['checks'])} checks hold; it {'holds' if verdict else 'DOES NOT HOLD'}."
        canary = self.audit.get("canary")
        if canary:
            bound = f"epsilon >= {canary['epsilon_lower']:.2f}"
            words += f" A canary in a whole training proves {bound}, in the terms of the guarantee."
        return words

    def release_words(self) -> str:
        """Describe the release in sentences: size, key, guarantee, what a client verifies."""
        release, files = self.release, self.release.manifest["files"]
        size = sum(about["bytes"] for about in files.values())
        return (
            f"Released as {release.name}, version {release.version}: {size:,} bytes in {counted(len(files), 'file')},"
            f" signed by key {fingerprint(release.key)}. {release.guarantee.line()}. A client verifies the signature,"
            " every hash and every shape, and never accepts an older version after a newer one."
        )


def audit_plan(method: str, seed: int) -> dict[str, Any]:
    """Audit a method's plan quickly."""
    from veilrec.audit.method import audit_method

    return audit_method(method, quick=True, seed=seed).to_json()


def sign_release(run: Path, folder: Path) -> Release:
    """Release a run, signed with a new key."""
    return make_release(run, folder, new_key(folder.with_name(f"{folder.name}.key")), ReleaseOptions())


@contextmanager
def serve_release(release: Path) -> Iterator[str]:
    """Run `veilrec serve` in a process of its own on a free local port; yield its address."""
    command = [sys.executable, "-c", _COMMAND, "serve", str(release), "--port", "0", "--json"]
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)  # noqa: S603
        try:
            line = process.stdout.readline() if process.stdout else ""
            address = str(json.loads(line)["address"]) if line else ""
            if not address or not _ready(address):
                log.seek(0)
                raise VeilrecError(f"the server does not start: {log.read()[-500:].strip() or 'it says nothing'}")
            yield address
        finally:
            process.terminate()
            try:
                process.wait(15.0)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _ready(address: str) -> bool:
    until = time.monotonic() + _START_SECONDS
    while time.monotonic() < until:
        try:
            with urlopen(f"{address}/readyz", timeout=2.0) as answer:  # noqa: S310
                return bool(answer.status == 200)
        except (URLError, OSError):
            time.sleep(0.1)
    return False


def query_all(
    release: Release, address: str | None, history: Sequence[str], category_of: dict[str, str]
) -> list[ModeResult]:
    """Query in every serving mode that a release offers, as a new client each, with the same history.

    Args:
        release: the model, and the serving modes that it offers.
        address: of the server; None for a release that is only ranked on the device.
        history: item ids, the latest last.
        category_of: category of every item id.
    """
    offered = {*offers_of(release), "none-sent", "nobody"}
    read = [category_of.get(item, "") for item in history]
    favourites = sorted(set(read), key=lambda name: -read.count(name))[:3]
    found: list[ModeResult] = []
    own: set[str] = set()
    for mode in _MODES:
        if mode not in offered:
            continue
        with _client(release, address) as client:
            client.read(*history)
            answer = client.recommend(_K, mode)
        own = {item.id for item in answer.items} if mode == "none-sent" else own
        same = sum(item.id in own for item in answer.items)
        fitting = sum(category_of.get(item.id, "") in favourites for item in answer.items)
        found.append(ModeResult(mode, answer, same, fitting))
    return found


@contextmanager
def _client(release: Release, address: str | None) -> Iterator[RecommenderClient]:
    with (
        tempfile.TemporaryDirectory(prefix="veilrec-device-") as state,
        open_device(Path(state), release, server=None if address is None else ServerLink(address)) as device,
    ):
        yield device
