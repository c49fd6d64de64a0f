"""The streams of noise that a secret names: no two uses share one, and each is the same again after a restart."""

from __future__ import annotations

from veilrec import _draws
from veilrec.privacy.randomness import KeyedSource


def noise_of_sum(secret: bytes, round_number: int) -> KeyedSource:
    """The noise that a secret names for the sum of a round."""
    return KeyedSource(secret, _draws.NOISE, round_number)


def noise_of_histogram(secret: bytes, period: int) -> KeyedSource:
    """The noise that a secret names for the counts of a period's reports."""
    return KeyedSource(secret, _draws.HISTOGRAM, period)


def noise_of_comparison(secret: bytes) -> KeyedSource:
    """The noise that a secret names for the sum of the judges' gains."""
    return KeyedSource(secret, _draws.COMPARISON)


def noise_of_device(secret: bytes, round_number: int, device: int) -> KeyedSource:
    """The noise that a secret names for the message of a device."""
    return KeyedSource(secret, _draws.NOISE, round_number, device)


def noise_of_learning(secret: bytes, round_number: int, device: int) -> KeyedSource:
    """The noise that a secret names for what a device learns from, before there is a message."""
    return KeyedSource(secret, _draws.LOCAL_NOISE, round_number, device)


def noise_of_report(secret: bytes, period: int, device: int) -> KeyedSource:
    """The lies that a secret names for a device's report."""
    return KeyedSource(secret, _draws.REPORT, period, device)
