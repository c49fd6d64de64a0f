"""Many devices at once: drives a plan with the same learners and mechanisms that a real device runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veilrec import _draws
from veilrec._arrays import Bools, Floats, Indices, Offsets
from veilrec._csr import Csr
from veilrec._state import fill
from veilrec.device.learner import Cohort, Learned, LocalData, OwnSources, SharedSource, SumLearner, places
from veilrec.device.taking_part import examples_if_asked, weights_of
from veilrec.models.scores import Model
from veilrec.plan import Plan
from veilrec.privacy.keyed import (
    noise_of_comparison,
    noise_of_device,
    noise_of_histogram,
    noise_of_learning,
    noise_of_report,
    noise_of_sum,
)
from veilrec.privacy.randomness import FastSource, Source
from veilrec.server.agenda import Tally
from veilrec.server.cohorts import CohortSampler
from veilrec.server.standing import Standing
from veilrec.server.verdict import Verdict, decide
from veilrec.simulate.trainer import ModelParts, StepReport
from veilrec.updates import Factors, Rows, Uploads
from veilrec.wire import bits, codec, gains, rounds

_TALLY = "reports.counts"
_VERDICT = "comparison"
_MODELS_COMPARED = 2  # that a judge gets: the start and the trained one


@dataclass(frozen=True)
class Seeds:
    """What a simulation draws from. None of them is the public seed, which is part of a plan.

    With a secret, cohorts, reports and noise are streams of a cipher that only its holder can draw: the same again
    after a restart, so that no round is ever released with two noises. Without, everybody can, and nobody is protected.
    """

    draws: int  # of what devices draw locally: negatives, orders, starting vectors
    cohorts: int  # of who takes part, is reached, and drops out
    noise: int
    secret: bytes | None = None

    @classmethod
    def all_from(cls, seed: int, secret: bytes | None = None) -> Seeds:
        """The seeds of a run that was asked for with one number."""
        return cls(seed, seed, seed, secret)


class Simulation:
    """A population of simulated devices, a server, and the rounds between them."""

    def __init__(self, plan: Plan, data: LocalData, histories: Csr, seeds: Seeds) -> None:
        self.plan = plan
        self.data = data
        self.histories = histories  # the items of every device: what it ranks by
        self.seeds = seeds
        self.standing = Standing(plan)
        self.server = self.standing.server
        self._everybody = np.flatnonzero(data.rows.lengths() > 0).astype(np.int64)
        self.sampler = CohortSampler(plan.cohort, self._everybody, seeds.cohorts, secret=seeds.secret)
        self.private = plan.learner.fresh_private_state(np.arange(len(data.rows), dtype=np.int64), seeds.draws)
        self._learner_of_sums = plan.learner if isinstance(plan.learner, SumLearner) else None
        self._tally: Tally | None = None  # where one serves the whole run
        self.start = plan.start  # what training is compared with in the end
        self.verdict: Verdict | None = None  # of the last comparison, once it was made

    def step(self, number: int) -> StepReport:
        """One round."""
        devices = self.sampler.draw(number)
        arrives = self.sampler.arrives(number, devices)
        report_bytes = self._open_round(number, devices)
        server, plan = self.server, self.plan
        broadcast = server.broadcast()
        model = weights_of(codec.rounded(broadcast, server.schema), server.view)
        if self._learner_of_sums is not None and self._is_linear:
            sent = self._learn_sum(self._learner_of_sums, devices[arrives], model)
        else:
            sent = self._learn_each(devices, arrives, model)
        if plan.mechanism.noise_on == "sum":
            server.protect(self._source_of_sums(number))
        counted = sum(plan.mechanism.counted_parameters(table, server.about) for table in server.view.tables)
        down = int(codec.sizes(broadcast, server.schema)[0]) + rounds.size(server.about, server.schema)
        self.standing.step()
        judges = self.compare() if number + 1 == plan.rounds else 0
        return StepReport(
            devices=len(devices),
            down_bytes=down * (len(devices) + _MODELS_COMPARED * judges),
            up_bytes=sent.up_bytes + report_bytes + gains.SIZE * judges,
            down_params=codec.parameters(broadcast, server.schema) * len(devices),
            up_params=sent.up_params,
            selection_bytes=report_bytes,
            paper_params=counted * len(devices),
            loss=sent.loss,
            shares=sent.shares,
        )

    def _open_round(self, number: int, devices: Offsets) -> int:
        """Ask what has to be asked, and tell the server what the round is about; the bytes of the reports."""
        tally, report_bytes = self._ask(number, devices)
        self.standing.take_in(tally)
        about = self.plan.agenda.next(number, self.server.weights, tally)
        self.server.open_round(about)
        return report_bytes

    def _ask(self, number: int, devices: Offsets) -> tuple[Tally | None, int]:
        reports = self.plan.reports
        if reports is None:
            return None, 0
        asked = self._everybody if reports.who == "everybody" else devices
        sent = 0 if reports.once and number > 0 else len(asked)
        if reports.once and self._tally is not None:
            return self._tally, sent * bits.size(reports.mechanism.length)
        if not len(asked):
            return None, 0
        mechanism, period = reports.mechanism, number if reports.fresh else 0
        data, secret = self.data.take(asked).rows, self.seeds.secret
        noise: Source
        if secret is None:
            counts = mechanism.count(data, asked, seed=self.seeds.draws, period=period)
            key = (self.seeds.noise, _draws.HISTOGRAM, *((period,) if period else ()))  # fresh counts, fresh noise
            noise = FastSource(*key, one_generator=True)
        else:
            counts = mechanism.count_each(data, asked, lambda device: noise_of_report(secret, period, device))
            noise = noise_of_histogram(secret, period)
        tally = Tally(mechanism.protect(counts, noise), len(asked))
        if reports.once:
            self._tally = tally
        return tally, sent * bits.size(mechanism.length)

    @property
    def _is_linear(self) -> bool:
        """Whether nothing is done to a message alone, rounding included."""
        exact = all(tensor.values == "float32" for tensor in self.server.view.tensors)
        return exact and self.plan.mechanism.is_linear

    def _learn_sum(self, learner: SumLearner[Any], devices: Offsets, model: Mapping[str, Floats]) -> _Sent:
        """The weighted mean of all messages, none of which is formed: only their lengths are known."""
        if not len(devices):
            return _Sent()
        server, weighs = self.server, self.server.weighs_examples
        cohort = Cohort(devices, self.data.take(devices), {}, self.seeds.draws, self._local_noise(0))
        learned, outlines = learner.learn_sum(cohort, model, server.about, weighs_examples=weighs)
        server.add(examples_if_asked(learned.uploads, weighs))
        up_bytes, up_params = int(codec.sizes(outlines, server.view).sum()), codec.parameters(outlines, server.view)
        return _Sent(up_bytes, up_params, float(learned.loss.mean()), _mean_shares([learned.shares], [len(devices)]))

    def _learn_each(self, devices: Offsets, arrives: Bools, model: Mapping[str, Floats]) -> _Sent:
        """Every device's message, some devices at a time; then the noise of all of them at once, where it is linear."""
        server, mechanism, secret = self.server, self.plan.mechanism, self.seeds.secret
        about, view, fills = server.about, server.view, mechanism.fills_messages
        place = None if about.rows is None else places(about.rows, self.plan.schema.tables[0].shape[0])
        at_once = self.plan.devices_at_once
        up_bytes = up_params = 0
        shares: list[Floats | None] = []
        counts: list[int] = []
        losses, weights = [np.zeros(0, np.float32)], [np.zeros(0, np.int64)]
        for start in range(0, len(devices), at_once):
            part = slice(start, start + at_once)
            uploads, learned = self._learn(devices[part], model, place, start)
            kept = keep(uploads, arrives[part])
            losses.append(learned.loss)
            shares.append(learned.shares)
            counts.append(len(learned.loss))
            if secret is not None and mechanism.noise_on == "message":
                sent = self._perturb_alone(kept, devices[part][arrives[part]], secret)
            else:
                if mechanism.perturbs_each:
                    fast = FastSource(self.seeds.noise, _draws.NOISE, about.number, start)
                    kept = mechanism.perturb_each(kept, about, fast)
                sent = [kept]
            for some in sent:
                up_bytes += int(codec.sizes(some, view, all_rows=fills).sum())
                up_params += codec.parameters(some, view, all_rows=fills)
                weights.append(np.ones(some.count, np.int64) if some.examples is None else some.examples)
                server.add(codec.rounded(some, view))
        if mechanism.noise_on == "message" and secret is None:
            generator = FastSource(self.seeds.noise, _draws.NOISE, about.number, one_generator=True).generator()
            server.add_to_sum(mechanism.noise_of_messages(view, np.concatenate(weights), generator))
        loss_of_all = float(np.concatenate(losses).sum()) / len(devices) if len(devices) else None
        return _Sent(up_bytes, up_params, loss_of_all, _mean_shares(shares, counts))

    def _learn(
        self, devices: Offsets, model: Mapping[str, Floats], place: Indices | None, start: int
    ) -> tuple[Uploads, Learned]:
        private = {name: values[devices] for name, values in self.private.items()}
        data = self.data.take(devices)
        data = data if place is None else data.inside(place)
        cohort = Cohort(devices, data, private, self.seeds.draws, self._local_noise(start))
        learned = self.plan.learner.learn(cohort, model, self.server.about)
        for name, values in private.items():
            self.private[name][devices] = values
        uploads = examples_if_asked(learned.uploads, self.server.weighs_examples)
        return self.plan.mechanism.bound(uploads, self.server.about), learned

    def _local_noise(self, start: int) -> OwnSources:
        """What devices add to their data before they learn is drawn from; `start` names the first of them."""
        secret, number = self.seeds.secret, self.server.about.number
        if secret is None:
            return SharedSource(FastSource(self.seeds.noise, _draws.LOCAL_NOISE, number, start))
        return OwnSources(lambda device: noise_of_learning(secret, number, device))

    def _perturb_alone(self, uploads: Uploads, devices: Offsets, secret: bytes) -> list[Uploads]:
        """Every message with the noise that its own device draws."""
        about = self.server.about
        return [
            self.plan.mechanism.perturb(one_of(uploads, i), about, noise_of_device(secret, about.number, int(device)))
            for i, device in enumerate(devices)
        ]

    def _source_of_sums(self, number: int) -> Source:
        if self.seeds.secret is not None:
            return noise_of_sum(self.seeds.secret, number)
        return FastSource(self.seeds.noise, _draws.NOISE, number, one_generator=True)

    def compare(self) -> int:
        """Let the judges decide whether training is kept; how many they are."""
        comparison, secret = self.plan.comparison, self.seeds.secret
        if comparison is None:
            return 0
        mechanism, judges = comparison.mechanism, comparison.judge.devices(self.data)
        told = comparison.judge.gains(self.data.take(judges), self._untrained, self.standing.weights)
        fast = FastSource(self.seeds.noise, _draws.COMPARISON, one_generator=True)
        noise: Source = fast if secret is None else noise_of_comparison(secret)
        noisy = mechanism.protect(np.array([mechanism.total(told)]), noise)
        self.verdict = decide(float(noisy[0]), len(judges), mechanism)
        return len(judges)

    def parts(self) -> ModelParts:
        """The model in parts: what everybody may have, and what the simulated devices keep."""
        keeps_start = self.verdict is not None and self.verdict.kept == "start"
        weights = self._untrained if keeps_start else self.standing.weights
        return ModelParts(self.plan.ranker, dict(weights), self._own, self.standing.sent_items)

    @property
    def _untrained(self) -> dict[str, Floats]:
        """The first model, with what was known before the first round."""
        return {**self.start, **self.standing.known}

    @property
    def _own(self) -> dict[str, NDArray[Any]]:
        """What the simulated devices rank with."""
        return {**self.private, **self.data.kept}

    def compared(self) -> dict[str, Model]:
        """The start and the trained model, where a comparison chose between them, whichever it kept."""
        if self.verdict is None:
            return {}
        both = {"start": self._untrained, "trained": self.standing.weights}
        return {
            name: ModelParts(self.plan.ranker, dict(weights), self._own, self.standing.sent_items).model(self.histories)
            for name, weights in both.items()
        }

    def model(self) -> Model:
        """The model as it stands; items that no round was about come last."""
        return self.parts().model(self.histories)

    def state(self) -> dict[str, NDArray[Any]]:
        """The server's state and every simulated device's own."""
        private = {f"private.{name}": values for name, values in self.private.items()}
        tally = {} if self._tally is None else {_TALLY: self._tally.counts}
        verdict = {} if self.verdict is None else {_VERDICT: self.verdict.state()}
        return self.standing.state() | private | tally | verdict

    def load_state(self, state: Mapping[str, NDArray[Any]], steps_done: int) -> None:
        """Go on from a state."""
        self.standing.load_state(state, steps_done)
        if steps_done == 0:  # of an earlier run, from which this one starts
            self.start = {name: weights.copy() for name, weights in self.standing.weights.items()}
        for name, values in self.private.items():
            fill(values, state, f"private.{name}")
        if _TALLY in state:
            self._tally = Tally(np.array(state[_TALLY]), len(self._everybody))
            self.standing.take_in(self._tally)
        self.verdict = Verdict.restored(state[_VERDICT]) if _VERDICT in state else None


@dataclass(frozen=True)
class _Sent:
    """What the devices of a round sent."""

    up_bytes: int = 0
    up_params: int = 0
    loss: float | None = None
    shares: tuple[float, ...] | None = None


def _mean_shares(shares: Sequence[Floats | None], counts: Sequence[int]) -> tuple[float, ...] | None:
    """The mean attention over basis vectors of all devices of a round, from those of its parts."""
    known = [(values, count) for values, count in zip(shares, counts, strict=True) if values is not None]
    if not known:
        return None
    means = np.average([values for values, _ in known], axis=0, weights=[count for _, count in known])
    return tuple(float(value) for value in means)


def one_of(uploads: Uploads, device: int) -> Uploads:
    """The message of one of the devices, by its place among them."""

    def rows_of(packed: Mapping[str, Rows]) -> dict[str, Rows]:
        cut = {}
        for name, rows in packed.items():
            part = slice(rows.offsets[device], rows.offsets[device + 1])
            cut[name] = Rows(np.array([0, part.stop - part.start]), rows.index[part], rows.values[part])
        return cut

    one = slice(device, device + 1)
    return replace(
        uploads,
        count=1,
        tables=rows_of(uploads.tables),
        dense={name: values[one] for name, values in uploads.dense.items()},
        examples=None if uploads.examples is None else uploads.examples[one],
        entries=rows_of(uploads.entries),
        factors={n: Factors(f.left[one], f.scales[one], f.right[one]) for n, f in uploads.factors.items()},
    )


def keep(uploads: Uploads, arrives: Bools) -> Uploads:
    """Only the messages that arrive."""
    if arrives.all():
        return uploads
    chosen = np.flatnonzero(arrives)
    return replace(
        uploads,
        count=len(chosen),
        tables={name: _keep_rows(rows, arrives, chosen) for name, rows in uploads.tables.items()},
        dense={name: values[chosen] for name, values in uploads.dense.items()},
        examples=None if uploads.examples is None else uploads.examples[chosen],
        entries={name: _keep_rows(rows, arrives, chosen) for name, rows in uploads.entries.items()},
        factors={n: Factors(f.left[chosen], f.scales[chosen], f.right[chosen]) for n, f in uploads.factors.items()},
    )


def _keep_rows(rows: Rows, arrives: Bools, chosen: Offsets) -> Rows:
    entries = np.repeat(arrives, np.diff(rows.offsets))
    offsets = np.zeros(len(chosen) + 1, np.int64)
    np.cumsum(np.diff(rows.offsets)[chosen], out=offsets[1:])
    return Rows(offsets, rows.index[entries], rows.values[entries])
