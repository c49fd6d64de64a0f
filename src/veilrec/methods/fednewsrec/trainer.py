"""Centralised training of a news model with Adam; one step is an epoch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from veilrec.client.news_data import ClickExamples, draw_examples, pack_logs
from veilrec.client.rankers import ModelParts
from veilrec.core import rng
from veilrec.methods.base import NewsData, Problem
from veilrec.methods.news.common import NewsConfig, share_taking_part
from veilrec.methods.news.prepare import prepare
from veilrec.methods.news.ranker import NewsRanker, NewsScorer
from veilrec.models.news_model import Dropout, load_saved_state, losses, make_batch, saved_state, take_news, trimmed
from veilrec.simulation.simulation import StepReport


class NewsTrainer:
    """Centralised training with Adam over all clicks in random order; draws are keyed by (seed, epoch)."""

    def __init__(self, network: str, config: NewsConfig, problem: Problem, data: NewsData, *, abstracts: bool) -> None:
        self.config = config
        self.problem = problem
        prepared = prepare(network, config.size, config.text, data, problem.public_seed, abstracts=abstracts)
        self.net, self.news = prepared.model, prepared.news
        self.ranker = NewsRanker.of(prepared, config.history)
        logs = pack_logs(data.impressions, len(problem.train), config.history)
        self.logs = share_taking_part(logs, config.train_share, problem.public_seed)
        self.parameters = {k: v for k, v in self.net.named_parameters() if k not in prepared.frozen}
        for name in prepared.frozen:
            self.net.get_parameter(name).requires_grad_(False)
        self.optimiser = torch.optim.AdamW(
            self.parameters.values(),
            lr=config.rate,
            betas=(0.9, config.second_momentum),
            weight_decay=config.decay,
            foreach=False,
        )

    def step(self, number: int) -> StepReport:
        """Train for one epoch."""
        c, seed = self.config, self.problem.public_seed
        everybody = np.arange(len(self.logs), dtype=np.int64)
        examples = draw_examples(
            self.logs, everybody, negatives=c.negatives, longest=c.history, seed=seed, number=number
        )
        key = np.random.SeedSequence([seed, rng.LEARNING, number])
        # Users in random order, the clicks of each together: their history is encoded once.
        place = np.random.Generator(np.random.Philox(key)).permutation(len(self.logs))
        order = np.argsort(place[examples.client], kind="stable")
        generator = torch.Generator().manual_seed(int(key.generate_state(1)[0]))
        _use(self.net, generator)
        total = 0.0
        for begin in range(0, len(order), c.batch):
            total += self._batch(examples, order[begin : begin + c.batch])
        _use(self.net, None)
        return StepReport(loss=total / max(len(order), 1))

    def _batch(self, examples: ClickExamples, chosen: NDArray[np.int64]) -> float:
        """One step of Adam; the sum of the batch's losses."""
        batch = make_batch(examples.histories, examples.history_of[chosen], examples.candidates[chosen])
        self.optimiser.zero_grad()
        each = losses(self.net, trimmed(take_news(self.news, batch.news)), batch)
        each.mean().backward()  # type: ignore[no-untyped-call]
        self.optimiser.step()
        return float(each.detach().sum())

    def parts(self) -> ModelParts:
        """The weights that learn; a user is a history."""
        return ModelParts(self.ranker, {k: v.detach().numpy().copy() for k, v in self.parameters.items()})

    def model(self) -> NewsScorer:
        """Scorer with the current weights."""
        return self.ranker.scorer(self.net, self.problem.train)

    def state(self) -> dict[str, NDArray[Any]]:
        """The weights that learn, and Adam's moments and step count of each."""
        return saved_state(self.optimiser, self.parameters)

    def load_state(self, state: Mapping[str, NDArray[Any]], steps_done: int) -> None:
        """Resume from a saved state."""
        load_saved_state(self.optimiser, self.parameters, state)


def _use(net: torch.nn.Module, generator: torch.Generator | None) -> None:
    for module in net.modules():
        if isinstance(module, Dropout):
            module.generator = generator
