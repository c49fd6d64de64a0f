"""FedNewsRec: federated news recommendation (Qi et al. 2020), and a small head with frozen text in its place.

| paper | here |
|---|---|
| g_u, gradient of the loss (eq. 2, 3) | the client update of `NewsLocalTrainer` |
| delta, clipping of every entry (eq. 4) | `privacy.clip_value` |
| lambda, Laplace noise on every entry (eq. 5) | `privacy.scale` |
| mean weighted by clicks B_u (eq. 6) | `aggregation` "weighted-mean" |
| eta, server step (eq. 7) | `server.rate` |
| r, share of users in a round | `round_share` |
| H, sampled non-clicks (eq. 3) | `negatives` |

proven: the whole update of a user is clipped, all clients weigh the same, and the sum gets Gaussian noise. Its norm
grows with the square root of the number of parameters, so `fednewsrec-head` keeps public sentence vectors frozen and
trains a few thousand parameters.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from veilrec.core.errors import BadInput
from veilrec.core.plan import Aggregation, Plan
from veilrec.core.schema import Schema
from veilrec.methods.base import Method, Problem, described
from veilrec.methods.news.common import DATASETS, NotNegative, Positive, SizeConfig, TextConfig, ValidationConfig
from veilrec.methods.news.federated import (
    FederatedConfig,
    ValidationBudget,
    clients,
    cohort_of,
    count_clients,
    noise_on_sums,
    notes_on,
    plan_of,
    read_news,
    schema_of,
    told,
)
from veilrec.methods.private import DistributedFields, PrivacySettings, as_published, participations, proven, takes_part
from veilrec.privacy.accounting import epsilon_renyi
from veilrec.privacy.events import LaplaceEvent, repeated
from veilrec.privacy.guarantee import Guarantee, no_guarantee
from veilrec.privacy.mechanisms.local import ElementwiseLaplace
from veilrec.privacy.mechanisms.sums import NoNoise, UpdateMechanism
from veilrec.server.aggregation import ServerRate
from veilrec.server.round_specs import CohortSettings

if TYPE_CHECKING:
    from veilrec.methods.news.prepare import ReadNews


PUBLIC = (
    "The number of users that the noise is chosen for, the news with their text, and the settings, however they were "
    "chosen, are taken as public: they are the same with one person's data and without."
)
WHO_TAKES_PART = "Which users take part (train_users, train_share) is taken as public, too."


class NewsPrivacy(DistributedFields):
    """What is promised, and what is cut off to keep the promise."""

    epsilon: Positive = 8.0  # proven: of a user, over the whole run
    delta: Positive = 1e-6  # of the guarantee
    clip_norm: Positive = 0.1  # proven: of a user's whole update of a round
    clip_value: Positive = 0.005  # as published: delta of eq. 4, of every entry
    scale: NotNegative = 0.015  # as published: lambda of eq. 5


Network = Literal["fednewsrec", "fednewsrec-long", "fednewsrec-short", "sentence-head", "public-head"]


class FedNewsConfig(FederatedConfig):
    """Settings of FedNewsRec."""

    calibration: Literal["none", "as-published", "proven"] = "proven"  # where the noise comes from
    network: Network = "fednewsrec"
    cohort: CohortSettings = CohortSettings(size=200, sampling="poisson")
    server: ServerRate = ServerRate(optimiser="adam", rate=0.005, momentum=0.9, caution=1e-6)
    privacy: NewsPrivacy = NewsPrivacy()
    validators: ValidationConfig = ValidationConfig()  # proven: who decides whether training is kept

    @property
    def active_validation(self) -> ValidationConfig:
        """Validation clients; none unless the guarantee is proven."""
        return self.validators if self.calibration == "proven" else ValidationConfig(share=0.0)

    @property
    def aggregation(self) -> Aggregation:
        """Weighted mean (eq. 6); proven: a plain sum, whose divisor tells nothing of the clients."""
        return "sum" if self.calibration == "proven" else "weighted-mean"


def plan(config: FedNewsConfig, problem: Problem, *, method: str = "fednewsrec") -> Plan:
    """Assemble the plan; the noise is calibrated before the first round."""
    from veilrec.client import news

    read = _read(config, problem, method)
    settings = news.NewsTrainingSettings(config.negatives, config.history)
    return plan_of(
        config,
        problem,
        read,
        news.NewsLocalTrainer(read.model, read.news, read.frozen, settings),
        _mechanism(config, problem, schema_of(read), method),
        cohort_of(config, problem, method),
        config.aggregation,
        ValidationBudget(config.active_validation, config.privacy),
    )


def _read(config: FedNewsConfig, problem: Problem, method: str) -> ReadNews:
    return read_news(config, config.network, problem, method, whole_catalogue=config.calibration == "proven")


def ready(config: FedNewsConfig) -> tuple[str, ...]:
    """Check that public vectors are installed; return notes on settings without effect."""
    return notes_on(config, config.network)


def _mechanism(config: FedNewsConfig, problem: Problem, schema: Schema, method: str) -> UpdateMechanism:
    p = config.privacy
    if config.calibration == "none":
        return NoNoise(schema)
    if config.calibration == "as-published":
        guarantee(config)  # refuses noise without a finite epsilon before anything is learnt
        return ElementwiseLaplace.published(schema=schema, clip_value=p.clip_value, scale=p.scale)
    return noise_on_sums(config, problem, schema, method)


def guarantee(config: FedNewsConfig) -> Guarantee:
    """Guarantee of a configuration: proven per user over the run, the paper's claim, or none."""
    p = config.privacy
    if config.calibration == "proven":
        everybody = config.train_users is None and config.train_share == 1.0
        some = () if everybody else (WHO_TAKES_PART,)
        drawn = config.cohort
        if drawn.size == 0 and config.round_share < 1.0:
            drawn = replace(drawn, size=1)  # however many it comes to, they are drawn
        return proven(p, drawn, *told(config.active_validation), *some, public=PUBLIC, keeps_state=False)
    if config.calibration == "as-published" and p.scale > 0.0:
        return replace(
            as_published(
                PrivacySettings(),
                "The claim holds for one entry of one message; a message has an entry for every parameter of the"
                " model, every round sends another, and the number of clicks is sent in plaintext.",
            ),
            epsilon=_claimed(config),
            honest_note="All entries of a message move together, so its epsilon is this times their number.",
        )
    return no_guarantee(
        "In plaintext, the server sees each client's gradient, and in it the words of the news that it has seen."
    )


def guarantee_of_run(config: FedNewsConfig, problem: Problem, *, method: str = "fednewsrec") -> Guarantee:
    """Guarantee of a run; beside the paper's claim, the epsilon of one update and of all updates of a client."""
    claim = guarantee(config)
    if claim.basis != "as published":
        return claim
    entries = sum(tensor.size for tensor in schema_of(_read(config, problem, method)).tensors)
    times = participations(cohort_of(config, problem, method), problem.rounds, count_clients(config, problem, method))
    delta = config.privacy.delta
    update, run = (_composed(_claimed(config), entries * count, delta) for count in (1, times))
    return replace(
        claim,
        honest_epsilon=update,
        honest_delta=delta,
        honest_note=f"That is one upload of {entries:,} entries, which all move together; over a run in which a client"
        f" {takes_part(times)}, epsilon {run:,.0f} at delta {delta:g} (per {claim.unit}, {claim.adjacency}, whole run,"
        f" trusting: {claim.trust}, proven); the number of clicks, sent in plaintext, is not"
        " covered at all.",
    )


def _claimed(config: FedNewsConfig) -> float:
    """Epsilon claimed for one entry: 2 delta / lambda (section 3.3)."""
    p = config.privacy
    claimed = 2.0 * p.clip_value / p.scale
    if math.isinf(claimed):
        raise BadInput(
            f"privacy.clip_value is {p.clip_value:g} and privacy.scale {p.scale:g}: no finite epsilon comes of it;"
            " give a smaller clip_value, or scale 0 for no noise"
        )
    return claimed


def _composed(epsilon: float, count: int, delta: float) -> float:
    """Epsilon of `count` entries with Laplace noise: the smaller of basic and Renyi composition."""
    return min(count * epsilon, epsilon_renyi(repeated(LaplaceEvent(epsilon), count), delta))


FEDNEWSREC_METHOD: Method[Any] = Method(
    **described("fednewsrec"),
    datasets=DATASETS,
    config=FedNewsConfig,
    plan=plan,
    clients=partial(clients, method="fednewsrec"),
    guarantee=guarantee,
    guarantee_of_run=guarantee_of_run,
    ready=ready,
)


class HeadConfig(FedNewsConfig):
    """Settings of fednewsrec-head."""

    network: Network = "sentence-head"
    size: SizeConfig = SizeConfig(attention=8, dropout=0.0)
    text: TextConfig = TextConfig(sentences="minilm", sentence_dim=64)
    cohort: CohortSettings = CohortSettings(size=200, sampling="poisson")
    server: ServerRate = ServerRate(optimiser="adam", rate=0.005, momentum=0.9, caution=1e-3)
    privacy: NewsPrivacy = NewsPrivacy(clip_norm=0.2)


FEDNEWSREC_HEAD = replace(
    FEDNEWSREC_METHOD,
    **described("fednewsrec-head"),
    config=HeadConfig,
    plan=partial(plan, method="fednewsrec-head"),
    clients=partial(clients, method="fednewsrec-head"),
    guarantee_of_run=partial(guarantee_of_run, method="fednewsrec-head"),
)
