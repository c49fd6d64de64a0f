"""FedNewsRec: news recommendation learnt on devices (Qi et al. 2020).

A round: every device of the cohort sends the gradient of its loss (eq. 2, 3); the server averages the gradients by the
number of clicks (eq. 6) and steps (eq. 7). As published, a device clips its gradient entry by entry and adds Laplace
noise (eq. 4, 5). Proven: the whole update of a user is clipped, all weigh the same, and the sum gets Gaussian noise.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np

from veilrec import _draws
from veilrec._arrays import Floats
from veilrec._csr import Csr
from veilrec.device.protection import Protection, Unprotected, WholeUpdateClip
from veilrec.errors import BadInput
from veilrec.methods.base import Config, Method, Problem
from veilrec.methods.news_common import (
    DATASETS,
    FEDNEWSREC,
    PAPER_SIZES,
    Count,
    NotNegative,
    Positive,
    SizeConfig,
    TextConfig,
    news_of,
)
from veilrec.privacy.accounting import Rounds, noise_multiplier_for
from veilrec.privacy.checks import probability
from veilrec.privacy.guarantee import Adjacency, Guarantee, no_guarantee
from veilrec.server.aggregate import Aggregation
from veilrec.server.optimise import ServerRate
from veilrec.server.server import Server
from veilrec.simulate.cohort import CohortSettings
from veilrec.simulate.trainer import Trainer

# Table 2: (AUC, MRR, nDCG@5, nDCG@10) in per cent
PAPER = {"msn-news": (64.65, 30.60, 33.03, 38.77), "adressa": (69.91, 35.55, 33.74, 41.47)}


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
    negatives: Count = 4  # H of eq. 3
    history: Count = 50  # the latest clicks that a user is known by
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
    from veilrec.device.news_log import pack_logs
    from veilrec.methods.news_prepare import prepare
    from veilrec.methods.news_ranker import NewsScorer, encode_all
    from veilrec.methods.news_simulation import NewsSimulation

    data, seed = news_of(problem, method), problem.seed
    prepared = prepare(
        config.network, config.size, config.text, data, seed, whole_catalogue=config.calibration == "proven"
    )
    logs = _taking_part(config, pack_logs(data.impressions, len(problem.train), config.history), seed)
    settings = news.NewsSettings(config.negatives, config.history)
    learner = news.NewsLearner(prepared.model, prepared.news, prepared.frozen, settings, seed)

    def make_model(public: Mapping[str, Floats], private: Mapping[str, Floats]) -> NewsScorer:
        trained = learner.model_with(public)
        return NewsScorer(trained, encode_all(trained, prepared.news), problem.train, config.history)

    server = Server(
        news.schema(prepared.model, prepared.frozen), news.start_weights(prepared.model, prepared.frozen),
        config.aggregation, config.server, sigma=_sigma(config, problem, logs),
    )  # fmt: skip
    return NewsSimulation(
        logs, learner, server, config.cohort, make_model, seed, protection=_protection(config)
    )


def _taking_part(config: FedNewsConfig, logs: Csr, seed: int) -> Csr:
    """The logs of those who take part, the others' empty; more of them include those of a smaller number."""
    if config.train_users is None:
        return logs
    eligible = np.flatnonzero(logs.lengths() > 0)
    if config.train_users > len(eligible):
        raise BadInput(
            f"train_users is {config.train_users}, but {len(eligible)} users have something to learn from:"
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
        return ElementClip(clip_value=p.clip_value, scale=p.scale)
    return WholeUpdateClip(clip_norm=p.clip_norm) if config.calibration == "proven" else Unprotected()


def _sigma(config: FedNewsConfig, problem: Problem, logs: Csr) -> float:
    """Standard deviation of the noise on the sum of a round."""
    if config.calibration != "proven":
        return 0.0
    p = config.privacy
    probability(delta=p.delta)
    rounds = Rounds(
        rounds=problem.rounds, sampling=config.cohort.sampling, population=int((logs.lengths() > 0).sum()),
        cohort=config.cohort.size,
    )  # fmt: skip
    sensitivity = p.clip_norm * (1.0 if rounds.adjacency == "add-remove" else 2.0)
    return sensitivity * noise_multiplier_for(p.epsilon, p.delta, rounds)


def guarantee(config: FedNewsConfig) -> Guarantee:
    """User-level over the whole run, the paper's claim, or nothing."""
    p = config.privacy
    if config.calibration == "proven":
        adjacency: Adjacency = "add-remove" if config.cohort.sampling == "poisson" else "replace-one"
        return Guarantee(
            basis="proven", unit="user", adjacency=adjacency, epsilon=p.epsilon, delta=p.delta,
            scope="whole run", trust="server",
            caveats=(
                "The server sees every clipped update before it adds the noise; all others see only sums.",
                "How many users there are, the news with their text, and the settings are taken as public.",
                *(() if config.train_users is None else (WHO_TAKES_PART,)),
                "A simulated run protects nobody.",
            ),
        )  # fmt: skip
    if config.calibration == "as-published" and p.scale > 0.0:
        return Guarantee(
            basis="as published", unit="user", adjacency="replace-one", epsilon=2.0 * p.clip_value / p.scale,
            delta=0.0, scope="per message", trust="nobody",
            caveats=(
                "The claim holds for one entry of one message; a message has an entry for every parameter of the"
                " model, every round sends another, and the number of clicks is sent in the clear.",
                "A simulated run protects nobody.",
            ),
            honest_note="All entries of a message move together, so its epsilon is this times their number.",
        )  # fmt: skip
    return no_guarantee(
        "The server sees each device's gradient, and in it the words of the news that the device has seen.",
        "A simulated run protects nobody.",
    )


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
    rounds=150,
    rounds_are_fixed=True,
    presets={
        "paper": {
            "size": PAPER_SIZES, "server": {"optimiser": "sgd", "rate": 0.5, "momentum": 0.0}, "rounds": 1500,
            "calibration": "as-published", "cohort": {"sampling": "fixed"},
        }
    },
    deviations=(
        "g_u is the gradient of the mean over a device's clicks, as in the authors' code: with the sum of eq. 2 and"
        " the weights of eq. 6 a device with B clicks would weigh B squared.",
        "The server uses Adam (FedAdam) unless told otherwise; --preset paper takes eq. 7.",
        "A user without clicks has a vector of its own, learnt from such users.",
        "proven: whole-update clipping, equal weights, Gaussian noise on the sum (ours).",
    ),
)  # fmt: skip
