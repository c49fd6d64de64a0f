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

from veilrec._csr import Csr
from veilrec.device.news_log import OwnImpressions, pack_logs
from veilrec.errors import BadInput
from veilrec.methods.base import Config, Method, NewsData, Problem
from veilrec.methods.news.common import (
    DATASETS,
    FEDNEWSREC,
    PAPER_SETTINGS,
    PAPER_WORDS,
    Count,
    NotNegative,
    Positive,
    Share,
    Short,
    SizeConfig,
    TextConfig,
    news_of,
    share_of,
    share_taking_part,
    taking_part,
    vectors_ready,
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
    "public. The number of users is taken as fixed: it is the same with one person's data and without."
)
WHO_TAKES_PART = "Which users take part (train_users, train_share) is taken as public, too."


class NewsPrivacy(Config):
    """What is promised, and what is cut off to keep the promise."""

    epsilon: Positive = 8.0  # proven: of a user, over the whole run
    delta: Positive = 1e-6  # of the guarantee
    clip_norm: Positive = 0.1  # proven: of a user's whole update of a round
    clip_value: Positive = 0.005  # as published: delta of eq. 4, of every entry
    scale: NotNegative = 0.015  # as published: lambda of eq. 5


class FedNewsConfig(Config):
    """Settings of FedNewsRec."""

    calibration: Literal["none", "as-published", "proven"] = "proven"  # where the noise comes from
    network: Literal["fednewsrec", "fednewsrec-long", "fednewsrec-short", "sentence-head"] = "fednewsrec"
    size: SizeConfig = SizeConfig(dropout=0.0)
    text: TextConfig = TextConfig()
    negatives: Short = 4  # H of eq. 3
    history: Short = 50  # the latest clicks that a user is known by
    train_users: Count | None = None  # only so many, drawn by the seed, ever take part; None: as train_share says
    train_share: Share = 1.0  # of the users, drawn by the seed, ever take part
    round_share: Share = 1.0  # r of section 4.1: of those who take part, in a round, where cohort.size is 0
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
        cohort=_cohort(config, problem, method),
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
    if config.train_users is None:
        return share_taking_part(logs, config.train_share, seed)
    return taking_part(logs, config.train_users, seed)


def _cohort(config: FedNewsConfig, problem: Problem, method: str) -> CohortSettings:
    """With the number of devices that a share of them comes to."""
    if config.cohort.size > 0 or config.round_share == 1.0:
        return config.cohort
    return replace(config.cohort, size=share_of(config.round_share, _count_devices(config, problem, method)))


def ready(config: FedNewsConfig) -> tuple[str, ...]:
    """Vectors are there; notes on what does not count, because something else was set that says more."""
    notes = list(vectors_ready(config.size, config.text))
    if config.round_share < 1.0 and config.cohort.size > 0:
        notes.append(
            f"a round has cohort.size {config.cohort.size} devices, and round_share {config.round_share:g} does not"
            " count: for a share of the users set cohort.size=0"
        )
    if config.train_share < 1.0 and config.train_users is not None:
        notes.append(
            f"train_users {config.train_users} take part, and train_share {config.train_share:g} does not count"
        )
    return tuple(notes)


def _mechanism(config: FedNewsConfig, problem: Problem, schema: Schema, method: str) -> UpdateMechanism:
    p = config.privacy
    if config.calibration == "none":
        return InTheClear(schema)
    if config.calibration == "as-published":
        guarantee(config)  # refuses noise without a finite epsilon before anything is learnt
        return ElementwiseLaplace.published(schema=schema, clip_value=p.clip_value, scale=p.scale)
    return noisy_sum(
        PrivacySettings(epsilon=p.epsilon, delta=p.delta, clip_norm=p.clip_norm),
        _cohort(config, problem, method),
        schema,
        rounds=problem.rounds,
        devices=_count_devices(config, problem, method),
        keeps_state=False,
    )


def guarantee(config: FedNewsConfig) -> Guarantee:
    """User-level over the whole run, the paper's claim, or nothing."""
    p = config.privacy
    if config.calibration == "proven":
        everybody = config.train_users is None and config.train_share == 1.0
        some = () if everybody else (WHO_TAKES_PART,)
        drawn = config.cohort
        if drawn.size == 0 and config.round_share < 1.0:
            drawn = replace(drawn, size=1)  # however many it comes to, they are drawn
        return proven(p.epsilon, p.delta, drawn, *some, public=PUBLIC, keeps_state=False)
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
    times = participations(_cohort(config, problem, method), problem.rounds, _count_devices(config, problem, method))
    delta = config.privacy.delta
    upload, run = (_composed(_claimed(config), entries * count, delta) for count in (1, times))
    return replace(
        claim,
        honest_epsilon=upload,
        honest_delta=delta,
        honest_note=f"That is one upload of {entries:,} entries, which all move together; over a run in which a device"
        f" {takes_part(times)}, epsilon {run:,.0f} at delta {delta:g} (per {claim.unit}, {claim.adjacency}, whole run,"
        f" trusting: {claim.trust}, proven); the number of clicks, sent in the clear, is not"
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
    published=PAPER,
    paper=FEDNEWSREC,
    model="CNN and self-attention over words; self-attention and GRU over clicks",
    summary="devices send gradients of a news model; clicks and what was shown stay on them",
    datasets=DATASETS,
    config=FedNewsConfig,
    plan=plan,
    devices=devices,
    guarantee=guarantee,
    guarantee_of_run=guarantee_of_run,
    ready=ready,
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
            **PAPER_SETTINGS,
            **PAPER_WORDS,
            "round_share": 0.02,  # r
            "cohort": {"size": 0, "sampling": "fixed"},
            "server": {"optimiser": "sgd", "rate": 0.5, "momentum": 0.0},  # eta of eq. 7
            "privacy": {"clip_value": 0.005, "scale": 0.015},  # delta of eq. 4, lambda of eq. 5
            "rounds": 1500,  # section 4.5
            "calibration": "as-published",
        },
    },
    deviations=(
        "Word vectors of --preset paper are GloVe's of 50 dimensions (extra glove), where the paper has 300; --set"
        ' text.words=FILE reads those of any GloVe file. They learn on, as the paper\'s word "initialize" says; the'
        " authors' code keeps them as they are (--set text.freeze_words=true).",
        "The paper does not print the width of attention (200), the CNN's window (3), the longest title (30 words),"
        " history (50 clicks) and recent history (20): these are those of the authors' code. Its dropout of 0.2 and"
        " its ReLU behind the self-attention over words are printed nowhere, and are left out.",
        "Only users with a click and a non-click in one impression count as users who can take part.",
        "The noise is added to gradients, as eq. 4 says; the authors' code adds it to weights after the step.",
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
    ready=ready,
    rounds=100,
    rounds_are_fixed=True,
    measured=("mind", "synthetic-news"),
)
