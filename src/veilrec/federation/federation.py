"""What everybody in a federation agrees on: `federation.yaml`, and the tasks, contents and answers that cross.

The file holds nothing of any user. A transport carries opaque bytes both ways and knows nothing of models. Over HTTPS
it is `link` on one side and `coordinator.process` on the other; another one (a message queue, Flower) has to do no more
than this:

    client                                        coordinator
    link.poll(seconds)  -> FederationTask | None  queue.task_for(client), and a note when that changes
    link.fetch(task)    -> bytes                  queue.content(client, sha256)
    link.send(task, bytes) -> Receipt             take(client, task's kind and number, bytes)

Secure aggregation has RPCs beside the round: each is a task of its own kind, with a content of its own for each client.
"""

from __future__ import annotations

import hashlib
import json
import shlex
import struct
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args
from urllib.parse import urlsplit

import yaml
from pydantic import ConfigDict, NonNegativeInt, TypeAdapter, ValidationError

from veilrec._version import __version__
from veilrec.core.errors import BadInput, VeilrecError
from veilrec.core.files import write_text
from veilrec.core.schema import FIRST_COMPARISON_SUM, FIRST_REPORT_SUM
from veilrec.federation.secagg.terms import Neighbourhood
from veilrec.wire.signing import checked_host

FORMAT = 3
FILE, FACTS, CA, INVITED = "federation.yaml", "facts", "ca.pem", "invitations.json"
COORDINATOR, CLIENTS, HELPERS, PEOPLE, RUN, LOGS = "coordinator", "clients", "helpers", "people", "run", "logs"
SecAgg = Literal["none", "helpers", "pairs"]
FIRST_VALIDATOR = 1 << 28  # of the numbers that clients have in secure sums; those that train have the ones below
UNPINNED = frozenset(
    {"address", "enrol_seconds", "report_seconds", "round_seconds", "validation_seconds", "rpc_seconds"}
)
"""Fields that may change while a federation runs: they say where and until when, and `ca.pem` says who is there."""
_EXACT = ConfigDict(extra="forbid")  # nothing unknown is read


@dataclass(frozen=True, kw_only=True)
class Federation:
    """One federation: the method as it is configured, who may take part in what, and until when."""

    __pydantic_config__: ClassVar = _EXACT
    id: str  # 32 hexadecimal digits: part of whatever a client signs
    address: str  # of the coordinator, https
    method: str
    config: dict[str, Any]
    rounds: int
    seed: int  # the public one
    dataset: str  # what the people's data was called where it came from
    protocol: str
    clients: int  # that may learn
    validators: int  # validation clients; free places are among both
    plan: str  # a digest: whoever makes another plan of this file does not take part
    facts: str  # a digest of the folder beside it
    unprotected: bool  # whether messages leave in plaintext
    budget: dict[str, Any]  # what a client may spend, for good
    guarantee: dict[str, Any]
    places: int = 0  # that were kept free for clients that come later
    secagg: SecAgg = "none"
    helpers: tuple[str, ...] = ()  # the lasting keys of those who help to add up, in hexadecimal digits
    least: int = 2  # clients without which no secure sum of a round is opened
    least_reported: int = 2  # likewise, of what they report before the first round
    least_compared: int = 2  # validation clients without which no secure sum of their gains is opened
    neighbourhood: dict[str, int] = field(default_factory=dict)  # of sums among clients alone: who masks with whom
    compared: dict[str, int] = field(default_factory=dict)  # likewise, among held-out validation clients
    page: str = ""  # a digest of the public file that browsers take part with; empty: they cannot
    invited: str = ""  # likewise: a digest of the list of invitations beside this file
    public_catalogue: bool = False  # its operator says that the items may be known, though people's use made the list
    rehearsal: bool = False  # its clients draw from one secret that somebody holds: nobody is protected
    minimum_messages: int | None = None  # None: what the plan's proof needs
    over_selection: float = 1.0
    enrol_seconds: float = 60.0  # that the first round waits for clients that were invited
    report_seconds: float = 60.0
    round_seconds: float = 60.0
    validation_seconds: float = 60.0
    rpc_seconds: float = 20.0  # of one RPC of pairwise secure aggregation

    def agreed(self) -> bytes:
        """Encode all that clients and helpers agree on: everything but where and until when to answer."""
        told = {name: value for name, value in asdict(self).items() if name not in UNPINNED}
        return json.dumps(told, sort_keys=True, separators=(",", ":")).encode()

    @property
    def digest(self) -> bytes:
        """Digest of what was agreed on: every invitation names it, and every secure sum is bound to it."""
        return hashlib.sha256(self.agreed()).digest()

    def least_of(self, number: int) -> int:
        """Clients without which the secure sum that has this number is not opened."""
        if number < FIRST_REPORT_SUM:
            return self.least
        return self.least_reported if number < FIRST_COMPARISON_SUM else self.least_compared

    def woven(self, *, compared: bool = False) -> Neighbourhood:
        """Parameters of the graph of pairwise secure aggregation, in rounds or among validation clients."""
        try:
            return Neighbourhood(**(self.compared if compared else self.neighbourhood))
        except TypeError:
            raise BadInput(f"{FILE}: the neighbourhood is not whole; bring back the one that init wrote") from None


def command(name: str, folder: Path) -> str:
    """A command about a federation's folder, as a shell takes it."""
    return f"veilrec federate {name} {shlex.quote(str(folder))}"


def write(federation: Federation, folder: Path) -> None:
    """Write `federation.yaml`."""
    content = {"format": FORMAT, "veilrec": __version__, **asdict(federation), "helpers": list(federation.helpers)}
    write_text(folder / FILE, yaml.safe_dump(content, sort_keys=False, allow_unicode=True))


def read(folder: Path) -> Federation:
    """Read and check `federation.yaml`."""
    path = folder / FILE
    if not folder.is_dir():
        raise BadInput(f"there is no federation {folder}: make one with `{command('init', folder)}`")
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        half = (folder / COORDINATOR).is_dir() and (folder / CLIENTS).is_dir()
        advice = "give the folder that `veilrec federate init` made"
        if half:  # of anything else nobody should be told to remove it
            advice = f"it has no {FILE}, which `veilrec federate init` writes last; remove it and make it again"
        raise BadInput(f"{folder} is no federation: {advice}") from None
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise BadInput(f"{path} cannot be read ({type(error).__name__}): bring back the one that init wrote") from None
    return _checked(path, content)


def _checked(path: Path, content: Any) -> Federation:
    found = content.get("format") if isinstance(content, dict) else None
    if found != FORMAT:
        raise BadInput(f"{path} has format {found}, this veilrec reads {FORMAT}: use the veilrec that made it")
    given = {name: value for name, value in content.items() if name not in ("format", "veilrec")}
    try:
        made = _FEDERATION.validate_json(json.dumps(given, default=str), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(map(str, first["loc"]))
        raise BadInput(f"{path}: {name}: {first['msg']}; bring back the one that init wrote") from None
    try:
        address = urlsplit(made.address)
        is_whole = bool(checked_host(address.hostname or "") and address.port)
    except (ValueError, BadInput):
        is_whole = False
    if not is_whole:
        raise BadInput(f"{path}: address is {made.address!r}; bring back the one that init wrote")
    return made


_FEDERATION = TypeAdapter(Federation)


RpcKind = Literal["open", "sum", "advertise", "share", "sign", "reveal"]  # secagg RPCs, beside the round itself
TaskKind = Literal[
    "report", "round", "validator", "declined", "open", "sum", "advertise", "share", "sign", "reveal", "over"
]
Receipt = Literal["taken", "known already"]
DECLINED: Literal["declined"] = "declined"  # the kind of an answer that says why a client takes no part
RPC_KINDS: tuple[str, ...] = get_args(RpcKind)
WITH_CONTENT = "with-content"  # in a poll: what belongs to a task may come with it, behind the end of its line
_LENGTH = struct.Struct("<Q")


@dataclass(frozen=True)
class FederationTask:
    """Something that a client is asked for."""

    __pydantic_config__: ClassVar = _EXACT
    kind: TaskKind
    number: NonNegativeInt  # of the round
    period: NonNegativeInt = 0  # of a report
    sha256: str = ""  # of what belongs to it; empty: nothing does
    size: NonNegativeInt = 0  # bytes of that
    seconds: float = 0.0  # that are left for it

    @classmethod
    def from_json(cls, content: bytes) -> FederationTask | None:
        """A task, or None where nothing is asked; anything odd raises `BadTask`."""
        try:
            return _TASK.validate_json(content, strict=True)
        except ValueError:
            raise BadTask("the coordinator asks for something that is not understood") from None


_TASK: TypeAdapter[FederationTask | None] = TypeAdapter(FederationTask | None)


class BadTask(VeilrecError):
    """A task or content that cannot be understood, or must not be done."""


class Away(VeilrecError):
    """The coordinator cannot be reached, or has no time: try again later."""


class TurnedAway(VeilrecError):
    """The coordinator refuses, and will refuse the same again."""

    def __init__(self, status: int, line: str) -> None:
        self.status = status
        super().__init__(line)


def joined(first: bytes, second: bytes) -> bytes:
    """Two contents as one."""
    return head(first) + second


def head(first: bytes) -> bytes:
    """The beginning of two contents as one: whatever follows is the second."""
    return _LENGTH.pack(len(first)) + first


def parted(content: bytes) -> tuple[bytes, bytes]:
    """The two contents that `joined` put together."""
    length = _LENGTH.unpack_from(content)[0] if len(content) >= _LENGTH.size else len(content)
    if length > len(content) - _LENGTH.size:
        raise BadTask("what belongs to the task is not whole")
    middle = _LENGTH.size + length
    return content[_LENGTH.size : middle], content[middle:]
