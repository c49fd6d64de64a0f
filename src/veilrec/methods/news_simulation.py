"""Rounds of news devices; where nothing is non-linear per device, one backward pass stands for all messages."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from veilrec import _draws
from veilrec._arrays import Floats, Offsets
from veilrec._csr import Csr
from veilrec.device.device import told, weights_of
from veilrec.device.element_clip import ElementClip
from veilrec.device.learner import Cohort
from veilrec.device.news import WORDS, NewsLearner
from veilrec.device.protection import Protection, Unprotected
from veilrec.server.server import Server
from veilrec.simulate.cohort import CohortSettings
from veilrec.simulate.simulation import ModelMaker, Simulation
from veilrec.simulate.trainer import StepReport
from veilrec.wire import codec
from veilrec.wire.messages import Rows, Uploads


class NewsSimulation(Simulation):
    """A device is a row of the logs; it keeps no state, so one whose message is lost has changed nothing."""

    learner: NewsLearner

    def __init__(
        self, logs: Csr, learner: NewsLearner, server: Server, cohort: CohortSettings, make_model: ModelMaker,
        seed: int, *, protection: Protection, chunk: int = 64, together: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(logs, learner, server, cohort, make_model, seed, protection=protection, chunk=chunk)
        self.together = together and type(protection) is Unprotected

    def step(self, number: int) -> StepReport:
        """One round."""
        drawn = self.sampler.draw(number)
        devices = drawn[self.sampler.arrives(number, drawn)]
        broadcast = self.server.broadcast()
        model = weights_of(broadcast, self.server.schema)
        up_bytes, up_params, fills = 0, 0, self.protection.fills_messages
        losses, weights = [np.zeros(0, np.float32)], [np.zeros(0, np.int64)]
        size = len(devices) if self.together else self.chunk
        for start in range(0, len(devices), max(size, 1)):
            some = devices[start : start + size]
            messages, loss, examples = self._add(some, model, number)
            up_bytes += int(codec.sizes(messages, self.server.view, all_rows=fills).sum())
            up_params += codec.parameters(messages, self.server.view, all_rows=fills)
            losses.append(loss)
            weights.append(examples)
        down = int(codec.sizes(broadcast, self.server.schema)[0])
        down_params = codec.parameters(broadcast, self.server.schema)
        self._add_weighted_noise(number, np.concatenate(weights))
        self.server.step()
        loss = np.concatenate(losses)
        return StepReport(
            devices=len(drawn), down_bytes=down * len(drawn), up_bytes=up_bytes,
            down_params=down_params * len(drawn), up_params=up_params,
            loss=float(loss.mean()) if len(loss) else None,
        )  # fmt: skip

    def _add(
        self, devices: Offsets, model: Mapping[str, Floats], number: int
    ) -> tuple[Uploads, Floats, Offsets]:
        """Learn and add; the messages (of which only the lengths are used further), losses and examples."""
        cohort = Cohort(devices, self.train.take(devices), {})
        weighs = self.server.weighs_examples
        if not self.together:
            learned = self.learner.learn(cohort, model, number)
            messages = self.protection.bound(told(learned.uploads, weighs))
            self.server.add(messages)
            return messages, learned.loss, learned.examples
        learned, words = self.learner.learn_together(cohort, model, number, weighs_examples=weighs)
        self.server.add(told(learned.uploads, weighs))
        return self._outlines(len(devices), words), learned.loss, learned.examples

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

    def _add_weighted_noise(self, number: int, examples: Offsets) -> None:
        """As in `Simulation`, but a device's noise counts as often as its message (eq. 6)."""
        if not isinstance(self.protection, ElementClip):
            self._add_noise(number, len(examples))
            return
        key = np.random.SeedSequence([self.seed, _draws.NOISE, number])
        generator = np.random.Generator(np.random.Philox(key))
        weights = examples if self.server.weighs_examples else np.ones(len(examples), np.int64)
        self.server.add_to_sum(self.protection.noise_of_weighted_sum(self.server.schema, weights, generator))
