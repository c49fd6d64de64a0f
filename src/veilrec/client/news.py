"""Local training of news models: FedNewsRec's gradient step, and PrivateRec's with local noise.

FedNewsRec (section 3.2): a client sends the negative gradient of its mean loss over its clicks (eq. 2 and 3); the
server weights and steps (eq. 6 and 7). The words of a title are rows of a table, so an update carries the rows of the
client's own words and the other tensors whole. `learn_sum` gives the weighted mean of all updates from one backward
pass.

PrivateRec (Algorithm 3): noise on a client's attention and labels before it trains, in two passes. The first, without
gradients, computes the attention of every sample over the basis vectors (UE, ID) and passes it to the mechanisms of
`veilrec.privacy`, which pad, clip and perturb it (DPA), and release a label (DPL). The second reconstructs the user
from their output (IR), scores the candidates (CP) and differentiates.
- "through": as published, gradients flow through the attention as well, so that they depend on the history.
- "released": the second pass sees only what was released; its gradient is post-processing of that.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from veilrec.client.local_training import Cohort, LocalResults
from veilrec.client.news_data import (
    NONE,
    ClickExamples,
    OwnImpressions,
    Samples,
    draw_examples,
    every_click,
    one_click_of_some,
)
from veilrec.core import schema as updates
from veilrec.core.arrays import Bools, Doubles, Floats, Indices, Offsets
from veilrec.core.errors import BadInput
from veilrec.core.schema import ClientUpdates, RoundSpec, Rows, Schema
from veilrec.kernels.news_gradients import Gradients, differentiation
from veilrec.kernels.title_encoder import WORDS
from veilrec.models.federated_news import Interests
from veilrec.models.news_model import Batch, NewsInput, NewsModel, encode_in_parts, make_batch, take_news, trimmed
from veilrec.privacy.mechanisms.attention import PaddedNoise, uniform_if_overflown
from veilrec.privacy.mechanisms.responses import LabelPerturbation
from veilrec.privacy.randomness import Source


@dataclass(frozen=True)
class NewsTrainingSettings:
    """What a client draws from its impressions."""

    negatives: int = 4  # H of eq. 3: news of the same impression that were not clicked, per click
    history: int = 50  # the latest clicks that a user is known by


def schema(model: NewsModel, frozen: frozenset[str]) -> Schema:
    """The tensors that learn; the table of words goes by row."""
    learning = ((name, value) for name, value in model.named_parameters() if name not in frozen)
    return Schema(tuple(updates.Tensor(name, tuple(value.shape), by_row=name == WORDS) for name, value in learning))


def start_weights(model: NewsModel, frozen: frozenset[str]) -> dict[str, Floats]:
    """The server's first model."""
    return {k: v.detach().numpy().copy() for k, v in model.named_parameters() if k not in frozen}


class NewsLocalTrainer:
    """Draws nothing but negatives, keeps nothing; the news are public and known to every client."""

    keeps_state = False
    reads = ("impressions",)
    rows = "words"

    def __init__(
        self, model: NewsModel, news: NewsInput, frozen: frozenset[str], settings: NewsTrainingSettings
    ) -> None:
        self.start = model
        self.settings = settings
        self.names = [name for name, _ in model.named_parameters() if name not in frozen]
        self._differentiation = differentiation(model, news, frozen)

    def fresh_private_state(self, clients: Offsets, draws_seed: int) -> dict[str, Floats]:
        """Nothing: a user is known by the history alone."""
        return {}

    def learn(self, cohort: Cohort[OwnImpressions], model: Mapping[str, Floats], spec: RoundSpec) -> LocalResults:
        """Minus the gradient of every client's mean loss."""
        n = len(cohort.clients)
        examples, shares = self.ready(cohort, model, spec)
        counts = np.bincount(examples.client, minlength=n)
        found = self._differentiation.each(model, examples, n)
        return LocalResults(_descending(found, spec.number, n, counts), counts, found.losses, shares)

    def learn_sum(
        self, cohort: Cohort[OwnImpressions], model: Mapping[str, Floats], spec: RoundSpec, *, weighs_examples: bool
    ) -> tuple[LocalResults, ClientUpdates]:
        """The weighted mean of all clients' messages as if it were one, and messages as long as theirs.

        The mean is linear, so one backward pass gives it.
        """
        examples, shares = self.ready(cohort, model, spec)
        counts = np.bincount(examples.client, minlength=len(cohort.clients))
        of_client = counts / counts.sum() if weighs_examples else np.full(len(counts), 1.0 / len(counts))
        share = (of_client / counts)[examples.client].astype(np.float32)
        found = self._differentiation.together(model, examples, share)
        updates = _descending(found, spec.number, 1, np.array([counts.sum()]))
        loss = np.bincount(examples.client, found.losses, len(counts)) / counts
        words = self._differentiation.count_words(examples, len(counts))
        return LocalResults(updates, counts, loss.astype(np.float32), shares), _outlines(updates, len(counts), words)

    def ready(
        self, cohort: Cohort[OwnImpressions], model: Mapping[str, Floats], spec: RoundSpec
    ) -> tuple[ClickExamples, Floats | None]:
        """What the clients of a round learn from, and the mean attention of models with basis vectors."""
        return self.examples(cohort, spec.number), None

    def examples(self, cohort: Cohort[OwnImpressions], round_number: int) -> ClickExamples:
        """What the clients of a round learn from."""
        s = self.settings
        return draw_examples(
            cohort.data.rows,
            cohort.clients,
            negatives=s.negatives,
            longest=s.history,
            seed=cohort.draws_seed,
            number=round_number,
        )


def _outlines(mean: ClientUpdates, count: int, words: Offsets) -> ClientUpdates:
    """Messages as long as those that the clients would have sent, without their content."""
    zero = np.zeros(1, np.float32)
    tables = {}
    for name, rows in mean.tables.items():
        offsets = np.concatenate([[0], np.cumsum(words)]).astype(np.int64)
        values = np.broadcast_to(zero, (int(offsets[-1]), rows.values.shape[1]))
        tables[name] = Rows(offsets, np.zeros(len(values), np.int32), values)
    dense = {name: np.broadcast_to(zero, (count, *values.shape[1:])) for name, values in mean.dense.items()}
    return ClientUpdates(mean.round_number, count, tables, dense)


def _descending(found: Gradients, round_number: int, n: int, counts: Offsets) -> ClientUpdates:
    """Messages of minus the gradients, which are turned round in place."""
    tables = {} if found.words is None else {WORDS: found.words}
    for values in (*found.dense.values(), *(rows.values for rows in tables.values())):
        np.negative(values, out=values)
    return ClientUpdates(round_number, n, tables, found.dense, counts)


Path = Literal["through", "released"]
_HISTORIES_AT_ONCE = 512


@dataclass(frozen=True)
class LocalNoise:
    """What a client does to its data before it learns from it."""

    attention: PaddedNoise  # DPA: padding, clipping, noise
    labels: LabelPerturbation  # DPL
    path: Path  # what gradients go through
    samples: int | None = None  # impressions of a client that a round learns from; None: every click


class PrivateNewsLocalTrainer(NewsLocalTrainer):
    """A news trainer of a model with basis vectors; without noise it learns as others do, and logs the attention."""

    def __init__(
        self,
        model: Interests,
        news: NewsInput,
        frozen: frozenset[str],
        settings: NewsTrainingSettings,
        *,
        noise: LocalNoise | None = None,
        pad_news: int | None = None,
    ) -> None:
        super().__init__(model, news, frozen, settings)
        self.noise = noise
        self._news = news
        self._network = deepcopy(model)
        self._pad_news = pad_news  # the news that a padded click becomes; None: it becomes the model's own pad

    def ready(
        self, cohort: Cohort[OwnImpressions], model: Mapping[str, Floats], spec: RoundSpec
    ) -> tuple[ClickExamples, Floats | None]:
        """Examples with all their noise, and the mean attention of the clients."""
        network = self._with(model)
        if self.noise is None:
            examples = self.examples(cohort, spec.number)
            attention = self._attention(network, examples.histories, None)[examples.history_of]
            return examples, _mean(attention, examples.client, len(cohort.clients))
        samples = self._samples(self.noise, cohort, spec.number)
        drawn = _Draws.of(self.noise, samples, cohort, self.settings)
        histories = samples.histories[samples.history_of]  # each has a mask and noise of its own
        padded = drawn.padded & (histories != NONE)
        if self._pad_news is not None:
            histories = np.where(padded, self._pad_news, histories).astype(np.int32)
            padded = np.zeros_like(padded)
        if padded.any() or self._pad_news is not None:
            attention = self._attention(network, histories, padded)
        else:
            attention = self._attention(network, samples.histories, None)[samples.history_of]
        if self.noise.path == "released":
            attention = uniform_if_overflown(attention)
        released = drawn.released(attention)
        told = samples.items(drawn.told)
        rows = np.arange(len(samples), dtype=np.int64)
        if self.noise.path == "released":
            nothing = np.full((len(samples), 1), NONE, np.int32)
            examples = ClickExamples(samples.client, told, rows, nothing, None, released.astype(np.float32))
            shown = released.clip(0.0) / np.maximum(released.clip(0.0).sum(1, keepdims=True), 1e-12)
            return examples, _mean(shown, samples.client, len(cohort.clients))
        added = (released - self.noise.attention.clipped(attention)).astype(np.float32)
        examples = ClickExamples(samples.client, told, rows, histories, padded, added)
        return examples, _mean(attention, samples.client, len(cohort.clients))

    def _samples(self, noise: LocalNoise, cohort: Cohort[OwnImpressions], number: int) -> Samples:
        longest = self.settings.history
        if noise.samples is None:
            return every_click(cohort.data.rows, longest=longest)
        seed = cohort.draws_seed
        return one_click_of_some(
            cohort.data.rows, cohort.clients, most=noise.samples, longest=longest, seed=seed, number=number
        )

    def _with(self, weights: Mapping[str, Floats]) -> Interests:
        """The model with the server's weights, which are not copied: it is only looked at."""
        for name in self.names:
            self._network.get_parameter(name).data = torch.from_numpy(weights[name])
        return self._network

    def _attention(self, network: Interests, histories: Indices, padded: Bools | None) -> Doubles:
        """ID of many histories, in double precision so that it adds up to 1: [histories, B]."""
        parts = [np.zeros((0, network.sizes.basis))]
        with torch.no_grad():
            for begin in range(0, len(histories), _HISTORIES_AT_ONCE):
                some = histories[begin : begin + _HISTORIES_AT_ONCE]
                pads = None if padded is None else padded[begin : begin + _HISTORIES_AT_ONCE]
                batch = make_batch(some, np.arange(len(some)), np.full((len(some), 1), NONE, np.int32), pads)
                parts.append(self._attention_of(network, batch))
        together = np.concatenate(parts)
        scaled: Doubles = together / together.sum(1, keepdims=True)
        return scaled

    def _attention_of(self, network: Interests, batch: Batch) -> Doubles:
        states = torch.zeros(1, network.dim)
        if len(batch.news):
            states = encode_in_parts(network, trimmed(take_news(self._news, batch.news)))
        clicks = network.as_clicks(states)[batch.histories]
        if batch.padded is None:
            found = network.attention(network.whole_of(clicks, batch.history_mask))
        else:
            found = network.padded_attention(clicks, batch.history_mask, batch.padded)
        return found.double().numpy()


class _Draws:
    """What the clients of a cohort drew: masks and labels at once, the noise when the attention is known."""

    def __init__(self, padded: Bools, told: Offsets, noise: PaddedNoise, sources: list[tuple[slice, Source]]) -> None:
        self.padded = padded  # [samples, longest]
        self.told = told  # [samples, 1 + negatives], places
        self._noise, self._sources = noise, sources

    @classmethod
    def of(
        cls, noise: LocalNoise, samples: Samples, cohort: Cohort[OwnImpressions], settings: NewsTrainingSettings
    ) -> _Draws:
        """Each client draws from its own source."""
        if cohort.noise is None:
            raise BadInput("this trainer adds noise, and its cohort has nothing to draw it from: give Cohort.noise")
        padded = np.zeros((len(samples), settings.history), np.bool_)
        told = np.zeros((len(samples), 1 + settings.negatives), np.int64)
        sizes, sources = samples.shown.lengths(), []
        for clients, source in cohort.noise.split(cohort.clients):
            low, high = np.searchsorted(samples.client, [clients.start, clients.stop])
            rows = slice(int(low), int(high))
            padded[rows] = noise.attention.masks(padded[rows].shape, source)
            told[rows] = noise.labels.release(samples.clicked[rows], sizes[rows], source)
            sources.append((rows, source))
        return cls(padded, told, noise.attention, sources)

    def released(self, attention: Doubles) -> Doubles:
        """The attention as it may be seen."""
        noisy = np.empty_like(attention)
        for rows, source in self._sources:
            noisy[rows] = self._noise.add(attention[rows], source)
        return noisy


def _mean(attention: Doubles, client: Offsets, n: int) -> Floats:
    """Over clients, each the mean of its samples: [B]."""
    counts = np.bincount(client, minlength=n)
    share = 1.0 / (np.maximum(counts, 1)[client] * max(n, 1))
    found: Floats = (attention * share[:, np.newaxis]).sum(0).astype(np.float32)
    return found
