"""FedNewsRec beside a plain torch loop over clients, and ranking from cached news vectors."""

from __future__ import annotations

import time
from collections.abc import Sequence
from copy import deepcopy

import numpy as np
import torch
from torch import Tensor

from _measure import Options, Result, Round, fresh_rounds
from veilrec.client.local_training import Cohort
from veilrec.client.news import NewsLocalTrainer
from veilrec.client.news_data import NONE, ClickExamples, OwnImpressions
from veilrec.core.errors import VeilrecError
from veilrec.core.resources import peak_rss_mb
from veilrec.data.datasets import load
from veilrec.data.population import Impressions
from veilrec.evaluation.protocols import make_split
from veilrec.methods.base import NewsData, Problem, configure
from veilrec.methods.fednewsrec.fednewsrec import FEDNEWSREC_METHOD, plan
from veilrec.methods.news.prepare import prepare
from veilrec.methods.news.ranker import NewsScorer
from veilrec.models.news_model import NewsInput, NewsModel, losses, make_batch, take_news, trimmed
from veilrec.privacy.mechanisms.local import ElementwiseLaplace
from veilrec.privacy.mechanisms.sums import CohortSum
from veilrec.simulation.simulation import Seeds, Simulation

_SEED = 1
COHORT, COHORT_QUICK = 200, 40
TRAINED_ON, TRAINED_ON_QUICK = "synthetic-news:users=5000,seed=1", "synthetic-news:users=300,seed=1"
_RANKED, _RANKED_QUICK = "synthetic-news:users=20000,seed=1", "synthetic-news:users=500,seed=1"
# Proven runs have a smaller model by default; here all calibrations do the same work but for their clipping.
_SAME_SIZE = ("size.word_dim=50", "size.heads=4", "size.head_dim=16", "size.attention=32")
OF_ONE_CORE = "Seconds are those of one core: everybody has a single thread."
TURNS = 3  # rounds; those of the loops take many seconds


def without_clipping(name: str, options: Options) -> Result:
    """One backward pass for the whole cohort."""
    return _compare(name, "none", options)


def with_clipping(name: str, options: Options) -> Result:
    """Every client's whole update is clipped."""
    return _compare(name, "proven", options)


def with_clipped_entries(name: str, options: Options) -> Result:
    """Every entry of every client's update is clipped, as published."""
    return _compare(name, "as-published", options)


def _compare(name: str, calibration: str, options: Options) -> Result:
    """Two loops: one that encodes the titles of each example, as usual, and one each news of a client once."""
    cohort = COHORT_QUICK if options.quick else COHORT
    source = TRAINED_ON_QUICK if options.quick else TRAINED_ON
    simulation, news = news_simulation(source, calibration, cohort)
    simulation.step(0)
    memory = peak_rss_mb()
    usual, frugal = (NewsLoop(simulation, news, frugal=frugal) for frugal in (False, True))
    contenders: dict[str, Round] = {"ours": simulation.step, "plain_loop": usual.round, "frugal": frugal.round}
    seconds = {n: f.cpu_seconds for n, f in fresh_rounds(contenders, min(options.repeats, TURNS)).items()}
    ours = seconds.pop("ours")
    figures = {"ratio_to_frugal_loop": round(seconds.pop("frugal") / ours, 3)}
    note = "The plain loop encodes the titles of every example; the frugal one each news of a client once."
    return Result(name, source, cohort, ours, memory, seconds, figures, (OF_ONE_CORE, note))


def news_simulation(
    source: str, calibration: str, cohort: int, settings: Sequence[str] = ()
) -> tuple[Simulation, NewsInput]:
    """Our simulator and the news that it reads; only proven runs draw noise, once for the sum of a round."""
    population = load(source)
    split = make_split(population, "mind", seed=_SEED)
    if population.catalogue is None or split.train_impressions is None:
        raise VeilrecError(f"{source} has no news to learn from")
    data = NewsData(population.catalogue, split.train_impressions)
    chosen = [
        f"calibration={calibration}",
        f"cohort.size={cohort}",
        "cohort.sampling=fixed",
        "privacy.scale=0",
        "server.optimiser=sgd",
        "server.rate=0.1",
        "server.momentum=0",
        "validators.share=0",
        *_SAME_SIZE,
        *settings,
    ]
    config, _ = configure(FEDNEWSREC_METHOD, preset="tuned", dataset="", settings=chosen)
    problem = Problem(split.train, split.n_items, _SEED, 1, data)
    method_plan = plan(config, problem)
    simulation = Simulation(
        method_plan, FEDNEWSREC_METHOD.clients(config, problem), problem.train, Seeds.all_from(_SEED)
    )
    whole = calibration == "proven"
    read = prepare(config.network, config.size, config.text, data, _SEED, whole_catalogue=whole)
    return simulation, read.news


class NewsLoop:
    """Run the rounds with one torch module, autograd, and a Python loop over clients."""

    def __init__(self, simulation: Simulation, news: NewsInput, *, frugal: bool) -> None:
        self._simulation = simulation
        self._loss = each_news_once if frugal else titles_of_every_example
        self._news = news
        self._trainer: NewsLocalTrainer = simulation.plan.trainer  # type: ignore[assignment]
        self.model = deepcopy(self._trainer.start)
        with torch.no_grad():
            for name in self._trainer.names:
                self.model.get_parameter(name).copy_(torch.from_numpy(simulation.server.weights[name]))
        self.parameters = dict(self.model.named_parameters())

    def round(self, number: int) -> None:
        """One round: the mean weighted by clicks or, with whole-update clipping, the sum."""
        sim = self._simulation
        sums = {name: torch.zeros_like(value) for name, value in self.parameters.items()}
        total = 0.0
        for client in sim.sampler.draw(number):
            one = np.array([client])
            cohort = Cohort(one, OwnImpressions(sim.data.rows.take(one)), {}, sim.seeds.draws)
            examples = self._trainer.examples(cohort, number)
            self.model.zero_grad()
            loss = self._loss(self.model, self._news, examples)
            loss.backward()  # type: ignore[no-untyped-call]
            self._clip()
            weight = float(len(examples)) if sim.plan.sends_examples else 1.0
            total += weight
            for name, value in self.parameters.items():
                if value.grad is not None:
                    sums[name] -= weight * value.grad
        with torch.no_grad():
            for name, value in self.parameters.items():
                value.add_(sums[name], alpha=sim.plan.server.rate / (total if sim.plan.sends_examples else 1.0))

    def _clip(self) -> None:
        mechanism = self._simulation.plan.mechanism
        if isinstance(mechanism, CohortSum):
            torch.nn.utils.clip_grad_norm_(self.parameters.values(), mechanism.clip_norm)
        if isinstance(mechanism, ElementwiseLaplace):
            torch.nn.utils.clip_grad_value_(self.parameters.values(), mechanism.clip_value)


def each_news_once(model: NewsModel, news: NewsInput, examples: ClickExamples) -> Tensor:
    """Compute the mean loss of a client that encodes each of its news once."""
    batch = make_batch(examples.histories, examples.history_of, examples.candidates)
    return losses(model, trimmed(take_news(news, batch.news)), batch).mean()


def titles_of_every_example(model: NewsModel, news: NewsInput, examples: ClickExamples) -> Tensor:
    """Compute the mean loss of a client that encodes the news of every example, as a batch of examples comes."""
    past = examples.histories[examples.history_of]
    width = max(1, int((past != NONE).any(0).sum()))
    items = np.concatenate([past[:, :width], examples.candidates], 1)  # [b, h + c]
    real = torch.from_numpy(items != NONE)
    rows = torch.from_numpy(np.maximum(items, 0).astype(np.int64))
    vectors = model.encode_news(trimmed(take_news(news, rows.flatten()))).view(*rows.shape, -1)
    users = model.user(vectors[:, :width], real[:, :width])
    scores = (vectors[:, width:] @ users.unsqueeze(-1)).squeeze(-1)
    lowest = torch.finfo(scores.dtype).min
    return -scores.masked_fill(~real[:, width:], lowest).log_softmax(-1)[:, 0].mean()


def ranking(name: str, options: Options) -> Result:
    """All dev impressions ranked from news vectors that are there; the histories are encoded on the way."""
    source = _RANKED_QUICK if options.quick else _RANKED
    simulation, _ = news_simulation(source, "none", cohort=10)
    scorer, impressions = simulation.model(), load(source).impressions["dev"]
    if not isinstance(scorer, NewsScorer):
        raise VeilrecError("fednewsrec gives no model that ranks impressions")
    seconds = _median_seconds(scorer, impressions, options.repeats)
    figures = {"impressions_per_second": round(len(impressions) / seconds, 1)}
    users = len(np.unique(impressions.users))
    note = f"A round is one ranking of {len(impressions):,} dev impressions of {users:,} users."
    return Result(name, source, users, seconds, peak_rss_mb(), figures=figures, notes=(OF_ONE_CORE, note))


def _median_seconds(scorer: NewsScorer, impressions: Impressions, repeats: int) -> float:
    times = []
    for _ in range(repeats + 1):
        start = time.thread_time()
        scorer.score_impressions(impressions)
        times.append(time.thread_time() - start)
    return float(np.median(times[1:]))  # the first one compiles
