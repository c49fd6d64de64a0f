"""Rounds of news devices; where nothing is non-linear per device, one backward pass stands for all messages."""

from __future__ import annotations

import numpy as np

from veilrec import _draws
from veilrec._arrays import Offsets
from veilrec._csr import Csr
from veilrec.device.device import told, weights_of
from veilrec.device.element_clip import ElementClip
from veilrec.device.learner import Cohort
from veilrec.device.news import NewsLearner
from veilrec.device.news_log import count_clicks
from veilrec.device.protection import Protection, Unprotected
from veilrec.device.title_gradients import WORDS
from veilrec.server.server import Server
from veilrec.simulate.cohort import CohortSettings
from veilrec.simulate.simulation import ModelMaker, Simulation
from veilrec.simulate.trainer import StepReport
from veilrec.updates import Rows, Uploads
from veilrec.wire import codec

_ENTRIES_AT_ONCE = 1 << 25  # of the updates of devices that learn in one call: 128 MB
_DEVICES_AT_ONCE = 256


class NewsSimulation(Simulation):
    """A device is a row of the logs; it keeps no state, so one whose message is lost has changed nothing."""

    learner: NewsLearner

    def __init__(
        self,
        logs: Csr,
        learner: NewsLearner,
        server: Server,
        cohort: CohortSettings,
        make_model: ModelMaker,
        seed: int,
        *,
        protection: Protection,
    ) -> None:
        update = sum(tensor.size for tensor in server.schema.dense)
        chunk = max(1, min(_DEVICES_AT_ONCE, _ENTRIES_AT_ONCE // max(update, 1)))
        super().__init__(logs, learner, server, cohort, make_model, seed, protection=protection, chunk=chunk)
        exact = all(tensor.values == "float32" for tensor in server.upload_schema.tensors)
        self.together = exact and type(protection) is Unprotected  # rounding and clipping are not linear

    def step(self, number: int) -> StepReport:
        """One round: that of every simulation, or its shortcut."""
        return self._step_together(number) if self.together else super().step(number)

    def _step_together(self, number: int) -> StepReport:
        """The weighted mean of all messages, none of which is formed: only their lengths are known."""
        drawn = self.sampler.draw(number)
        devices = drawn[self.sampler.arrives(number, drawn)]
        server, weighs = self.server, self.server.weighs_examples
        broadcast = server.broadcast()
        up_bytes, up_params, loss = 0, 0, None
        if len(devices):
            model = weights_of(codec.rounded(broadcast, server.schema), server.view)
            cohort = Cohort(devices, self.train.take(devices), {})
            learned, words = self.learner.learn_together(cohort, model, number, weighs_examples=weighs)
            server.add(told(learned.uploads, weighs))
            outlines = self._outlines(len(devices), words)
            up_bytes = int(codec.sizes(outlines, server.view).sum())
            up_params = codec.parameters(outlines, server.view)
            loss = float(learned.loss.mean())
        counted = sum(self.protection.counted_parameters(table) for table in server.view.tables)
        server.step()
        return StepReport(
            devices=len(drawn),
            down_bytes=int(codec.sizes(broadcast, server.schema)[0]) * len(drawn),
            up_bytes=up_bytes,
            down_params=codec.parameters(broadcast, server.schema) * len(drawn),
            up_params=up_params,
            paper_params=counted * len(drawn),
            loss=loss,
        )

    def _outlines(self, count: int, words: Offsets) -> Uploads:
        """Messages as long as those that the devices would have sent, without their content."""
        zero = np.zeros(1, np.float32)
        tables = {}
        for tensor in self.server.schema.tables:
            offsets = np.concatenate([[0], np.cumsum(words)]) if tensor.name == WORDS else np.zeros(count + 1)
            rows = int(offsets[-1])
            values = np.broadcast_to(zero, (rows, tensor.shape[1]))
            tables[tensor.name] = Rows(offsets.astype(np.int64), np.zeros(rows, np.int32), values)
        dense = {t.name: np.broadcast_to(zero, (count, *t.shape)) for t in self.server.schema.dense}
        return Uploads(0, count, tables, dense)

    def _add_noise(self, number: int, devices: int) -> None:
        """As in every simulation, but a device's noise counts as often as its message (eq. 6)."""
        if not (isinstance(self.protection, ElementClip) and self.server.weighs_examples):
            super()._add_noise(number, devices)
            return
        drawn = self.sampler.draw(number)
        weights = count_clicks(self.train.take(drawn[self.sampler.arrives(number, drawn)]))
        key = np.random.SeedSequence([self.seed, _draws.NOISE, number])
        generator = np.random.Generator(np.random.Philox(key))
        self.server.add_to_sum(self.protection.noise_of_weighted_sum(self.server.view, weights, generator))
