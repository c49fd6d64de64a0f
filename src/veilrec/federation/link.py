"""The way of a client or helper to its coordinator: HTTPS, and the loop that polls for tasks and answers them.

One connection that stays open, TLS 1.3, the federation's own authority. What is answered was charged for and written
down before, in one transaction (`veilrec.client.federated`): whenever the process is killed, its next start finds the
same message, or none. Nothing of an error leaves: a task that cannot or must not be done is left unanswered.

An aggregation helper imports this module; it needs neither plans nor anything of users.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import random
import secrets
import sqlite3
import ssl
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from veilrec.core.errors import BadInput, VeilrecError, said
from veilrec.federation import identity
from veilrec.federation.federation import (
    DECLINED,
    WITH_CONTENT,
    Away,
    BadTask,
    Federation,
    FederationTask,
    Receipt,
    TurnedAway,
)
from veilrec.federation.identity import Invitation
from veilrec.wire.messages import Declined
from veilrec.wire.signing import SigningKey

_TIMEOUT_SECONDS = 15.0  # beyond what was asked to wait for
_SMALL = 1 << 16  # bytes of an answer that is no content
_HUNG_UP = (http.client.RemoteDisconnected, ConnectionError, ssl.SSLEOFError, ssl.SSLZeroReturnError)
_LATER = (408, 425, 429, 500, 502, 503, 504, 507)


class _Connection(http.client.HTTPSConnection):
    """Sends a request in one piece: in two, as the library does, it costs the other side two readings."""

    _parts: list[bytes] | None = None

    def post(self, path: str, body: bytes, headers: dict[str, str]) -> None:
        """Send a request."""
        self._parts = []
        self.request("POST", path, body, headers)
        parts, self._parts = self._parts, None
        self.send(b"".join(parts))

    def send(self, data: Any) -> None:
        """Keep what belongs to a request until it is whole."""
        if self._parts is None:
            super().send(data)
        else:
            self._parts.append(data)


class HttpsLink:
    """One client's connection; made anew whenever it breaks."""

    def __init__(self, federation: Federation, ca: Path, client: str, key: SigningKey, *, largest_content: int) -> None:
        parts = urlsplit(federation.address)
        if parts.scheme != "https" or not parts.hostname or not parts.port:
            raise BadInput(f"{federation.address!r} is no address of a coordinator: it looks like https://HOST:PORT")
        self._host, self._port = parts.hostname, parts.port
        self._federation, self._client, self._key, self._largest = federation, client, key, largest_content
        self._context = client_context(ca)
        self._open: _Connection | None = None
        self._came = b""  # what came with the last task, where it is small

    def enrol(self, invitation: Invitation) -> str:
        """Tie this device's key to its place; the same again is free. Its role."""
        asked = {
            "federation": self._federation.id,
            "plan": self._federation.plan,
            "client": invitation.client,
            "key": self._key.public.hex(),
            "endorsement": invitation.endorse(self._federation.id, self._key.public).hex(),
        }
        answer = self._request("/v1/enrol", json.dumps(asked).encode(), {}, _SMALL, 0.0)
        return _field(answer, "role")

    def poll(self, seconds: float) -> FederationTask | None:
        """Poll for a task; None if none came up in time."""
        body = f"{seconds:.3f} {secrets.token_hex(8)} {WITH_CONTENT}".encode()
        told, _, self._came = self._signed("/v1/poll", "poll", 0, body, _SMALL, seconds).partition(b"\n")
        return FederationTask.from_json(told)

    def fetch(self, task: FederationTask) -> bytes:
        """Fetch the content of a task; bytes with another digest are refused."""
        if not task.sha256:
            return b""
        if task.size > self._largest:
            raise BadTask(f"the coordinator sends {task.size:,} bytes, and this plan has at most {self._largest:,}")
        if hashlib.sha256(self._came).hexdigest() == task.sha256:
            return self._came
        content = self._signed("/v1/content", "content", 0, task.sha256.encode(), task.size, 0.0)
        if hashlib.sha256(content).hexdigest() != task.sha256:
            raise Away("what came is not what was announced: fetching it again")
        return content

    def send(self, task: FederationTask, answer: bytes) -> Receipt:
        """Answer a task."""
        headers = {"X-Veilrec-Kind": task.kind, "X-Veilrec-Number": str(task.number)}
        content = self._signed("/v1/answer", task.kind, task.number, answer, _SMALL, 0.0, headers)
        return "known already" if _field(content, "receipt") == "known already" else "taken"

    def close(self) -> None:
        """Close the connection."""
        if self._open is not None:
            self._open.close()
            self._open = None

    def _signed(
        self,
        path: str,
        kind: str,
        number: int,
        body: bytes,
        largest: int,
        seconds: float,
        headers: dict[str, str] | None = None,
    ) -> bytes:
        signed = identity.sign(self._key, self._federation.id, self._client, kind, number, body)
        own = {"X-Veilrec-Client": self._client, "X-Veilrec-Signature": signed.hex(), **(headers or {})}
        own["X-Veilrec-Digest"] = hashlib.sha256(body).hexdigest()
        return self._request(path, body, own, largest, seconds)

    def _request(self, path: str, body: bytes, headers: dict[str, str], largest: int, seconds: float) -> bytes:
        try:
            try:
                was_open = self._open is not None
                response, content = self._exchange(path, body, headers, largest, seconds)
            except _HUNG_UP:
                self.close()
                if not was_open:
                    raise
                # A connection that was idle for long is closed by the other side; whatever is asked may be asked again.
                response, content = self._exchange(path, body, headers, largest, seconds)
        except ssl.SSLCertVerificationError as error:
            self.close()
            raise Away(
                f"{self._federation.address} is not known as the coordinator of this federation"
                f" ({error.verify_message}): check its certificate, ca.pem here, and the clock; it is tried again"
            ) from None
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise Away(f"{self._federation.address} cannot be reached ({error or type(error).__name__})") from None
        return self._understood(response, content, largest)

    def _exchange(
        self, path: str, body: bytes, headers: dict[str, str], largest: int, seconds: float
    ) -> tuple[http.client.HTTPResponse, bytes]:
        if self._open is None:
            self._open = _Connection(self._host, self._port, timeout=_TIMEOUT_SECONDS, context=self._context)
        self._open.timeout = _TIMEOUT_SECONDS + seconds
        if self._open.sock is not None:
            self._open.sock.settimeout(_TIMEOUT_SECONDS + seconds)
        self._open.post(path, body, {"User-Agent": "veilrec", **headers})
        response = self._open.getresponse()
        content = response.read(largest + 1)
        if response.length and len(content) <= largest:  # http.client says nothing of an answer that breaks off
            raise http.client.IncompleteRead(content)
        if response.status != http.client.OK or len(content) > largest or response.will_close:
            self.close()
        return response, content

    def _understood(self, response: http.client.HTTPResponse, content: bytes, largest: int) -> bytes:
        if response.status in _LATER:
            raise Away(f"{self._federation.address} has no time ({response.status}): {_told(content)}")
        if response.status != http.client.OK:
            raise TurnedAway(response.status, f"{self._federation.address} refuses: {_told(content)}")
        if len(content) > largest:
            raise BadTask(f"{self._federation.address} sends more than {largest:,} bytes: they are not read")
        return content


def client_context(ca: Path) -> ssl.SSLContext:
    """Make a TLS 1.3 context that trusts this authority and no other."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    try:
        context.load_verify_locations(cafile=str(ca))
    except (OSError, ssl.SSLError) as error:
        raise BadInput(
            f"{ca} is no certificate of an authority ({error.strerror or error}): copy ca.pem of the federation"
        ) from None
    return context


def _field(content: bytes, name: str) -> str:
    try:
        return str(json.loads(content)[name])
    except (ValueError, KeyError, TypeError, RecursionError):
        raise BadTask("the coordinator answers in a way that is not understood") from None


def _told(content: bytes) -> str:
    try:
        return said(json.loads(content)["error"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return "it says no more"


_POLL_SECONDS = 20.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 30.0  # seconds between attempts that fail
_DECLINED_PAUSE = 5.0  # before a client that does not answer a task asks what else there is
_jitter = random.SystemRandom()


class Answers(Protocol):
    """Answers tasks: a client or a helper."""

    def answer(self, task: FederationTask, content: bytes) -> bytes:
        """The bytes that may leave; they are paid for."""


class Pause:
    """Longer and longer between attempts that fail, never as long as the others': they must not come all at once."""

    def __init__(self, stop: threading.Event) -> None:
        self._stop, self._next = stop, _FIRST_PAUSE

    def wait(self) -> None:
        """Wait before the next attempt."""
        self._stop.wait(_jitter.uniform(0.0, self._next))
        self._next = min(2.0 * self._next, _LONGEST_PAUSE)

    def reset(self) -> None:
        """An attempt did not fail."""
        self._next = _FIRST_PAUSE


def live(
    link: HttpsLink, answers: Answers, say: Callable[[str], None], stop: threading.Event, enrol: Callable[[], object]
) -> bool:
    """Poll and answer tasks until the federation is over (True), or `stop` is set (False).

    A coordinator that cannot be reached, or that shows a wrong certificate, is asked again for as long as it takes:
    what is wrong is said once, until it is something else.
    """
    pause, is_enrolled, told, again = Pause(stop), False, "", False
    while not stop.is_set():
        try:
            if not is_enrolled:
                enrol()
                is_enrolled = True
            task = link.poll(_POLL_SECONDS)
            pause.reset()
            told, again = "", False
            if task is None:
                continue
            if task.kind == "over":
                say("the federation is over")
                return True
            _serve(link, answers, task, say, stop)
        except TurnedAway as error:
            if error.status != http.client.UNAUTHORIZED or again:
                raise
            say(f"{error}: enrolling again")  # its list of clients was put back to an older one
            is_enrolled, again = False, True
            pause.wait()
        except (Away, BadTask) as error:
            if str(error) != told:
                told = str(error)
                say(told)
            pause.wait()
    return False


def answer_to(
    answers: Answers, task: FederationTask, content: bytes, say: Callable[[str], None]
) -> tuple[FederationTask, bytes]:
    """The answer to a task, or in its place the reason why it is declined, which depends on no data."""
    try:
        return task, answers.answer(task, content)
    except Declined as error:
        say(f"{task.kind} {task.number} is declined: {error}")
        return replace(task, kind=DECLINED), error.reason.encode()


def _serve(
    link: HttpsLink, answers: Answers, task: FederationTask, say: Callable[[str], None], stop: threading.Event
) -> None:
    try:
        content = link.fetch(task)
        answered = answer_to(answers, task, content, say)
        receipt = link.send(*answered)
    except TurnedAway as error:
        if error.status in (401, 403, 404):
            raise
        say(f"{task.kind} {task.number}: {error}")  # it came too late, or has come before
        stop.wait(_jitter.uniform(0.0, 1.0))
    except Away:
        raise
    except (VeilrecError, OSError, sqlite3.Error) as error:
        say(f"{task.kind} {task.number} is not answered: {error}")
        stop.wait(_jitter.uniform(0.5, 1.0) * _DECLINED_PAUSE)
    else:
        say(f"{task.kind} {task.number}: {receipt}")
