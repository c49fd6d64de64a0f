"""A federation carried by Flower, on the coordinator's side: the SuperLink behind our own routes, and its messages.

`Link` (`veilrec federate link`) looks after a SuperLink, registers its nodes, and starts our app on it again where it
was when the link or the app dies. Whether a run is over is read from the coordinator's own folder, and not from Flower.

`Carrier` moves messages between the driver and the nodes that are there. Nodes are asked who they are; a node counts
as a client only by a signature of the client's key over a number that was drawn for it, and an answer only by one over
the answer. So Flower, and whoever runs it, can lose messages and cannot make any. A message has as long as its round;
whoever does not answer is asked again.

`LinkFilter` (`python -m veilrec.federation.coordinator.flower_server`) stands between the SuperLink and the public.
A SuperLink as it comes must not be exposed: whoever can reach it and knows its certificate can start a run, which runs
code on the server, and a body is read before anybody is asked who sends it. With this filter the public socket has the
Fleet routes that nodes need and no others, with a cap on bodies that holds before anything is parsed; everything else
is on loopback. Arguments are those of `flower-superlink`; the public socket and the cap come from the environment.
"""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from veilrec.core.errors import BadInput, VeilrecError
from veilrec.core.files import write_text
from veilrec.federation import federation, identity, processes
from veilrec.federation import flower_messages as flower
from veilrec.federation.coordinator.driver import RoundDriver, StoreBusy
from veilrec.federation.coordinator.process import Control, coordinate
from veilrec.federation.coordinator.registry import NotInvited
from veilrec.federation.facts import FederationFacts, largest_answer
from veilrec.federation.federation import CA, CLIENTS, COORDINATOR, DECLINED, FederationTask
from veilrec.serving.requests import Receive, Scope, Send

if TYPE_CHECKING:  # the extra `flower`
    from flwr.app import Context
    from flwr.serverapp import Grid, ServerApp


_HELLO_SECONDS = 60.0  # that a node has to say who it is
_AGAIN_SECONDS = 5.0  # before a node that did not answer is asked again
_NODES_SECONDS = 1.0  # between looks at which nodes there are
_SMALL = 4096


class FlowerGrid(Protocol):
    """The part of Flower that is used."""

    def nodes(self) -> Iterable[int]:
        """List the nodes that are connected now."""

    def push(self, outgoing: Sequence[tuple[int, flower.MessageFields, float]]) -> Sequence[str | None]:
        """Send messages to nodes, each with the seconds it has; the names that their answers go by."""

    def pull(self, names: Sequence[str]) -> Iterable[tuple[str, flower.MessageFields | None]]:
        """The answers that have come; None for one that went wrong."""


@dataclass(frozen=True)
class _Sent:
    """A message that waits for its answer."""

    node: int
    client: str | None  # None: it asked for it
    task: FederationTask | None
    nonce: bytes
    until: float


class Carrier:
    """Moves messages between a driver and Flower; one thread calls `turn`, again and again."""

    def __init__(
        self, driver: RoundDriver, grid: FlowerGrid, say: Callable[[str], None], *, largest_answer: int
    ) -> None:
        self._driver, self._grid, self._say, self._cap = driver, grid, say, largest_answer
        self._federation = driver.federation
        self._clients: dict[int, str] = {}  # by node
        self._sent: dict[str, _Sent] = {}
        self._not_before: dict[int, float] = {}
        self._told_over: set[int] = set()
        self._looked = -_NODES_SECONDS
        self._nodes: list[int] = []

    def turn(self) -> None:
        """Send what is to be sent, and take in what has come."""
        now = time.monotonic()
        if now - self._looked >= _NODES_SECONDS:
            self._nodes, self._looked = list(self._grid.nodes()), now
        self._send(now)
        self._collect(now)

    @property
    def everybody_knows(self) -> bool:
        """Whether every node that is a client was told that it is over."""
        return self._told_over >= {node for node in self._nodes if node in self._clients}

    def _send(self, now: float) -> None:
        waiting = {sent.node for sent in self._sent.values()}
        drafts: list[tuple[flower.MessageFields, _Sent]] = []
        for node in self._nodes:
            if node in waiting or self._not_before.get(node, 0.0) > now:
                continue
            client = self._clients.get(node)
            if client is None:
                nonce = secrets.token_bytes(32)
                hello: flower.MessageFields = {"ask": flower.HELLO, "nonce": nonce}
                drafts.append((hello, _Sent(node, None, None, nonce, now + _HELLO_SECONDS)))
            else:
                drafts += self._task_for(node, client, now)
        names = self._grid.push([(sent.node, fields, sent.until - now) for fields, sent in drafts]) if drafts else []
        for name, (_, sent) in zip(names, drafts, strict=True):
            if name is None:  # the node has gone meanwhile
                self._later(sent.node, now)
            else:
                self._sent[name] = sent

    def _task_for(self, node: int, client: str, now: float) -> list[tuple[flower.MessageFields, _Sent]]:
        queue = self._driver.queue
        task = queue.task_for(client)
        if task is None:
            return []
        if task.kind == "over":
            if node in self._told_over:
                return []
            self._told_over.add(node)
            self._driver.see(client)
            return [(flower.task_fields(task, b""), _Sent(node, client, task, b"", now + _AGAIN_SECONDS))]
        content = queue.content(client, task.sha256) if task.sha256 else b""
        if content is None or task.seconds <= 0.0:  # the round has ended meanwhile
            return []
        self._driver.see(client)
        return [(flower.task_fields(task, content), _Sent(node, client, task, b"", now + task.seconds))]

    def _collect(self, now: float) -> None:
        for name, fields in self._grid.pull(list(self._sent)) if self._sent else ():
            sent = self._sent.pop(name, None)
            if sent is None:
                continue
            if fields is None or "declined" in fields:
                self._later(sent.node, now)
                continue
            try:
                self._take(sent, fields)
            except StoreBusy:
                self._later(sent.node, now)
            except VeilrecError as error:
                self._say(f"an answer by way of Flower is not taken: {error}")
                self._later(sent.node, now)
        for name in [name for name, sent in self._sent.items() if sent.until < now]:
            del self._sent[name]

    def _later(self, node: int, now: float) -> None:
        self._not_before[node] = now + _AGAIN_SECONDS

    def _take(self, sent: _Sent, fields: flower.MessageFields) -> None:
        if sent.client is None or sent.task is None:
            self._meet(sent, fields)
            return
        if flower.text(fields, "client") != sent.client:
            raise flower.BadFlowerMessage("a node answers for another client than it said it is")
        entry = self._driver.registry.find(sent.client)
        if entry is None or entry.key is None or entry.revoked:
            raise NotInvited("this device was revoked")
        answer, task = flower.raw(fields, "answer", self._cap), sent.task
        signed = flower.raw(fields, "signature", _SMALL)
        kind = DECLINED if flower.text(fields, "kind") == DECLINED else task.kind
        identity.check(entry.key, self._federation.id, sent.client, kind, task.number, answer, signed)
        self._driver.take(sent.client, kind, task.number, answer)

    def _meet(self, sent: _Sent, fields: flower.MessageFields) -> None:
        """Enrol a node as a client: by the client's own key, which its invitation endorses."""
        client, made = flower.text(fields, "client"), self._federation
        if flower.text(fields, "federation") != made.id or flower.text(fields, "plan") != made.plan:
            raise flower.BadFlowerMessage("a node is of another federation, or has another version of the plan")
        key = flower.raw(fields, "key", _SMALL)
        identity.check(key, made.id, client, flower.HELLO, 0, sent.nonce, flower.raw(fields, "signature", _SMALL))
        place = self._driver.registry.enrol(made.id, client, key, flower.raw(fields, "endorsement", _SMALL))
        self._clients[sent.node] = place.client
        self._driver.see(place.client)
        self._driver.enrolled()


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

    def __init__(self, folder: Path, known: FederationFacts, public: str, say: Callable[[str], None]) -> None:
        self._folder, self._known, self._public, self._say = folder.resolve(), known, public, say
        self._home = self._folder / FOLDER
        self._port = _free_port()  # of everything but the public socket; on loopback
        host, _, port = public.rpartition(":")
        if not host or not port.isdigit():
            raise BadInput(f"--public is {public!r}: give HOST:PORT, where nodes reach the link")
        listen(host, int(port)).close()  # one clear line now, and not in a log
        self._link: subprocess.Popen[bytes] | None = None

    def run(self, is_up: Callable[[], bool], is_over: Callable[[], bool], stop: threading.Event) -> None:
        """Run until the coordinator's folder says that all rounds are over, or `stop` is set."""
        self._home.mkdir(mode=0o700, exist_ok=True)
        app = self._home / "app"
        if not app.is_dir():
            flower.write_app(app, self._folder)
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
        command = [sys.executable, "-m", "veilrec.federation.coordinator.flower_server"]
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
        """Register the clients of this machine and the public keys in `flower/nodes`; known ones stay."""
        until = time.monotonic() + _READY_SECONDS
        for place in sorted((self._folder / CLIENTS).glob("*")):
            flower.node_key(place)
        keys = [flower.public_half(place) for place in sorted((self._folder / CLIENTS).glob("*")) if place.is_dir()]
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


_TURN_SECONDS = 0.1
_GOODBYE_SECONDS = 10.0  # for nodes to hear that it is over


class GridAdapter:
    """Flower's grid as a post; its own loop would sleep three seconds between looks."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid

    def nodes(self) -> Iterable[int]:
        """List the nodes that are connected now."""
        return list(self._grid.get_node_ids())

    def push(self, outgoing: Sequence[tuple[int, flower.MessageFields, float]]) -> Sequence[str | None]:
        """Send messages."""
        from flwr.app import Message, MessageType

        messages = [
            Message(flower.record_of(fields), node, MessageType.QUERY, ttl=ttl) for node, fields, ttl in outgoing
        ]
        return [name or None for name in self._grid.push_messages(messages)]

    def pull(self, names: Sequence[str]) -> Iterable[tuple[str, flower.MessageFields | None]]:
        """Answers that have come."""
        for reply in self._grid.pull_messages(names):
            try:
                fields: flower.MessageFields | None = flower.fields_of(reply)
            except flower.BadFlowerMessage:
                fields = None
            yield reply.metadata.reply_to_message_id, fields


def server_app() -> ServerApp:
    """Make the ServerApp: the coordinator with its HTTPS transport, and a carrier beside it.

    Clients may come by way of Flower or by HTTPS, also both in one federation. Flower's run, its state and its
    strategies decide nothing: whatever happens to them, the coordinator goes on from its own folder when the app is
    started again.
    """
    from flwr.serverapp import ServerApp

    app = ServerApp()

    @app.main()  # type: ignore[untyped-decorator]
    def main(grid: Grid, context: Context) -> None:
        """Run all rounds that are left."""
        folder = Path(str(context.run_config.get("federation", "")))
        carry(folder, FederationFacts(folder, federation.read(folder)), grid)

    return app


def carry(folder: Path, known: FederationFacts, grid: Grid) -> None:
    """Run the coordinator of a folder, with Flower's nodes as clients, until the rounds are over."""
    flower.check_plaintext(known.federation)
    control, failure = Control(), list[BaseException]()

    def work() -> None:
        try:
            coordinate(
                folder, known, lambda url: flower.log_line(f"coordinating, by Flower and at {url}"), control=control
            )
        except BaseException as error:
            failure.append(error)
        control.ready.set()

    thread = threading.Thread(target=work, name="coordinator")
    thread.start()
    control.ready.wait()
    if control.driver is not None:
        carrier = Carrier(control.driver, GridAdapter(grid), flower.log_line, largest_answer=largest_answer(known))
        until = float("inf")
        while thread.is_alive() and time.monotonic() < until:
            carrier.turn()
            if control.driver.queue.over and until == float("inf"):
                until = time.monotonic() + _GOODBYE_SECONDS
            if control.driver.queue.over and carrier.everybody_knows:
                break
            time.sleep(_TURN_SECONDS)
        if control.driver.queue.over:
            control.stop()
    thread.join()
    if failure:
        raise failure[0] if isinstance(failure[0], VeilrecError) else VeilrecError(str(failure[0]))


PUBLIC, CAP = "VEILREC_LINK_PUBLIC", "VEILREC_LINK_CAP"
_FLEET = "/v1/fleet/"


class LinkFilter:
    """Lets Fleet requests through on the public socket, and bodies up to a cap on any."""

    def __init__(self, app: Any, *, public_port: int, cap: int) -> None:
        self._app, self._public_port, self._cap = app, public_port, cap

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if scope["server"][1] == self._public_port and not scope["path"].startswith(_FLEET):
            await _refuse(send, 404)
            return
        lengths = [value for name, value in scope["headers"] if name == b"content-length"]
        if any(not value.isdigit() or len(value) > 15 or int(value) > self._cap for value in lengths):
            await _refuse(send, 413)
            return
        read = 0

        async def counted() -> Any:
            nonlocal read
            part = await receive()
            read += len(part.get("body", b""))
            return {"type": "http.disconnect"} if read > self._cap else part

        await self._app(scope, counted, send)


async def _refuse(send: Send, status: int) -> None:
    headers = [(b"content-length", b"0"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b""})


def listen(host: str, port: int) -> socket.socket:
    """A socket that is taken already is one line."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    opened = socket.socket(family)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        opened.bind((host, port))
    except OSError as error:
        opened.close()
        raise BadInput(f"{host}:{port} cannot be listened at ({error.strerror}): choose another port") from None
    opened.listen(512)
    return opened


def main() -> None:
    """The link, at its own address and at the public one."""
    import uvicorn
    from flwr.superlink.cli.flower_superlink import SuperLinkLifespan, _parse_superlink_lifespan_config
    from flwr.superlink.main import create_app

    config = _parse_superlink_lifespan_config()
    host, _, port = os.environ[PUBLIC].rpartition(":")
    app = LinkFilter(create_app(config, SuperLinkLifespan), public_port=int(port), cap=int(os.environ[CAP]))
    settings = uvicorn.Config(
        app,
        ssl_keyfile=config.ssl_keyfile,
        ssl_certfile=config.ssl_certfile,
        access_log=False,
        log_level="warning",
        workers=1,
    )
    uvicorn.Server(settings).run(sockets=[listen(config.host, int(config.port)), listen(host, int(port))])


if __name__ == "__main__":
    main()
