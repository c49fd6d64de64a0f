"""Parts that federated news methods share: participation, assembly of the plan, and private model selection.

A fixed part of the clients never trains. In the end each of these validation clients reports, clipped and under noise,
whether the trained model ranks its own impressions better than the start; without a clear gain the start is kept. A
person's data is used for training or for validation, never for both, and who does which is public: each of the two may
spend the whole epsilon (parallel composition).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from veilrec.client.news_data import OwnImpressions, pack_logs
from veilrec.client.rankers import Ranker
from veilrec.client.validation import NewsValidator, parted
from veilrec.core.errors import BadInput
from veilrec.core.plan import ModelSelection
from veilrec.methods.base import Config, Problem
from veilrec.methods.news.common import (
    Count,
    Share,
    Short,
    SizeConfig,
    TextConfig,
    ValidationConfig,
    news_of,
    share_of,
    share_taking_part,
    taking_part,
    vectors_ready,
)
from veilrec.methods.private import PrivacySettings, PrivacyTerms, adjacency_of, carried_by, noisy_sum
from veilrec.privacy.mechanisms.sums import GainSum
from veilrec.server.aggregation import ServerRate
from veilrec.server.round_specs import CohortSettings

if TYPE_CHECKING:
    from veilrec.client.local_training import LocalTrainer
    from veilrec.core.plan import Aggregation, Plan
    from veilrec.core.schema import Schema
    from veilrec.methods.news.prepare import ReadNews
    from veilrec.privacy.mechanisms.distributed import NoisySum
    from veilrec.privacy.mechanisms.sums import UpdateMechanism


ModelName = Literal["nrms", "naml", "plm-nr"]
_ENTRIES_AT_ONCE = 1 << 25  # of the updates of clients that learn in one call: 128 MB
_CLIENTS_PER_BATCH = 256


class FederatedConfig(Config):
    """Settings of all federated news methods."""

    size: SizeConfig = SizeConfig(dropout=0.0)
    text: TextConfig = TextConfig()
    negatives: Short = 4  # k: news of the same impression that were not clicked, per click
    history: Short = 50  # the latest clicks that a user is known by
    train_users: Count | None = None  # only so many, drawn by the seed, ever take part; not where something is proven
    train_share: Share = 1.0  # of the users take part, each drawn alone by the seed
    round_share: Share = 1.0  # r: of those who take part, in a round, where cohort.size is 0
    cohort: CohortSettings = CohortSettings(size=250, sampling="fixed")
    averaging: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0  # of the model that ranks, over the last rounds
    server: ServerRate = ServerRate(optimiser="adam", rate=0.005, momentum=0.9, second_momentum=0.99, caution=1e-6)

    @property
    def active_validation(self) -> ValidationConfig:
        """Validation clients; none unless the guarantee is proven."""
        return ValidationConfig(share=0.0)


class ModelConfig(FederatedConfig):
    """Settings of the methods of PrivateRec's comparison, over three models."""

    model: ModelName = "nrms"  # the news and user model


def text_of(config: FederatedConfig, network: str) -> TextConfig:
    """Text settings, with the sentence vectors that some networks require."""
    if config.text.sentences != "none" or network not in _SENTENCES:
        return config.text
    return config.text.model_copy(update={"sentences": _SENTENCES[network]})


_SENTENCES = {"plm-nr": "minilm", "interest-plm-nr": "minilm", "public-head": "titles"}


def read_news(
    config: FederatedConfig,
    network: str,
    problem: Problem,
    method: str,
    *,
    whole_catalogue: bool,
    pad_words: bool = False,
) -> ReadNews:
    """The model with starting weights, and the news that it reads."""
    from veilrec.methods.news.prepare import prepare

    return prepare(
        network,
        config.size,
        text_of(config, network),
        news_of(problem, method),
        problem.public_seed,
        abstracts=network.endswith("naml"),
        whole_catalogue=whole_catalogue,
        pad_words=pad_words,
    )


def clients(config: FederatedConfig, problem: Problem, *, method: str) -> OwnImpressions:
    """Local data of the clients that take part: their impressions."""
    logs = pack_logs(news_of(problem, method).impressions, len(problem.train), config.history)
    if config.train_users is None:
        logs = share_taking_part(logs, config.train_share, problem.public_seed, problem.numbers)
    elif getattr(config, "calibration", None) == "proven":
        raise BadInput(
            f"train_users is {config.train_users}: a fixed number takes in another user for one who leaves, which no"
            " proof covers; use train_share"
        )
    else:
        logs = taking_part(logs, config.train_users, problem.public_seed, problem.numbers)
    share = config.active_validation.share
    return OwnImpressions(logs) if share == 0.0 else parted(logs, share, problem.public_seed, problem.numbers)


def count_clients(config: FederatedConfig, problem: Problem, method: str) -> int:
    """Nominal number of clients of a problem; of those that have training data if none is."""
    return problem.people or int((clients(config, problem, method=method).rows.lengths() > 0).sum())


def cohort_of(config: FederatedConfig, problem: Problem, method: str) -> CohortSettings:
    """Cohort settings with the size that `round_share` comes to."""
    if config.cohort.size > 0 or config.round_share == 1.0:
        return config.cohort
    part = replace(config.cohort, size=share_of(config.round_share, count_clients(config, problem, method)))
    distributed = getattr(getattr(config, "privacy", None), "noise", None) == "distributed"
    return part.in_public_order if distributed else part


def noise_on_sums(config: Any, problem: Problem, schema: Schema, method: str) -> NoisySum:
    """Calibrate noise on the sums of rounds of a news method, whose clients keep no state."""
    p = config.privacy
    return noisy_sum(
        PrivacySettings(
            epsilon=p.epsilon, delta=p.delta, clip_norm=p.clip_norm, noise=p.noise, silent=p.silent, lost=p.lost
        ),
        cohort_of(config, problem, method),
        schema,
        rounds=problem.rounds,
        clients=count_clients(config, problem, method),
        keeps_state=False,
    )


def schema_of(read: ReadNews) -> Schema:
    """Schema of the trained parameters."""
    from veilrec.client import news

    return news.schema(read.model, read.frozen)


def plan_of(
    config: FederatedConfig,
    problem: Problem,
    read: ReadNews,
    trainer: LocalTrainer[Any],
    mechanism: UpdateMechanism,
    cohort: CohortSettings,
    aggregation: Aggregation,
    validators: ValidationBudget | None = None,
) -> Plan:
    """Assemble a plan; with private model selection where there are validation clients."""
    from veilrec.client import news
    from veilrec.core.plan import Plan
    from veilrec.methods.news.ranker import NewsRanker

    ranker, server = NewsRanker.of(read, config.history), config.server
    if aggregation == "sum" and server.optimiser == "sgd":  # the rate is that of the mean over a cohort of this size
        server = replace(server, rate=server.rate / cohort.among(count_clients(config, problem, "")))
    schema = schema_of(read)
    update = sum(tensor.size for tensor in schema.dense)
    return Plan(
        schema=schema,
        start=news.start_weights(read.model, read.frozen),
        trainer=trainer,
        mechanism=mechanism,
        rounds=problem.rounds,
        cohort=cohort,
        aggregation=aggregation,
        server=server,
        averaging=config.averaging,
        ranker=ranker,
        model_selection=None if validators is None else validators.comparison(config, problem, ranker, cohort),
        clients_per_batch=max(1, min(_CLIENTS_PER_BATCH, _ENTRIES_AT_ONCE // max(update, 1))),
    )


@dataclass(frozen=True)
class ValidationBudget:
    """Validation clients and the budget of private model selection."""

    config: ValidationConfig
    privacy: PrivacyTerms

    def comparison(
        self, config: FederatedConfig, problem: Problem, ranker: Ranker, cohort: CohortSettings
    ) -> ModelSelection | None:
        """Private model selection at the end of a run; None without validation clients."""
        if self.config.share == 0.0:
            return None
        privacy, validator, share = self.privacy, NewsValidator(ranker), self.config.share
        trainers = count_clients(config, problem, "")
        people = max(1, math.ceil(trainers * share / (1.0 - share)))
        carried = None
        if privacy.noise == "distributed":  # of real clients it is public who validates
            there = len(validator.clients(clients(config, problem, method=""))) if problem.people is None else people
            carried = carried_by(privacy, there)
        mechanism = GainSum(
            clip=self.config.clip,
            epsilon=privacy.epsilon,
            delta=privacy.delta,
            adjacency=adjacency_of(cohort),
            carried=carried,
        )
        return ModelSelection(validator=validator, mechanism=mechanism, people=people)


def ready(config: ModelConfig) -> tuple[str, ...]:
    """Check public vectors, for methods whose model has the name of its network."""
    return notes_on(config, config.model)


def notes_on(config: FederatedConfig, network: str) -> tuple[str, ...]:
    """Check public vectors; return notes on settings without effect."""
    notes = list(vectors_ready(config.size, text_of(config, network)))
    if config.round_share < 1.0 and config.cohort.size > 0:
        notes.append(
            f"a round has cohort.size {config.cohort.size} clients, and round_share {config.round_share:g} does not"
            " count: for a share of the users set cohort.size=0"
        )
    if config.train_share < 1.0 and config.train_users is not None:
        notes.append(
            f"train_users {config.train_users} take part, and train_share {config.train_share:g} does not count"
        )
    return tuple(notes)


def told(validators: ValidationConfig) -> tuple[str, ...]:
    """Caveats of a guarantee about private model selection."""
    if validators.share == 0.0:
        return ()
    return (
        f"A public {validators.share:.0%} of the clients never train: in the end they validate, under noise for the"
        " same epsilon and delta, whether the trained model is kept or the start; how many validate is taken as what"
        " the nominal number of people comes to. Nobody does both, so each person meets one of the two, and which is"
        " public.",
    )
