"""PrivateRec: federated news recommendation through basis vectors (Liu et al. 2022), and forms of it with a proof.

| paper | here |
|---|---|
| user encoder UE, interest decomposer ID, interest reconstructor IR | `models.federated_news` |
| click predictor CP | `models.news_model` |
| private attention DPA: noise on alpha | `privacy.mechanisms.attention.PaddedNoise` |
| private label permutation DPL | `privacy.mechanisms.responses.LabelPermutation` |
| aggregated update AU (FedAdam) | `server.optimisers.Adaptive` |
| B, basis vectors | `size.basis` |
| theta, clip norm of the attention | `size.attention_clip` |
| p, padding probability | `privacy.pad_probability` |
| eps_t, training budget | `privacy.epsilon` |
| sampled non-clicks of a click | `negatives` |

as-published: Algorithm 3. The gradient goes through the attention, and reveals the history in plaintext.
proven, by `training`:
- public-encoder: a hundred parameters over public news vectors, Gaussian noise on the sums of rounds;
- sums: the whole model, Gaussian noise on the sums of rounds;
- reports: local DP on attention and labels; the client update is computed from these alone.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, model_validator

from veilrec.core.errors import BadInput
from veilrec.core.plan import Aggregation, Plan
from veilrec.methods.base import Method, Problem, described
from veilrec.methods.fednewsrec.fednewsrec import PUBLIC, WHO_TAKES_PART
from veilrec.methods.news.common import DATASETS, NotNegative, Positive, Short, SizeConfig, ValidationConfig
from veilrec.methods.news.federated import (
    ModelConfig,
    ValidationBudget,
    clients,
    cohort_of,
    count_clients,
    noise_on_sums,
    notes_on,
    plan_of,
    read_news,
    schema_of,
)
from veilrec.methods.private import ONLY_THE_MODEL, DistributedFields
from veilrec.methods.privaterec.baselines import sums_guarantee
from veilrec.privacy.accounting.accountant import noise_for
from veilrec.privacy.events import ComposedEvent, Event, LaplaceEvent, PureEvent
from veilrec.privacy.guarantee import Guarantee, no_guarantee
from veilrec.privacy.mechanisms.attention import Noise, PaddedNoise
from veilrec.privacy.mechanisms.base import Calibration
from veilrec.privacy.mechanisms.reports import MadeOfReports
from veilrec.privacy.mechanisms.responses import LabelPermutation, LabelPerturbation, LabelResponse
from veilrec.privacy.mechanisms.sums import NoNoise, UpdateMechanism
from veilrec.server.round_specs import CohortSettings

if TYPE_CHECKING:
    from veilrec.client.local_training import LocalTrainer
    from veilrec.client.news import LocalNoise
    from veilrec.methods.news.prepare import ReadNews

Training = Literal["public-encoder", "sums", "reports"]
_SMALLEST_EPSILON, _LARGEST_EPSILON = 1e-3, 500.0  # outside, nothing but noise is left, or nothing of it

# What a server and a client learn together, by training and model.
NETWORKS: dict[tuple[str, str], str] = {
    **{(way, model): f"interest-{model}" for way in ("sums", "reports") for model in ("nrms", "naml", "plm-nr")},
    **{("public-encoder", model): "public-head" for model in ("nrms", "naml", "plm-nr")},
}

_IN_THE_CLEAR = (
    "The gradient goes through the attention of the history as it is: the rows of the words of clicked news, and the"
    " user encoder's part, hold the history whatever noise is on the attention. The candidates of a sample always hold"
    " the click."
)
_SHOWN = (
    "What a client was shown, in which impressions something but not everything was clicked, and which impression it"
    " answers for, are taken as known; which items were clicked, now and before, is what is protected."
)


class BasisSizes(SizeConfig):
    """How large the model is, with its basis vectors."""

    basis: Annotated[int, Field(ge=2, le=1024)] = 5  # B: basis vectors
    attention_clip: Positive = 1.0  # theta: longest attention over them
    train_basis: bool = False  # public-encoder: whether the basis vectors learn with the same sums
    balance: NotNegative = 0.0  # how strongly all of them are kept in use, by an aggregate that is published

    @model_validator(mode="after")
    def _fits(self) -> BasisSizes:
        if self.basis > self.heads * self.head_dim:
            raise BadInput(
                f"size.basis is {self.basis}: vectors of {self.heads * self.head_dim} entries (heads times head_dim)"
                " have room for as many basis vectors at most"
            )
        return self


class PrivateRecPrivacy(DistributedFields):
    """What is promised or claimed, and how the noise is made."""

    # proven: of a user, over the whole run; as published: eps_t, of a sample, as the paper counts
    epsilon: Annotated[float, Field(ge=_SMALLEST_EPSILON, le=_LARGEST_EPSILON)] = 8.0
    delta: Annotated[float, Field(gt=0.0, lt=1.0)] = 1e-6  # of the guarantee; as published: of Gaussian noise
    law: Noise = "laplace"  # of the noise on the attention; Gaussian as published only
    pad_probability: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0  # p, as published: of a click to become the pad
    clip_norm: Positive = 0.5  # proven: of a user's whole update of a round
    label_share: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.5  # reports: of the epsilon, for the label
    samples: Short = 1  # reports: impressions that a client answers for when it takes part


class PrivateRecConfig(ModelConfig):
    """Settings of PrivateRec."""

    calibration: Literal["none", "as-published", "proven"] = "proven"  # where the noise comes from
    training: Training = "public-encoder"  # proven: what is learnt, and where the noise is
    size: BasisSizes = BasisSizes(dropout=0.0)
    pads: Literal["vector", "words"] = "vector"  # what a padded click is: a vector that learns, or a title of pad words
    cohort: CohortSettings = CohortSettings(size=0, sampling="poisson")
    privacy: PrivateRecPrivacy = PrivateRecPrivacy()
    validators: ValidationConfig = ValidationConfig()  # proven, on sums: who decides whether training is kept

    @property
    def active_validation(self) -> ValidationConfig:
        """Validation clients; none with local DP or unless the guarantee is proven."""
        judged = self.calibration == "proven" and self.training != "reports"
        return self.validators if judged else ValidationConfig(share=0.0)

    @property
    def way(self) -> str:
        """Training mode; without a proof, the whole model."""
        return self.training if self.calibration == "proven" else "sums"

    @property
    def network(self) -> str:
        """Name of the network that is trained."""
        return NETWORKS[self.way, self.model]

    @property
    def aggregation(self) -> Aggregation:
        """Mean; proven: a plain sum, whose divisor tells nothing of the clients."""
        return "sum" if self.calibration == "proven" else "mean"

    @model_validator(mode="after")
    def _fits(self) -> PrivateRecConfig:
        if self.calibration == "proven" and self.training == "reports":
            if self.privacy.law != "laplace":
                raise BadInput("privacy.law is gaussian: reports have Laplace noise; use privacy.law=laplace")
            if self.cohort.sampling == "poisson" and self.cohort.size:
                raise BadInput("reports are counted in cyclic order: use cohort.sampling=cyclic, or cohort.size=0")
        return self

    @property
    def pads_are_titles(self) -> bool:
        """Whether a padded click is a title of pad words, which fill short titles as well."""
        return (
            self.network != "public-head" and self.model != "plm-nr" and (self.pads == "words" or self.text.pad_words)
        )


def plan(config: PrivateRecConfig, problem: Problem) -> Plan:
    """Assemble the plan; the noise is calibrated before the first round."""
    read = _read(config, problem)
    cohort = cohort_of(config, problem, "privaterec")
    people = count_clients(config, problem, "privaterec")
    participations = cohort.max_participations(problem.rounds, people)
    noise = _local_noise(config, participations)
    made = plan_of(
        config,
        problem,
        read,
        _trainer(config, read, noise),
        _mechanism(config, problem, read, noise),
        cohort,
        config.aggregation,
        ValidationBudget(config.active_validation, config.privacy),
    )
    return replace(made, max_participations=participations) if cohort.sampling == "cyclic" else made


def _read(config: PrivateRecConfig, problem: Problem) -> ReadNews:
    return read_news(
        config,
        config.network,
        problem,
        "privaterec",
        whole_catalogue=config.calibration == "proven",
        pad_words=config.pads_are_titles,
    )


def _trainer(config: PrivateRecConfig, read: ReadNews, noise: LocalNoise | None) -> LocalTrainer[Any]:
    from veilrec.client.news import NewsTrainingSettings, PrivateNewsLocalTrainer
    from veilrec.methods.news.prepare import with_pad
    from veilrec.models.federated_news import Interests

    if not isinstance(read.model, Interests):
        raise TypeError(f"{config.network} has no basis vectors")
    settings = NewsTrainingSettings(config.negatives, config.history)
    pad_word = read.reader.pad_word
    if pad_word is None:
        return PrivateNewsLocalTrainer(read.model, read.news, read.frozen, settings, noise=noise)
    news, last = with_pad(read.news, pad_word), len(read.news.title)
    return PrivateNewsLocalTrainer(read.model, news, read.frozen, settings, noise=noise, pad_news=last)


def _local_noise(config: PrivateRecConfig, participations: int) -> LocalNoise | None:
    """Local noise of a client before training: DPA on the attention and DPL on the labels."""
    from veilrec.client.news import LocalNoise

    p = config.privacy
    if config.calibration == "as-published":
        return LocalNoise(
            _attention(config, p.epsilon, "as-published", p.pad_probability),
            LabelPerturbation(LabelPermutation, negatives=config.negatives, epsilon=p.epsilon),
            "through",
        )
    if config.way == "reports":
        of_history, of_label = shared_out(config, participations)
        return LocalNoise(
            _attention(config, of_history, "proven", 0.0),
            LabelPerturbation(LabelResponse, negatives=config.negatives, epsilon=of_label),
            "released",
            p.samples,
        )
    return None


def _attention(
    config: PrivateRecConfig, epsilon: float, calibration: Calibration, pad_probability: float
) -> PaddedNoise:
    p = config.privacy
    return PaddedNoise(
        basis=config.size.basis,
        clip_norm=config.size.attention_clip,
        epsilon=epsilon,
        delta=0.0 if p.law == "laplace" else p.delta,
        pad_probability=pad_probability,
        noise=p.law,
        calibration=calibration,
    )


def shared_out(config: PrivateRecConfig, participations: int) -> tuple[float, float]:
    """Epsilons of one attention vector and of one label, so that all of a client's messages stay within budget."""
    p = config.privacy
    count = participations * p.samples

    def run(noise: float) -> Event:
        history, label = (1.0 - p.label_share) / noise, p.label_share / noise
        return ComposedEvent(((LaplaceEvent(history), count), (PureEvent(label), count)))

    of_one = 1.0 / noise_for(run, p.epsilon, p.delta, guess=count / p.epsilon)
    if of_one * min(p.label_share, 1.0 - p.label_share) < _SMALLEST_EPSILON:
        raise BadInput(
            f"privacy.epsilon {p.epsilon:g} over {count} samples of a client leaves {of_one:.3g} for each: nothing but"
            " noise would be left; use fewer rounds, a smaller cohort.size or privacy.samples, or a larger epsilon"
        )
    return (1.0 - p.label_share) * of_one, p.label_share * of_one


def _mechanism(config: PrivateRecConfig, problem: Problem, read: ReadNews, noise: LocalNoise | None) -> UpdateMechanism:
    schema, p = schema_of(read), config.privacy
    if config.calibration != "proven":
        return NoNoise(schema)
    if noise is not None:
        return MadeOfReports(
            schema=schema, attention=noise.attention, labels=noise.labels, samples=p.samples, clip_norm=p.clip_norm
        )
    return noise_on_sums(config, problem, schema, "privaterec")


def guarantee(config: PrivateRecConfig) -> Guarantee:
    """Guarantee of a configuration: proven per user over the run, the paper's claim, or none."""
    p = config.privacy
    if config.calibration == "none":
        return no_guarantee(
            "In plaintext, the server sees each client's gradient, and in it the words of the news that it has seen."
        )
    if config.calibration == "as-published":
        return Guarantee(
            basis="as published",
            unit="click",
            adjacency="replace-one",
            epsilon=p.epsilon,
            delta=0.0 if p.law == "laplace" else p.delta,
            scope="per message",
            trust="nobody",
            caveats=(
                "The claim counts one sample of a message, its history and its label side by side; a message has a"
                " sample of every click, and every round sends another.",
                "Laplace noise is for a sensitivity of theta, which two attention vectors exceed.",
            ),
            honest_note=f"No epsilon is finite, per message or over the run: {_IN_THE_CLEAR}",
        )
    if config.training != "reports":
        return sums_guarantee(config, p)
    return Guarantee(
        basis="proven",
        unit="user",
        adjacency="replace-one",
        epsilon=p.epsilon,
        delta=p.delta,
        scope="whole run",
        trust="nobody",
        caveats=(_SHOWN, *_who(config), ONLY_THE_MODEL, PUBLIC),
    )


def _who(config: PrivateRecConfig) -> tuple[str, ...]:
    return () if config.train_users is None and config.train_share == 1.0 else (WHO_TAKES_PART,)


def ready(config: PrivateRecConfig) -> tuple[str, ...]:
    """Check that public vectors are installed; return notes on settings without effect."""
    notes = list(notes_on(config, config.network))
    if config.calibration == "proven" and config.privacy.pad_probability > 0.0:
        notes.append(
            f"privacy.pad_probability {config.privacy.pad_probability:g} does not count: padding protects single"
            " clicks, and the guarantee is for users"
        )
    if config.network != "public-head" and config.size.train_basis:
        notes.append("size.train_basis does not count: basis vectors always learn where the whole model does")
    if config.pads == "words" and not config.pads_are_titles:
        notes.append(f"pads words does not count: {config.network} reads no words, and its pad is a vector that learns")
    if config.network == "public-head" and config.model != "nrms":
        notes.append(f"model {config.model} does not count: the public head reads vectors of the news")
    return tuple(notes)


METHOD = Method(
    **described("privaterec"),
    datasets=DATASETS,
    config=PrivateRecConfig,
    plan=plan,
    clients=partial(clients, method="privaterec"),
    guarantee=guarantee,
    ready=ready,
)
