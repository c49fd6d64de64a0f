"""Baselines of PrivateRec (Liu et al. 2022, section 4): FedRec, DP-FedRec and centralised training.

FedRec: clients send the gradient of their mean loss in plaintext. DP-FedRec: the gradient is clipped to L2 norm theta
(`privacy.clip_norm`) and gets Laplace noise on every entry; proven: Gaussian noise on the sum of a round. Centralized:
the same networks with all data in one place.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from veilrec.core.plan import Plan
from veilrec.methods.base import Method, Problem, described, unprotected
from veilrec.methods.fednewsrec.fednewsrec import PUBLIC, WHO_TAKES_PART
from veilrec.methods.news.common import DATASETS, Count, NewsConfig, Positive, ValidationConfig, news_of, vectors_ready
from veilrec.methods.news.federated import (
    ModelConfig,
    ModelName,
    ValidationBudget,
    clients,
    cohort_of,
    count_clients,
    noise_on_sums,
    plan_of,
    read_news,
    ready,
    schema_of,
    text_of,
    told,
)
from veilrec.methods.private import (
    PrivacySettings,
    PrivacyTerms,
    as_published,
    honest,
    participations,
    proven,
    takes_part,
)
from veilrec.privacy.events import repeated
from veilrec.privacy.guarantee import Guarantee
from veilrec.privacy.mechanisms.local import UpdateLaplace
from veilrec.privacy.mechanisms.sums import NoNoise, UpdateMechanism
from veilrec.server.round_specs import CohortSettings

if TYPE_CHECKING:
    from veilrec.core.schema import Schema
    from veilrec.simulation.simulation import Trainer


def fedrec_plan(config: ModelConfig, problem: Problem) -> Plan:
    """Assemble FedRec: plaintext gradients, FedAdam on their mean."""
    return _plan(config, problem, "fedrec", NoNoise, proven_sum=False)


def _plan(
    config: ModelConfig,
    problem: Problem,
    method: str,
    mechanism: Callable[[Schema], UpdateMechanism],
    *,
    proven_sum: bool,
    validators: ValidationBudget | None = None,
) -> Plan:
    from veilrec.client.news import NewsLocalTrainer, NewsTrainingSettings

    read = read_news(config, config.model, problem, method, whole_catalogue=proven_sum)
    return plan_of(
        config,
        problem,
        read,
        NewsLocalTrainer(read.model, read.news, read.frozen, NewsTrainingSettings(config.negatives, config.history)),
        mechanism(schema_of(read)),
        cohort_of(config, problem, method),
        "sum" if proven_sum else "mean",
        validators,
    )


class DpFedRecConfig(ModelConfig):
    """Settings of DP-FedRec."""

    calibration: Literal["as-published", "proven"] = "proven"  # where the noise comes from
    cohort: CohortSettings = CohortSettings(size=500, sampling="poisson")
    privacy: PrivacySettings = PrivacySettings(clip_norm=0.1)
    validators: ValidationConfig = ValidationConfig()  # proven: who decides whether training is kept

    @property
    def active_validation(self) -> ValidationConfig:
        """Validation clients; none unless the guarantee is proven."""
        return self.validators if self.calibration == "proven" else ValidationConfig(share=0.0)


def dp_plan(config: DpFedRecConfig, problem: Problem) -> Plan:
    """Assemble DP-FedRec: noise on every client update (as published) or on the sum of a round (proven)."""
    make = partial(_mechanism, config, problem)
    validators = ValidationBudget(config.active_validation, config.privacy)
    return _plan(config, problem, "dp-fedrec", make, proven_sum=config.calibration == "proven", validators=validators)


def _mechanism(config: DpFedRecConfig, problem: Problem, schema: Schema) -> UpdateMechanism:
    p = config.privacy
    if config.calibration == "as-published":
        return UpdateLaplace(schema=schema, clip_norm=p.clip_norm, epsilon=p.epsilon, calibration="as-published")
    return noise_on_sums(config, problem, schema, "dp-fedrec")


def sums_guarantee(config: ModelConfig, privacy: PrivacyTerms) -> Guarantee:
    """Guarantee of Gaussian noise on the sums of rounds: per user, over the whole run."""
    everybody = config.train_users is None and config.train_share == 1.0
    drawn = config.cohort
    if drawn.size == 0 and config.round_share < 1.0:
        drawn = replace(drawn, size=1)  # however many it comes to, they are drawn
    some = () if everybody else (WHO_TAKES_PART,)
    return proven(privacy, drawn, *some, *told(config.active_validation), public=PUBLIC, keeps_state=False)


def dp_guarantee(config: DpFedRecConfig) -> Guarantee:
    """Guarantee of DP-FedRec: per user over the whole run, or the paper's claim."""
    p = config.privacy
    if config.calibration == "proven":
        return sums_guarantee(config, p)
    return replace(
        as_published(
            p,
            "The claim takes an L2 distance for the L1 distance that Laplace noise needs; every round sends another"
            " message.",
        ),
        honest_note="All numbers of a message move together, so its epsilon is this times the root of their number.",
    )


def dp_guarantee_of_run(config: DpFedRecConfig, problem: Problem) -> Guarantee:
    """Guarantee of a DP-FedRec run; beside the paper's claim, the epsilon of one message and of all."""
    claim = dp_guarantee(config)
    if claim.basis != "as published":
        return claim
    read = read_news(config, config.model, problem, "dp-fedrec", whole_catalogue=False)
    mechanism = _mechanism(config, problem, schema_of(read))
    cohort, people = cohort_of(config, problem, "dp-fedrec"), count_clients(config, problem, "dp-fedrec")
    times = participations(cohort, problem.rounds, people)
    return honest(
        claim,
        mechanism.event(),
        repeated(mechanism.event(), times),
        0.0,
        note=f"that is one message of {mechanism.dimension:,} numbers, which all move together",
        doing=takes_part(times),
    )


class CentralizedConfig(NewsConfig):
    """Settings of centralised training."""

    model: ModelName = "nrms"  # the news and user model
    batch: Count = 256  # clicks per step of Adam
    rate: Positive = 0.005  # learning rate


def central_trainer(config: CentralizedConfig, problem: Problem) -> Trainer:
    """Make the centralised trainer of the chosen network."""
    from veilrec.methods.fednewsrec.trainer import NewsTrainer

    config = config.model_copy(update={"text": _central_text(config)})
    data = news_of(problem, "centralized")
    return NewsTrainer(config.model, config, problem, data, abstracts=config.model == "naml")


def _central_text(config: CentralizedConfig) -> Any:
    return text_of(ModelConfig(model=config.model, text=config.text), config.model)


def _central_ready(config: CentralizedConfig) -> tuple[str, ...]:
    return vectors_ready(config.size, _central_text(config))


FEDREC = Method(
    **described("fedrec"),
    datasets=DATASETS,
    config=ModelConfig,
    plan=fedrec_plan,
    clients=partial(clients, method="fedrec"),
    guarantee=unprotected(
        "In plaintext, the server sees each client's gradient, and in it the words of the news that it has seen."
    ),
    ready=ready,
)

DP_FEDREC = Method(
    **described("dp-fedrec"),
    datasets=DATASETS,
    config=DpFedRecConfig,
    plan=dp_plan,
    clients=partial(clients, method="dp-fedrec"),
    guarantee=dp_guarantee,
    guarantee_of_run=dp_guarantee_of_run,
    ready=ready,
)

CENTRALIZED = Method(
    **described("centralized"),
    datasets=DATASETS,
    config=CentralizedConfig,
    trainer=central_trainer,
    guarantee=unprotected("Everybody's clicks and what they were shown lie in one place."),
    ready=_central_ready,
)
