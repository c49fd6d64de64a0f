"""Published claims that do not hold: an audit that stops refuting one of them is broken."""

from __future__ import annotations

from veilrec.privacy.audit.attacks import SupportEvent
from veilrec.privacy.audit.case import Case
from veilrec.privacy.audit.gradient import toy_training
from veilrec.privacy.gaussian import sigma_for
from veilrec.privacy.sensitivity import attention_l2

FLAWS = {
    "gaussian": "the textbook formula for sigma, proved below epsilon 1 only, is used at 10",
    "attention": "the clip norm is taken for the sensitivity; two clipped attention vectors lie farther apart",
    "padded-attention": "the clip norm is taken for the sensitivity; two clipped attention vectors lie farther apart",
    "embedding-noise": "Laplace noise for an L2 sensitivity; the L1 sensitivity is sqrt(dimension) times larger",
    "label-permutation": "the click is always among the candidates, so candidates without an item rule it out",
    "elementwise-laplace": "what one coordinate costs is said to be the cost of the message",
    "rowwise-laplace": "Laplace noise for an L2 sensitivity; the L1 sensitivity is sqrt(width) times larger",
    "randomised-response": "what one bit costs is said to hold for any two vectors",
    "top-k-update": "which entries are sent is decided by the data and told exactly",
}
"""What is wrong with a mechanism as published."""

_CLIP_NORM, _EPSILON, _DELTA = 0.4, 0.01, 1e-6


def gradient_case() -> Case:
    """PrivateRec, theorems 2 and 3: the training gradient is said to be post-processing of the noisy attention.

    The noise here is what (0.01, 1e-6) really needs, and still the gradient tells the click.
    """
    training = toy_training(
        clip_norm=_CLIP_NORM, sigma=sigma_for(_EPSILON, _DELTA, attention_l2(_CLIP_NORM)), padding=0.0
    )
    return Case(
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
