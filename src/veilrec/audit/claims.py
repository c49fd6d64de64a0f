"""Privacy claims, the attacks on them, and the scores that attacks use.

An attack draws outputs under both inputs of a worst-case pair and returns a lower bound on epsilon. An output is scored
by one number, such as the log-likelihood ratio, or looked up in a table of the probabilities of all outputs.
"""

from __future__ import annotations

import math
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import chdtrc

from veilrec.audit import bounds
from veilrec.audit.bounds import reach
from veilrec.core.arrays import Bools, Doubles, Offsets
from veilrec.core.errors import BadInput
from veilrec.core.schema import RoundSpec, from_vectors, to_vectors
from veilrec.privacy.events import SampledEvent
from veilrec.privacy.guarantee import Adjacency, Basis, Scope, Trust, Unit
from veilrec.privacy.mechanisms.attention import PaddedAttention, PrivateAttention
from veilrec.privacy.mechanisms.base import Gaussian, Laplace, Mechanism
from veilrec.privacy.mechanisms.clipping import clip_flat
from veilrec.privacy.mechanisms.compression import LargestEntries, LowRank, SentEntries, SparseDeep
from veilrec.privacy.mechanisms.distributed import DistributedNoiseSum
from veilrec.privacy.mechanisms.interests import EmbeddingNoise, InterestResponse, PooledInterest
from veilrec.privacy.mechanisms.local import NoisyMessage
from veilrec.privacy.mechanisms.reports import ItemHistogram, VoteReports
from veilrec.privacy.mechanisms.responses import KaryResponse, LabelPermutation, LabelResponse, RandomisedResponse
from veilrec.privacy.mechanisms.schedules import AdaptiveSum, TreeSum
from veilrec.privacy.mechanisms.sums import CohortSum, GainSum
from veilrec.privacy.randomness import SeededSource, Source, uniforms

T = TypeVar("T", bound=np.generic)
Side: TypeAlias = Literal[0, 1]  # which input of the pair
Draw: TypeAlias = Callable[[Side, int, Source], Any]  # draws so many outputs under one input
Kind = Literal["proven", "known-bad", "planted"]
Outcome = Literal["holds", "refuted"]
Method = Literal["counts", "Gaussian", "hockey stick", "enumeration", "support", "one run", "coordinates"]

_CHUNK = 50_000  # draws at a time, so that wide outputs stay small in memory


@dataclass(frozen=True)
class AttackEffort:
    """Resources of one attack: its seed, a factor on its number of draws, and its false-alarm probability."""

    seed: tuple[int, ...]
    effort: int
    alpha: float

    def source(self, name: str, side: Side) -> SeededSource:
        """An independent random stream for every attack and side."""
        return SeededSource(*self.seed, zlib.crc32(name.encode()), side)


@dataclass(frozen=True)
class Evidence:
    """What an attack has shown."""

    lower_bound: float
    method: Method
    reach: float  # what it proves of an event that happens half the time or never
    no_epsilon: bool = False  # the outputs show something that no epsilon allows
    broken: bool = False  # the draws do not follow the law that the attack builds on


class Attack(ABC):
    """A statistical test of one claim."""

    @abstractmethod
    def run(self, name: str, delta: float, allowance: AttackEffort) -> Evidence:
        """Run the attack and return the lower bound on epsilon at delta."""


@dataclass(frozen=True)
class Scores(Attack):
    """An attack by one number per output, high for the first input; `law` states its distribution.

    any: unknown, so thresholds are counted; gaussian: the noise in it is Gaussian; ratio: it is the log-likelihood
    ratio of the stated distribution, which is tested before it is used.
    """

    draw: Callable[[Side, int, Source], Doubles]
    draws: int
    law: Literal["any", "gaussian", "ratio"] = "any"
    sampled: SampledEvent | None = None  # where the person is part of the message only by chance

    def run(self, name: str, delta: float, allowance: AttackEffort) -> Evidence:
        """Score draws of both inputs."""
        count = self.draws * allowance.effort
        first, second = _both_sides(self.draw, count, name, allowance)
        if self.law == "gaussian":
            return Evidence(self._gaussian(first, second, delta, allowance.alpha), "Gaussian", math.inf)
        if self.law == "ratio":
            believed = bounds.calibration_p_value(first, second) > allowance.alpha
            bound = bounds.epsilon_from_ratios(first, delta=delta, alpha=allowance.alpha) if believed else 0.0
            return Evidence(bound, "hockey stick", math.inf, broken=not believed)
        bound = bounds.epsilon_from_scores(first, second, delta=delta, alpha=allowance.alpha)
        return Evidence(bound, "counts", reach(count // 2, alpha=allowance.alpha, delta=delta))

    def _gaussian(self, first: Doubles, second: Doubles, delta: float, alpha: float) -> float:
        if self.sampled is None:
            return bounds.epsilon_from_gaussian_scores(first, second, delta=delta, alpha=alpha)
        return bounds.epsilon_from_sampled_scores(first, second, event=self.sampled, delta=delta, alpha=alpha)


@dataclass(frozen=True)
class Coordinates(Attack):
    """A score for each of several coordinates with noise of their own, `[n, k]`; for claims of delta 0."""

    draw: Callable[[Side, int, Source], Doubles]
    draws: int

    def run(self, name: str, delta: float, allowance: AttackEffort) -> Evidence:
        """Score every coordinate of draws of both inputs."""
        if delta != 0.0:
            raise ValueError(f"delta is {delta}: this attack is on claims of delta 0")
        count = self.draws * allowance.effort
        first, second = _both_sides(self.draw, count, name, allowance)
        most = first.shape[1] * reach(first.size // 2, alpha=allowance.alpha)
        if min(bounds.independence_p_value(scores) for scores in (first, second)) <= allowance.alpha / 2:
            return Evidence(0.0, "coordinates", most, broken=True)
        return Evidence(bounds.epsilon_from_coordinates(first, second, alpha=allowance.alpha), "coordinates", most)


@dataclass(frozen=True)
class SupportEvent(Attack):
    """An attack by the support of the output: which outputs are possible, not how likely they are."""

    draw: Callable[[Side, int, Source], Bools]
    draws: int

    def run(self, name: str, delta: float, allowance: AttackEffort) -> Evidence:
        """Count the event on both sides; the likelier side is chosen on the first halves."""
        count = self.draws * allowance.effort
        first, second = _both_sides(self.draw, count, name, allowance)
        half = count // 2
        if first[:half].sum() < second[:half].sum():
            first, second = second, first
        hits, others = int(first[half:].sum()), int(second[half:].sum())
        trials = count - half
        bound = bounds.epsilon_from_counts(hits, trials, others, trials, delta=delta, alpha=allowance.alpha)
        return Evidence(
            bound,
            "support",
            reach(trials, alpha=allowance.alpha, delta=delta),
            no_epsilon=bounds.separated(hits, others, trials, delta=delta, alpha=allowance.alpha),
        )


@dataclass(frozen=True)
class OutcomeTable(Attack):
    """All outputs of a discrete mechanism with their probabilities, and draws that must follow them."""

    first: Doubles
    second: Doubles
    draw: Callable[[Side, int, Source], Offsets]  # -> numbers of outputs, in the order of the tables
    draws: int

    def run(self, name: str, delta: float, allowance: AttackEffort) -> Evidence:
        """Compute epsilon exactly if the draws follow the tables (chi-square); otherwise report a broken assumption."""
        count = self.draws * allowance.effort
        drawn = _both_sides(self.draw, count, name, allowance)
        fits = (fit_p_value(*pair) for pair in zip(drawn, (self.first, self.second), strict=True))
        if min(fits) <= allowance.alpha / 2:
            return Evidence(0.0, "enumeration", math.inf, broken=True)
        exact = bounds.epsilon_exact(self.first, self.second, delta=delta)
        # Exact but for rounding: 1e-9 is not a refutation.
        return Evidence(exact * (1.0 - 1e-9), "enumeration", math.inf, no_epsilon=exact == math.inf)


@dataclass(frozen=True)
class Guesses(Attack):
    """An attack on one output made of many independent bits, each of which is guessed."""

    correct: Callable[[int, Source], int]  # (number of bits, source) -> how many guesses were right
    bits: int

    def run(self, name: str, delta: float, allowance: AttackEffort) -> Evidence:
        """Guess every bit."""
        bits = self.bits * allowance.effort
        right = self.correct(bits, allowance.source(name, 0))
        bound = bounds.epsilon_from_guesses(right, bits, delta=delta, canaries=bits, alpha=allowance.alpha)
        most = bounds.epsilon_from_guesses(bits, bits, delta=delta, canaries=bits, alpha=allowance.alpha)
        return Evidence(bound, "one run", most)


def fit_p_value(drawn: Offsets, table: Doubles) -> float:
    """P-value of draws under a table of probabilities (chi-square, rare outputs pooled)."""
    seen = np.bincount(drawn, minlength=len(table)).astype(np.float64)
    if len(seen) > len(table) or seen[table == 0.0].any():
        return 0.0
    expected = table * len(drawn)
    rare = expected < 5.0
    seen = np.append(seen[~rare], seen[rare].sum())
    expected = np.append(expected[~rare], expected[rare].sum())
    kept = expected > 0.0
    statistic = float(np.sum((seen[kept] - expected[kept]) ** 2 / expected[kept]))
    return float(chdtrc(max(1, int(kept.sum()) - 1), statistic))


def _both_sides(
    draw: Callable[[Side, int, Source], NDArray[T]], count: int, name: str, allowance: AttackEffort
) -> tuple[NDArray[T], NDArray[T]]:
    return (_chunked(draw, 0, count, allowance.source(name, 0)), _chunked(draw, 1, count, allowance.source(name, 1)))


def _chunked(draw: Callable[[Side, int, Source], NDArray[T]], side: Side, count: int, source: Source) -> NDArray[T]:
    sizes = [_CHUNK] * (count // _CHUNK) + ([count % _CHUNK] if count % _CHUNK else [])
    return np.concatenate([draw(side, size, source) for size in sizes])


@dataclass(frozen=True)
class ClaimCase:
    """A claim about one release, and the attacks on it."""

    name: str
    kind: Kind
    calibration: Literal["proven", "as-published", "planted"]
    unit: Unit
    adjacency: Adjacency
    claimed_epsilon: float
    delta: float
    attacks: tuple[Attack, ...]
    scope: Scope = "per message"
    trust: Trust = "nobody"
    size: str = ""  # of the instance that is attacked
    why: str = ""  # what is wrong with a known-bad or planted one

    @property
    def key(self) -> str:
        """A key that identifies the case."""
        claim = f"{self.claimed_epsilon} {self.delta} {self.unit} {self.adjacency}"
        return f"{self.name} {self.calibration} {self.size} {claim}"

    @property
    def basis(self) -> Basis:
        """What the claim rests on; a planted bug has no basis."""
        bases: dict[str, Basis] = {"proven": "proven", "as-published": "as published", "planted": "none"}
        return bases[self.calibration]

    @property
    def expected(self) -> Outcome:
        """The verdict of a working audit."""
        return "holds" if self.kind == "proven" else "refuted"


MANY, SOME = 200_000, 12_000  # draws a side; of exact samplers, which are slow
_NUMBERS = 4_000_000  # noisy numbers a side, in the attacks that need the most draws
_LARGE = 5.0  # an epsilon that counts can no longer reach
_WIDE = 7  # from so many moving coordinates on, the largest loss of Laplace noise is too rare to be seen

Outputs = NDArray[Any]
Score = Callable[[Outputs], Doubles]
Strategy = Callable[[Any], tuple[Attack, ...]]  # the attacks that a mechanism of one kind has to withstand


def draws_of(mechanism: Mechanism[Any, Any]) -> Draw:
    """Draw independent releases for either input of the worst pair."""
    pair = mechanism.worst_pair()
    return lambda side, count, source: mechanism.release_many(pair[side], count, source).value


def scored(draw: Draw, score: Callable[[Any], Any]) -> Draw:
    """Map draws to scores."""
    return lambda side, count, source: score(draw(side, count, source))


def projection(first: Outputs, second: Outputs) -> Score:
    """Project outputs on the line between the inputs: a sufficient statistic under Gaussian noise."""
    direction = np.asarray(first, np.float64) - np.asarray(second, np.float64)
    unit = direction / np.linalg.norm(direction)
    return lambda outputs: np.asarray(outputs @ unit)


def gaussian_ratio(first: Doubles, second: Doubles, sigma: float) -> Score:
    """ln of the ratio of densities: (|y - second|^2 - |y - first|^2) / (2 sigma^2)."""
    slope = (first - second) / sigma**2
    middle = (first + second) / 2
    return lambda outputs: np.asarray((outputs - middle) @ slope)


def laplace_ratios(first: Doubles, second: Doubles, scale: float) -> Score:
    """ln of the ratio of densities of each moving coordinate: (|y - second| - |y - first|) / scale.

    Many outputs have the same ratio. It is rounded, so that they also have the same number.
    """
    moves = first != second

    def score(outputs: Outputs) -> Doubles:
        kept = outputs.reshape(-1, *first.shape)[:, moves]
        return np.asarray(np.round((np.abs(kept - second[moves]) - np.abs(kept - first[moves])) / scale, 9))

    return score


def laplace_ratio(first: Doubles, second: Doubles, scale: float) -> Score:
    """Log-likelihood ratio of whole outputs under Laplace noise: the sum over coordinates."""
    ratios = laplace_ratios(first, second, scale)
    return lambda outputs: np.asarray(np.round(ratios(outputs).sum(axis=1), 7))


def padded_ratio(
    first: Doubles, second: Doubles, pad: Doubles, *, pad_probability: float, log_density: Callable[[Outputs], Doubles]
) -> Score:
    """ln of (p f(y - pad) + (1 - p) f(y - first)) / (p f(y - pad) + (1 - p) f(y - second))."""

    def score(outputs: Outputs) -> Doubles:
        to_pad, to_first, to_second = (log_density(outputs - centre) for centre in (pad, first, second))
        absent, present = np.log(pad_probability), np.log1p(-pad_probability)
        under_first = np.logaddexp(absent + to_pad, present + to_first)
        under_second = np.logaddexp(absent + to_pad, present + to_second)
        return np.asarray(np.round(under_first - under_second, 9))

    return score


def bit_ratio(first: Bools, second: Bools, *, keep: float) -> Score:
    """ln of the ratio of probabilities over independent bits, each told truthfully with probability `keep`."""
    under_first, under_second = (np.where(bits, keep, 1.0 - keep) for bits in (first, second))
    if_one = np.log(under_first / under_second)
    if_zero = np.log((1.0 - under_first) / (1.0 - under_second))
    return lambda outputs: np.round(outputs @ if_one + ~outputs @ if_zero, 9)


def gaussian_attacks(draw: Draw, first: Doubles, second: Doubles, *, sigma: float, claim: float) -> tuple[Attack, ...]:
    """Attacks on Gaussian noise: counts and the Gaussian trade-off along the line between two centres; for large claims
    also the likelihood ratio.
    """
    along = scored(draw, projection(first, second))
    draws = _NUMBERS // max(first.size, 5)
    attacks = Scores(along, draws // 4), Scores(along, draws, "gaussian")
    if claim < _LARGE:
        return attacks
    return *attacks, Scores(scored(draw, gaussian_ratio(first, second, sigma)), draws // 4, "ratio")


def laplace_attacks(draw: Draw, first: Doubles, second: Doubles, *, scale: float) -> tuple[Attack, ...]:
    """Attacks on Laplace noise: counts of the likelihood ratio, and of each coordinate's where many move."""
    draws = _NUMBERS // max(first.size, 20)
    whole, ratios = laplace_ratio(first, second, scale), laplace_ratios(first, second, scale)
    if np.count_nonzero(first != second) < _WIDE:
        return (Scores(scored(draw, whole), draws),)
    return Scores(scored(draw, whole), draws // 4), Coordinates(scored(draw, ratios), draws)


def k_ary_response(categories: int, epsilon: float, *, value: int) -> Doubles:
    """Probabilities of k-ary response: e^eps / (e^eps + C - 1) for the value, 1 / (e^eps + C - 1) for each other."""
    table = np.full(categories, 1.0)
    table[value] = math.exp(epsilon)
    return np.asarray(table / table.sum())


def bit_response(bits: tuple[int, ...], epsilon_per_bit: float) -> Doubles:
    """All 2^m outputs of randomised response on m bits, in binary order."""
    keep = 1.0 / (1.0 + math.exp(-epsilon_per_bit))
    table = np.ones(1)
    for bit in bits:
        table = np.outer(table, (1.0 - keep, keep) if bit else (keep, 1.0 - keep)).ravel()
    return table


# The attacks on each mechanism: its worst pair, the most informative score, and the tests that can reach its claim.


def _noise_of(mechanism: Any) -> tuple[str, float]:
    """The law of a mechanism's noise and its scale: the standard deviation of Gaussian noise."""
    if isinstance(mechanism, LowRank | PrivateAttention):
        mechanism = mechanism.inner if isinstance(mechanism, LowRank) else mechanism.noise
    if getattr(mechanism, "shares", None) is not None:
        return "gaussian", mechanism.shares.sigma
    if hasattr(mechanism, "sigma"):
        return "gaussian", mechanism.sigma
    return getattr(mechanism, "law", getattr(mechanism, "noise", "laplace")), mechanism.scale


def _additive(centre: Callable[[Any, Any], Doubles] = lambda _, value: value) -> Strategy:
    """Attack noise that is added to `centre(mechanism, input)`."""

    def attacks(mechanism: Mechanism[Any, Any]) -> tuple[Attack, ...]:
        first, second = (centre(mechanism, value) for value in mechanism.worst_pair())
        law, scale = _noise_of(mechanism)
        if law == "laplace":
            return laplace_attacks(draws_of(mechanism), first, second, scale=scale)
        return gaussian_attacks(draws_of(mechanism), first, second, sigma=scale, claim=mechanism.claimed_epsilon)

    return attacks


def _counts(mechanism: ItemHistogram | VoteReports, people: Bools) -> Doubles:
    return np.asarray(mechanism.weigh(people).sum(axis=0) * mechanism.step)


def _shared_sum(mechanism: DistributedNoiseSum) -> tuple[Attack, ...]:
    if isinstance(mechanism.inner, AdaptiveSum):
        return _along(mechanism, _telling(mechanism.inner), np.zeros(mechanism.dimension))
    return _cohort_sum(mechanism)


def _cohort_sum(mechanism: CohortSum | DistributedNoiseSum) -> tuple[Attack, ...]:
    first, second = (value.sum(axis=0) for value in mechanism.worst_pair())
    return _along(mechanism, first, second)


def _along(mechanism: Mechanism[Any, Any], first: Doubles, second: Doubles) -> tuple[Attack, ...]:
    """Attack Gaussian noise along a direction, with the sampling that the mechanism accounts for."""
    along = scored(draws_of(mechanism), projection(first, second))
    event = mechanism.event()
    return (Scores(along, MANY, "gaussian", sampled=event if isinstance(event, SampledEvent) else None),)


def _adaptive_sum(mechanism: AdaptiveSum) -> tuple[Attack, ...]:
    return _along(mechanism, _telling(mechanism), np.zeros(mechanism.dimension))


def _telling(mechanism: AdaptiveSum) -> Doubles:
    """The direction in which one client moves the sum and the count; each part is weighted by its noise."""
    schema, spec = mechanism.schema, RoundSpec(0)
    first, second = (
        to_vectors(mechanism.bound(from_vectors(value, schema), spec), schema).sum(axis=0)
        for value in mechanism.worst_pair()
    )
    sigma = np.concatenate([np.full(tensor.size, mechanism.sigma_in(tensor.name, spec)) for tensor in schema.tensors])
    return np.asarray((first - second) / sigma**2)


def _tree_sum(mechanism: TreeSum) -> tuple[Attack, ...]:
    """Sums of all nodes that contain the first round: each has independent noise."""
    first, second = (value.sum(axis=0) for value in mechanism.worst_pair())
    nodes = [2**level for level in range(mechanism.steps.bit_length())]  # they end at these rounds, and begin at 1
    times = [sum(number < end for end in nodes) for number in range(mechanism.steps)]  # that a round is in one
    weights = np.concatenate([count * (first - second) for count in times])
    along = scored(draws_of(mechanism), projection(weights, np.zeros(len(weights))))
    return (Scores(along, MANY, "gaussian"),)


def _tells_where(mechanism: LargestEntries | SentEntries | SparseDeep) -> tuple[Attack, ...]:
    return (SupportEvent(scored(draws_of(mechanism), lambda updates: updates[:, 0] != 0.0), SOME),)


def attacks_on(mechanism: Mechanism[Any, Any]) -> tuple[Attack, ...]:
    """The attacks on a mechanism; raise BadInput for a mechanism without known attacks."""
    for kind, strategy in _STRATEGIES.items():
        if isinstance(mechanism, kind):
            return strategy(mechanism)
    raise BadInput(
        f"no attack is known on {type(mechanism).__name__}, so its claim cannot be audited: add one to audit/claims.py"
    )


def _randomised_response(mechanism: RandomisedResponse) -> tuple[Attack, ...]:
    first, second = mechanism.worst_pair()
    score = bit_ratio(first, second, keep=mechanism.keep_probability)
    attacks: list[Attack] = [Scores(scored(draws_of(mechanism), score), MANY // 4)]
    if mechanism.changed <= 4:
        moving = first != second
        one, other = (bit_response(tuple(value[moving]), mechanism.epsilon_per_bit) for value in (first, second))
        powers = 1 << np.arange(mechanism.changed)[::-1]  # the first bit counts most, as in `bit_response`
        draw = scored(draws_of(mechanism), lambda outputs: outputs[:, moving] @ powers)
        attacks.append(OutcomeTable(one, other, draw, SOME))
    if mechanism.changed == 1:
        attacks.append(Guesses(_guessed_bits(mechanism), MANY))
    return tuple(attacks)


def _guessed_bits(mechanism: RandomisedResponse) -> Callable[[int, Source], int]:
    """Every bit is a canary: the guess is the reported bit."""

    def correct(bits: int, source: Source) -> int:
        rows = bits // mechanism.length
        truth = (uniforms(source, rows * mechanism.length) < 0.5).reshape(rows, mechanism.length)
        return int(np.count_nonzero(mechanism.release(truth, source).value == truth))

    return correct


def _k_ary(mechanism: KaryResponse | InterestResponse) -> tuple[Attack, ...]:
    response = mechanism if isinstance(mechanism, KaryResponse) else mechanism.response
    first, second = (k_ary_response(response.categories, mechanism.claimed_epsilon, value=value) for value in (0, 1))
    draw = draws_of(mechanism)
    return OutcomeTable(first, second, draw, MANY), Scores(scored(draw, _first_or_second), MANY)


def _first_or_second(told: Offsets) -> Doubles:
    return np.asarray((told == 0).astype(np.float64) - (told == 1))


def _labels(mechanism: LabelPermutation | LabelResponse) -> tuple[Attack, ...]:
    draw = draws_of(mechanism)
    without_the_second = scored(draw, lambda told: ~(told.candidates == 1).any(axis=-1))
    label = scored(draw, lambda told: _first_or_second(told.label))
    return Scores(label, MANY), SupportEvent(without_the_second, MANY // 4)


def _padded_attention(mechanism: PaddedAttention) -> tuple[Attack, ...]:
    noise, draw = mechanism.noise, draws_of(mechanism)
    empty = np.tile(mechanism.pad, (mechanism.slots, 1))
    first, second, pad = (
        clip_flat(mechanism.attention(history), noise.clip_norm) for history in (*mechanism.worst_pair(), empty)
    )
    if noise.noise == "gaussian":
        event = SampledEvent(0.0, 1.0 - mechanism.pad_probability, "padding")
        along = scored(draw, projection(first, second))
        return (Scores(along, 4 * MANY, "gaussian", sampled=event),)
    score = padded_ratio(
        first,
        second,
        pad,
        pad_probability=mechanism.pad_probability,
        log_density=lambda offsets: -np.abs(offsets).sum(axis=1) / noise.scale,
    )
    return (Scores(scored(draw, score), MANY),)


_STRATEGIES: dict[type, Strategy] = {
    TreeSum: _tree_sum,
    AdaptiveSum: _adaptive_sum,  # before what it is made of
    CohortSum: _cohort_sum,
    DistributedNoiseSum: _shared_sum,
    LargestEntries: _tells_where,
    SentEntries: _tells_where,
    SparseDeep: _tells_where,
    LowRank: _additive(),
    NoisyMessage: _additive(),
    Gaussian: _additive(),
    Laplace: _additive(),
    EmbeddingNoise: _additive(),
    ItemHistogram: _additive(_counts),
    VoteReports: _additive(_counts),
    GainSum: _additive(lambda _, gains: np.atleast_1d(gains.sum())),
    PrivateAttention: _additive(lambda mechanism, attention: clip_flat(attention, mechanism.noise.clip_norm)),
    PooledInterest: _additive(lambda mechanism, history: mechanism.pooled(history)),
    RandomisedResponse: _randomised_response,
    KaryResponse: _k_ary,
    InterestResponse: _k_ary,
    LabelPermutation: _labels,
    LabelResponse: _labels,
    PaddedAttention: _padded_attention,
}
