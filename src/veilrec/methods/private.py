"""Parts that private methods share: settings, calibrated mechanisms, and guarantees.

`noisy_sum` (Gaussian noise on the sum of a round), `adaptive_sum` (with adaptive clipping) and `tree_sum` (DP-FTRL, for
cohorts in a fixed public order) calibrate the noise so that the whole run stays within the budget.

Where `privacy.noise` is distributed, clients add the noise of every sum in shares, and a plan is made for an adversary
who runs the server: it sees who takes part, so that being drawn by chance is worth nothing. A cohort that is not
everybody is then the next part of a public order (`in_public_order`), and a client pays for the rounds that it is in.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, Self, TypeVar

from pydantic import model_validator

from veilrec.core.errors import BadInput
from veilrec.core.errors import times as how_often
from veilrec.core.plan import Aggregation, Plan, ReportSpec
from veilrec.core.schema import Schema, with_bound
from veilrec.methods.base import Config, Exemption, LearningTrial, Problem
from veilrec.privacy.accounting import Rounds, noise_multiplier_for
from veilrec.privacy.accounting.accountant import epsilon_of, noise_for
from veilrec.privacy.accounting.gaussian import mu_for
from veilrec.privacy.checks import positive, probability
from veilrec.privacy.events import ComposedEvent, Event, NonPrivateEvent, TreeEvent
from veilrec.privacy.guarantee import Adjacency, Guarantee, Trust, Unit
from veilrec.privacy.mechanisms.base import Calibration, left_by_errors, left_by_sampler
from veilrec.privacy.mechanisms.distributed import DistributedNoiseSum, NoisySum
from veilrec.privacy.mechanisms.reports import VoteReports
from veilrec.privacy.mechanisms.schedules import AdaptiveSum, TreeSum, first_bound
from veilrec.privacy.mechanisms.shares import DistributedNoise, check_margins
from veilrec.privacy.mechanisms.sums import CohortSum
from veilrec.privacy.samplers import RELATIVE_ERROR
from veilrec.server.aggregation import ServerRate
from veilrec.server.round_specs import CohortSettings, LearntBound
from veilrec.server.server import GeometricClipping

DECLARED = (
    "The catalogue is, in whole or in part, the set of items that people used; whoever trained says that it is public"
    " all the same (--public-catalogue)."
)
SERVER_SEES = "The server sees every clipped update before it adds the noise; whoever gets the model sees only sums."
PUBLIC = (
    "The number of users that the noise is chosen for, which items there are, and the settings, however they were "
    "chosen, are taken as public: they are the same with one person's data and without."
)
ONLY_THE_MODEL = (
    "Only the model is covered: the losses, metrics, shares of interests, and numbers of clients and bytes that a run "
    "prints and logs are exact."
)
SHARES_ARE_TRUSTED = (
    "It takes secure sums that hold: with helpers, one of them has to refuse to work with the server; among clients"
    " alone, no more may be corrupt than was planned for.",
    "Nothing is won by sampling, because the server sees who takes part: a client is accounted for in every round that"
    " it is in.",
    "Clients are taken at their word: one that adds no noise harms the others' privacy, one that does not clip harms"
    " the model.",
    "A sum that its noise carries beyond its width voids a round, with a chance below 1e-30.",
)
PLACES_ARE_PUBLIC = "Hidden is what a client sent, not that it took part: an update, or nothing in its place."
NOT_AMPLIFIED = (
    "Clients keep state between rounds, so that being drawn into a cohort of a fixed size is worth nothing: everybody "
    "is accounted for as if in every round. Poisson sampling (cohort.sampling=poisson) needs less noise."
)
COHORTS_STAY_HIDDEN = (
    "Who takes part in which round has to stay secret, because being drawn by chance is part of the epsilon; for "
    "whoever sees it, the epsilon is larger."
)
ORDER_IS_PUBLIC = (
    "Who takes part in which round may be known to everybody: nothing rests on chance. The order is fixed "
    "before the first round, and a person whose data is missing sends an update of nothing when it is their turn."
)

_COUNT_SHARE = 20.0  # of a cohort: the noise on how many updates were within the bound
_LEAST_OF_THE_REST = 10.0  # times less of mu^2 for that count than for all

# With 500 users an epsilon that protects leaves nothing to learn: this shows that the parts work together.
PRIVATE_TRIAL = LearningTrial(
    settings=("privacy.epsilon=1000", "privacy.clip_norm=4", "server.rate=0.15"), times_popularity=1.4
)
# Of methods that send the largest entries as published.
LARGEST_ENTRIES = (
    Exemption("honest", "Which entries are sent is told exactly, so that no epsilon is finite.", "as-published"),
)


NoiseFrom = Literal["central", "distributed"]


class PrivacyTerms(Protocol):
    """What a guarantee says of noise on sums: settings of every private method have it."""

    @property
    def epsilon(self) -> float:
        """Epsilon of a user, over the whole run."""

    @property
    def delta(self) -> float:
        """Delta of the guarantee."""

    @property
    def noise(self) -> NoiseFrom:
        """Who adds it."""

    @property
    def silent(self) -> float:
        """Share of the clients of a sum that may add none."""

    @property
    def lost(self) -> float:
        """Share of the clients of a sum that may be missing."""


def _check_noise(noise: NoiseFrom, silent: float, lost: float) -> None:
    if noise == "central" and (silent or lost):
        raise BadInput(
            "privacy.silent and privacy.lost are margins of noise that clients add, and here the server adds it: leave"
            " them out, or use --set privacy.noise=distributed"
        )
    check_margins(silent, lost)


@dataclass(frozen=True, kw_only=True)
class PrivacySettings:
    """What is promised, and what is cut off to keep the promise."""

    epsilon: float = 8.0  # proven: of a user, over the whole run; as published: of a message, as the paper counts
    delta: float = 1e-6  # of the guarantee
    clip_norm: float = 0.5  # proven: of a user's whole update of a round; as published: of each row or part
    noise: NoiseFrom = "central"  # on sums: of the server; or distributed, of the clients under masks
    silent: float = 0.0  # distributed: share of the clients of a sum that may add no noise, or tell the server theirs
    lost: float = 0.0  # distributed: share of the clients of a sum that may drop out; with fewer it is void

    def __post_init__(self) -> None:
        positive(epsilon=self.epsilon, clip_norm=self.clip_norm)
        probability(delta=self.delta)
        _check_noise(self.noise, self.silent, self.lost)


class DistributedFields(Config):
    """Where noise on sums comes from, to be mixed into the privacy settings of a method."""

    noise: NoiseFrom = "central"  # on sums: of the server; or distributed, of the clients under masks
    silent: float = 0.0  # distributed: share of the clients of a sum that may add no noise, or tell the server theirs
    lost: float = 0.0  # distributed: share of the clients of a sum that may drop out; with fewer it is void

    @model_validator(mode="after")
    def _have_noise(self) -> Self:
        _check_noise(self.noise, self.silent, self.lost)
        return self


class PrivateFields(Config):
    """Settings of private methods, to be mixed into the configuration of a model."""

    calibration: Calibration = "proven"  # proven: noise that holds; as-published: the paper's
    privacy: PrivacySettings = PrivacySettings()
    cohort: CohortSettings = CohortSettings(size=100, sampling="poisson")
    aggregation: Aggregation = "sum"  # proven: what divides the sum is the size that the settings give a cohort
    server: ServerRate = ServerRate(rate=0.01)


C = TypeVar("C", bound=Config)


def carried_by(privacy: PrivacyTerms, clients: int) -> DistributedNoise | None:
    """How so many clients carry the noise of their sum; None where the server adds it."""
    if privacy.noise == "central":
        return None
    return DistributedNoise(max(1, clients), privacy.silent, privacy.lost)


def in_public_order(privacy: PrivacyTerms, cohort: CohortSettings) -> CohortSettings:
    """Cohorts as distributed noise needs them: everybody, or the next of a public order.

    A sum needs a known number of shares, and the server sees who takes part, so that chance would be worth nothing.
    """
    return cohort if privacy.noise == "central" else cohort.in_public_order


def adjacency_of(cohort: CohortSettings) -> Adjacency:
    """Adjacency that the client sampling implies."""
    return "replace-one" if cohort.sampling == "fixed" else "add-remove"


def clients_with_data(problem: Problem) -> int:
    """Nominal number of clients of a problem, by which a plan is made; of those that have training data if none is."""
    return problem.people or int((problem.train.lengths() > 0).sum())


def rounded_people(count: int) -> int:
    """Round a number of people up: to two digits and zeros, and to tens at least.

    What follows from it is the same with one person more or less, but for the person who makes it another one.
    """
    step: int = max(10, 10 ** (len(str(count)) - 2))
    return -(-count // step) * step


def nominal_people(problem: Problem, *, given: bool) -> tuple[str, ...]:
    """Say in a statement what the plan's number of people is, where it is nominal."""
    if problem.people is None:
        return ()
    where = "as was said" if given else "the true number rounded up to two digits and zeros (--people gives another)"
    return (f"The noise is chosen for {problem.people:,} people, {where}: this number is taken as public.",)


def taking_part(
    cohort: CohortSettings, rounds: int, clients: int, unit: Unit, *, keeps_state: bool, noise: NoiseFrom = "central"
) -> Rounds:
    """Describe how often a user takes part, for accounting.

    Where clients keep state between rounds, sampling cohorts of a fixed size does not amplify: what others keep
    depends on who was sampled before, and so on this user (docs/privacy.md). Such a user is accounted for as if in
    every round. With distributed noise nothing amplifies; in a public order what others keep follows from their own
    data and from what was released, and a user is accounted for in as many rounds as anybody is in.
    """
    if noise == "distributed":
        times = cohort.max_participations(rounds, clients)
        way: Literal["none", "poisson"] = "none" if adjacency_of(cohort) == "replace-one" else "poisson"
        return Rounds(rounds=times, sampling=way, population=clients, cohort=clients, unit=unit)
    if cohort.sampling == "cyclic":
        raise BadInput(
            "cohort.sampling is cyclic, which is for messages with noise of their own: noise on sums needs a sampled"
            " cohort, or a tree; use --set cohort.sampling=poisson"
        )
    size = cohort.among(clients)
    if cohort.sampling == "fixed" and keeps_state and size < clients:
        return Rounds(rounds=rounds, sampling="none", population=clients, cohort=clients, unit=unit)
    return Rounds(rounds=rounds, sampling=cohort.sampling, population=clients, cohort=size, unit=unit)


@dataclass(frozen=True)
class ReportsBefore:
    """Reports before the first round, with their privacy event."""

    reports: ReportSpec
    event: Event  # what they cost
    numbers: int  # that they release
    sigma: float  # of the noise on each


def private_votes(
    privacy: PrivacySettings, cohort: CohortSettings, n_items: int, *, share: float, clients: int
) -> ReportsBefore:
    """Reports on popularity: votes of all clients, within a share of the epsilon of the run."""
    probability(share=share)
    votes = VoteReports(
        length=n_items,
        epsilon=share * privacy.epsilon,
        delta=privacy.delta,
        adjacency=adjacency_of(cohort),
        carried=carried_by(privacy, clients),
    )
    return ReportsBefore(ReportSpec(mechanism=votes), votes.event(), n_items, votes.sigma)


def errors_of_draws(
    privacy: PrivacyTerms, cohort: CohortSettings, people: Rounds, numbers: int, numbers_before: int = 0
) -> float:
    """Log-error of all numbers with noise that depend on a person: a run's, and those released before it."""
    in_round, before = (carried_by(privacy, count) for count in (cohort.among(people.population), people.population))
    each, once = (RELATIVE_ERROR if noise is None else noise.log_error for noise in (in_round, before))
    return numbers * people.rounds * each + numbers_before * once


def noisy_sum(
    privacy: PrivacySettings,
    cohort: CohortSettings,
    schema: Schema,
    *,
    rounds: int,
    clients: int,
    keeps_state: bool,
    before: Event | None = None,
    numbers_before: int = 0,
    unit: Unit = "user",
) -> NoisySum:
    """Noise on the sum of every round, so that the whole run, and what was released `before` it, keeps the promise.

    Every number of a sum is cut to the noise's lattice, and has noise of its own in every round, whose small errors
    count as well; so do those of the numbers released before. With distributed noise clients add it.
    """
    made = _summed(privacy, cohort, schema, rounds, clients, keeps_state, before, numbers_before, unit)
    return shared(privacy, cohort, made)


def shared(privacy: PrivacyTerms, cohort: CohortSettings, made: CohortSum) -> NoisySum:
    """Noise on sums as it was calibrated, added by whoever the settings say."""
    carried = carried_by(privacy, cohort.among(made.taking_part.population))
    return made if carried is None else DistributedNoiseSum(made, carried)


def _summed(
    privacy: PrivacySettings,
    cohort: CohortSettings,
    schema: Schema,
    rounds: int,
    clients: int,
    keeps_state: bool,
    before: Event | None,
    numbers_before: int,
    unit: Unit,
) -> CohortSum:
    cohort = in_public_order(privacy, cohort)
    may_be_missing = cohort.available < 1.0 or cohort.drop_out > 0.0
    if cohort.sampling == "fixed" and may_be_missing and privacy.noise == "central":
        raise BadInput(
            "clients that may be missing make a fixed cohort a random one, for which nothing is proven: "
            "use --set cohort.sampling=poisson, or no cohort.available and cohort.drop_out"
        )
    people = taking_part(cohort, rounds, clients, unit, keeps_state=keeps_state, noise=privacy.noise)
    schema = schema.learnt
    numbers = sum(tensor.size for tensor in schema.tensors)
    errors = errors_of_draws(privacy, cohort, people, numbers, numbers_before)
    epsilon, delta = left_by_errors(privacy.epsilon, privacy.delta, errors)
    multiplier = noise_multiplier_for(epsilon, delta, people)
    if before is not None:

        def together(noise_multiplier: float) -> Event:
            return ComposedEvent(((before, 1), (people.event(noise_multiplier), 1)))

        multiplier = noise_for(together, epsilon, delta, guess=multiplier)
    return CohortSum(
        schema=schema, clip_norm=privacy.clip_norm, noise_multiplier=multiplier, taking_part=people, delta=privacy.delta
    )


def sum_of_everybody(config: Any, problem: Problem, schema: Schema, votes: ReportsBefore | None = None) -> NoisySum:
    """Calibrate noise on the sums of clients that keep no state, after votes if there are any."""
    return noisy_sum(
        config.privacy,
        config.cohort,
        schema,
        rounds=problem.rounds,
        clients=clients_with_data(problem),
        keeps_state=False,
        before=None if votes is None else votes.event,
        numbers_before=0 if votes is None else votes.numbers,
    )


def proven_sums(*caveats: str) -> Callable[[Any], Guarantee]:
    """Guarantee of such a method: per user, over the whole run."""
    return lambda config: proven(config.privacy, config.cohort, *caveats, keeps_state=False)


def adaptive_sum(
    privacy: PrivacySettings,
    cohort: CohortSettings,
    schema: Schema,
    *,
    rounds: int,
    clients: int,
    keeps_state: bool,
    before: Event | None = None,
    numbers_before: int = 0,
    unit: Unit = "user",
    count_standard_deviation: float | None = None,
) -> NoisySum:
    """Calibrate Gaussian noise with adaptive clipping; `privacy.clip_norm` is the first clip norm.

    The count gets noise of a twentieth of the cohort (Andrew et al. 2021), and in small cohorts so much more that it
    spends at most a tenth of mu^2: the updates then have 1.054 times the noise that they would have without it.
    """
    plain = _summed(privacy, cohort, with_bound(schema), rounds, clients, keeps_state, before, numbers_before, unit)
    least = math.sqrt(_LEAST_OF_THE_REST) * plain.taking_part.moved(0.5) * plain.noise_multiplier
    count = max(cohort.among(clients) / _COUNT_SHARE, least)
    made = AdaptiveSum(
        schema=plain.schema,
        clip_norm=plain.clip_norm,
        noise_multiplier=plain.noise_multiplier,
        count_standard_deviation=count if count_standard_deviation is None else count_standard_deviation,
        taking_part=plain.taking_part,
        delta=privacy.delta,
    )
    return shared(privacy, cohort, made)


def with_learnt_bound(plan: Plan, mechanism: NoisySum, *, quantile: float = 0.5, rate: float = 0.2) -> Plan:
    """Add adaptive clipping to a plan: a clip norm that `quantile` of the updates stay within."""
    inner = mechanism.inner if isinstance(mechanism, DistributedNoiseSum) else mechanism
    if not isinstance(inner, AdaptiveSum):
        raise BadInput(f"{inner.name} has no clip norm that is learnt: use adaptive_sum")
    smallest, largest = inner.limits
    rule = GeometricClipping(
        cohort=plan.cohort.among(mechanism.taking_part.population),
        smallest=smallest,
        largest=largest,
        quantile=quantile,
        rate=rate,
    )
    return replace(
        plan,
        schema=with_bound(plan.schema),
        start={**plan.start, **first_bound(mechanism.clip_norm)},
        mechanism=mechanism,
        round_planner=LearntBound(plan.round_planner),
        clipping_rule=rule,
    )


def with_public_divisor(config: C, problem: Problem) -> C:
    """Replace a mean by a plain sum with a public divisor: the number of participants is not covered by noise.

    Dividing a change by n is the rate of SGD divided by n, or the caution of FedAdam and FedYogi times n.
    """
    fields: Any = config  # those of PrivateFields
    if fields.aggregation == "weighted-mean":
        raise BadInput(
            "aggregation is weighted-mean: how many examples a client has is not covered by any noise; "
            "use --set aggregation=mean"
        )
    power = {"sum": 0.0, "row-sqrt": 0.5}.get(fields.aggregation, 1.0)
    divisor = fields.cohort.among(clients_with_data(problem)) ** power
    server = fields.server
    if server.optimiser == "sgd":
        server = replace(server, rate=server.rate / divisor)
    else:
        server = replace(server, caution=server.caution * divisor)
    return config.model_copy(update={"aggregation": "sum", "server": server})


def participations(cohort: CohortSettings, rounds: int, clients: int) -> int:
    """Average number of rounds that a client takes part in, rounded up."""
    return math.ceil(rounds * cohort.among(clients) / clients)


def proven(
    privacy: PrivacyTerms, cohort: CohortSettings, *caveats: str, public: str = PUBLIC, keeps_state: bool = True
) -> Guarantee:
    """Guarantee of noise on sums: per user, over the whole run; by central DP, or against the server as well."""
    cohort = in_public_order(privacy, cohort)
    trust: Trust = "server"
    if privacy.noise == "distributed":
        trust = "server sees only noisy sums"
        told: tuple[str, ...] = (_margins(privacy), *SHARES_ARE_TRUSTED)
        if adjacency_of(cohort) == "add-remove":
            told = (*told, PLACES_ARE_PUBLIC)
    else:
        amplified = cohort.size > 0 and not (keeps_state and cohort.sampling == "fixed")
        secret = (COHORTS_STAY_HIDDEN,) if amplified else (NOT_AMPLIFIED,) if cohort.size > 0 else ()
        told = (SERVER_SEES, *((ORDER_IS_PUBLIC,) if cohort.sampling == "cyclic" else secret))
    return Guarantee(
        basis="proven",
        unit="user",
        adjacency=adjacency_of(cohort),
        epsilon=privacy.epsilon,
        delta=privacy.delta,
        scope="whole run",
        trust=trust,
        caveats=(*caveats, *told, ONLY_THE_MODEL, public),
    )


def _margins(privacy: PrivacyTerms) -> str:
    lost, silent = (f"{share:.3g}" for share in (100.0 * privacy.lost, 100.0 * privacy.silent))
    told = "each adds its own and does not tell the server"
    return (
        "Clients add the noise, each a share, and it is enough as long as of the clients of a sum"
        f" {f'{lost} per cent at most drop out' if privacy.lost else 'none drops out'} (or the sum is void), and"
        f" {f'{silent} per cent at most add none or tell the server theirs' if privacy.silent else told}."
    )


def as_published(privacy: PrivacySettings, *caveats: str) -> Guarantee:
    """The paper's claim: epsilon of one message."""
    return Guarantee(
        basis="as published",
        unit="user",
        adjacency="replace-one",
        epsilon=privacy.epsilon,
        delta=0.0,
        scope="per message",
        trust="nobody",
        caveats=caveats,
    )


def honest(claim: Guarantee, message: Event, run: Event, delta: float, *, note: str, doing: str) -> Guarantee:
    """Add to a claim what accounting says: of one message, and of a run in which a client is `doing` so much."""
    one = epsilon_of(message, delta)
    if math.isinf(one):
        note = f"No epsilon is finite, per message or over the run: {note}"
        return replace(claim, honest_epsilon=None, honest_delta=None, honest_note=note)
    told = (
        f"over a run in which a client {doing}, epsilon {epsilon_of(run, delta):.4g} at delta {delta:g} "
        f"(per {claim.unit}, {claim.adjacency}, whole run, trusting: {claim.trust}, proven)"
    )
    return replace(claim, honest_epsilon=one, honest_delta=delta, honest_note=f"{note}; {told}", event=message)


def takes_part(times: int) -> str:
    """Phrase for statements: how often a client takes part."""
    return f"takes part {how_often(times)}"


def tells_largest(privacy: PrivacySettings, what: str, *caveats: str) -> Guarantee:
    """Claim of a method that sends the largest entries, whose positions no noise covers."""
    claim = as_published(privacy, *caveats, f"Which {what} are sent depends on the data, and no noise covers it.")
    nothing_holds = NonPrivateEvent()
    note = "which entries are sent is told exactly"
    return honest(claim, nothing_holds, nothing_holds, 0.0, note=note, doing="takes part")


def tree_sum(
    privacy: PrivacySettings,
    cohort: CohortSettings,
    schema: Schema,
    *,
    rounds: int,
    clients: int,
    before: Event | None = None,
    numbers_before: int = 0,
) -> TreeSum:
    """Calibrate DP-FTRL noise, so that the whole run, and what was released `before` it, stays within the budget.

    In floor(clients / size) consecutive rounds no client takes part twice: so many make a tree. Whether clients keep
    state does not matter: the order is public, so that their state follows from their own data and what was released.
    """
    if cohort.sampling != "cyclic":
        raise BadInput(f"cohort.sampling is {cohort.sampling}: a tree of noise needs --set cohort.sampling=cyclic")
    if privacy.noise == "distributed":
        raise BadInput(
            "a tree takes the noise of earlier rounds back, which only those know who drew it: with distributed noise"
            " use noisy_sum or adaptive_sum, whose rounds have noise of their own"
        )
    steps, participations = min(clients // cohort.among(clients), rounds), cohort.max_participations(rounds, clients)
    draws = sum(tensor.size for tensor in schema.tensors) * rounds + numbers_before
    epsilon, delta = left_by_sampler(privacy.epsilon, privacy.delta, draws)
    multiplier = math.sqrt(participations * steps.bit_length()) / mu_for(epsilon, delta)  # Gaussian releases: exact
    if before is not None:

        def together(noise_multiplier: float) -> Event:
            return ComposedEvent(((before, 1), (TreeEvent(noise_multiplier, steps), participations)))

        multiplier = noise_for(together, epsilon, delta, guess=multiplier)
    return TreeSum(
        schema=schema,
        clip_norm=privacy.clip_norm,
        noise_multiplier=multiplier,
        steps=steps,
        participations=participations,
        population=clients,
        delta=privacy.delta,
    )


def cyclic(plan: Plan, mechanism: TreeSum) -> Plan:
    """Replace the mechanism of a plan by DP-FTRL."""
    return replace(plan, mechanism=mechanism, max_participations=mechanism.taking_part.rounds)
