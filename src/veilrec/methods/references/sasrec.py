"""SASRec: centralised self-attention over the history; the reference for what order is worth.

Kang and McAuley, Self-Attentive Sequential Recommendation, ICDM 2018, as in the authors' code: one head, no projection
after it, keys and values from the input and queries from its layer norm, which is also the residual; item vectors are
shared by input (times sqrt(d)) and output; the latest item stands at the last position.
`veilrec.models.scores` is the same forward pass without torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, PositiveInt

from veilrec.client.rankers import ModelParts, SasRecRanker
from veilrec.core import rng
from veilrec.core.arrays import Indices, Offsets
from veilrec.core.csr import Csr
from veilrec.core.jit import jit
from veilrec.methods.base import EVERY_DATASET, Config, Method, Problem, described, unprotected
from veilrec.models.scores import SasRecScorer
from veilrec.simulation.simulation import StepReport

if TYPE_CHECKING:
    from torch import Tensor


Positive = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]
_BATCHES_SORTED = 8  # that are sorted by length together, so that little is padding
_PAD = -1


class SasRecConfig(Config):
    """Settings of SASRec; the defaults are the paper's for ml-1m."""

    dim: PositiveInt = 50  # length of item vectors and of everything inside
    blocks: Annotated[int, Field(ge=1, le=16)] = 2  # of attention and two layers each
    longest: Annotated[int, Field(ge=1, le=2000)] = 200  # items of a history that are read, the latest
    dropout: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.2  # of inputs, attention and layers, in training
    rate: Positive = 0.001  # learning rate of Adam, whose second momentum is 0.98
    batch: PositiveInt = 128  # users


class SasRecTrainer:
    """Adam over all users in random order, a sequence of each; a step is an epoch."""

    def __init__(self, config: SasRecConfig, problem: Problem) -> None:
        import torch

        from veilrec.models.baseline_networks import SasRec

        self.config, self.problem = config, problem
        self.net = SasRec(
            problem.n_items, dim=config.dim, blocks=config.blocks, longest=config.longest, dropout=config.dropout
        )
        self.net.start(torch.Generator().manual_seed(_key(problem.public_seed, rng.MODEL, 0)))
        self.parameters = dict(self.net.named_parameters())
        self.optimiser = torch.optim.Adam(
            self.parameters.values(), lr=config.rate, betas=(0.9, 0.98), eps=1e-8, foreach=False
        )

    def step(self, number: int) -> StepReport:
        """One epoch."""
        import torch

        seed = self.problem.public_seed
        self.net.dropout.generator = torch.Generator().manual_seed(_key(seed, rng.LEARNING, number))
        total, examples = 0.0, 0
        for users in batches(self.problem.train, self.config.batch, self.config.longest, seed, number):
            loss, count = self._batch(*make_batch(self.problem, users, self.config.longest, number))
            total, examples = total + loss, examples + count
        self.net.dropout.generator = None
        return StepReport(loss=total / max(examples, 1))

    def _batch(self, before: Indices, after: Indices, unused: Indices) -> tuple[float, int]:
        """One step of Adam; the sum of the losses of its positions, and how many they are."""
        import torch
        from torch.nn.functional import embedding, softplus

        self.optimiser.zero_grad()
        sequences = torch.from_numpy(before).long()
        real = sequences >= 0
        states = self.net(sequences)[real]  # [positions, d]

        def scores(items: Indices) -> Tensor:
            found: Tensor = (states * embedding(torch.from_numpy(items).long()[real], self.net.items)).sum(-1)
            return found

        # -log sigmoid(used) - log(1 - sigmoid(unused)), eq. 7
        loss = (softplus(-scores(after)) + softplus(scores(unused))).mean()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimiser.step()
        return loss.item() * len(states), len(states)

    def parts(self) -> ModelParts:
        """All weights; a user is a history."""
        return ModelParts(SasRecRanker(), {k: v.detach().numpy().copy() for k, v in self.parameters.items()})

    def model(self) -> SasRecScorer:
        """Model with the current weights."""
        return SasRecScorer(self.parts().weights, self.problem.train)

    def state(self) -> dict[str, NDArray[Any]]:
        """The weights, and Adam's moments and step count of each."""
        from veilrec.models.news_model import saved_state

        return saved_state(self.optimiser, self.parameters)

    def load_state(self, state: Mapping[str, NDArray[Any]], steps_done: int) -> None:
        """Go on from a state."""
        from veilrec.models.news_model import load_saved_state

        load_saved_state(self.optimiser, self.parameters, state)


def _key(seed: int, purpose: int, number: int) -> int:
    return int(np.random.SeedSequence([seed, purpose, number]).generate_state(1)[0])


def batches(train: Csr, size: int, longest: int, seed: int, number: int) -> Iterator[Offsets]:
    """The users of every batch of an epoch, in random order, those of a batch with histories of similar length.

    Of a history with one item nothing comes after anything: nothing is learnt from it.
    """
    generator = np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, rng.COHORT, number])))
    order = generator.permutation(np.flatnonzero(train.lengths() > 1))
    lengths = np.minimum(train.lengths(), longest + 1)
    parts = []
    for start in range(0, len(order), size * _BATCHES_SORTED):
        some = order[start : start + size * _BATCHES_SORTED]
        some = some[np.argsort(lengths[some], kind="stable")]
        parts += [some[begin : begin + size] for begin in range(0, len(some), size)]
    for place in generator.permutation(len(parts)):
        yield parts[place]


def make_batch(problem: Problem, users: Offsets, longest: int, number: int) -> tuple[Indices, Indices, Indices]:
    """Items, the item after each, and one that the user has not used, [n, l] each: the latest last, -1 before."""
    rows = problem.train.take(users)
    length = int(min(rows.lengths().max() - 1, longest))
    before, after, unused = (np.full((len(users), length), _PAD, np.int32) for _ in range(3))
    _fill(rows.offsets, rows.items, users, problem.n_items, problem.public_seed, number, before, after, unused)
    return before, after, unused


@jit
def _fill(  # type: ignore[no-untyped-def]
    offsets: Offsets, items: Indices, users: Offsets, n_items, seed, number,
    before: Indices, after: Indices, unused: Indices,
) -> None:  # fmt: skip
    length = before.shape[1]
    owner = np.full(n_items, -1, np.int64)
    for row in range(len(users)):
        own = items[offsets[row] : offsets[row + 1]]
        kinds = 0
        for item in own:
            if owner[item] != row:
                owner[item] = row
                kinds += 1
        start = rng.stream(seed, rng.LEARNING, number, users[row])
        draw = 0
        for back in range(min(length, len(own) - 1)):
            place = length - 1 - back
            before[row, place] = own[len(own) - 2 - back]
            after[row, place] = own[len(own) - 1 - back]
            item = rng.below(rng.word(start, draw), n_items)
            draw += 1
            while owner[item] == row and kinds < n_items:  # who has used everything gets anything
                item = rng.below(rng.word(start, draw), n_items)
                draw += 1
            unused[row, place] = item


METHOD = Method(
    **described("sasrec"),
    datasets=EVERY_DATASET,
    config=SasRecConfig,
    trainer=SasRecTrainer,
    guarantee=unprotected("Everybody's data lies in one place."),
)
