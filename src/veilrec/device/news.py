"""Local learning of news models: one gradient of the loss over a device's clicks (FedNewsRec, section 3.2).

A device sends minus the gradient of its mean loss (eq. 2 and 3); the server weighs and steps (eq. 6 and 7). The words
of a title are rows of a table, so a message carries the rows of the device's own words and the other tensors whole.
All devices of a cohort are differentiated at once: their distinct news and words are numbered per device and padded.
`learn_together` gives the weighted mean of all messages from a single backward pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from veilrec._arrays import Floats, Offsets
from veilrec.device.learner import Cohort, Learned
from veilrec.device.news_log import Examples, count_clicks, draw_examples
from veilrec.device.news_padding import pad_devices
from veilrec.models.news_model import NewsInput, NewsModel
from veilrec.models.news_tensors import Batch, losses, make_batch, take_news, trimmed
from veilrec.wire import messages
from veilrec.wire.messages import Rows, Schema, Uploads

WORDS = "words.weight"
_DEVICES_AT_ONCE = 16  # differentiated together: those with like numbers of news


@dataclass(frozen=True)
class NewsSettings:
    """What a device draws from its impressions."""

    negatives: int = 4  # H of eq. 3: news of the same impression that were not clicked, per click
    history: int = 50  # the latest clicks that a user is known by


def schema(model: NewsModel, frozen: frozenset[str]) -> Schema:
    """The tensors that learn; the table of words goes by row."""
    learning = ((name, value) for name, value in model.named_parameters() if name not in frozen)
    return Schema(
        tuple(messages.Tensor(name, tuple(value.shape), by_row=name == WORDS) for name, value in learning)
    )


def start_weights(model: NewsModel, frozen: frozenset[str]) -> dict[str, Floats]:
    """The server's first model."""
    return {k: v.detach().numpy().copy() for k, v in model.named_parameters() if k not in frozen}


class NewsLearner:
    """Draws nothing but negatives, keeps nothing; the news are public and known to every device."""

    def __init__(
        self, model: NewsModel, news: NewsInput, frozen: frozenset[str], settings: NewsSettings, seed: int
    ) -> None:
        self.losses = _Losses(model)
        self.news = news
        self.settings = settings
        self.seed = seed
        self.fixed = {f"model.{k}": v.detach() for k, v in model.named_parameters() if k in frozen}
        self.names = [name for name, _ in model.named_parameters() if name not in frozen]

    def model_with(self, weights: Mapping[str, Floats]) -> NewsModel:
        """A copy of the model with the server's weights, to rank with."""
        model = deepcopy(self.losses.model)
        with torch.no_grad():
            for name in self.names:
                model.get_parameter(name).copy_(torch.from_numpy(weights[name]))
        return model

    def fresh_private_state(self, devices: Offsets) -> dict[str, Floats]:
        """Nothing: a user is known by the history alone."""
        return {}

    def learn(self, cohort: Cohort, model: Mapping[str, Floats], round_number: int) -> Learned:
        """Minus the gradient of every device's mean loss."""
        n, counts = len(cohort.data), count_clicks(cohort.data)
        dense = {name: np.zeros((n, *model[name].shape), np.float32) for name in self.names if name != WORDS}
        loss = np.zeros(n, np.float32)
        words: list[tuple[Offsets, Offsets, Floats]] = []  # device, row, values
        for group in _alike(counts):
            part = Cohort(cohort.devices[group], cohort.data.take(group), {})
            padded = pad_devices(self._examples(part, round_number), len(group), self.news)
            weights = {f"model.{name}": torch.from_numpy(model[name]) for name in dense}
            local = torch.from_numpy(model[WORDS][padded.words]) if WORDS in self.names else None
            gradients, losses_of_group = self._each(weights, local, padded.tensors)
            loss[group] = losses_of_group.numpy()
            for name, values in dense.items():
                values[group] = -gradients[f"model.{name}"].numpy()
            if local is not None:
                device, place = np.nonzero(padded.is_word)
                found = -gradients[f"model.{WORDS}"].numpy()[device, place]
                words.append((group[device], padded.words[device, place], found))
        tables = {WORDS: _rows(words, n)} if WORDS in self.names else {}
        return Learned(Uploads(round_number, n, tables, dense, counts), counts, loss)

    def _each(
        self, weights: dict[str, Tensor], words: Tensor | None, tensors: tuple[Tensor, ...]
    ) -> tuple[dict[str, Tensor], Tensor]:
        """Gradients and mean losses of padded devices: every tensor gets a dimension in front."""
        apart: dict[str, int | None] = dict.fromkeys(weights)
        learned = dict(weights)
        if words is not None:
            learned[f"model.{WORDS}"] = words
            apart[f"model.{WORDS}"] = 0

        def mean_loss(parameters: dict[str, Tensor], share: Tensor, *inputs: Tensor) -> Tensor:
            each: Tensor = functional_call(self.losses, parameters | self.fixed, inputs)
            return (each * share).sum()

        places = (apart, *(0 for _ in tensors))
        return vmap(grad_and_value(mean_loss), in_dims=places)(learned, *tensors)

    def learn_together(
        self, cohort: Cohort, model: Mapping[str, Floats], round_number: int, *, weighs_examples: bool
    ) -> tuple[Learned, Offsets]:
        """The weighted mean of all devices' messages as if it were one, and how many rows of words each has.

        The mean is linear, so one backward pass gives it.
        """
        examples, counts = self._examples(cohort, round_number), count_clicks(cohort.data)
        batch = make_batch(examples.histories, examples.history_of, examples.candidates)
        news = trimmed(take_news(self.news, batch.news))
        learned = {name: torch.tensor(model[name]) for name in self.names if name != WORDS}
        rows = torch.arange(0)
        if WORDS in self.names:
            padding = torch.zeros(1, dtype=torch.int64)  # keeps the number 0
            rows, place = torch.unique(torch.cat([padding, news.title.flatten()]), return_inverse=True)
            news = replace(news, title=place[1:].view(news.title.shape))
            learned[WORDS] = torch.from_numpy(model[WORDS][rows.numpy()])
        for value in learned.values():
            value.requires_grad_()
        parameters = {f"model.{name}": value for name, value in learned.items()} | self.fixed
        each = functional_call(self.losses, parameters, _flat(news, batch))
        share = counts / counts.sum() if weighs_examples else np.full(len(counts), 1.0 / len(counts))
        weight = torch.from_numpy((share / counts)[examples.device].astype(np.float32))
        gradients = torch.autograd.grad((each * weight).sum(), list(learned.values()), materialize_grads=True)
        changes = {name: -g.numpy() for name, g in zip(learned, gradients, strict=True)}
        tables = {}
        if WORDS in changes:
            values = changes.pop(WORDS)
            tables[WORDS] = Rows(np.array([0, len(rows)]), rows.numpy().astype(np.int32), values)
        dense = {name: value[np.newaxis] for name, value in changes.items()}
        uploads = Uploads(round_number, 1, tables, dense, np.array([counts.sum()]))
        loss = np.bincount(examples.device, each.detach().numpy(), len(counts)) / counts
        return Learned(uploads, counts, loss.astype(np.float32)), self._word_counts(examples, len(counts))

    def _word_counts(self, examples: Examples, n: int) -> Offsets:
        """How many distinct words the news of each device have."""
        if WORDS not in self.names:
            return np.zeros(n, np.int64)
        counts: Offsets = pad_devices(examples, n, self.news).is_word.sum(1)
        return counts

    def _examples(self, cohort: Cohort, round_number: int) -> Examples:
        s = self.settings
        return draw_examples(
            cohort.data, cohort.devices, negatives=s.negatives, longest=s.history, seed=self.seed,
            number=round_number,
        )  # fmt: skip


class _Losses(nn.Module):
    """The losses of examples, as a module: `functional_call` can then exchange the weights."""

    def __init__(self, model: NewsModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, *tensors: Tensor) -> Tensor:
        """Fields of a NewsInput, then those of a Batch without its news."""
        news = NewsInput(*tensors[:6])
        return losses(self.model, news, Batch(tensors[0], *tensors[6:]))


def _flat(news: NewsInput, batch: Batch) -> tuple[Tensor, ...]:
    """What `_Losses` takes."""
    return (
        news.title, news.abstract, news.category, news.subcategory, news.entities, news.sentence,
        batch.histories, batch.history_mask, batch.history_of, batch.candidates, batch.candidate_mask,
    )  # fmt: skip


def _alike(counts: Offsets) -> Iterator[Offsets]:
    """Devices in groups of like size, so that little is padded."""
    order = np.argsort(counts, kind="stable")
    for begin in range(0, len(order), _DEVICES_AT_ONCE):
        yield np.sort(order[begin : begin + _DEVICES_AT_ONCE])


def _rows(parts: list[tuple[Offsets, Offsets, Floats]], n: int) -> Rows:
    """Rows of all groups, packed by device."""
    device, index, values = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.argsort(device, kind="stable")
    offsets = np.zeros(n + 1, np.int64)
    np.cumsum(np.bincount(device, minlength=n), out=offsets[1:])
    return Rows(offsets, index[order].astype(np.int32), values[order])
