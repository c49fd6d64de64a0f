"""Gradients of every client of a cohort in NRMS, NAML and PLM-NR, beside a plain torch loop over the clients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from _measure import Options, Result, Round, fresh_rounds
from _news import (
    COHORT,
    COHORT_QUICK,
    OF_ONE_CORE,
    TRAINED_ON,
    TRAINED_ON_QUICK,
    TURNS,
    each_news_once,
    titles_of_every_example,
)
from veilrec.client.news_data import ClickExamples, draw_examples, own_news, pack_logs
from veilrec.core.arrays import Floats
from veilrec.core.errors import VeilrecError
from veilrec.core.resources import peak_rss_mb
from veilrec.data.datasets import load
from veilrec.data.news_text import news_text, occurring
from veilrec.evaluation.protocols import make_split
from veilrec.kernels.news_gradients import CutAtNews, Gradients, differentiation, pairs_of
from veilrec.methods.news.prepare import make_model
from veilrec.models.news_model import NewsInput, NewsModel, NewsShape, NewsSizes, losses_of, make_batch, news_input

_SEED = 1
_NEGATIVES, _HISTORY = 4, 50
_SENTENCE_DIM = 384  # of synthetic sentence vectors: that of MiniLM

Found = list[dict[str, Tensor]]  # of every client
Loss = Callable[[NewsModel, NewsInput, ClickExamples], Tensor]


def nrms(name: str, options: Options) -> Result:
    """Self-attention over words and clicks."""
    return _compare(name, "nrms", options)


def naml(name: str, options: Options) -> Result:
    """A CNN over titles and abstracts, and categories."""
    return _compare(name, "naml", options)


def plm_nr(name: str, options: Options) -> Result:
    """A layer over given sentence vectors, and NRMS's user model."""
    return _compare(name, "plm-nr", options)


def _compare(name: str, network: str, options: Options) -> Result:
    cohort = COHORT_QUICK if options.quick else COHORT
    source = TRAINED_ON_QUICK if options.quick else TRAINED_ON
    cohorts = Cohorts(network, source, cohort)
    cohorts.each(0)
    cohorts.each_user(0)
    memory = peak_rss_mb()
    cohorts.loop_of_users(0)
    contenders: dict[str, Round] = {
        "ours": cohorts.each,
        "plain_loop": lambda number: cohorts.loop(titles_of_every_example, number),
        "frugal": lambda number: cohorts.loop(each_news_once, number),
        "our_users": cohorts.each_user,
        "loop_of_users": cohorts.loop_of_users,
    }
    seconds = {n: f.cpu_seconds for n, f in fresh_rounds(contenders, min(options.repeats, TURNS)).items()}
    ours = seconds["ours"]
    figures = {
        "ratio_to_frugal_loop": round(seconds["frugal"] / ours, 3),
        "user_model_seconds": seconds["our_users"],
        "user_model_loop_seconds": seconds["loop_of_users"],
        "user_model_ratio": round(seconds["loop_of_users"] / seconds["our_users"], 3),
    }
    notes = (
        OF_ONE_CORE,
        "All learns. Every loop does one forward and one backward pass of torch per client.",
        "The plain loop encodes the news of every example; the frugal one each news of a client once.",
        "Of the user model alone, the vectors of the news are known to both: its loop reads each news and each "
        "history of a client once, and gives the gradient in the vectors, too.",
    )
    rivals = {"plain_loop": seconds["plain_loop"]}
    return Result(name, source, cohort, ours, memory, rivals, figures, notes)


class Cohorts:
    """Clients that learn a model of standard size on synthetic news: all at once, or one after the other."""

    def __init__(self, network: str, source: str, size: int, sizes: NewsSizes | None = None) -> None:
        torch.set_num_threads(1)
        population = load(source)
        split = make_split(population, "mind", seed=_SEED)
        catalogue, impressions = population.catalogue, split.train_impressions
        if catalogue is None or impressions is None:
            raise VeilrecError(f"{source} has no news to learn from")
        count = len(catalogue.titles)
        text = news_text(catalogue, occurring(impressions, count), abstracts=True, known_words=None)
        generator = np.random.default_rng(_SEED)
        sentences = generator.normal(0.0, _SENTENCE_DIM**-0.5, (count, _SENTENCE_DIM)).astype(np.float32)
        names = text.names
        shape = NewsShape(
            len(names.words),
            len(names.categories),
            len(names.subcategories),
            len(names.entities),
            sentence_dim=_SENTENCE_DIM,
        )
        self.news = news_input(
            text.titles, text.abstracts, text.categories, text.subcategories, text.entities, sentences
        )
        start = torch.Generator().manual_seed(_SEED)
        self.model = make_model(network, sizes or NewsSizes(dropout=0.0), shape, start)
        self.weights = {name: value.detach().numpy() for name, value in self.model.named_parameters()}
        self.size = size
        self._logs = pack_logs(impressions, len(split.train), _HISTORY)
        way = differentiation(self.model, self.news, frozenset())
        if not isinstance(way, CutAtNews):
            raise VeilrecError(f"{network} is not cut at its news")
        self._way = way
        with torch.no_grad():
            self._vectors: Floats = self.model.encode_news(self.news).numpy()

    def examples(self, number: int) -> ClickExamples:
        """What the clients of a round learn from."""
        able = np.flatnonzero(self._logs.lengths() > 0)
        clients = np.sort(np.random.default_rng([_SEED, number]).choice(able, self.size, replace=False))
        return draw_examples(
            self._logs.take(clients), clients, negatives=_NEGATIVES, longest=_HISTORY, seed=_SEED, number=number
        )

    def each(self, number: int) -> Gradients:
        """Compute the gradients of all clients at once."""
        return self._way.each(self.weights, self.examples(number), self.size)

    def each_user(self, number: int) -> tuple[dict[str, Floats], Floats]:
        """Compute gradients of the user model alone, and in the known vectors of each client's news."""
        own = own_news(self.examples(number), self.size)
        distinct, pairs = pairs_of(own)
        found, in_vectors, _ = self._way.of_users(self.weights, self._vectors[distinct], own, pairs)
        return found, in_vectors

    def loop(self, loss: Loss, number: int) -> Found:
        """Compute gradients one client after the other, by autograd."""
        found = []
        for own in _apart(self.examples(number), self.size):
            self.model.zero_grad()
            loss(self.model, self.news, own).backward()  # type: ignore[no-untyped-call]
            found.append({name: p.grad for name, p in self.model.named_parameters() if p.grad is not None})
        return found

    def loop_of_users(self, number: int) -> tuple[Found, list[Tensor]]:
        """Compute gradients of the user model alone, one client after the other, by autograd."""
        in_vectors = []

        def loss(model: NewsModel, _: NewsInput, own: ClickExamples) -> Tensor:
            batch = make_batch(own.histories, own.history_of, own.candidates)
            vectors = torch.from_numpy(self._vectors)[batch.news].requires_grad_()
            in_vectors.append(vectors)
            return losses_of(model, vectors, batch).mean()

        found = self.loop(loss, number)
        return found, [vectors.grad for vectors in in_vectors if vectors.grad is not None]


def _apart(examples: ClickExamples, n: int) -> Iterator[ClickExamples]:
    """The examples of each client alone."""
    bounds = np.searchsorted(examples.client, np.arange(n + 1))
    for low, high in pairwise(bounds):
        needed, history_of = np.unique(examples.history_of[low:high], return_inverse=True)
        yield ClickExamples(
            np.zeros(high - low, np.int64), examples.candidates[low:high], history_of, examples.histories[needed]
        )
