"""Many devices at once: drives the same learners and uploads that a real device runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veilrec import _draws
from veilrec._arrays import Floats, Indices, Offsets
from veilrec._csr import Csr
from veilrec._state import fill
from veilrec.device.device import told, weights_of
from veilrec.device.learner import Cohort, Learner
from veilrec.device.protection import Protection, Unprotected
from veilrec.device.submodel import narrow, places
from veilrec.evaluate.scorer import Model
from veilrec.privacy.randomness import SeededSource
from veilrec.server.server import Server
from veilrec.simulate.choosers import Chooser
from veilrec.simulate.cohort import CohortSampler, CohortSettings
from veilrec.simulate.partial import SentFirstModel
from veilrec.simulate.trainer import StepReport
from veilrec.updates import Factors, Rows, Uploads
from veilrec.wire import codec

# (public weights, private states) -> model
ModelMaker = Callable[[Mapping[str, Floats], Mapping[str, Floats]], Model]


class Simulation:
    """A population of simulated devices, a server, and the rounds between them."""

    def __init__(
        self,
        train: Csr,
        learner: Learner,
        server: Server,
        cohort: CohortSettings,
        make_model: ModelMaker,
        seed: int,
        *,
        protection: Protection | None = None,
        chooser: Chooser | None = None,
        averaging: float = 0.0,
        chunk: int = 100,
    ) -> None:
        self.train = train
        self.learner = learner
        self.server = server
        self.protection = Unprotected() if protection is None else protection
        self.chooser = chooser
        self.seed = seed
        self.chunk = chunk  # devices per call of the learner: few enough that their updates stay in the cache
        self.make_model = make_model
        eligible = np.flatnonzero(train.lengths() > 0).astype(np.int64)
        self.sampler = CohortSampler(cohort, eligible, seed)
        self.private = learner.fresh_private_state(np.arange(len(train), dtype=np.int64))
        # The model that ranks may be a running mean of the server's: averages = averaging * averages + ...
        self.averaging = np.float32(averaging)
        self.averages = {name: value.copy() for name, value in server.weights.items()} if averaging else {}
        # How often each item was part of what a round was about, where rounds are about parts.
        self.sent = None if chooser is None else np.zeros(server.schema.tables[0].shape[0], np.int64)

    def step(self, number: int) -> StepReport:
        """One round."""
        devices = self.sampler.draw(number)
        arrives = self.sampler.arrives(number, devices)
        selection_bytes, place = self._open_round(number, devices)
        server, fills = self.server, self.protection.fills_messages
        broadcast = server.broadcast()
        model = weights_of(codec.rounded(broadcast, server.schema), server.view)
        up_bytes = up_params = 0
        losses = []
        for start in range(0, len(devices), self.chunk):
            some = devices[start : start + self.chunk]
            uploads, loss = self._learn(some, model, number, place)
            kept = keep(uploads, arrives[start : start + self.chunk])
            if not _inherits(self.protection, "perturb_each"):
                kept = self.protection.perturb_each(kept, server.view, self._source(number, start))
            up_bytes += int(codec.sizes(kept, server.view, all_rows=fills).sum())
            up_params += codec.parameters(kept, server.view, all_rows=fills)
            losses.append(loss)
            server.add(codec.rounded(kept, server.view))
        self._add_noise(number, int(arrives.sum()))
        counted = sum(self.protection.counted_parameters(table) for table in server.view.tables)
        server.step()
        for name, weights in server.weights.items() if self.averages else ():
            self.averages[name] += (np.float32(1.0) - self.averaging) * (weights - self.averages[name])
        return StepReport(
            devices=len(devices),
            down_bytes=int(codec.sizes(broadcast, server.schema)[0]) * len(devices),
            up_bytes=up_bytes + selection_bytes,
            down_params=codec.parameters(broadcast, server.schema) * len(devices),
            up_params=up_params,
            selection_bytes=selection_bytes,
            paper_params=counted * len(devices),
            loss=float(np.concatenate(losses).sum()) / len(devices) if losses else None,
        )

    def _open_round(self, number: int, devices: Offsets) -> tuple[int, Indices | None]:
        """Tell the server what the round is about; where the items lie in the sub-model, if there is one."""
        if self.chooser is None:
            return 0, None
        choice = self.chooser.choose(number, devices, self.server.weights)
        self.server.open_round(choice.rows, choice.kept, choice.basis)
        if self.sent is not None:
            self.sent[slice(None) if choice.rows is None else choice.rows] += 1
        n_items = self.server.schema.tables[0].shape[0]
        return choice.report_bytes, None if choice.rows is None else places(choice.rows, n_items)

    def _learn(
        self, devices: Offsets, model: Mapping[str, Floats], number: int, place: Indices | None
    ) -> tuple[Uploads, Floats]:
        private = {name: values[devices] for name, values in self.private.items()}
        data = self.train.take(devices)
        cohort = Cohort(devices, data if place is None else narrow(data, place), private)
        learned = self.learner.learn(cohort, model, number)
        for name, values in private.items():
            self.private[name][devices] = values
        return self.protection.bound(told(learned.uploads, self.server.weighs_examples)), learned.loss

    def _source(self, number: int, start: int) -> SeededSource:
        return SeededSource(self.seed, _draws.NOISE, number, start)

    def _add_noise(self, number: int, devices: int) -> None:
        """The noise of all messages, and that of the server, drawn at once: linear, so the sum is all that matters."""
        if _inherits(self.protection, "noise_of_sum") and self.server.sigma == 0.0:
            return
        key = np.random.SeedSequence([self.seed, _draws.NOISE, number])
        generator = np.random.Generator(np.random.Philox(key))
        self.server.add_to_sum(self.protection.noise_of_sum(self.server.view, devices, generator))
        if self.server.sigma > 0.0:
            self.server.add_simulated_noise(generator)

    def model(self) -> Model:
        """The model as it stands; items that no round was about come last."""
        model = self.make_model(self.averages or self.server.weights, self.private)
        if self.sent is None or self.sent.all():
            return model
        return SentFirstModel(model, self.sent > 0)

    def state(self) -> dict[str, NDArray[Any]]:
        """The server's state and every simulated device's own."""
        private = {f"private.{name}": values for name, values in self.private.items()}
        sent = {} if self.sent is None else {"sent": self.sent}
        averages = {f"average.{name}": values for name, values in self.averages.items()}
        server = {f"server.{name}": values for name, values in self.server.state().items()}
        return server | private | sent | averages

    def load_state(self, state: Mapping[str, NDArray[Any]], steps_done: int) -> None:
        """Go on from a state."""
        prefix = "server."
        self.server.load_state(
            {name.removeprefix(prefix): state[name] for name in state if name.startswith(prefix)}, steps_done
        )
        for name, values in self.private.items():
            fill(values, state, f"private.{name}")
        if self.sent is not None:
            self.sent[...] = state["sent"]
        for name in self.averages:
            self.averages[name][...] = state[f"average.{name}"]


def _inherits(protection: Protection, method: str) -> bool:
    """Whether a protection leaves this step to `Unprotected`, which does nothing: then no generator is set up."""
    return getattr(type(protection), method, None) is getattr(Unprotected, method)


def keep(uploads: Uploads, arrives: NDArray[np.bool_]) -> Uploads:
    """Only the messages that arrive."""
    if arrives.all():
        return uploads
    chosen = np.flatnonzero(arrives)
    return Uploads(
        uploads.round_number,
        len(chosen),
        {name: _keep_rows(rows, arrives, chosen) for name, rows in uploads.tables.items()},
        {name: values[chosen] for name, values in uploads.dense.items()},
        None if uploads.examples is None else uploads.examples[chosen],
        {name: _keep_rows(rows, arrives, chosen) for name, rows in uploads.entries.items()},
        {n: Factors(f.left[chosen], f.scales[chosen], f.right[chosen]) for n, f in uploads.factors.items()},
    )


def _keep_rows(rows: Rows, arrives: NDArray[np.bool_], chosen: Offsets) -> Rows:
    entries = np.repeat(arrives, np.diff(rows.offsets))
    offsets = np.zeros(len(chosen) + 1, np.int64)
    np.cumsum(np.diff(rows.offsets)[chosen], out=offsets[1:])
    return Rows(offsets, rows.index[entries], rows.values[entries])
