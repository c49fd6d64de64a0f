"""What PrivateRec's noise is worth, without any training: its scale against p, and the epsilon that holds beside the
one that is claimed.

Every scale and every epsilon is asked of the mechanism itself, in the paper's calibration and in the proven one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from veilrec._arrays import Doubles
from veilrec.privacy.accounting import epsilon_of
from veilrec.privacy.mechanisms.attention import Noise, PaddedAttention, PrivateAttention
from veilrec.privacy.mechanisms.base import Calibration
from veilrec.privacy.mechanisms.interests import EmbeddingNoise
from veilrec.privacy.mechanisms.responses import LabelPermutation, label_only_epsilon
from veilrec.report.plots import Curve
from veilrec.report.reproduce.experiment import Calculated, Grid

THETA = 1.0  # clip norm of the attention, which the paper does not print; every attention vector is as short
BASIS = 5  # B of Fig. 4 and 6
SERVING_DELTA = 1e-3  # v1, section 4.1, of Gaussian noise in serving
EPSILONS = (1.0, 5.0, 10.0, 20.0)  # epsilon_t of Fig. 6, without infinity
PADDINGS = (0.0, 0.1, 0.2, 0.5, 0.8, 0.9)
DIMENSIONS = (16, 32, 64, 128, 256, 400)  # up to that of the paper's user vectors
EMBEDDING_CLIP = 0.001  # section 4: theta of DP-FedRec in serving
NEGATIVES = 4  # k, v1, section 4.1
IMPRESSION = 37  # C: items of a mean impression of MIND
_PER_CLICK = "per click (replace-one), per message, trusting nobody"
_PER_HISTORY = "per history (replace-one), per message, trusting nobody"


@dataclass(frozen=True)
class Attention:
    """Noise on one attention vector that is claimed to be worth an epsilon, and what it would have to be."""

    claimed: float
    published: float  # scale
    holds: float  # epsilon of the published scale
    needed: float  # scale


def attention(epsilon: float, padding: float, *, noise: Noise = "laplace", basis: int = BASIS) -> Attention:
    """GetPrivAttn with behaviour padding (Algorithm 2), of a click."""
    published = _mechanism(epsilon, padding, noise, basis, "as-published")
    proven = _mechanism(epsilon, padding, noise, basis, "proven")
    holds = epsilon_of(published.event(), published.claimed_delta)
    return Attention(epsilon, published.noise.scale, holds, proven.noise.scale)


def _mechanism(
    epsilon: float, padding: float, noise: Noise, basis: int, calibration: Calibration
) -> PaddedAttention | PrivateAttention:
    delta = 0.0 if noise == "laplace" else SERVING_DELTA
    if padding == 0.0:  # whose guarantee is of the whole history, and so of any click
        return PrivateAttention(
            basis=basis, clip_norm=THETA, epsilon=epsilon, delta=delta, noise=noise, calibration=calibration
        )
    return PaddedAttention(
        encode=_first_click,
        basis_vectors=np.eye(basis),
        pad=np.zeros(basis),
        slots=1,
        clip_norm=THETA,
        epsilon=epsilon,
        delta=delta,
        pad_probability=padding,
        noise=noise,
        calibration=calibration,
    )


def _first_click(history: Doubles) -> Doubles:
    first: Doubles = history[0]
    return first


def padding_noise() -> Calculated:
    """Fig. 5, left, exactly: the noise that an epsilon asks for, by the share p of padded clicks."""
    chosen = EPSILONS[:3]
    laplace = {(e, p): attention(e, p) for e in chosen for p in PADDINGS}
    gaussian = {(e, p): attention(e, p, noise="gaussian") for e in chosen for p in PADDINGS}
    head = (
        "claimed epsilon",
        "p",
        "Laplace scale, as published",
        "epsilon that holds",
        "scale needed",
        f"Gaussian sigma (delta {SERVING_DELTA:g}), as published",
        "epsilon that holds",
        "sigma needed",
    )
    rows = [(f"{e:g}", f"{p:g}", *_scales(laplace[e, p]), *_scales(gaussian[e, p])) for e, p in laplace]
    title = f"Noise on an attention vector, B = {BASIS}, theta = {THETA:g}: every epsilon is {_PER_CLICK}"
    curves = [
        Curve(f"epsilon {e:g}, {how}", PADDINGS, [getattr(laplace[e, p], field) for p in PADDINGS])
        for e in chosen
        for how, field in (("as published", "published"), ("proven", "needed"))
    ]
    return Calculated(
        (Grid(title, head, rows, frozenset()),), curves, "p, share of padded clicks", "scale of the Laplace noise"
    )


def _scales(found: Attention) -> tuple[str, str, str]:
    return f"{found.published:.4g}", f"{found.holds:.4g}", f"{found.needed:.4g}"


def training_claims() -> Calculated:
    """What a message of PrivateRec's training tells, part by part, beside epsilon_t."""
    found = {epsilon: attention(epsilon, 0.0) for epsilon in EPSILONS}
    labels = {e: LabelPermutation(items=IMPRESSION, negatives=NEGATIVES, epsilon=e) for e in EPSILONS}
    head = (
        "claimed epsilon_t",
        "attention alone",
        "label, if only it were seen",
        "label beside its candidates, least delta",
        "gradient, as it is sent",
    )
    rows = [
        (
            f"{epsilon:g}",
            f"{one.holds:.4g}",
            f"{label_only_epsilon(epsilon, items=IMPRESSION, negatives=NEGATIVES):.4g}",
            f"{labels[epsilon].delta(math.inf):.4g}",
            "no finite epsilon",
        )
        for epsilon, one in found.items()
    ]
    title = (
        f"What one message of training tells; Laplace noise, B = {BASIS}, theta = {THETA:g}, p = 0, k = {NEGATIVES} of "
        f"C = {IMPRESSION} shown news; every epsilon is {_PER_CLICK}, delta 0"
    )
    places = list(EPSILONS)
    curves = [
        Curve("claimed", places, places),
        Curve("holds for the attention; for the gradient: none", places, [one.holds for one in found.values()]),
    ]
    return Calculated(
        (Grid(title, head, rows, frozenset({4})),), curves, "epsilon claimed", f"epsilon {_broken(_PER_CLICK)}"
    )


def embedding_noise(epsilon: float = 10.0) -> Calculated:
    """DP-FedRec's noise on a user vector of d entries, beside PrivateRec's on an attention vector."""
    published, proven = (_embedding(epsilon, how) for how in ("as-published", "proven"))
    holds = [epsilon_of(one.event(), 0.0) for one in published]
    rows = [
        (
            f"user vector, d = {d}",
            f"{theirs.scale / theirs.clip_norm:.4g}",
            f"{honest:.4g}",
            f"{ours.scale / ours.clip_norm:.4g}",
            f"{math.sqrt(2.0 * d) * theirs.scale / theirs.clip_norm:.4g}",
        )
        for d, theirs, honest, ours in zip(DIMENSIONS, published, holds, proven, strict=True)
    ]
    one = attention(epsilon, 0.0)
    rows.append(
        (
            f"attention vector, B = {BASIS}",
            f"{one.published / THETA:.4g}",
            f"{one.holds:.4g}",
            f"{one.needed / THETA:.4g}",
            f"{math.sqrt(2.0 * BASIS) * one.published / THETA:.4g}",
        )
    )
    head = (
        "what is sent",
        "Laplace scale / clip norm, as published",
        "epsilon that holds",
        "scale / clip norm needed",
        "length of the published noise / clip norm",
    )
    title = f"Noise in serving at a claimed epsilon of {epsilon:g}: every epsilon is {_PER_HISTORY}, delta 0"
    curves = [
        Curve("claimed", DIMENSIONS, [epsilon] * len(DIMENSIONS)),
        Curve("holds for the user vector", DIMENSIONS, holds),
        Curve(f"holds for the attention, B = {BASIS}", DIMENSIONS, [one.holds] * len(DIMENSIONS)),
    ]
    return Calculated(
        (Grid(title, head, rows),), curves, "d, length of the user vector", f"epsilon {_broken(_PER_HISTORY)}"
    )


def _embedding(epsilon: float, calibration: Calibration) -> Sequence[EmbeddingNoise]:
    return [
        EmbeddingNoise(
            dimension=d, clip_norm=EMBEDDING_CLIP, epsilon=epsilon, delta=0.0, noise="laplace", calibration=calibration
        )
        for d in DIMENSIONS
    ]


def _broken(words: str) -> str:
    """Over several lines, for the side of a picture."""
    return words.replace(", ", ",\n")
