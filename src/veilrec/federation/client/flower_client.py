"""A client behind Flower: it answers messages, and runs no code that a server sends.

The same folder, ledger and outbox as over HTTPS; a message that comes again gets the same bytes again. `run_node` is a
thin node: one long-lived process. A stock SuperNode starts a Python process for every message and unpacks the app that
the link delivers; this one speaks to the link's Fleet API itself and has its own code, its own copy of the plan and its
own folder. It needs the extra `flower`, whose version is pinned because this uses what Flower keeps for itself.
"""

from __future__ import annotations

import hashlib
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from veilrec.core.errors import BadInput, VeilrecError
from veilrec.core.files import Closing
from veilrec.federation import federation, identity
from veilrec.federation import flower_messages as flower
from veilrec.federation.client import folder as client_folder
from veilrec.federation.client.process import RunClient, answers_of
from veilrec.federation.facts import FederationFacts, largest_content
from veilrec.federation.federation import CA, CLIENTS, FederationTask
from veilrec.federation.identity import identity_of, read_invitation
from veilrec.federation.link import Pause, answer_to

if TYPE_CHECKING:  # the extra `flower`
    from flwr.app import Context, Message
    from flwr.clientapp import ClientApp


_NONCE = 32


class FlowerClient(Closing):
    """One client, for as long as it is held."""

    def __init__(self, folder: Path, known: FederationFacts, say: Callable[[str], None]) -> None:
        self._known, self._say = known, say
        self._invitation = read_invitation(folder)
        self._client = client_folder.open_client(folder, known)  # first: a client with a key of its own has a ledger
        self._identity = identity_of(folder)
        self._answers = answers_of(self._client, known, client_folder.read_record(folder).place, self._identity)
        self.is_over = False  # whether the coordinator has said so

    def close(self) -> None:
        """Close the client's folder."""
        self._client.close()

    def reply(self, fields: flower.MessageFields) -> flower.MessageFields:
        """The answer to a message; what cannot or must not be answered is declined."""
        try:
            asked = flower.text(fields, "ask")
            if asked == flower.HELLO:
                return self._introduce(flower.raw(fields, "nonce", _NONCE))
            if asked == flower.TASK:
                return self._do(fields)
            raise flower.BadFlowerMessage(f"a client does not know what {asked!r} is")
        except (VeilrecError, OSError, sqlite3.Error) as error:
            self._say(f"not answered: {error}")
            return flower.DECLINED

    def _introduce(self, nonce: bytes) -> flower.MessageFields:
        made, client = self._known.federation, self._invitation.client
        return {
            "client": client,
            "federation": made.id,
            "plan": made.plan,
            "key": self._identity.public,
            "endorsement": self._invitation.endorse(made.id, self._identity.public),
            "signature": identity.sign(self._identity, made.id, client, flower.HELLO, 0, nonce),
        }

    def _do(self, fields: flower.MessageFields) -> flower.MessageFields:
        task = FederationTask.from_json(flower.text(fields, "task").encode())
        if task is None:
            raise flower.BadFlowerMessage("a message asks for nothing")
        if task.kind == "over":
            self.is_over = True
            self._say("the federation is over")
            return flower.DECLINED
        content = flower.raw(fields, "content", largest_content(self._known))
        if task.sha256 and hashlib.sha256(content).hexdigest() != task.sha256:
            raise flower.BadFlowerMessage("what came is not what was announced")
        task, answer = answer_to(self._answers, task, content, self._say)
        made, client = self._known.federation, self._invitation.client
        self._say(f"{task.kind} {task.number}: answered")
        return {
            "client": client,
            "kind": task.kind,
            "answer": answer,
            "signature": identity.sign(self._identity, made.id, client, task.kind, task.number, answer),
        }


_LOOK_SECONDS = 0.2  # between questions whether there is something
_ROOM = 1 << 16  # bytes of a message beside what a task holds


def run_node(
    folder: Path, known: FederationFacts, link: str, say: Callable[[str], None], stop: threading.Event
) -> bool:
    """Run a client at a link (HOST:PORT of its public socket), until the federation is over; whether it is."""
    pause, told = Pause(stop), ""
    with FlowerClient(folder, known, say) as client:
        while not stop.is_set() and not client.is_over:
            try:
                _live(folder, known, link, client, stop, pause)
            except BadInput:
                raise
            except Exception as error:  # whatever Flower raises when a link is away or says no
                if type(error).__name__ != told:
                    told = type(error).__name__
                    say(f"{link}: {told}; trying again")
                pause.wait()
        return client.is_over


def node_at(link: str) -> RunClient:
    """Clients that come by this link."""
    return lambda folder, known, say, stop: run_node(folder, known, link, say, stop)


def _live(
    folder: Path, known: FederationFacts, link: str, client: FlowerClient, stop: threading.Event, pause: Pause
) -> None:
    from flwr.app import Message
    from flwr.supernode.fleet_http_connection import http_request_response

    key = serialization.load_ssh_private_key(flower.node_key(folder).read_bytes(), None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise BadInput(f"{flower.node_key(folder)} is no key of a node: remove it, and register the new one")
    authority = (known.folder / CA).read_bytes()
    most = largest_content(known) + _ROOM
    with http_request_response(link, False, authority, (key, key.public_key()), 1) as connection:
        _, receive, send, _run, _app, pull, push, confirm = connection
        pause.reset()
        while not stop.is_set() and not client.is_over:
            came = receive()
            if came is None:
                stop.wait(_LOOK_SECONDS)
                continue
            began = time.perf_counter()
            message = _fetched(came, pull, confirm, most)
            try:
                fields = client.reply(flower.fields_of(message))
            except flower.BadFlowerMessage:
                fields = flower.DECLINED
            _deliver(Message(flower.record_of(fields), reply_to=message), send, push, time.perf_counter() - began)


def _fetched(came: tuple[Any, Any], pull: Any, confirm: Any, most: int) -> Message:
    from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
    from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents, pull_objects

    head, tree = came
    run = head.metadata.run_id
    names = [part.object_id for part in iterate_object_tree(tree)]
    contents = pull_objects(names, pull_object_fn=lambda name: pull(run, name))
    if sum(map(len, contents.values())) > most:
        raise flower.BadFlowerMessage(f"a message of more than {most:,} bytes")
    confirm(run, tree.object_id)
    message: Message = inflate_object_from_contents(tree.object_id, contents)
    message.metadata.__dict__["_message_id"] = tree.object_id
    return message


def _deliver(reply: Message, send: Any, push: Any, seconds: float) -> None:
    from flwr.supercore.inflatable.inflatable_object import (
        get_all_nested_objects,
        get_object_tree,
        no_object_id_recompute,
    )

    reply.metadata.__dict__["_message_id"] = reply.object_id
    with no_object_id_recompute():
        wanted, session = send(reply, get_object_tree(reply), seconds)
        for name, part in get_all_nested_objects(reply).items():
            if name in wanted:
                push(reply.metadata.run_id, session, name, part.deflate())


def client_app() -> ClientApp:
    """Make the ClientApp of a stock SuperNode, or of Flower's simulation.

    A SuperNode names its client's folder: `--node-config 'client="PATH"'`, and the federation's by `federation="PATH"`
    where it does not lie two folders above. A simulation has the federation in its run configuration, and node i is its
    i-th client. No exception leaves a client: Flower would send its words to the server.
    """
    from flwr.app import Message
    from flwr.clientapp import ClientApp

    app = ClientApp()

    @app.query()  # type: ignore[untyped-decorator]
    def answer(message: Message, context: Context) -> Message:
        """Answer one message."""
        try:
            folder, place = folders_of(context)
            with FlowerClient(folder, FederationFacts(place, federation.read(place)), flower.log_line) as client:
                fields = client.reply(flower.fields_of(message))
        except (VeilrecError, OSError) as error:
            flower.log_line(str(error))
            fields = flower.DECLINED
        return Message(flower.record_of(fields), reply_to=message)

    return app


def folders_of(context: Context) -> tuple[Path, Path]:
    """The folder of this node's device, and that of its federation."""
    node = context.node_config
    if "client" in node:
        folder = Path(str(node["client"]))
        return folder, Path(str(node.get("federation", folder.resolve().parent.parent)))
    place, number = Path(str(context.run_config.get("federation", ""))), int(node.get("partition-id", -1))
    clients = sorted(found for found in (place / CLIENTS).glob("*") if found.is_dir())
    if not 0 <= number < len(clients):
        raise BadInput(f"node {number} has no client in {place}: start as many nodes as `federate init` made clients")
    return clients[number], place
