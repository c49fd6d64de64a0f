"""From a trained model to somebody's device: audited, released, served, asked; as the demo does it and tells of it."""

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

from veilrec._words import counted
from veilrec.device.client import Answer, Client, Item, Mode
from veilrec.device.released import offers_of
from veilrec.device.server_link import ServerLink
from veilrec.errors import VeilrecError
from veilrec.report.html import Markup, section, table, tag
from veilrec.runs.release import Wishes, make_release
from veilrec.runs.released import open_device
from veilrec.wire.releases import Release
from veilrec.wire.signing import fingerprint, new_key

_K = 10
_START_SECONDS = 60.0
_SHOWN: tuple[Mode, ...] = ("none-sent", "interest", "nobody")  # the lists that the report prints
_COMMAND = "from veilrec.cli.main import run; run()"
_WAYS: tuple[tuple[Mode, str], ...] = (
    ("none-sent", "nothing: the device ranks by itself"),
    ("interest", "one of a few interests, or a lie; the device ranks what comes back"),
    ("attention", "a noisy mix of interests; the server ranks"),
    ("pooled", "a noisy sum of what was read; the server ranks"),
    ("plain", "the exact user vector; the server ranks"),
    ("nobody", "nothing: the list is not personal"),
)


@dataclass(frozen=True)
class Asked:
    """One way of asking: what left the device, and what came of it."""

    mode: Mode
    how: str
    answer: Answer
    same: int  # of the ten, how many the device would rank highest by itself
    fitting: int  # how many are of the categories that the person reads most

    def to_json(self) -> dict[str, Any]:
        """For `veilrec demo --json`."""
        promise = None if self.answer.guarantee is None else self.answer.guarantee.to_json()
        sent = 0 if self.answer.sent is None else len(self.answer.sent)
        return {
            "mode": self.mode,
            "used": self.answer.mode,
            "sent_bytes": sent,
            "guarantee": promise,
            "same_as_on_the_device": self.same,
            "of_favourite_categories": self.fitting,
            "items": [item.id for item in self.answer.items],
        }


@dataclass(frozen=True)
class Service:
    """What came of serving."""

    audit: dict[str, Any] | None  # None: it was not attacked here
    release: Release
    history: Sequence[str]
    asked: Sequence[Asked]

    def to_json(self) -> dict[str, Any]:
        """For `veilrec demo --json`."""
        return {
            "audit": self.audit and {"method": self.audit["method"], "holds": self.audit["holds"]},
            "release": {
                "name": self.release.name,
                "version": self.release.version,
                "family": self.release.family,
                "key": self.release.key.hex(),
            },
            "read": len(self.history),
            "asked": [one.to_json() for one in self.asked],
        }


def audited(method: str, seed: int) -> dict[str, Any]:
    """What the audit of a method's plan found, quickly."""
    from veilrec.methods.audit import audit_method

    return audit_method(method, quick=True, seed=seed).to_json()


def released(run: Path, folder: Path) -> Release:
    """The run, signed with a key of its own."""
    return make_release(run, folder, new_key(folder.with_name(f"{folder.name}.key")), Wishes())


@contextmanager
def served(release: Path) -> Iterator[str]:
    """`veilrec serve` in a process of its own, on any free port of this machine; its address."""
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


def asked(release: Release, address: str | None, history: Sequence[str], category_of: dict[str, str]) -> list[Asked]:
    """Every way of asking that the release offers, as a new device each, with the same history.

    Without an address there is nobody to ask, and nothing that a device needs of anybody.
    """
    offered = {*offers_of(release), "none-sent", "nobody"}
    read = [category_of.get(item, "") for item in history]
    favourites = sorted(set(read), key=lambda name: -read.count(name))[:3]
    found: list[Asked] = []
    own: set[str] = set()
    for mode, how in _WAYS:
        if mode not in offered:
            continue
        with _device(release, address) as device:
            device.read(*history)
            answer = device.recommend(_K, mode)
        own = {item.id for item in answer.items} if mode == "none-sent" else own
        same = sum(item.id in own for item in answer.items)
        fitting = sum(category_of.get(item.id, "") in favourites for item in answer.items)
        found.append(Asked(mode, how, answer, same, fitting))
    return found


@contextmanager
def _device(release: Release, address: str | None) -> Iterator[Client]:
    with (
        tempfile.TemporaryDirectory(prefix="veilrec-device-") as state,
        open_device(Path(state), release, server=None if address is None else ServerLink(address)) as device,
    ):
        yield device


def story(service: Service, command: str) -> Markup:
    """The part of the report."""
    release, alone = service.release, service.release.family == "catalogue"
    rows = [_row(one) for one in service.asked]
    size = sum(about["bytes"] for about in release.manifest["files"].values())
    return section(
        "From the model to a device that asks nobody" if alone else "From the model to a reader",
        tag("p", *_audit_words(release.method, service.audit)),
        tag(
            "p",
            f"Released as {release.name}, version {release.version}: {size:,} bytes in"
            f" {counted(len(release.manifest['files']), 'file')}, signed by key {fingerprint(release.key)}."
            f" {release.guarantee.line()}. A device checks the signature, every hash and every shape, and never takes"
            " an older version after a newer one.",
        ),
        tag("p", _alone(service) if alone else _two_processes(service)),
        table(["what is sent", "bytes", "promise", "as on the device", "of favourite topics"], rows, numbers=(1, 3, 4)),
        *(() if alone else (_bars(service.asked), _ANECDOTE)),
        tag(
            "div",
            *(_list(one) for one in service.asked if one.mode in ("none-sent", "interest", "nobody")),
            class_="columns",
        ),
        tag(
            "p",
            f"To {'pick' if alone else 'read'} on that page yourself: ",
            tag("code", command),
            " and open the address that it prints.",
        ),
    )


def _two_processes(service: Service) -> str:
    return (
        f"Then a server and a device, two processes, on this machine. The device has read"
        f" {counted(len(service.history), 'story', 'stories')} and asks in every way that there is; it takes out what"
        " was read by itself."
    )


def _alone(service: Service) -> str:
    on_device = service.asked[0].answer
    return (
        f"A device has it, and {counted(len(service.history), 'film')} of its owner. {' '.join(on_device.notes)} No"
        " query is ever sent: there is no server to trust with one, and nothing to account for; nor in the browser."
    )


_ANECDOTE = tag(
    "p",
    "As on the device: how many of the ten the device would have chosen by itself, with the exact history. One person"
    " and one draw of the noise are an anecdote; ",
    tag("code", "veilrec evaluate RUN --serving all --epsilon 1,5"),
    " measures it.",
    class_="note",
)


def _audit_words(method: str, audit: dict[str, Any] | None) -> list[object]:
    if audit is None:
        return ["What was trained is attacked by ", tag("code", f"veilrec audit {method} --quick"), "."]
    held = len([check for check in audit["checks"] if check["holds"]])
    canary = audit.get("canary")
    attack = ""
    if canary:
        attack = (
            f" A canary that a whole training was attacked for gives at least epsilon {canary['epsilon_lower']:.2f}, in"
            " the terms of the promise."
        )
    verdict = "holds" if audit["holds"] else "DOES NOT HOLD"
    told = f"{held} of {len(audit['checks'])} checks hold; it {verdict}.{attack}"
    return [tag("code", f"veilrec audit {audit['method']} --quick"), f": {told}"]


def _row(one: Asked) -> list[object]:
    answer = one.answer
    promise = "epsilon 0: nothing is sent" if answer.sent is None else "none"
    if answer.guarantee is not None and answer.sent is not None:
        promise = answer.guarantee.line()
    sent = 0 if answer.sent is None else len(answer.sent)
    name = Markup(tag("span", one.mode) + tag("span", one.how, class_="small"))
    return [
        name,
        f"{sent}",
        Markup(tag("span", promise, class_="small")),
        f"{one.same} of {_K}",
        f"{one.fitting} of {_K}",
    ]


def _bars(asked: Sequence[Asked]) -> Markup:
    """How much of the device's own list each way gives, as bars."""
    lines, height = [], 26
    for number, one in enumerate(asked):
        y, width = number * height, 30 * one.same
        lines.append(f'<text x="0" y="{y + 17}" font-size="13" fill="currentColor">{one.mode}</text>')
        lines.append(f'<rect x="90" y="{y + 5}" width="300" height="16" rx="3" fill="currentColor" opacity="0.12"/>')
        lines.append(f'<rect x="90" y="{y + 5}" width="{width}" height="16" rx="3" fill="#2f6db5"/>')
        sent = 0 if one.answer.sent is None else len(one.answer.sent)
        words = f"{one.same} of {_K}, {sent} bytes sent"
        lines.append(f'<text x="400" y="{y + 17}" font-size="13" fill="currentColor">{words}</text>')
    total = len(asked) * height
    label = "How many of the ten that the device would choose by itself each way of asking gives"
    svg = f'<svg viewBox="0 0 560 {total}" role="img" aria-label="{label}">{"".join(lines)}</svg>'
    return tag("figure", Markup(svg), tag("figcaption", f"{label}."))


def _list(one: Asked) -> Markup:
    items: Sequence[Item] = one.answer.items[:6]
    return tag("div", tag("h4", one.mode), tag("ol", *(tag("li", item.title or item.id) for item in items)))
