"""Measure secure aggregation: processor time and bytes of a client, a helper and the server, by both protocols.

    python benchmarks/secagg.py [--quick]
    python benchmarks/secagg.py --sparse [--quick]    # ways to send long, sparse updates: `_sparse_sums.py`

Whole rounds of both protocols in one process, every message as bytes: 500 clients, a million numbers, 30 % of the
clients lost on the way; the sum is compared with that of the same vectors added up in plaintext.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from argparse import Namespace
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from _measure import Report, Say, describe_machine, options_of, script
from _sparse_sums import LOADS, QUICK_LOADS, SparseLoad, measured
from veilrec.core.arrays import Offsets
from veilrec.federation.secagg.helpers import Helper, HelperSum, HelperSumClient, Proposal
from veilrec.federation.secagg.pairs import PairwiseSum, PairwiseSumClient
from veilrec.federation.secagg.terms import Terms, choose
from veilrec.privacy.randomness import SecureSource
from veilrec.privacy.samplers import Scale, lattice_gaussian
from veilrec.wire.signing import SigningKey

PROMISED_MS = 10.0  # of processor time for a client with helpers, 500 clients and a million numbers
PROMISED_NOISE_MS = 100.0  # of it for a client's share of the noise on a million numbers
_FEDERATION, _MODEL = bytes(32), b"model"
_WIDTH = 32
Given = ParamSpec("Given")
Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Load:
    """How large a round is."""

    clients: int = 500
    length: int = 1_000_000
    helpers: int = 3
    lost: float = 0.3  # of the clients, in all
    corrupt: float = 0.05  # of the clients at most, for `pairs`


QUICK = Load(clients=60, length=20_000)


class _Clock:
    """Processor time by who spends it, and bytes by who sends them."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.sent: dict[str, int] = defaultdict(int)

    def run(self, who: str, step: Callable[Given, Answer], *given: Given.args, **named: Given.kwargs) -> Answer:
        start = time.thread_time()
        answer = step(*given, **named)
        self.seconds[who] += time.thread_time() - start
        if isinstance(answer, bytes):
            self.sent[who] += len(answer)
        elif isinstance(answer, dict):
            self.sent[who] += sum(map(len, answer.values()))
        return answer


def run(load: Load, say: Say) -> dict[str, Any]:
    """Both protocols, and what was promised."""
    machine = describe_machine()
    tasks = []
    for name, measure in (("helpers", _with_helpers), ("pairs", _among_clients)):
        say(f"{name}: {load.clients} clients, {load.length:,} numbers")
        tasks.append({"name": name, **measure(load)})
    tasks[0] |= _judged(tasks[0]["client_cpu_ms"], PROMISED_MS)
    drawn = _drawn_ms(load)
    noise = {"name": "distributed noise", "client_cpu_ms": drawn, **_judged(drawn, PROMISED_NOISE_MS)}
    return {"machine": machine, "load": vars(load), "tasks": tasks, "noise": noise}


def _judged(milliseconds: float, promised: float) -> dict[str, Any]:
    missed = [] if milliseconds <= promised else ["client_cpu_ms"]
    return {"promised": {"client_cpu_ms": promised}, "missed": missed}


def _drawn_ms(load: Load) -> float:
    """A client's share of the noise: the median of five, after one that compiles the sampler."""
    source, scale = SecureSource(), Scale.above(1e5)
    lattice_gaussian(source, 1, scale)
    times = []
    for _ in range(5):
        start = time.thread_time()
        lattice_gaussian(source, load.length, scale)
        times.append(time.thread_time() - start)
    return round(1e3 * statistics.median(times), 2)


def _identity(number: int) -> SigningKey:
    return SigningKey(Ed25519PrivateKey.from_private_bytes(number.to_bytes(32, "big")))


def _vector(number: int, length: int) -> Offsets:
    return np.random.default_rng(number).integers(-(2**15), 2**15, length)


def _staying(numbers: Iterable[int], lost: int, draws: np.random.Generator) -> list[int]:
    found = list(numbers)
    return sorted(draws.permutation(found)[lost:].tolist())


def _with_helpers(load: Load) -> dict[str, Any]:
    identities = {number: _identity(number) for number in range(load.clients)}
    registered = {number: key.public for number, key in identities.items()}
    keys = [_identity(10**6 + place) for place in range(load.helpers)]
    least = load.clients // 2
    terms = Terms(_FEDERATION, 0, load.length, _WIDTH, least).about(_MODEL, range(load.clients))
    proposal = Proposal(terms, tuple(key.public for key in keys))
    clock, server = _Clock(), HelperSum(proposal, registered, range(load.clients))
    total = np.zeros(load.length, np.int64)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as opened:
        helpers = [
            opened.enter_context(
                Helper(
                    Path(folder) / str(place), key, federation=_FEDERATION, registered=registered, least=lambda _: least
                )
            )
            for place, key in enumerate(keys)
        ]
        invitation = server.invite([clock.run("helper", helper.open, proposal.encode()) for helper in helpers])
        stays = _staying(identities, int(load.lost * load.clients), np.random.default_rng(0))
        for number in stays:
            client = HelperSumClient(
                number, identities[number], federation=_FEDERATION, helpers=proposal.helpers, least=least
            )
            values = _vector(number, load.length)
            total += values
            clock.run("server", server.receive, clock.run("client", client.update, invitation, _MODEL, values))
        request = clock.run("server", server.request)
        for helper in helpers:
            clock.run("server", server.receive_answer, clock.run("helper", helper.answer, request))
        got = clock.run("server", server.finish)
    return {
        "exact": bool((got == total).all()),
        "added_up": len(stays),
        "client_cpu_ms": round(1e3 * clock.seconds["client"] / len(stays), 2),
        "helper_cpu_s": round(clock.seconds["helper"] / load.helpers, 3),
        "server_cpu_s": round(clock.seconds["server"], 3),
        "client_up_bytes": clock.sent["client"] // len(stays),
        "client_down_bytes": len(invitation),
        "helper_up_bytes": clock.sent["helper"] // load.helpers,
        "helper_down_bytes": len(request) + len(proposal.encode()),
    }


def _among_clients(load: Load) -> dict[str, Any]:
    identities = {number: _identity(number) for number in range(load.clients)}
    registered = {number: key.public for number, key in identities.items()}
    woven = choose(load.clients, corrupt=load.corrupt, lost=load.lost)
    terms = Terms(_FEDERATION, 0, load.length, _WIDTH, load.clients // 2).about(_MODEL, range(load.clients))
    everybody = range(load.clients)
    clock, server, draws = _Clock(), PairwiseSum(terms, woven, registered, everybody), np.random.default_rng(0)
    settings = {"federation": _FEDERATION, "neighbourhood": woven, "least": terms.least}
    clients = {n: PairwiseSumClient(n, key, registered, **settings) for n, key in identities.items()}  # type: ignore[arg-type]
    lost = int(load.lost * load.clients / 3)  # before shares, before vectors, and before signatures
    for client in clients.values():
        clock.run("server", server.receive_advert, clock.run("client", client.advertise, server.propose()))
    groups = clock.run("server", server.groups)
    for number in _staying(groups, lost, draws):
        clock.run("server", server.receive_shares, clock.run("client", clients[number].share, groups[number]))
    boxes = clock.run("server", server.boxes)
    came, total = _staying(boxes, lost, draws), np.zeros(load.length, np.int64)
    for number in came:
        values = _vector(number, load.length)
        total += values
        clock.run(
            "server", server.receive_masked, clock.run("client", clients[number].mask, boxes[number], _MODEL, values)
        )
    survivors = server.survivors()
    signed = _staying(came, lost, draws)
    for number in signed:
        clock.run("server", server.receive_signature, clock.run("client", clients[number].sign, survivors))
    signatures = clock.run("server", server.signatures)
    for number in signed:
        clock.run("server", server.receive_reveal, clock.run("client", clients[number].reveal, signatures))
    got = clock.run("server", server.finish)
    down = clock.sent["server"] + len(survivors) * len(came) + len(signatures) * (len(signed) - 1)
    return {
        "exact": bool((got == total).all()),
        "added_up": len(came),
        "neighbours": woven.degree,
        "threshold": woven.threshold,
        "client_cpu_ms": round(1e3 * clock.seconds["client"] / len(came), 2),
        "server_cpu_s": round(clock.seconds["server"], 3),
        "client_up_bytes": clock.sent["client"] // len(came),
        "client_down_bytes": down // len(came),
    }


def run_sparse(loads: Sequence[SparseLoad], say: Say) -> dict[str, Any]:
    """All ways to send long, sparse updates."""
    machine, found = describe_machine(), []
    for load in loads:
        say(f"{load.items:,} items x {load.width}, {load.clients} clients")
        found.append(measured(load))
    return {"machine": machine, "sparse": found}


def show_sparse(report: Report) -> None:
    """Print a table per load."""
    for load in report["sparse"]:
        bits = ", ".join(f"{bits} at epsilon {epsilon}" for epsilon, bits in load["enough_bits"].items())
        print(f"{load['items']:,} items x {load['width']}, {load['clients']} clients; bits that are enough: {bits}")
        print("way | up | down | client ms | helper s | server s | error at epsilon 1, 8 in units of the noise")
        for way in load["ways"]:
            cpu = f"{way['client_cpu_ms']:g} | {way['helper_cpu_s']:g} | {way['server_cpu_s']:g}"
            errors = ", ".join(f"{error:.2f}" for error in way["error"].values())
            print(f"{way['way']} | {way['up_bytes']:,} | {way['down_bytes']:,} | {cpu} | {errors}")


def show(report: Report) -> None:
    """Print a line per protocol, and missed targets; or what was measured of sparse updates."""
    if "sparse" in report:
        show_sparse(report)
        return
    load, machine = report["load"], report["machine"]
    print(
        f"Secure sums of {load['length']:,} numbers, {load['clients']} clients, {load['lost']:.0%} lost, one thread, "
        f"on {machine['cpu']} (load {machine['load_before']} at the start)."
    )
    for task in report["tasks"]:
        helper = f"a helper {task['helper_cpu_s']:g} s, " if "helper_cpu_s" in task else ""
        extra = f", {task['neighbours']} neighbours" if "neighbours" in task else f", {load['helpers']} helpers"
        print(
            f"{task['name']}{extra}: {'exact' if task['exact'] else 'WRONG'} sum of {task['added_up']}; processor time:"
            f" a client {task['client_cpu_ms']:g} ms, {helper}the server {task['server_cpu_s']:g} s; a client sends "
            f"{task['client_up_bytes']:,} bytes and gets {task['client_down_bytes']:,}"
        )
    noise = report["noise"]
    print(f"{noise['name']}: processor time: a client {noise['client_cpu_ms']:g} ms to draw its own")
    for task in (*report["tasks"], noise):
        for name in task.get("missed", ()):
            print(f"{task['name']}: missed {name} <= {task['promised'][name]:g}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the script; the exit code."""
    parser = options_of(__doc__)
    parser.add_argument("--sparse", action="store_true", help="ways to send long, sparse updates")

    def measure(given: Namespace, say: Say) -> Report:
        if given.sparse:
            return run_sparse(QUICK_LOADS if given.quick else LOADS, say)
        return run(QUICK if given.quick else Load(), say)

    return script(parser, measure, show, arguments)


if __name__ == "__main__":
    sys.exit(main())
