"""Measure `veilrec serve`: requests per second of its processor time, and how long they take under load.

    python benchmarks/serve_http.py [--quick] [--release DIR]

The server runs in a process of its own; the load comes from this one, over real sockets, on the same machine: 200
connections for 30 seconds, each asking again as soon as it was answered.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import urlsplit

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from safetensors.numpy import save_file

from _measure import ONE_THREAD, Report, Say, describe_machine, options_of, script
from veilrec.core.errors import BadInput
from veilrec.privacy.guarantee import no_guarantee
from veilrec.wire.releases import describe_file, open_release, sign_release
from veilrec.wire.signing import SigningKey

PROMISED = 5000.0  # requests per second of the server's processor time, at least
_INTERESTS, _DIM = 5, 64
_BODIES = 997  # different questions
_START_SECONDS = 120.0
_TICK = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Load:
    """How hard is asked."""

    connections: int = 200
    seconds: float = 30.0
    warm_up_seconds: float = 2.0
    items: int = 65_000


QUICK = Load(connections=50, seconds=3.0, warm_up_seconds=0.5, items=5_000)


@dataclass
class Tally:
    """What came back."""

    seconds: list[float] = field(default_factory=list)
    errors: int = 0


def run(load: Load, say: Say, *, release: Path | None = None) -> dict[str, Any]:
    """Measure, and say what was promised."""
    machine = describe_machine()
    with tempfile.TemporaryDirectory() as folder:
        if release is None:
            release = Path(folder) / "release"
            made_release(release, load.items)
        opened = open_release(release)
        interests = int(opened.manifest["sizes"]["interests"])
        if not interests:
            raise BadInput(f"{release} has no interests to ask by: measure a release of a news model")
        say(f"{opened.manifest['sizes']['items']:,} items, {interests} interests: starting the server")
        with _server(release, Path(folder) / "log") as (process, address):
            # The pool is made once, in the background: its time is told apart from that of requests.
            cpu, start = _cpu_seconds(process), time.perf_counter()
            _wait_for(address, "/v1/pool")
            pool = {"pool_seconds": round(time.perf_counter() - start, 2)}
            pool["pool_cpu_seconds"] = round(_cpu_seconds(process) - cpu, 2)
            asyncio.run(_ask(address, interests, load.connections, load.warm_up_seconds))
            say(f"{load.connections} connections for {load.seconds:g} s")
            cpu, start = _cpu_seconds(process), time.perf_counter()
            tally = asyncio.run(_ask(address, interests, load.connections, load.seconds))
            took, cpu = time.perf_counter() - start, _cpu_seconds(process) - cpu
    task = (
        _figures(tally, took, cpu)
        | pool
        | {"connections": load.connections, "items": opened.manifest["sizes"]["items"]}
    )
    missed = [name for name, bad in (("requests_per_cpu_second", task["requests_per_cpu_second"] < PROMISED),) if bad]
    missed += ["errors"] if tally.errors else []
    promised = {"requests_per_cpu_second": PROMISED, "errors": 0}
    return {"machine": machine, "tasks": [task | {"promised": promised, "missed": missed}]}


def _figures(tally: Tally, took: float, cpu: float) -> dict[str, Any]:
    times = np.array(tally.seconds or [0.0])
    return {
        "name": "http",
        "requests": len(tally.seconds),
        "errors": tally.errors,
        "seconds": round(took, 2),
        "server_cpu_seconds": round(cpu, 2),
        "requests_per_cpu_second": round(len(tally.seconds) / max(cpu, 1 / _TICK)),
        "requests_per_second": round(len(tally.seconds) / took),
        "p50_ms": round(1e3 * float(np.quantile(times, 0.5)), 3),
        "p99_ms": round(1e3 * float(np.quantile(times, 0.99)), 3),
        "slowest_ms": round(1e3 * float(times.max()), 3),
    }


def made_release(folder: Path, items: int) -> None:
    """A signed release of synthetic items, with titles as long as those of news."""
    folder.mkdir(parents=True)
    draws = np.random.default_rng(0)
    groups = draws.normal(size=(300, _DIM))
    vectors = groups[draws.integers(0, 300, items)] + 0.5 * draws.normal(size=(items, _DIM))
    about: dict[str, Any] = {"category": draws.integers(0, 18, items).astype(np.int32)}
    for name, texts in {
        "ids": [f"N{number}" for number in range(items)],
        "titles": [f"What happened to number {number} on the day before yesterday" for number in range(items)],
        "categories": [f"category {number}" for number in range(18)],
    }.items():
        pieces = [text.encode() for text in texts]
        about[f"{name}.offsets"] = np.cumsum([0, *(len(piece) for piece in pieces)], dtype=np.int64)
        about[f"{name}.data"] = np.frombuffer(b"".join(pieces), np.uint8)
    save_file(about, folder / "items.safetensors")
    save_file({"items": vectors.astype(np.float32)}, folder / "vectors.safetensors")
    serving = {
        "interests": groups[:_INTERESTS].astype(np.float32),
        "chances": np.full((_INTERESTS, _INTERESTS), 0.1) + 0.5 * np.eye(_INTERESTS),
        "nobody": groups.mean(axis=0).astype(np.float32),
    }
    save_file(serving, folder / "serving.safetensors")
    manifest = {
        "format": 1,
        "minimum_client": 1,
        "name": "made-up",
        "version": 1,
        "created": "2026-01-01T00:00:00Z",
        "expires": "2126-01-01T00:00:00Z",
        "made_by": "benchmarks/serve_http.py",
        "method": "none",
        "family": "news",
        "protected": False,
        "why_unprotected": ["it is made up"],
        "guarantee": no_guarantee().to_json(),
        "sizes": {"items": items, "dim": _DIM, "interests": _INTERESTS, "longest": 50},
        "encoder": None,
        "offers": [{"mode": "attention", "kind": "attention", "size": _INTERESTS}],
        "data": {},
        "figures": {},
        "files": {path.name: describe_file(path) for path in sorted(folder.iterdir())},
    }
    sign_release(folder, manifest, SigningKey(Ed25519PrivateKey.generate()))


@contextmanager
def _server(release: Path, log: Path) -> Iterator[tuple[int, str]]:
    """A server of our own on a free port: its process number and its address."""
    code = "from veilrec.cli.main import run; run()"
    command = [sys.executable, "-c", code, "serve", str(release), "--port", "0", "--rate", "0", "--json"]
    with log.open("wb") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, env=os.environ | ONE_THREAD)
        try:
            address = _address(process.stdout, log)
            _wait_for(address, "/readyz")
            yield process.pid, address
        finally:
            process.terminate()
            process.wait(timeout=30)


def _address(stream: BinaryIO | Any, log: Path) -> str:
    line = stream.readline()
    if not line:
        raise BadInput(f"the server did not start: {log.read_text(errors='replace').strip()[-300:]}")
    return str(json.loads(line)["address"])


def _wait_for(address: str, path: str) -> None:
    """Until a route answers."""
    import http.client

    end, place = time.monotonic() + _START_SECONDS, urlsplit(address)
    while time.monotonic() < end:
        connection = http.client.HTTPConnection(place.hostname or "", place.port or 0, timeout=10)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            answer.read()
        except OSError:
            break  # it has ended
        finally:
            connection.close()
        if answer.status == 200:
            return
        time.sleep(0.05)
    raise BadInput(f"{path} of the server did not become ready: start `veilrec serve` by hand and look at its log")


def _cpu_seconds(process: int) -> float:
    """Processor time of a process so far, its own and the system's for it."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICK


async def _ask(address: str, interests: int, connections: int, seconds: float) -> Tally:
    """Every connection asks again as soon as it is answered."""
    place, tally = urlsplit(address), Tally()
    requests = list(_requests(place.netloc, interests))
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    made = [
        loop.create_connection(partial(_Client, requests, number, tally, end), place.hostname or "", place.port or 0)
        for number in range(connections)
    ]
    clients = [client for _, client in await asyncio.gather(*made)]
    await asyncio.gather(*(client.done for client in clients))
    return tally


def _requests(host: str, interests: int) -> Iterator[bytes]:
    draws = np.random.default_rng(1)
    for alpha in draws.dirichlet(np.ones(interests), _BODIES).tolist():
        body = json.dumps({"alpha": [round(share, 6) for share in alpha], "k": 10}).encode()
        head = f"POST /v1/recommend HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        yield head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body


class _Client(asyncio.Protocol):
    """One connection that always has one request under way."""

    def __init__(self, requests: list[bytes], first: int, tally: Tally, end: float) -> None:
        self._requests, self._next, self._tally, self._end = requests, first, tally, end
        self._loop = asyncio.get_running_loop()
        self.done = self._loop.create_future()
        self._came = b""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._send()

    def _send(self) -> None:
        self._next = (self._next + 1) % len(self._requests)
        self._sent = time.perf_counter()
        self._transport.write(self._requests[self._next])

    def data_received(self, data: bytes) -> None:
        came = self._came = self._came + data if self._came else data
        head = came.find(b"\r\n\r\n")
        if head < 0:
            return
        at = came.find(b"content-length: ", 0, head)
        if len(came) < head + 4 + int(came[at + 16 : came.find(b"\r\n", at)]):
            return
        self._came = b""
        self._tally.seconds.append(time.perf_counter() - self._sent)
        self._tally.errors += not came.startswith(b"HTTP/1.1 200")
        if self._loop.time() < self._end:
            self._send()
        else:
            self._transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.done.done():
            self._tally.errors += self._loop.time() < self._end
            self.done.set_result(None)


def show(report: Report) -> None:
    """Print one line, and missed targets."""
    (task,) = report["tasks"]
    print(
        f"{task['requests']:,} requests over {task['connections']} connections, {task['errors']} errors: "
        f"{task['requests_per_cpu_second']:,} per second of the server's processor time, "
        f"{task['requests_per_second']:,} per second; median {task['p50_ms']:g} ms, p99 {task['p99_ms']:g} ms; "
        f"before that, {task['pool_cpu_seconds']:g} s of it for the pool"
    )
    for name in task["missed"]:
        print(f"missed {name} {task['promised'][name]:g}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the script; the exit code."""
    parser = options_of(__doc__)
    parser.add_argument("--release", type=Path, help="folder of a release to serve; without it, one of synthetic items")

    def measure(given: argparse.Namespace, say: Say) -> Report:
        return run(QUICK if given.quick else Load(), say, release=given.release)

    return script(parser, measure, show, arguments)


if __name__ == "__main__":
    sys.exit(main())
