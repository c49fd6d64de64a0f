"""Other processes that work on pieces of a round: on this machine, or on many (`veilrec.simulate.ray_crew`).

A worker gets the plan and the devices' data once: the numbers of both lie in one file that all workers map into memory,
and read no more of than the devices that come their way. Then, for every round, it gets the model and some pieces, and
gives back the sum of their messages, in whole numbers, and what is told of each piece. It keeps nothing between rounds,
so that one that dies has lost nothing.
"""

from __future__ import annotations

import multiprocessing
import pickle
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import numpy as np

from veilrec._arrays import Floats, Offsets
from veilrec.device.learner import LocalData
from veilrec.errors import BadInput, VeilrecError
from veilrec.plan import Plan
from veilrec.server.aggregate import Aggregator
from veilrec.simulate.pieces import Hand, Opened, Piece, Told
from veilrec.simulate.seeds import Seeds

_ALIGNED = 64  # bytes, as arrays like to lie
_PATIENCE = 10.0  # seconds in which a worker that was told to stop has to


class LostWorker(VeilrecError):
    """A worker has ended in the middle of a run."""


@dataclass(frozen=True)
class PartialSum:
    """What the messages of some devices add up to, in whole numbers of the round's lattice."""

    total: Offsets
    devices: int
    cpu_seconds: float  # that it took whoever worked on it


class Crew(Protocol):
    """Workers of any kind."""

    def learn(self, opened: Opened, pieces: Sequence[Piece]) -> tuple[list[Told], list[PartialSum]]:
        """What is told of every piece, in their order, and sums that together are of all."""

    def close(self) -> None:
        """Send everybody home."""


@dataclass(frozen=True)
class Packed:
    """A plan, data and seeds; the numbers in a file, the rest of it here, to be sent to workers of the same version."""

    head: bytes
    path: Path
    spans: tuple[tuple[int, int], ...]  # of the file

    @classmethod
    def write(cls, path: Path, plan: Plan, data: LocalData, seeds: Seeds) -> Packed:
        """Put the numbers into a file."""
        buffers: list[pickle.PickleBuffer] = []
        head = pickle.dumps((plan, data, seeds), protocol=5, buffer_callback=buffers.append)
        spans, position = [], 0
        with path.open("wb") as file:
            for buffer in buffers:
                raw = buffer.raw()
                spans.append((position, raw.nbytes))
                file.write(raw)
                file.write(bytes(-raw.nbytes % _ALIGNED))
                position += raw.nbytes + -raw.nbytes % _ALIGNED
            file.write(bytes(_ALIGNED))  # a file of nothing cannot be mapped
        return cls(head, path, tuple(spans))

    def open(self) -> Hand:
        """Map the numbers into memory, where they can be read only."""
        try:
            whole = np.memmap(self.path, np.uint8, mode="r")
        except OSError as error:
            raise BadInput(
                f"{self.path}: a worker cannot read it ({error.strerror}): --shared is a folder that every machine sees"
            ) from None
        parts = [whole[start : start + length] for start, length in self.spans]
        plan, data, seeds = pickle.loads(self.head, buffers=parts)  # noqa: S301 - written by the process that started us
        return Hand(plan, data, seeds)


class Worker:
    """One process of a crew, from inside."""

    def __init__(self, packed: Packed) -> None:
        self._hand = packed.open()

    def ready(self) -> None:
        """Answer, once all is read."""

    def learn(self, opened: Opened, pieces: Sequence[Piece]) -> tuple[list[Told], PartialSum]:
        """Work on some pieces of a round."""
        begun, plan = time.process_time(), self._hand.plan
        aggregator = Aggregator(plan.lattice(opened.about), plan.aggregation)
        own = replace(opened, model=_own(opened.model), place=None if opened.place is None else opened.place.copy())
        told = [self._hand.learn(replace(piece, private=_own(piece.private)), own, aggregator) for piece in pieces]
        return told, PartialSum(aggregator.vector, aggregator.devices, time.process_time() - begun)


def _own(arrays: Mapping[str, Floats]) -> dict[str, Floats]:
    """Arrays that can be written to: a kernel is compiled once more for those that cannot."""
    return {name: values if values.flags.writeable else values.copy() for name, values in arrays.items()}


def shared_out(pieces: Sequence[Piece], workers: int) -> list[list[Piece]]:
    """Neighbours together, as evenly as whole pieces allow: a worker mostly meets the same devices again."""
    cuts = np.linspace(0, len(pieces), workers + 1).round().astype(int).tolist()
    return [list(pieces[start:end]) for start, end in pairwise(cuts)]


class Processes:
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

    def learn(self, opened: Opened, pieces: Sequence[Piece]) -> tuple[list[Told], list[PartialSum]]:
        """Give everybody a part, and wait for all of them."""
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

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def check_workers(workers: int) -> None:
    """Refuse a crew of nobody."""
    if workers < 1:
        raise BadInput(f"--workers is {workers}: give a whole number from 1")


def _lost() -> LostWorker:
    return LostWorker("a worker has ended before its time, perhaps for want of memory: go on with --resume")


def _serve(end: Connection, packed: Packed) -> None:
    """The whole life of a worker: until the pipe is closed."""
    failure, worker = _guarded(Worker, packed)
    end.send((failure, None))
    while worker is not None:
        try:
            given = end.recv()
        except (EOFError, OSError):
            return
        end.send(_guarded(worker.learn, *given))


def _guarded(work: Callable[..., Any], *given: Any) -> tuple[VeilrecError | None, Any]:
    """The outcome, or what is to be raised on the other side."""
    try:
        return None, work(*given)
    except VeilrecError as error:
        return error, None
    except Exception:  # whatever it is, the other side has to know
        return LostWorker(f"a worker failed:\n{traceback.format_exc()}"), None
