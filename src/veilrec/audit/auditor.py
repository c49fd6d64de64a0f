"""Audit of the claims of all mechanisms and serving modes, of published claims that fail, and of planted bugs.

Seeds are fixed by default. Every case may raise a false alarm with probability ALPHA, split equally among its attacks.
A claim is refuted when a lower bound on epsilon exceeds it. A proven claim must also nearly be reached on its worst
pair: a bound below half of the claim (or of what the attack can reach) means that the pair, the score or the sampler
no longer works, and fails the audit as well. So do draws that do not follow the distribution an exact bound rests on.

Serving modes are audited at the usual sizes. Attention with padding is audited with interests so far apart, and a
history so short, that one click decides the attention: no real model comes closer to the worst case.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any

import numpy as np

from veilrec.audit import claims
from veilrec.audit.claims import Attack, AttackEffort, ClaimCase, Evidence, Method, Outcome, Scores, SupportEvent
from veilrec.client.queries import Padding, Serving, Sizes, make_mechanism
from veilrec.core.arrays import Bools, Doubles
from veilrec.core.errors import known_name
from veilrec.core.schema import ClientUpdates, RoundSpec
from veilrec.privacy.accounting.gaussian import mu_for
from veilrec.privacy.checks import attention_l2
from veilrec.privacy.mechanisms import instances
from veilrec.privacy.mechanisms.base import PUBLISHED_FLAWS, Gaussian, Laplace, Mechanism, require_complete
from veilrec.privacy.mechanisms.local import UpdateNoise
from veilrec.privacy.randomness import Source, uniforms
from veilrec.privacy.samplers import UNITS, add_gaussian, add_laplace, lattice_gaussian

_CLIP_NORM, _EPSILON, _DELTA = 0.4, 0.01, 1e-6
_WORDS, _WIDTH, _BASIS, _HISTORY, _TITLE, _CANDIDATES = 60, 8, 5, 4, 3, 5
TELLING_WORD = 0  # in the title of the click that is replaced, and nowhere else


def gradient_case() -> ClaimCase:
    """PrivateRec, theorems 2 and 3: the training gradient is said to be post-processing of the noisy attention.

    The noise here is what (0.01, 1e-6) really needs, and still the gradient tells the click.
    """
    training = ToyTraining(clip_norm=_CLIP_NORM, sigma=attention_l2(_CLIP_NORM) / mu_for(_EPSILON, _DELTA))
    return ClaimCase(
        name="private-gradient",
        kind="known-bad",
        calibration="as-published",
        unit="click",
        adjacency="replace-one",
        claimed_epsilon=_EPSILON,
        delta=_DELTA,
        attacks=(SupportEvent(training.word_row_moves, 20_000),),
        why="the gradient flows through the raw history: a word row is non-zero only if the click is there",
    )


class ToyTraining:
    """One training sample of a synthetic user, and public parameters; only the first click has the telling word.

    A click is replaced with a pad (a news vector of zeros) with probability `padding`.
    """

    def __init__(self, *, clip_norm: float, sigma: float, padding: float = 0.0) -> None:
        generator = np.random.default_rng(0)
        words = generator.permutation(np.arange(1, _WORDS))[: (_HISTORY + 1 + _CANDIDATES) * _TITLE]
        titles = words.reshape(-1, _TITLE)
        titles[0, 0] = TELLING_WORD
        self.embedding = generator.normal(size=(_WORDS, _WIDTH))
        self.basis = generator.normal(size=(_BASIS, _WIDTH))
        self.history, self.replacement = titles[:_HISTORY], titles[_HISTORY]  # [clicks, words], and for the first click
        self.candidates = titles[_HISTORY + 1 :]  # the first is the label
        self.clip_norm, self.sigma, self.padding = clip_norm, sigma, padding

    def word_row_moves(self, side: int, draws: int, source: Source) -> Bools:
        """Whether the gradient row of the telling word is non-zero, for each of `draws` messages."""
        titles = self.history.copy()
        if side == 1:
            titles[0] = self.replacement
        kept = uniforms(source, draws * len(titles)).reshape(draws, -1) >= self.padding  # [n, clicks]
        news = self.embedding[titles].mean(axis=1)
        user = kept @ news / len(titles)  # [n, width]
        on_user = self._gradient_on_user(user, source)
        occurrences = kept @ (titles == TELLING_WORD).mean(axis=1) / len(titles)
        row = occurrences[:, np.newaxis] * on_user
        return np.asarray((row != 0.0).any(axis=1))

    def _gradient_on_user(self, user: Doubles, source: Source) -> Doubles:
        attention = _softmax(user @ self.basis.T)  # [n, basis]
        norms = np.linalg.norm(attention, axis=1, keepdims=True)
        factor = np.minimum(1.0, self.clip_norm / norms)
        noisy = add_gaussian(attention * factor, sigma=self.sigma, source=source)
        active = np.maximum(noisy, 0.0)
        total = active.sum(axis=1, keepdims=True)
        safe = np.where(total > 0.0, total, 1.0)
        private = active / safe

        options = self.embedding[self.candidates].mean(axis=1)  # [candidates, width]
        surprise = _softmax(private @ self.basis @ options.T)
        surprise[:, 0] -= 1.0
        d_private = surprise @ options @ self.basis.T
        # backwards through normalisation (ReLU), clipping, softmax
        d_noisy = (noisy > 0.0) * (d_private - (private * d_private).sum(axis=1, keepdims=True)) / safe
        along = (attention * d_noisy).sum(axis=1, keepdims=True) / norms**2
        d_attention = factor * (d_noisy - np.where(factor < 1.0, attention * along, 0.0))
        d_logits = attention * (d_attention - (attention * d_attention).sum(axis=1, keepdims=True))
        return np.asarray(d_logits @ self.basis)


def _softmax(logits: Doubles) -> Doubles:
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


class HalfTheNoise(Gaussian):
    """Planted bug: half of the standard deviation that the proof needs."""

    name = "half-the-noise"

    def _perturb(self, value: Doubles, source: Source) -> Doubles:
        """The vectors with too little noise."""
        return add_gaussian(value, sigma=self.sigma / 2, source=source)


class NoClip(UpdateNoise):
    """Planted bug: no clipping, with updates of three times the assumed norm."""

    name = "no-clip"

    def bound(self, updates: ClientUpdates, about: RoundSpec) -> ClientUpdates:
        """The updates as they are, which get noise for clipped ones."""
        return updates

    def worst_pair(self) -> tuple[Doubles, Doubles]:
        """Updates that clipping would have shortened."""
        first, second = super().worst_pair()
        return 3.0 * first, 3.0 * second


class ReusedNoise(Gaussian):
    """Planted bug: two numbers with the same noise, as when a generator is reseeded for every message."""

    name = "reused-noise"

    def _perturb(self, value: Doubles, source: Source) -> Doubles:
        """Both numbers `[..., 2]`, each with enough noise, but not with noise of its own."""
        noise = lattice_gaussian(source, value[..., 0].size).reshape(value[..., 0].shape)
        return value + noise[..., np.newaxis] * (self.sigma / UNITS)


class WrongNorm(Laplace):
    """Planted bug: Laplace noise scaled to an L2 sensitivity; the worst pair moves every coordinate a little."""

    name = "wrong-norm"

    def _perturb(self, value: Doubles, source: Source) -> Doubles:
        """The vectors with noise for sensitivity / sqrt(dimension)."""
        return add_laplace(value, scale=self.scale / math.sqrt(self.dimension), source=source)

    def worst_pair(self) -> tuple[Doubles, Doubles]:
        """Nothing, and a flat vector at the L1 distance that the proof allows."""
        return np.zeros(self.dimension), np.full(self.dimension, self.sensitivity.value / self.dimension)


class FloatNoise(Laplace):
    """Planted bug: textbook Laplace noise, the logarithm of a uniform number, in floating point."""

    name = "float-noise"

    def _perturb(self, value: Doubles, source: Source) -> Doubles:
        """The right distribution on real numbers, but other last digits around every value."""
        uniform = 2.0 * uniforms(source, value.size).reshape(value.shape) - 1.0
        noise = -self.scale * np.copysign(np.log1p(-np.abs(uniform)), uniform)
        return value + noise


def has_digits_that_one_never_has(outputs: Doubles) -> Bools:
    """|y| < 1/2 and y 2^53 is not whole: 1 + noise never does that, 0 + noise often does (section 8)."""
    small = outputs[:, 0]
    return np.asarray((np.abs(small) < 0.5) & (small * 2.0**53 != np.round(small * 2.0**53)))


def planted_cases() -> tuple[ClaimCase, ...]:
    """All planted bugs, each in a mechanism that claims what its sound parent may claim."""
    half = HalfTheNoise(dimension=5, sensitivity=1.0, epsilon=1.0, delta=1e-6, unit="user", adjacency="replace-one")
    no_clip = NoClip(schema=UpdateNoise.examples()[0].schema, clip_norm=1.0, epsilon=2.0, delta=1e-6)
    reused = ReusedNoise(dimension=2, sensitivity=1.0, epsilon=1.0, delta=1e-6, unit="user", adjacency="replace-one")
    wrong = WrongNorm(dimension=16, sensitivity=4.0, epsilon=1.0, unit="user", adjacency="replace-one")
    floats = FloatNoise(dimension=1, sensitivity=1.0, epsilon=1.0, unit="user", adjacency="replace-one")
    difference = claims.scored(claims.draws_of(reused), lambda outputs: np.round(outputs[:, 0] - outputs[:, 1], 9))
    return (
        _planted(half, None, "half the noise that the proof needs"),
        _planted(no_clip, None, "the update is not clipped"),
        _planted(
            reused, (Scores(difference, claims.SOME),), "two messages carry the same noise, and their difference none"
        ),
        _planted(wrong, None, "Laplace noise scaled to an L2 sensitivity"),
        _planted(
            floats,
            (SupportEvent(claims.scored(claims.draws_of(floats), has_digits_that_one_never_has), claims.MANY),),
            "continuous noise in floating point: the last digits tell the value",
        ),
    )


def _planted(mechanism: Mechanism[Doubles, Doubles], attacks: tuple[Attack, ...] | None, why: str) -> ClaimCase:
    return replace(case_of(mechanism, attacks), kind="planted", calibration="planted", size="", why=why)


ALPHA = 1e-4
FULL_EFFORT = 5  # times the draws of a quick audit
_LEAST_SHARE = 0.5  # of a proven claim, that an attack has to reach


@dataclass(frozen=True)
class AuditVerdict(ClaimCase):
    """The audit's result for one claim."""

    _: KW_ONLY
    lower_bound: float
    method: Method
    reach: float | None  # see `Evidence`; None: no limit
    verdict: Outcome
    rotted: bool
    seconds: float

    @property
    def passed(self) -> bool:
        """Whether the verdict is the expected one and the attack still works."""
        return self.verdict == self.expected and not self.rotted

    def to_json(self) -> dict[str, Any]:
        """All fields, for `veilrec audit --json`."""
        own = {name: value for name, value in vars(self).items() if name != "attacks"}
        bound = self.lower_bound if self.lower_bound < math.inf else None  # JSON has no infinity
        derived = {"basis": self.basis, "expected": self.expected, "passed": self.passed}
        return own | {"lower_bound": bound} | derived


@dataclass(frozen=True)
class Audit:
    """The verdicts of all audited claims."""

    verdicts: tuple[AuditVerdict, ...]

    @property
    def passed(self) -> bool:
        """Whether every proven claim holds and every bad one is refuted."""
        return all(verdict.passed for verdict in self.verdicts)

    @property
    def false_alarm_rate(self) -> float:
        """Upper bound, over all seeds, on the probability that a sound claim is refuted."""
        return ALPHA * sum(verdict.kind == "proven" for verdict in self.verdicts)


def audit(
    cases: Sequence[ClaimCase],
    *,
    quick: bool,
    seed: int = 0,
    progress: Callable[[Iterable[ClaimCase]], Iterable[ClaimCase]] = iter,
) -> Audit:
    """Attack every case; `progress` may wrap the iteration."""
    effort = 1 if quick else FULL_EFFORT
    return Audit(tuple(audit_claim(case, effort=effort, seed=seed) for case in progress(cases)))


def audit_claim(case: ClaimCase, *, effort: int, seed: int) -> AuditVerdict:
    """Attack one case and compare the strongest lower bound with the claim."""
    start = time.perf_counter()
    evidence = [
        attack.run(case.key, case.delta, AttackEffort((seed, number), effort, ALPHA / len(case.attacks)))
        for number, attack in enumerate(case.attacks)
    ]
    strongest = max(evidence, key=lambda found: (found.no_epsilon, found.lower_bound))
    most = max(found.reach for found in evidence)
    refuted = any(found.no_epsilon or found.lower_bound > case.claimed_epsilon for found in evidence)
    return AuditVerdict(
        **vars(case),
        lower_bound=round(strongest.lower_bound, 6),
        method=strongest.method,
        reach=round(most, 6) if most < math.inf else None,
        verdict="refuted" if refuted else "holds",
        rotted=case.kind == "proven" and _too_weak(case, evidence),
        seconds=round(time.perf_counter() - start, 3),
    )


def _too_weak(case: ClaimCase, evidence: Sequence[Evidence]) -> bool:
    """Whether no attack came near the claim although one could have, or an attack's assumption failed."""
    reachable = min(case.claimed_epsilon, max(found.reach for found in evidence))
    strongest = max(found.lower_bound for found in evidence)
    return strongest < _LEAST_SHARE * reachable or any(found.broken for found in evidence)


def all_cases() -> tuple[ClaimCase, ...]:
    """All claims: proven ones first, then known-bad ones, then planted bugs."""
    of_mechanisms = [case_of(mechanism) for mechanism in instances()]
    proven = [case for case in of_mechanisms if case.kind == "proven"]
    bad = [case for case in of_mechanisms if case.kind == "known-bad"]
    return (*proven, *bad, gradient_case(), *planted_cases())


def case_of(mechanism: Mechanism[Any, Any], attacks: tuple[Attack, ...] | None = None) -> ClaimCase:
    """Build the case of a mechanism; one as published whose own accounting exceeds its claim is known-bad."""
    require_complete(mechanism)
    exceeds = mechanism.delta(mechanism.claimed_epsilon) > mechanism.claimed_delta * (1.0 + 1e-6)
    bad = mechanism.calibration == "as-published" and exceeds
    return ClaimCase(
        name=mechanism.name,
        kind="known-bad" if bad else "proven",
        calibration=mechanism.calibration,
        unit=mechanism.unit,
        adjacency=mechanism.adjacency,
        scope=mechanism.scope,
        trust=mechanism.trust,
        claimed_epsilon=mechanism.claimed_epsilon,
        delta=mechanism.claimed_delta,
        attacks=claims.attacks_on(mechanism) if attacks is None else attacks,
        size=_size(mechanism),
        why=PUBLISHED_FLAWS[mechanism.name] if bad else "",
    )


def _size(mechanism: Mechanism[Any, Any]) -> str:
    sizes = ("dimension", "length", "categories", "items", "rows")
    size = next((f"{size} {getattr(mechanism, size)}" for size in sizes if hasattr(mechanism, size)), "")
    shares = getattr(mechanism, "shares", None)
    return size if shares is None else f"{size} in shares".strip()


def select(name: str) -> tuple[ClaimCase, ...]:
    """Select all cases, or those with one name."""
    cases = all_cases()
    name = known_name("mechanism", name, {"all", *(case.name for case in cases)})
    return tuple(case for case in cases if name in ("all", case.name))


PREFIX = "serving-"
ALL = "serving"  # all of them together
_FAR = 20.0 * np.eye(5)  # scores 400 / sqrt(5) apart
# What is attacked: every mode with every noise, at an epsilon that attacks can reach, proven and as published.
AUDITED = (
    Serving(mode="attention", epsilon=5.0, delta=1e-6),
    Serving(mode="attention", epsilon=1.0),
    Serving(mode="attention", epsilon=1.0, padding=0.5),
    Serving(mode="attention", epsilon=1.0, delta=1e-6, padding=0.5),
    Serving(mode="pooled", epsilon=5.0, delta=1e-6),
    Serving(mode="pooled", epsilon=1.0, delta=1e-6),
    Serving(mode="interest", epsilon=1.0),
    Serving(mode="interest", epsilon=5.0),
    Serving(mode="vector", epsilon=5.0, delta=1e-6),
    Serving(mode="vector", epsilon=1.0),
    Serving(mode="attention", epsilon=1.0, calibration="as-published"),
    Serving(mode="attention", epsilon=10.0, delta=1e-3, calibration="as-published"),
    Serving(mode="attention", epsilon=1.0, padding=0.5, calibration="as-published"),
    Serving(mode="vector", epsilon=1.0, calibration="as-published"),
)


def _first(clicks: Doubles, taken: Bools) -> Doubles:
    only: Doubles = clicks[:, 0]
    return only


def sizes_of(serving: Serving) -> Sizes:
    """Model sizes that a serving mode is audited with: the usual ones, or those of the padding worst case."""
    if serving.padding:
        return Sizes(slots=1, padding=Padding(_first, _FAR, _FAR[4]))
    return Sizes()


def serving_cases(name: str = ALL) -> tuple[ClaimCase, ...]:
    """The claims of all serving modes, or of one, named `serving-MODE`."""
    cases = [(how, case_of(make_mechanism(how, sizes_of(how)))) for how in AUDITED]
    named = [replace(case, name=PREFIX + how.mode) for how, case in cases]
    return tuple(case for case in named if name in (ALL, case.name))


def serving_names() -> set[str]:
    """Names that `serving_cases` accepts."""
    return {ALL, *(PREFIX + how.mode for how in AUDITED)}
