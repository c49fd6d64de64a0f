"""What FedNewsRec's noise is worth: the epsilon that the paper claims, that of an upload, that of the training."""

from __future__ import annotations

from dataclasses import dataclass

from veilrec.privacy.accounting import epsilon_renyi
from veilrec.privacy.checks import positive
from veilrec.privacy.events import LaplaceEvent, repeated
from veilrec.report.plots import Curve
from veilrec.report.reproduce.experiment import Extra, Grid

PARAMETERS = 2_522_803  # trained by the authors' public code: its word vectors are frozen
ROUNDS, SHARE = 1500, 0.02  # sections 4.5 and 4.1: until it converges, and r, the users in a round
UPLOADS = round(ROUNDS * SHARE)  # of one user, on average
DELTA = 1e-6
CLIPS = (0.0025, 0.005, 0.01)  # delta of eq. 4; the paper chose 0.005
SCALES = (0.005, 0.01, 0.015, 0.02, 0.025)  # lambda of eq. 5; the paper chose 0.015


@dataclass(frozen=True)
class Budget:
    """Epsilons of one pair of clip and noise; pure ones hold with delta 0."""

    claimed: float  # of one coordinate, which the paper takes for all
    upload_pure: float
    upload: float  # with DELTA
    training_pure: float
    training: float  # with DELTA


def budget(clip: float, scale: float, *, parameters: int = PARAMETERS, uploads: int = UPLOADS) -> Budget:
    """Every coordinate is clipped to +-clip and gets Laplace(scale): each is a release of its own."""
    positive(clip=clip, scale=scale, parameters=parameters, uploads=uploads)
    claimed = 2.0 * clip / scale
    coordinate = LaplaceEvent(claimed)
    return Budget(
        claimed=claimed,
        upload_pure=parameters * claimed,
        upload=_with_delta(coordinate, parameters),
        training_pure=uploads * parameters * claimed,
        training=_with_delta(coordinate, uploads * parameters),
    )


def _with_delta(coordinate: LaplaceEvent, count: int) -> float:
    return min(count * coordinate.epsilon, epsilon_renyi(repeated(coordinate, count), DELTA))


def laplace_budgets() -> Extra:
    """Fig. 5(b) with what the paper leaves out beside it."""
    budgets = {(clip, scale): budget(clip, scale) for clip in CLIPS for scale in SCALES}
    head = (
        "delta (clip)",
        "lambda (noise)",
        "claimed: one coordinate",
        "one upload, pure",
        f"one upload, at {DELTA:g}",
        f"{UPLOADS} uploads, pure",
        f"{UPLOADS} uploads, at {DELTA:g}",
    )
    rows = [
        (
            f"{clip:g}",
            f"{scale:g}",
            f"{b.claimed:.4g}",
            *(f"{value:,.0f}" for value in (b.upload_pure, b.upload, b.training_pure, b.training)),
        )
        for (clip, scale), b in budgets.items()
    ]
    title = (
        f"Epsilon of a user's whole upload (replace-one), trusting nobody, {PARAMETERS:,} parameters; "
        f"{ROUNDS} rounds x {100 * SHARE:g} % of users = {UPLOADS} uploads of a user"
    )
    chosen = {scale: budgets[0.005, scale] for scale in SCALES}
    curves = [
        Curve("claimed (one coordinate)", SCALES, [b.claimed for b in chosen.values()]),
        Curve(f"one upload, at {DELTA:g}", SCALES, [b.upload for b in chosen.values()]),
        Curve(f"{UPLOADS} uploads, at {DELTA:g}", SCALES, [b.training for b in chosen.values()]),
    ]
    return Extra(
        (Grid(title, head, rows, words=frozenset()),),
        curves,
        "lambda, with delta = 0.005",
        "epsilon of a user,\nreplace-one, trusting nobody",
    )
