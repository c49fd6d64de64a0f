"""What events add up to: epsilon for delta, delta for epsilon, noise for a wanted epsilon."""

from veilrec.privacy.accounting.accountant import (
    Detection,
    Rounds,
    delta_of,
    detection_by,
    detection_of,
    epsilon_for,
    epsilon_of,
    noise_for,
    noise_multiplier_for,
)
from veilrec.privacy.accounting.composition import epsilon_renyi, epsilon_zcdp, rho_max

__all__ = [
    "Detection",
    "Rounds",
    "delta_of",
    "detection_by",
    "detection_of",
    "epsilon_for",
    "epsilon_of",
    "epsilon_renyi",
    "epsilon_zcdp",
    "noise_for",
    "noise_multiplier_for",
    "rho_max",
]
