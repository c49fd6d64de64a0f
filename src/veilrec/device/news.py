"""Local learning of news models: one gradient of the loss over a device's clicks (FedNewsRec, section 3.2).

A device sends minus the gradient of its mean loss (eq. 2 and 3); the server weighs and steps (eq. 6 and 7). The words
of a title are rows of a table, so a message carries the rows of the device's own words and the other tensors whole.
`learn_together` gives the weighted mean of all messages from a single backward pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass

import numpy as np
import torch

from veilrec import updates
from veilrec._arrays import Floats, Offsets
from veilrec.device.learner import Cohort, Learned
from veilrec.device.news_gradients import Differentiation, Gradients, differentiation
from veilrec.device.news_log import Examples, OwnImpressions, draw_examples
from veilrec.device.public_head_gradients import PublicHeadGradients
from veilrec.device.title_encoder import WORDS
from veilrec.models.news_model import NewsInput, NewsModel
from veilrec.models.public_head import PublicHead
from veilrec.updates import Round, Rows, Schema, Uploads


@dataclass(frozen=True)
class NewsSettings:
    """What a device draws from its impressions."""

    negatives: int = 4  # H of eq. 3: news of the same impression that were not clicked, per click
    history: int = 50  # the latest clicks that a user is known by


def schema(model: NewsModel, frozen: frozenset[str]) -> Schema:
    """The tensors that learn; the table of words goes by row."""
    learning = ((name, value) for name, value in model.named_parameters() if name not in frozen)
    return Schema(tuple(updates.Tensor(name, tuple(value.shape), by_row=name == WORDS) for name, value in learning))


def start_weights(model: NewsModel, frozen: frozenset[str]) -> dict[str, Floats]:
    """The server's first model."""
    return {k: v.detach().numpy().copy() for k, v in model.named_parameters() if k not in frozen}


class NewsLearner:
    """Draws nothing but negatives, keeps nothing; the news are public and known to every device."""

    keeps_state = False

    def __init__(self, model: NewsModel, news: NewsInput, frozen: frozenset[str], settings: NewsSettings) -> None:
        self.start = model
        self.settings = settings
        self.names = [name for name, _ in model.named_parameters() if name not in frozen]
        self._differentiation = _differentiation(model, news, frozen)

    def model_with(self, weights: Mapping[str, Floats]) -> NewsModel:
        """A copy of the model with the server's weights, to rank with."""
        model = deepcopy(self.start)
        with torch.no_grad():
            for name in self.names:
                model.get_parameter(name).copy_(torch.from_numpy(weights[name]))
        return model

    def fresh_private_state(self, devices: Offsets, draws_seed: int) -> dict[str, Floats]:
        """Nothing: a user is known by the history alone."""
        return {}

    def learn(self, cohort: Cohort[OwnImpressions], model: Mapping[str, Floats], about: Round) -> Learned:
        """Minus the gradient of every device's mean loss."""
        n = len(cohort.devices)
        examples, shares = self.ready(cohort, model, about)
        counts = np.bincount(examples.device, minlength=n)
        found = self._differentiation.each(model, examples, n)
        return Learned(_descending(found, about.number, n, counts), counts, found.losses, shares)

    def learn_sum(
        self, cohort: Cohort[OwnImpressions], model: Mapping[str, Floats], about: Round, *, weighs_examples: bool
    ) -> tuple[Learned, Uploads]:
        """The weighted mean of all devices' messages as if it were one, and messages as long as theirs.

        The mean is linear, so one backward pass gives it.
        """
        examples, shares = self.ready(cohort, model, about)
        counts = np.bincount(examples.device, minlength=len(cohort.devices))
        of_device = counts / counts.sum() if weighs_examples else np.full(len(counts), 1.0 / len(counts))
        share = (of_device / counts)[examples.device].astype(np.float32)
        found = self._differentiation.together(model, examples, share)
        uploads = _descending(found, about.number, 1, np.array([counts.sum()]))
        loss = np.bincount(examples.device, found.losses, len(counts)) / counts
        words = self._differentiation.count_words(examples, len(counts))
        return Learned(uploads, counts, loss.astype(np.float32), shares), _outlines(uploads, len(counts), words)

    def ready(
        self, cohort: Cohort[OwnImpressions], model: Mapping[str, Floats], about: Round
    ) -> tuple[Examples, Floats | None]:
        """What the devices of a round learn from, and the mean attention of models with basis vectors."""
        return self.examples(cohort, about.number), None

    def examples(self, cohort: Cohort[OwnImpressions], round_number: int) -> Examples:
        """What the devices of a round learn from."""
        s = self.settings
        return draw_examples(
            cohort.data.rows,
            cohort.devices,
            negatives=s.negatives,
            longest=s.history,
            seed=cohort.draws_seed,
            number=round_number,
        )


def _differentiation(model: NewsModel, news: NewsInput, frozen: frozenset[str]) -> Differentiation:
    if isinstance(model, PublicHead):
        return PublicHeadGradients(model, news)
    return differentiation(model, news, frozen)


def _outlines(mean: Uploads, count: int, words: Offsets) -> Uploads:
    """Messages as long as those that the devices would have sent, without their content."""
    zero = np.zeros(1, np.float32)
    tables = {}
    for name, rows in mean.tables.items():
        offsets = np.concatenate([[0], np.cumsum(words)]).astype(np.int64)
        values = np.broadcast_to(zero, (int(offsets[-1]), rows.values.shape[1]))
        tables[name] = Rows(offsets, np.zeros(len(values), np.int32), values)
    dense = {name: np.broadcast_to(zero, (count, *values.shape[1:])) for name, values in mean.dense.items()}
    return Uploads(mean.round_number, count, tables, dense)


def _descending(found: Gradients, round_number: int, n: int, counts: Offsets) -> Uploads:
    """Messages of minus the gradients, which are turned round in place."""
    tables = {} if found.words is None else {WORDS: found.words}
    for values in (*found.dense.values(), *(rows.values for rows in tables.values())):
        np.negative(values, out=values)
    return Uploads(round_number, n, tables, found.dense, counts)
