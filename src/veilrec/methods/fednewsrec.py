"""FedNewsRec: news recommendation learnt on devices (Qi et al. 2020).

A round: every device of the cohort sends the gradient of its loss (eq. 2, 3); the server averages the gradients by the
number of clicks (eq. 6) and steps (eq. 7). As published, a device clips its gradient entry by entry and adds Laplace
noise (eq. 4, 5). Proven: the whole update of a user is clipped, all weigh the same, and the sum gets Gaussian noise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from veilrec import _draws
from veilrec._arrays import Floats
from veilrec._csr import Csr
from veilrec._words import counted
from veilrec.device.protection import Protection, Unprotected, WholeUpdateClip
from veilrec.errors import BadInput
from veilrec.methods.base import Config, Method, NewsData, Problem
from veilrec.methods.news_common import (
    DATASETS,
    FEDNEWSREC,
    PAPER_SIZES,
    Count,
    NotNegative,
    Positive,
    Short,
    SizeConfig,
    TextConfig,
    news_of,
)
from veilrec.methods.private import SIMULATED, PrivacySettings, participations, proven, sigma_of_sum, takes_part
from veilrec.privacy.accounting import epsilon_renyi
from veilrec.privacy.events import LaplaceEvent, repeated
from veilrec.privacy.guarantee import Guarantee, no_guarantee
from veilrec.server.aggregate import Aggregation
from veilrec.server.optimise import ServerRate
from veilrec.server.server import Server
from veilrec.simulate.cohort import CohortSettings
from veilrec.simulate.trainer import Trainer

if TYPE_CHECKING:
    from veilrec.methods.news_prepare import Prepared

# Table 2: (AUC, MRR, nDCG@5, nDCG@10) in per cent
PAPER = {"msn-news": (64.65, 30.60, 33.03, 38.77), "adressa": (69.91, 35.55, 33.74, 41.47)}


PUBLIC = (
    "How many users there are, the news with their text, and the settings, however they were chosen, are taken as "
    "public; somebody who is removed still counts."
)
WHO_TAKES_PART = "Which users take part (train_users) is taken as public, too."


class NewsPrivacy(Config):
    """What is promised, and what is cut off to keep the promise."""

    epsilon: Positive = 8.0  # proven: of a user, over the whole run
    delta: Positive = 1e-6
    clip_norm: Positive = 0.1  # proven: of a user's whole update of a round
    clip_value: Positive = 0.005  # as published: delta of eq. 4, of every entry
    scale: NotNegative = 0.015  # as published: lambda of eq. 5


class FedNewsConfig(Config):
    """Settings of FedNewsRec."""

    calibration: Literal["none", "as-published", "proven"] = "proven"
    network: Literal["fednewsrec", "fednewsrec-long", "fednewsrec-short", "sentence-head"] = "fednewsrec"
    size: SizeConfig = SizeConfig(dropout=0.0)
    text: TextConfig = TextConfig()
    negatives: Short = 4  # H of eq. 3
    history: Short = 50  # the latest clicks that a user is known by
    train_users: Count | None = None  # only so many, drawn by the seed, ever take part; None: all
    cohort: CohortSettings = CohortSettings(size=200, sampling="poisson")
    server: ServerRate = ServerRate(optimiser="adam", rate=0.005, momentum=0.9, caution=1e-6)
    privacy: NewsPrivacy = NewsPrivacy()

    @property
    def aggregation(self) -> Aggregation:
        """eq. 6; proven: all weigh the same, and no divisor that counts devices tells anything."""
        return "sum" if self.calibration == "proven" else "weighted-mean"


def build(config: FedNewsConfig, problem: Problem, *, method: str = "fednewsrec") -> Trainer:
    """Put the parts together; the noise is chosen before the first round."""
    from veilrec.device import news
    from veilrec.methods.news_ranker import NewsScorer, encode_all
    from veilrec.methods.news_simulation import NewsSimulation

    data, seed = news_of(problem, method), problem.seed
    prepared, logs = _prepared(config, data, seed), _logs(config, problem, data)
    settings = news.NewsSettings(config.negatives, config.history)
    learner = news.NewsLearner(prepared.model, prepared.news, prepared.frozen, settings, seed)

    def make_model(public: Mapping[str, Floats], private: Mapping[str, Floats]) -> NewsScorer:
        trained = learner.model_with(public)
        states = encode_all(trained, prepared.news)
        return NewsScorer(trained, states, problem.train, config.history, prepared.reader)

    schema = news.schema(prepared.model, prepared.frozen)
    sigma = _sigma(config, replace(problem, train=logs), sum(tensor.size for tensor in schema.tensors))
    server = Server(
        schema, news.start_weights(prepared.model, prepared.frozen), config.aggregation, config.server, sigma=sigma
    )
    return NewsSimulation(logs, learner, server, config.cohort, make_model, seed, protection=_protection(config))


def _prepared(config: FedNewsConfig, data: NewsData, seed: int) -> Prepared:
    from veilrec.methods.news_prepare import prepare

    whole = config.calibration == "proven"
    return prepare(config.network, config.size, config.text, data, seed, whole_catalogue=whole)


def _logs(config: FedNewsConfig, problem: Problem, data: NewsData) -> Csr:
    from veilrec.device.news_log import pack_logs

    logs = pack_logs(data.impressions, len(problem.train), config.history)
    return _taking_part(config, logs, problem.seed)


def _taking_part(config: FedNewsConfig, logs: Csr, seed: int) -> Csr:
    """The logs of those who take part, the others' empty; more of them include those of a smaller number."""
    if config.train_users is None:
        return logs
    eligible = np.flatnonzero(logs.lengths() > 0)
    if config.train_users > len(eligible):
        raise BadInput(
            f"train_users is {config.train_users}, but {counted(len(eligible), 'user')} can learn:"
            f" choose from 1 to {len(eligible)}, or leave it out to take all"
        )
    generator = np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, _draws.PARTICIPANTS])))
    chosen = np.zeros(len(logs), np.bool_)
    chosen[generator.permutation(eligible)[: config.train_users]] = True
    offsets = np.concatenate([[0], np.cumsum(np.where(chosen, logs.lengths(), 0))]).astype(np.int64)
    return Csr(offsets, logs.items[np.repeat(chosen, logs.lengths())])


def _protection(config: FedNewsConfig) -> Protection:
    from veilrec.device.element_clip import ElementClip

    p = config.privacy
    if config.calibration == "as-published":
        guarantee(config)  # refuses noise without a finite epsilon before anything is learnt
        return ElementClip(clip_value=p.clip_value, scale=p.scale)
    return WholeUpdateClip(clip_norm=p.clip_norm) if config.calibration == "proven" else Unprotected()


def _sigma(config: FedNewsConfig, problem: Problem, parameters: int) -> float:
    """Standard deviation of the noise on the sum of a round; `problem.train` has a row for who takes part."""
    if config.calibration != "proven":
        return 0.0
    p = config.privacy
    settings = PrivacySettings(epsilon=p.epsilon, delta=p.delta, clip_norm=p.clip_norm)
    return sigma_of_sum(settings, config.cohort, problem, parameters)


def guarantee(config: FedNewsConfig) -> Guarantee:
    """User-level over the whole run, the paper's claim, or nothing."""
    p = config.privacy
    if config.calibration == "proven":
        some = () if config.train_users is None else (WHO_TAKES_PART,)
        return proven(p.epsilon, p.delta, config.cohort, *some, public=PUBLIC)
    if config.calibration == "as-published" and p.scale > 0.0:
        return Guarantee(
            basis="as published",
            unit="user",
            adjacency="replace-one",
            epsilon=_claimed(config),
            delta=0.0,
            scope="per message",
            trust="nobody",
            caveats=(
                "The claim holds for one entry of one message; a message has an entry for every parameter of the"
                " model, every round sends another, and the number of clicks is sent in the clear.",
                SIMULATED,
            ),
            honest_note="All entries of a message move together, so its epsilon is this times their number.",
        )
    return no_guarantee(
        "The server sees each device's gradient, and in it the words of the news that the device has seen.", SIMULATED
    )


def guarantee_of_run(config: FedNewsConfig, problem: Problem, *, method: str = "fednewsrec") -> Guarantee:
    """The same; beside the paper's claim, the epsilon of one upload and of all uploads of a run."""
    claim = guarantee(config)
    if claim.basis != "as published":
        return claim
    from veilrec.device import news

    data = news_of(problem, method)
    prepared = _prepared(config, data, problem.seed)
    entries = sum(tensor.size for tensor in news.schema(prepared.model, prepared.frozen).tensors)
    taking_part = replace(problem, train=_logs(config, problem, data))
    times, delta = participations(config.cohort, taking_part), config.privacy.delta
    upload, run = (_composed(_claimed(config), entries * count, delta) for count in (1, times))
    return replace(
        claim,
        honest_epsilon=upload,
        honest_delta=delta,
        honest_note=f"That is one upload of {entries:,} entries, which all move together; over a run in which a device"
        f" {takes_part(times)}, epsilon {run:,.0f} at delta {delta:g}; the number of clicks, sent in the clear, is not"
        " covered at all.",
    )


def _claimed(config: FedNewsConfig) -> float:
    """2 delta / lambda of section 3.3: of one entry."""
    p = config.privacy
    claimed = 2.0 * p.clip_value / p.scale
    if math.isinf(claimed):
        raise BadInput(
            f"privacy.clip_value is {p.clip_value:g} and privacy.scale {p.scale:g}: no finite epsilon comes of it;"
            " give a smaller clip_value, or scale 0 for no noise"
        )
    return claimed


def _composed(epsilon: float, count: int, delta: float) -> float:
    """Of so many entries with Laplace noise."""
    return min(count * epsilon, epsilon_renyi(repeated(LaplaceEvent(epsilon), count), delta))


METHOD = Method(
    name="fednewsrec",
    kind="federated",
    paper=FEDNEWSREC,
    model="CNN and self-attention over words; self-attention and GRU over clicks",
    summary="devices send gradients of a news model; clicks and what was shown stay on them",
    datasets=DATASETS,
    config=FedNewsConfig,
    build=build,
    guarantee=guarantee,
    guarantee_of_run=guarantee_of_run,
    rounds=150,
    rounds_are_fixed=True,
    measured=("mind", "synthetic-news"),
    presets={
        # Noise grows with the square root of the number of parameters: a model a sixth as large, more devices a round.
        "tuned:proven": {
            "size": {"word_dim": 16, "heads": 2, "head_dim": 8, "attention": 8},
            "cohort": {"size": 500},
            "server": {"rate": 0.02},
            "rounds": 60,
        },
        "paper": {
            "size": PAPER_SIZES,
            "server": {"optimiser": "sgd", "rate": 0.5, "momentum": 0.0},
            "rounds": 1500,
            "calibration": "as-published",
            "cohort": {"sampling": "fixed"},
        },
    },
    deviations=(
        "g_u is the gradient of the mean over a device's clicks, as in the authors' code: with the sum of eq. 2 and"
        " the weights of eq. 6 a device with B clicks would weigh B squared.",
        "The server uses Adam (FedAdam) unless told otherwise; --preset paper takes eq. 7.",
        "A user without clicks has a vector of its own, learnt from such users.",
        "proven: whole-update clipping, equal weights, Gaussian noise on the sum (ours).",
    ),
)
