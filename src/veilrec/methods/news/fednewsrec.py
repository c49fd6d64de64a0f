"""FedNewsRec: news recommendation learnt on devices (Qi et al. 2020), and a small head in its place.

A round: every device of the cohort sends the gradient of its loss (eq. 2, 3); the server averages the gradients by the
number of clicks (eq. 6) and steps (eq. 7). As published, a device clips its gradient entry by entry and adds Laplace
noise (eq. 4, 5). Proven: the whole update of a user is clipped, all weigh the same, and the sum gets Gaussian noise.

Noise that protects a user grows with the square root of the number of parameters: fednewsrec-head keeps public sentence
vectors frozen, and learns a few thousand parameters on devices.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Literal

import numpy as np

from veilrec import _draws
from veilrec._csr import Csr
from veilrec._words import counted
from veilrec.device.news_log import OwnImpressions, pack_logs
from veilrec.errors import BadInput
from veilrec.methods.base import Config, Method, NewsData, Problem
from veilrec.methods.news.common import (
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
from veilrec.methods.private import SIMULATED, PrivacySettings, noisy_sum, participations, proven, takes_part
from veilrec.plan import Plan
from veilrec.privacy.accounting import epsilon_renyi
from veilrec.privacy.events import LaplaceEvent, repeated
from veilrec.privacy.guarantee import Guarantee, no_guarantee
from veilrec.privacy.mechanisms.messages import ElementwiseLaplace
from veilrec.privacy.mechanisms.updates import InTheClear, UpdateMechanism
from veilrec.server.aggregate import Aggregation
from veilrec.server.cohorts import CohortSettings
from veilrec.server.optimise import ServerRate
from veilrec.updates import Schema

if TYPE_CHECKING:
    from veilrec.methods.news.prepare import ReadNews

_ENTRIES_AT_ONCE = 1 << 25  # of the updates of devices that learn in one call: 128 MB
_DEVICES_AT_ONCE = 256

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


def plan(config: FedNewsConfig, problem: Problem, *, method: str = "fednewsrec") -> Plan:
    """Put the parts together; the noise is chosen before the first round."""
    from veilrec.device import news
    from veilrec.methods.news.ranker import NewsRanker

    read = _read(config, news_of(problem, method), problem.public_seed)
    schema = news.schema(read.model, read.frozen)
    update = sum(tensor.size for tensor in schema.dense)
    return Plan(
        schema=schema,
        start=news.start_weights(read.model, read.frozen),
        learner=news.NewsLearner(
            read.model, read.news, read.frozen, news.NewsSettings(config.negatives, config.history)
        ),
        mechanism=_mechanism(config, problem, schema, method),
        rounds=problem.rounds,
        cohort=config.cohort,
        aggregation=config.aggregation,
        server=config.server,
        ranker=NewsRanker.of(read, config.history),
        devices_at_once=max(1, min(_DEVICES_AT_ONCE, _ENTRIES_AT_ONCE // max(update, 1))),
    )


def _read(config: FedNewsConfig, data: NewsData, seed: int) -> ReadNews:
    from veilrec.methods.news.prepare import prepare

    whole = config.calibration == "proven"
    return prepare(config.network, config.size, config.text, data, seed, whole_catalogue=whole)


def devices(config: FedNewsConfig, problem: Problem, *, method: str = "fednewsrec") -> OwnImpressions:
    """The impressions of those who take part."""
    logs = pack_logs(news_of(problem, method).impressions, len(problem.train), config.history)
    return OwnImpressions(_taking_part(config, logs, problem.public_seed))


def _count_devices(config: FedNewsConfig, problem: Problem, method: str) -> int:
    return int((devices(config, problem, method=method).rows.lengths() > 0).sum())


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


def _mechanism(config: FedNewsConfig, problem: Problem, schema: Schema, method: str) -> UpdateMechanism:
    p = config.privacy
    if config.calibration == "none":
        return InTheClear(schema)
    if config.calibration == "as-published":
        guarantee(config)  # refuses noise without a finite epsilon before anything is learnt
        return ElementwiseLaplace.published(schema=schema, clip_value=p.clip_value, scale=p.scale)
    return noisy_sum(
        PrivacySettings(epsilon=p.epsilon, delta=p.delta, clip_norm=p.clip_norm),
        config.cohort,
        schema,
        rounds=problem.rounds,
        devices=_count_devices(config, problem, method),
        keeps_state=False,
    )


def guarantee(config: FedNewsConfig) -> Guarantee:
    """User-level over the whole run, the paper's claim, or nothing."""
    p = config.privacy
    if config.calibration == "proven":
        some = () if config.train_users is None else (WHO_TAKES_PART,)
        return proven(p.epsilon, p.delta, config.cohort, *some, public=PUBLIC, keeps_state=False)
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

    read = _read(config, news_of(problem, method), problem.public_seed)
    entries = sum(tensor.size for tensor in news.schema(read.model, read.frozen).tensors)
    times = participations(config.cohort, problem.rounds, _count_devices(config, problem, method))
    delta = config.privacy.delta
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


FEDNEWSREC_METHOD = Method(
    name="fednewsrec",
    kind="federated",
    paper=FEDNEWSREC,
    model="CNN and self-attention over words; self-attention and GRU over clicks",
    summary="devices send gradients of a news model; clicks and what was shown stay on them",
    datasets=DATASETS,
    config=FedNewsConfig,
    plan=plan,
    devices=devices,
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


class HeadConfig(FedNewsConfig):
    """Settings of the head."""

    network: Literal["fednewsrec", "fednewsrec-long", "fednewsrec-short", "sentence-head"] = "sentence-head"
    size: SizeConfig = SizeConfig(attention=8, dropout=0.0)
    text: TextConfig = TextConfig(sentences="minilm", sentence_dim=64)
    cohort: CohortSettings = CohortSettings(size=200, sampling="poisson")
    server: ServerRate = ServerRate(optimiser="adam", rate=0.005, momentum=0.9, caution=1e-3)
    privacy: NewsPrivacy = NewsPrivacy(clip_norm=0.2)


FEDNEWSREC_HEAD = Method(
    name="fednewsrec-head",
    kind="federated",
    paper="ours, after Qi et al. 2020 (FedNewsRec)",
    model="MiniLM sentence vectors (frozen), one linear map, attention over clicks",
    summary="public sentence vectors, and a small head learnt on devices under user-level differential privacy",
    datasets=DATASETS,
    config=HeadConfig,
    plan=partial(plan, method="fednewsrec-head"),
    devices=partial(devices, method="fednewsrec-head"),
    guarantee=guarantee,
    guarantee_of_run=partial(guarantee_of_run, method="fednewsrec-head"),
    rounds=100,
    rounds_are_fixed=True,
    measured=("mind", "synthetic-news"),
)
