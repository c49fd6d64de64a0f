"""`veilrec federate link`: Flower's SuperLink behind our door, its nodes registered, and our app running on it.

One process that looks after the link, and starts the app again where it was when the link or the app dies. Whether a
run is over says the coordinator's own folder, and not Flower.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from veilrec._files import write_text
from veilrec.errors import BadInput, VeilrecError
from veilrec.federate import processes
from veilrec.federate.coordinator.flower_door import CAP, PUBLIC, listen
from veilrec.federate.facts import Known, largest_answer
from veilrec.federate.federation import CA, COORDINATOR, DEVICES
from veilrec.federate.flower_app import write_app
from veilrec.federate.flower_keys import node_key, public_half

FOLDER, LOG = "flower", "link.log"
_LINK_SECONDS = 10.0  # for a link to end by itself
_ROOM = 1 << 20  # bytes of a request beside an answer
_READY_SECONDS, _LOOK_SECONDS = 60.0, 0.5
_APP_SECONDS, _LEAVE_SECONDS = 60.0, 30.0  # for an app to begin with its work, and to say goodbye
_QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
_CONNECTION = """[superlink]
default = "here"

[superlink.here]
address = "{address}"
root-certificates = "{ca}"
"""


class Link:
    """A SuperLink of ours, and the app on it."""

    def __init__(self, folder: Path, known: Known, public: str, say: Callable[[str], None]) -> None:
        self._folder, self._known, self._public, self._say = folder.resolve(), known, public, say
        self._home = self._folder / FOLDER
        self._port = _free_port()  # of everything but the door; on loopback
        host, _, port = public.rpartition(":")
        if not host or not port.isdigit():
            raise BadInput(f"--public is {public!r}: give HOST:PORT, where nodes reach the link")
        listen(host, int(port)).close()  # one clear line now, and not in a log
        self._link: subprocess.Popen[bytes] | None = None

    def run(self, is_up: Callable[[], bool], is_over: Callable[[], bool], stop: threading.Event) -> None:
        """Until the coordinator's folder says that all rounds are over, or somebody stops this."""
        self._home.mkdir(mode=0o700, exist_ok=True)
        app = self._home / "app"
        if not app.is_dir():
            write_app(app, self._folder)
        try:
            while not stop.is_set() and not is_over():
                if self._link is None or self._link.poll() is not None:
                    self._start()
                self._flwr("run", str(app), "here")
                self._watch(is_up, is_over, stop)
        finally:
            self._end()

    def _watch(self, is_up: Callable[[], bool], is_over: Callable[[], bool], stop: threading.Event) -> None:
        """While the app is at work, or may still begin."""
        seen = time.monotonic()
        while not stop.is_set() and not is_over():
            if self._link is None or self._link.poll() is not None:
                self._say("the link was killed: it is started again where it was")
                return
            if is_up():
                seen = time.monotonic()
            elif time.monotonic() - seen > _APP_SECONDS:
                self._say("the app on the link does not work: it is started again")
                return
            stop.wait(_LOOK_SECONDS)
        until = time.monotonic() + _LEAVE_SECONDS
        while not stop.is_set() and is_up() and time.monotonic() < until:  # nodes are told that it is over
            stop.wait(_LOOK_SECONDS)

    def _start(self) -> None:
        tls, ca = self._folder / COORDINATOR, self._folder / CA
        address = f"127.0.0.1:{self._port}"
        home = self._home / "home"
        home.mkdir(mode=0o700, exist_ok=True)
        write_text(home / "config.toml", _CONNECTION.format(address=address, ca=ca))
        options = {
            "--host": "127.0.0.1",
            "--port": self._port,
            "--ssl-certfile": tls / "tls.pem",
            "--ssl-keyfile": tls / "tls.key",
            "--ssl-ca-certfile": ca,
            "--database": self._home / "link.db",
        }
        command = [sys.executable, "-m", "veilrec.federate.coordinator.flower_door"]
        command += [str(part) for pair in options.items() for part in pair]
        command += ["--enable-supernode-auth", "--disable-runtime-dependency-installation"]
        cap = str(largest_answer(self._known) + _ROOM)
        with (self._home / LOG).open("ab") as log:
            self._link = subprocess.Popen(  # noqa: S603 - ourselves
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._env({PUBLIC: self._public, CAP: cap}),
                start_new_session=True,  # a Ctrl-C is for us, and we end it
            )
        self._register()

    def _register(self) -> None:
        """Every device of this machine, and whoever's public key lies in `flower/nodes`; known ones stay."""
        until = time.monotonic() + _READY_SECONDS
        for place in sorted((self._folder / DEVICES).glob("*")):
            node_key(place)
        keys = [public_half(place) for place in sorted((self._folder / DEVICES).glob("*")) if place.is_dir()]
        keys += sorted((self._home / "nodes").glob("*.pub"))
        for key in keys:
            while True:
                try:
                    self._flwr("supernode", "register", str(key), "here")
                    break
                except VeilrecError as error:
                    if "already" in str(error).lower():
                        break
                    if self._link is None or self._link.poll() is not None or time.monotonic() > until:
                        raise
                    time.sleep(_LOOK_SECONDS)

    def _flwr(self, *arguments: str) -> None:
        """A command of Flower; what it has to say when it fails is our error."""
        command = [str(Path(sys.executable).with_name("flwr")), *arguments]
        done = subprocess.run(  # noqa: S603 - Flower's own command, installed beside us
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=self._env({}), check=False
        )
        if done.returncode:
            lines = [line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip()]
            raise VeilrecError(f"flwr {arguments[0]}: {' '.join(lines[-3:]) or 'failed'}")

    def _env(self, more: Mapping[str, str]) -> dict[str, str]:
        beside = Path(sys.executable).parent  # where Flower's own commands are, which it starts by their names
        path = f"{beside}{os.pathsep}{os.environ.get('PATH', '')}"
        return {**os.environ, **_QUIET, "PATH": path, "FLWR_HOME": str(self._home / "home"), **more}

    def _end(self) -> None:
        """End the link, and whatever it started."""
        if self._link is None:
            return
        grown = _grown(self._link.pid)  # before their parents are gone
        self._link.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._link.wait(_LINK_SECONDS)
        if self._link.poll() is None:
            self._link.kill()
            self._link.wait()
        for process in grown:
            if process.is_alive:
                with suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)


def _grown(pid: int) -> list[processes.Process]:
    """Everything that a process has started, and what that has."""
    return [found for child in processes.children(pid) for found in (processes.of("app", child), *_grown(child))]


def _free_port() -> int:
    found = listen("127.0.0.1", 0)
    port: Sequence[int] = found.getsockname()
    found.close()
    return int(port[1])
