"""Workers of a Ray cluster, or of Ray on this machine: the same workers, found and started by Ray."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from veilrec._extras import require
from veilrec.device.learner import LocalData
from veilrec.errors import BadInput
from veilrec.plan import Plan
from veilrec.simulate.crew import LostWorker, Packed, PartialSum, Worker, check_workers, shared_out
from veilrec.simulate.pieces import Opened, Piece, Told
from veilrec.simulate.seeds import Seeds

_SECONDS_TO_START = 300.0  # for all workers: on a cluster each imports the package from its own disk

_SECONDS_TO_ANSWER = 10.0  # for the head of a cluster

_WITH_THE_CALL = 1 << 23  # bytes of a model, or of an answer, that travel in a call of a worker, past Ray's store
_OF_OUR_RAY = {"max_direct_call_object_size": _WITH_THE_CALL, "task_rpc_inlined_bytes_limit": 4 * _WITH_THE_CALL}


class RayWorkers:
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

    def learn(self, opened: Opened, pieces: Sequence[Piece]) -> tuple[list[Told], list[PartialSum]]:
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

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _reach(address: str) -> None:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), _SECONDS_TO_ANSWER).close()
    except (OSError, ValueError) as error:
        raise BadInput(f"--address {address}: no Ray cluster answers there ({error}): see docs/cluster.md") from None


def _explained(error: Exception, ray: Any) -> Exception:
    """What a worker said, as it would be said here."""
    if isinstance(error, ray.exceptions.RayTaskError):
        cause = error.cause
        return cause if isinstance(cause, Exception) else LostWorker(str(error))
    return LostWorker(f"a worker of Ray is gone ({type(error).__name__}): go on with --resume")
