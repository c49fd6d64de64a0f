"""Worker processes for the pieces of a round: on this machine, or on a Ray cluster.

A worker receives the plan and the local data once; their arrays lie in one file that all workers map into memory. For
every round it receives the model and some pieces, and returns the fixed-point sum of their updates and a report of each
piece. It keeps nothing between rounds, so that one that dies has lost nothing.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import socket
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from veilrec.client.local_training import LocalData
from veilrec.core.arrays import Floats, Offsets
from veilrec.core.errors import BadInput, VeilrecError
from veilrec.core.files import OWNER_ONLY, Closing
from veilrec.core.plan import Plan
from veilrec.core.resources import require
from veilrec.server.aggregation import Aggregator
from veilrec.simulation.pieces import CohortWorker, OpenRound, Piece, PieceReport, Seeds

_ALIGNED = 64  # bytes, as arrays like to lie
_PATIENCE = 10.0  # seconds in which a worker that was told to stop has to


class LostWorker(VeilrecError):
    """A worker process ended during a run."""


@dataclass(frozen=True)
class PartialSum:
    """Fixed-point sum of the updates of some clients."""

    total: Offsets
    clients: int
    cpu_seconds: float  # that it took whoever worked on it


class WorkerPool(Protocol):
    """Interface of worker pools."""

    def learn(self, opened: OpenRound, pieces: Sequence[Piece]) -> tuple[list[PieceReport], list[PartialSum]]:
        """Train all pieces; return their reports in order, and partial sums that cover all of them."""

    def close(self) -> None:
        """Stop all workers."""


@dataclass(frozen=True)
class Packed:
    """Plan, data and seeds for workers of the same version: arrays in a file, the rest pickled."""

    head: bytes
    path: Path
    spans: tuple[tuple[int, int], ...]  # of the file

    @classmethod
    def write(cls, path: Path, plan: Plan, data: LocalData, seeds: Seeds) -> Packed:
        """Write the arrays to a file."""
        buffers: list[pickle.PickleBuffer] = []
        head = pickle.dumps((plan, data, seeds), protocol=5, buffer_callback=buffers.append)
        spans, position = [], 0
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, OWNER_ONLY), "wb") as file:
            for buffer in buffers:
                raw = buffer.raw()
                spans.append((position, raw.nbytes))
                file.write(raw)
                file.write(bytes(-raw.nbytes % _ALIGNED))
                position += raw.nbytes + -raw.nbytes % _ALIGNED
            file.write(bytes(_ALIGNED))  # a file of nothing cannot be mapped
        return cls(head, path, tuple(spans))

    def open(self) -> CohortWorker:
        """Map the arrays read-only."""
        try:
            whole = np.memmap(self.path, np.uint8, mode="r")
        except OSError as error:
            raise BadInput(
                f"{self.path}: a worker cannot read it ({error.strerror}): --shared is a folder that every machine sees"
            ) from None
        parts = [whole[start : start + length] for start, length in self.spans]
        plan, data, seeds = pickle.loads(self.head, buffers=parts)  # noqa: S301 - written by the process that started us
        return CohortWorker(plan, data, seeds)


class Worker:
    """Worker side of a pool."""

    def __init__(self, packed: Packed) -> None:
        self._hand = packed.open()

    def ready(self) -> None:
        """Answer once everything is loaded."""

    def learn(self, opened: OpenRound, pieces: Sequence[Piece]) -> tuple[list[PieceReport], PartialSum]:
        """Train some pieces of a round."""
        begun, plan = time.process_time(), self._hand.plan
        aggregator = Aggregator(plan.fixed_point(opened.spec), plan.aggregation)
        own = replace(opened, model=_own(opened.model), place=None if opened.place is None else opened.place.copy())
        told = [self._hand.learn(replace(piece, private=_own(piece.private)), own, aggregator) for piece in pieces]
        return told, PartialSum(aggregator.vector, aggregator.clients, time.process_time() - begun)


def _own(arrays: Mapping[str, Floats]) -> dict[str, Floats]:
    """Make arrays writeable: kernels would be compiled again for read-only ones."""
    return {name: values if values.flags.writeable else values.copy() for name, values in arrays.items()}


def shared_out(pieces: Sequence[Piece], workers: int) -> list[list[Piece]]:
    """Split pieces evenly into runs of neighbours: a worker mostly meets the same clients again."""
    cuts = np.linspace(0, len(pieces), workers + 1).round().astype(int).tolist()
    return [list(pieces[start:end]) for start, end in pairwise(cuts)]


class ProcessPool(Closing):
    """Workers on this machine, one process each."""

    def __init__(self, workers: int, plan: Plan, data: LocalData, seeds: Seeds, *, shared: Path | None = None) -> None:
        check_workers(workers)
        self._folder = tempfile.TemporaryDirectory(prefix="veilrec-", dir=shared)
        packed = Packed.write(Path(self._folder.name) / "numbers", plan, data, seeds)
        context = multiprocessing.get_context("spawn")  # threads and compiled code do not survive a fork
        self._ends: list[Connection] = []
        self._workers = []
        for _ in range(workers):
            ours, theirs = context.Pipe()
            worker = context.Process(target=_serve, args=(theirs, packed), daemon=True)
            worker.start()
            theirs.close()
            self._ends.append(ours)
            self._workers.append(worker)
        for end in self._ends:
            self._answer(end)

    def learn(self, opened: OpenRound, pieces: Sequence[Piece]) -> tuple[list[PieceReport], list[PartialSum]]:
        """Distribute the pieces and wait for all workers."""
        busy = [(end, part) for end, part in zip(self._ends, shared_out(pieces, len(self._ends)), strict=True) if part]
        for end, part in busy:
            try:
                end.send((opened, part))
            except OSError:
                raise _lost() from None
        answers = [self._answer(end) for end, _ in busy]
        return [told for part, _ in answers for told in part], [total for _, total in answers]

    def _answer(self, end: Connection) -> Any:
        try:
            failure, answer = end.recv()
        except (EOFError, OSError):
            raise _lost() from None
        if failure is not None:
            raise failure
        return answer

    def close(self) -> None:
        """Close the pipes, which ends the workers, and remove their file."""
        for end in self._ends:
            end.close()
        for worker in self._workers:
            worker.join(_PATIENCE)
            if worker.is_alive():
                worker.terminate()
        self._folder.cleanup()


def check_workers(workers: int) -> None:
    """Refuse a number of workers below 1."""
    if workers < 1:
        raise BadInput(f"--workers is {workers}: give a whole number from 1")


def _lost() -> LostWorker:
    return LostWorker("a worker has ended before its time, perhaps for want of memory: go on with --resume")


def _serve(end: Connection, packed: Packed) -> None:
    """Serve requests until the pipe is closed."""
    failure, worker = _guarded(Worker, packed)
    end.send((failure, None))
    while worker is not None:
        try:
            given = end.recv()
        except (EOFError, OSError):
            return
        end.send(_guarded(worker.learn, *given))


def _guarded(work: Callable[..., Any], *given: Any) -> tuple[VeilrecError | None, Any]:
    """Return the outcome, or the error to raise on the other side."""
    try:
        return None, work(*given)
    except VeilrecError as error:
        return error, None
    except Exception:  # whatever it is, the other side has to know
        return LostWorker(f"a worker failed:\n{traceback.format_exc()}"), None


_SECONDS_TO_START = 300.0  # for all workers: on a cluster each imports the package from its own disk

_SECONDS_TO_ANSWER = 10.0  # for the head of a cluster

_WITH_THE_CALL = 1 << 23  # bytes of a model, or of an answer, that travel in a call of a worker, past Ray's store
_OF_OUR_RAY = {"max_direct_call_object_size": _WITH_THE_CALL, "task_rpc_inlined_bytes_limit": 4 * _WITH_THE_CALL}


class RayWorkers(Closing):
    """Actors of Ray. Without an address Ray is started on this machine, and ends with the crew."""

    def __init__(
        self,
        workers: int,
        plan: Plan,
        data: LocalData,
        seeds: Seeds,
        *,
        address: str | None = None,
        shared: Path | None = None,
    ) -> None:
        check_workers(workers)
        require("--engine ray", "ray")
        import ray

        if address is not None and shared is None:
            raise BadInput("--address needs --shared: a folder that every machine of the cluster sees, for the data")
        self._ray: Any = ray
        self._started = not ray.is_initialized()
        self._is_ours = self._started and address is None
        if self._started:
            self._connect(address, workers)
        self._folder = tempfile.TemporaryDirectory(prefix="veilrec-", dir=shared)
        packed = Packed.write(Path(self._folder.name) / "numbers", plan, data, seeds)
        actor = ray.remote(num_cpus=1, max_restarts=0)(Worker)
        self._actors = [actor.remote(packed) for _ in range(workers)]
        try:
            ray.get([one.ready.remote() for one in self._actors], timeout=_SECONDS_TO_START)
        except Exception as error:
            self.close()
            raise _explained(error, ray) from None

    def _connect(self, address: str | None, workers: int) -> None:
        if address is not None and ":" in address and "//" not in address:
            _reach(address)  # of which Ray itself would despair after many minutes
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # it would tell its makers
        here = {
            "address": "local",
            "num_cpus": workers,
            "include_dashboard": False,
            "_node_ip_address": "127.0.0.1",
            "_system_config": _OF_OUR_RAY,
        }
        place = here if address is None else {"address": address}
        try:
            self._ray.init(**place, log_to_driver=False, logging_level="ERROR")
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise BadInput(
                f"--address {address}: no Ray cluster answers there ({error}): see docs/cluster.md"
            ) from None

    def learn(self, opened: OpenRound, pieces: Sequence[Piece]) -> tuple[list[PieceReport], list[PartialSum]]:
        """The model goes with the calls where Ray is ours and lets it; else it is put into Ray's store once, where all
        workers of a machine read the same copy. What passes the store waits for it on both sides: milliseconds."""
        small = sum(values.nbytes for values in opened.model.values()) < _WITH_THE_CALL // 2
        model = opened if self._is_ours and small else self._ray.put(opened)
        parts = shared_out(pieces, len(self._actors))
        tasks = [one.learn.remote(model, part) for one, part in zip(self._actors, parts, strict=True) if part]
        try:
            answers = self._ray.get(tasks)
        except Exception as error:
            raise _explained(error, self._ray) from None
        return [told for part, _ in answers for told in part], [total for _, total in answers]

    def close(self) -> None:
        """End the workers, Ray itself if it was started here, and remove the file."""
        for actor in self._actors:
            self._ray.kill(actor)
        if self._started:
            self._ray.shutdown()
        self._folder.cleanup()


def _reach(address: str) -> None:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), _SECONDS_TO_ANSWER).close()
    except (OSError, ValueError) as error:
        raise BadInput(f"--address {address}: no Ray cluster answers there ({error}): see docs/cluster.md") from None


def _explained(error: Exception, ray: Any) -> Exception:
    """Convert an error of Ray into the error that the worker raised."""
    if isinstance(error, ray.exceptions.RayTaskError):
        cause = error.cause
        return cause if isinstance(cause, Exception) else LostWorker(str(error))
    return LostWorker(f"a worker of Ray is gone ({type(error).__name__}): go on with --resume")
