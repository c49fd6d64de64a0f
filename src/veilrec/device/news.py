"""Local learning of news models: one gradient of the loss over a device's clicks (FedNewsRec, section 3.2).

A device sends minus the gradient of its mean loss (eq. 2 and 3); the server weighs and steps (eq. 6 and 7). The words
of a title are rows of a table, so a message carries the rows of the device's own words and the other tensors whole.
All devices of a cohort are differentiated at once: their distinct news and words are numbered per device and padded.
`learn_together` gives the weighted mean of all messages from a single backward pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call, grad_and_value, vmap

from veilrec._arrays import Floats, Indices, Offsets
from veilrec._csr import Csr
from veilrec.device.learner import Cohort, Learned
from veilrec.device.news_log import NONE, Examples, count_clicks, draw_examples
from veilrec.models.news_model import NewsInput, NewsModel
from veilrec.models.news_tensors import (
    Batch,
    losses,
    make_batch,
    masked_log_softmax,
    take_news,
    trimmed,
)
from veilrec.wire import messages
from veilrec.wire.messages import Rows, Schema, Uploads

WORDS = "words.weight"


@dataclass(frozen=True)
class NewsSettings:
    """What a device draws from its impressions."""

    negatives: int = 4  # H of eq. 3: news of the same impression that were not clicked, per click
    history: int = 50  # the latest clicks that a user is known by


def schema(model: NewsModel, frozen: frozenset[str]) -> Schema:
    """The tensors that learn; the table of words goes by row."""
    return Schema(
        tuple(
            messages.Tensor(name, tuple(value.shape) or (1,), by_row=name == WORDS)
            for name, value in model.named_parameters()
            if name not in frozen
        )
    )


def start_weights(model: NewsModel, frozen: frozenset[str]) -> dict[str, Floats]:
    """The server's first model."""
    return {
        tensor.name: model.get_parameter(tensor.name).detach().numpy().reshape(tensor.shape).copy()
        for tensor in schema(model, frozen).tensors
    }


class NewsLearner:
    """Draws nothing but negatives, keeps nothing; the news are public and known to every device."""

    def __init__(
        self, model: NewsModel, news: NewsInput, frozen: frozenset[str], settings: NewsSettings, seed: int
    ) -> None:
        self.model = model
        self.news = news
        self.settings = settings
        self.seed = seed
        self.names = [name for name, _ in model.named_parameters() if name not in frozen]
        self.learns_words = WORDS in self.names

    def fresh_private_state(self, devices: Offsets) -> dict[str, Floats]:
        """Nothing: a user is known by the history alone."""
        return {}

    def learn(self, cohort: Cohort, model: Mapping[str, Floats], round_number: int) -> Learned:
        """Minus the gradient of every device's mean loss."""
        self._load(model)
        examples = self._examples(cohort, round_number)
        n = len(cohort.data)
        counts = count_clicks(cohort.data)
        packed = _pack(examples, n, self.news)
        arguments = packed.arguments()
        fixed = {name: p.detach() for name, p in self.model.named_parameters()}
        learned = {name: fixed.pop(name) for name in self.names if name != WORDS}
        dense, words, loss = self._gradients(learned, fixed, packed, arguments)
        tables = {}
        if self.learns_words:
            tables[WORDS] = Rows(packed.word_offsets, packed.word_rows, words)
        uploads = Uploads(round_number, n, tables, dense, examples=counts)
        return Learned(uploads, counts, loss)

    def learn_together(
        self, cohort: Cohort, model: Mapping[str, Floats], round_number: int, *, weighs_examples: bool
    ) -> Learned:
        """The weighted mean of all devices' messages as if it were one; their losses stay apart."""
        self._load(model)
        examples = self._examples(cohort, round_number)
        counts = count_clicks(cohort.data)
        batch = make_batch(examples.histories, examples.history_of, examples.candidates)
        news = trimmed(take_news(self.news, batch.news))
        rows, title = torch.unique(news.title, return_inverse=True)
        if not self.learns_words:
            rows, title = torch.arange(0), news.title
        fixed = {name: p.detach() for name, p in self.model.named_parameters()}
        learned = {name: fixed.pop(name).requires_grad_() for name in self.names if name != WORDS}
        if self.learns_words:
            learned[WORDS] = fixed.pop(WORDS)[rows].requires_grad_()
        each = functional_call(
            _Losses(self.model), _inside(learned | fixed), (_with_title(news, title), news.title > 0, batch)
        )
        share = np.full(len(counts), 1.0 / len(counts)) if not weighs_examples else counts / counts.sum()
        weights = (share / np.maximum(counts, 1))[examples.device].astype(np.float32)
        gradients = torch.autograd.grad(
            (each * torch.from_numpy(weights)).sum(), list(learned.values()), allow_unused=True
        )
        changes = {
            name: -(torch.zeros_like(value) if gradient is None else gradient).numpy()
            for (name, value), gradient in zip(learned.items(), gradients, strict=True)
        }
        loss = np.bincount(examples.device, each.detach().numpy(), len(counts)) / np.maximum(counts, 1)
        tables = {}
        if self.learns_words:
            values = changes.pop(WORDS)
            tables[WORDS] = Rows(np.array([0, len(rows)]), rows.numpy().astype(np.int32), values)
        dense = {name: value.reshape(1, *(value.shape or (1,))) for name, value in changes.items()}
        total = np.array([counts.sum()])
        return Learned(Uploads(round_number, 1, tables, dense, total), counts, loss.astype(np.float32))
