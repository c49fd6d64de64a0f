"""What a federation and Flower share: message fields, node keys, and the app that `flwr run` takes.

Flower carries messages and is trusted with nothing: a client answers with its own signature (`identity`), and what it
signs names federation, round and content. Questions go from the coordinator to a node, answers come back.

| message | fields |
|---|---|
| who are you | `ask` = "hello", `nonce` |
| its answer | `client`, `federation`, `plan`, `key`, `endorsement`, `signature` over the nonce |
| a task | `ask` = "task", `task` (JSON), `content` |
| its answer | `client`, `answer`, `signature` over kind, round and answer |
| either, not answered | `declined`: nothing of why leaves the client |

Node keys (EC P-384) let a node reach the link and nothing else: who a client is says its own key.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import urlsplit

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from veilrec._version import __version__
from veilrec.core.errors import BadInput, VeilrecError
from veilrec.core.files import new_folder, write_text
from veilrec.federation.federation import Federation, FederationTask
from veilrec.federation.identity import write_file

if TYPE_CHECKING:  # the extra `flower`
    from flwr.app import Message, RecordDict

Value: TypeAlias = str | bytes | int
MessageFields: TypeAlias = Mapping[str, Value]
RECORD = "veilrec"  # the name of the record that holds a message
HELLO, TASK = "hello", "task"
DECLINED: MessageFields = {"declined": 1}


class BadFlowerMessage(VeilrecError):
    """A Flower message that is none of a federation."""


def text(fields: MessageFields, name: str) -> str:
    """Read a text field."""
    value = fields.get(name)
    if not isinstance(value, str) or len(value) > 1000:
        raise BadFlowerMessage(f"a message without {name}")
    return value


def raw(fields: MessageFields, name: str, most: int) -> bytes:
    """Read a field of at most so many bytes."""
    value = fields.get(name)
    if not isinstance(value, bytes) or len(value) > most:
        raise BadFlowerMessage(f"a message without {name}, or with more than {most:,} bytes of it")
    return value


def task_fields(task: FederationTask, content: bytes) -> MessageFields:
    """Encode a task and its content as message fields."""
    return {"ask": TASK, "task": json.dumps(asdict(task)), "content": content}


def record_of(fields: MessageFields) -> RecordDict:
    """Encode fields as the content of a Flower message; needs the extra `flower`."""
    from flwr.app import ConfigRecord, RecordDict

    return RecordDict({RECORD: ConfigRecord(dict(fields))})


def fields_of(message: Message) -> MessageFields:
    """Decode the fields of a Flower message."""
    if message.has_error() or RECORD not in message.content.config_records:
        raise BadFlowerMessage("a message of Flower without fields of ours")
    found: MessageFields = dict(message.content.config_records[RECORD])
    return found


KEY = "flower.key"


def node_key(folder: Path) -> Path:
    """The key of a client's folder, made when it is first needed; its public half lies beside it."""
    path = folder / KEY
    if not path.exists():
        key = ec.generate_private_key(ec.SECP384R1())
        public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
        public_half(folder).write_bytes(public)
        secret = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
        )
        write_file(path, secret)
    return path


def public_half(folder: Path) -> Path:
    """Path of the public half of a node key, which is registered at a link."""
    return folder / f"{KEY}.pub"


FLOWER = "1.41.0"  # the version that all of this was tried with

_PROJECT = """[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "veilrec-federation"
version = "{version}"
description = "A federation of veilrec, carried by Flower"
license = "Apache-2.0"
dependencies = []  # veilrec with its extra flower is installed on every machine beforehand; no code travels

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "veilrec"
flwr-version-target = "{flower}"

[tool.flwr.app.components]
serverapp = "federation.server:app"
clientapp = "federation.client:app"

[tool.flwr.app.config]
federation = "{federation}"  # the folder that `veilrec federate init` made, on the machine of the coordinator
"""
_SERVER = '''"""The coordinator."""

from veilrec.federation.coordinator.flower_server import server_app

app = server_app()
'''
_CLIENT = '''"""A client."""

from veilrec.federation.client.flower_client import client_app

app = client_app()
'''


def write_app(out: Path, federation: Path) -> None:
    """The folder that `flwr run` takes."""
    project = _PROJECT.format(version=__version__, flower=FLOWER, federation=federation.resolve())
    with new_folder(out) as part:
        (part / "federation").mkdir()
        write_text(part / "pyproject.toml", project)
        write_text(part / "federation" / "__init__.py", '"""A federation of veilrec."""\n')
        write_text(part / "federation" / "server.py", _SERVER)
        write_text(part / "federation" / "client.py", _CLIENT)


def check_plaintext(made: Federation) -> None:
    """Refuse a federation with secure aggregation, before anything is looked for or started."""
    if made.secagg != "none":
        raise BadInput(
            "secure aggregation does not travel by Flower: helpers are no nodes of it, and it has no trips beside the"
            " round; start this federation over HTTPS (`veilrec federate up`), or make one with --trust server"
        )


def public_address(address: str) -> str:
    """Default public address of the link: the port beside the coordinator's."""
    parts = urlsplit(address)
    return f"{parts.hostname or '127.0.0.1'}:{(parts.port or 8471) + 1}"


def log_line(words: str) -> None:
    """Print one line to standard error, which Flower keeps in its logs."""
    print(words, file=sys.stderr, flush=True)
