"""A thin node of Flower: one long-lived process for a device, that runs no code which a server sends.

A stock SuperNode starts a Python process for every message and unpacks the app that the link delivers; this one speaks
to the link's Fleet API itself and has its own code, its own copy of the plan and its own folder. It needs the extra
`flower`, whose version is pinned because this uses what Flower keeps for itself.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import Message
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents, pull_objects
from flwr.supernode.fleet_http_connection import http_request_response

from veilrec.errors import BadInput
from veilrec.federate.device.flower_answers import LetterDevice
from veilrec.federate.device.loop import Pause
from veilrec.federate.device.process import RunDevice
from veilrec.federate.facts import Known, largest_content
from veilrec.federate.federation import CA
from veilrec.federate.flower_keys import node_key
from veilrec.federate.flower_letters import DECLINED, BadLetter
from veilrec.federate.flower_records import letter_of, record_of

_LOOK_SECONDS = 0.2  # between questions whether there is something
_ROOM = 1 << 16  # bytes of a message beside what a task holds


def run_node(folder: Path, known: Known, link: str, say: Callable[[str], None], stop: threading.Event) -> bool:
    """A device at a link (HOST:PORT of its public door), until the federation is over; whether it is."""
    pause = Pause(stop)
    with LetterDevice(folder, known, say) as device:
        while not stop.is_set() and not device.is_over:
            try:
                _live(folder, known, link, device, stop, pause)
            except BadInput:
                raise
            except Exception as error:  # whatever Flower raises when a link is away or says no
                say(f"{link}: {type(error).__name__}; trying again")
                pause.wait()
        return device.is_over


def node_at(link: str) -> RunDevice:
    """Devices that come by this link."""
    return lambda folder, known, say, stop: run_node(folder, known, link, say, stop)


def _live(folder: Path, known: Known, link: str, device: LetterDevice, stop: threading.Event, pause: Pause) -> None:
    key = serialization.load_ssh_private_key(node_key(folder).read_bytes(), None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise BadInput(f"{node_key(folder)} is no key of a node: remove it, and register the new one")
    authority = (known.folder / CA).read_bytes()
    most = largest_content(known) + _ROOM
    with http_request_response(link, False, authority, (key, key.public_key()), 1) as connection:
        _, receive, send, _run, _app, pull, push, confirm = connection
        pause.reset()
        while not stop.is_set() and not device.is_over:
            came = receive()
            if came is None:
                stop.wait(_LOOK_SECONDS)
                continue
            began = time.perf_counter()
            message = _fetched(came, pull, confirm, most)
            try:
                letter = device.reply(letter_of(message))
            except BadLetter:
                letter = DECLINED
            _deliver(Message(record_of(letter), reply_to=message), send, push, time.perf_counter() - began)


def _fetched(came: tuple[Any, Any], pull: Any, confirm: Any, most: int) -> Message:
    head, tree = came
    run = head.metadata.run_id
    names = [part.object_id for part in iterate_object_tree(tree)]
    contents = pull_objects(names, pull_object_fn=lambda name: pull(run, name))
    if sum(map(len, contents.values())) > most:
        raise BadLetter(f"a message of more than {most:,} bytes")
    confirm(run, tree.object_id)
    message: Message = inflate_object_from_contents(tree.object_id, contents)
    message.metadata.__dict__["_message_id"] = tree.object_id
    return message


def _deliver(reply: Message, send: Any, push: Any, seconds: float) -> None:
    reply.metadata.__dict__["_message_id"] = reply.object_id
    with no_object_id_recompute():
        wanted, session = send(reply, get_object_tree(reply), seconds)
        for name, part in get_all_nested_objects(reply).items():
            if name in wanted:
                push(reply.metadata.run_id, session, name, part.deflate())
