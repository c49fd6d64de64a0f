"""The processes of devices: they end with the one that started them, and no two work on one folder."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.federation.loopback import until
from veilrec.federation import processes
from veilrec.federation.client import process
from veilrec.federation.facts import FederationFacts
from veilrec.federation.processes import alone_in


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing to compile, little patience, and the handlers of signals as they were."""
    monkeypatch.setattr(process, "warm", lambda _: None)
    monkeypatch.setattr(process, "_LAST_BREATH_SECONDS", 0.2)
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def sleeper(folder: Path, _known: FederationFacts, _say: Callable[[str], None], stop: threading.Event) -> bool:
    (folder / "pid").write_text(str(os.getpid()))
    while not stop.wait(60.0) or (folder / "deaf").exists():
        time.sleep(0.05)
    return False


def devices_in(folder: Path) -> list[Path]:
    places = [folder / "d00000", folder / "d00001"]
    for place in places:
        place.mkdir()
    return places


def hosted(places: list[Path]) -> tuple[int, list[int]]:
    """A host in a process of its own, and its devices."""
    known: Any = None
    host = os.fork()
    if host == 0:
        try:
            process.run_devices(places, known, lambda _: None, sleeper)
        except KeyboardInterrupt:
            os._exit(130)
        os._exit(0)
    until(lambda: all((place / "pid").is_file() and (place / "pid").read_text() for place in places))
    return host, [int((place / "pid").read_text()) for place in places]


def test_devices_end_with_a_host_that_was_killed(tmp_path: Path) -> None:
    host, devices = hosted(devices_in(tmp_path))
    assert all(processes.started_at(pid) for pid in devices)
    os.kill(host, signal.SIGKILL)
    os.waitpid(host, 0)
    until(lambda: not any(processes.started_at(pid) for pid in devices))


def test_a_second_process_on_a_device_is_refused(tmp_path: Path) -> None:
    places, told = devices_in(tmp_path), tmp_path / "told"
    known: Any = None

    def say(words: str) -> None:
        told.write_text(words)

    with alone_in(places[0], "held"):
        assert not process.run_devices(places[:1], known, say, sleeper)
    refused = f"veilrec: d00000 takes no part any more: {places[0]} is at work in another process"
    assert told.read_text().startswith(refused)


def test_a_lock_goes_with_whoever_was_killed(tmp_path: Path) -> None:
    places = devices_in(tmp_path)
    host, devices = hosted(places)
    os.kill(devices[0], signal.SIGKILL)
    until(lambda: (places[0] / "pid").read_text() not in ("", str(devices[0])))  # it was started again, and got in
    os.kill(host, signal.SIGKILL)
    os.waitpid(host, 0)


def test_an_interrupted_host_says_so_when_its_devices_have_left(tmp_path: Path) -> None:
    places = devices_in(tmp_path)
    (places[1] / "deaf").touch()  # as one that waits for what its coordinator says
    host, devices = hosted(places)
    os.kill(host, signal.SIGINT)
    _, status = os.waitpid(host, 0)
    assert os.waitstatus_to_exitcode(status) == 130
    assert not any(processes.started_at(pid) for pid in devices)
