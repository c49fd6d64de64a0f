"""Statistics of streams of noise: of one with another, of one with itself, and how far they reach.

What is compared is noise that was measured, so that noise which ignores its stream of words is seen as well.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
from scipy.special import ndtr, ndtri, pdtrc, stdtr

from veilrec.audit.observe import ALPHA, AuditCheck, rate_at_least
from veilrec.core.arrays import Doubles

LENGTHS = (512, 64, 8)  # first numbers of two streams that are correlated
_SHIFTED = 400  # streams that are also compared with each other's shifts
_UNLIKELY = 16.0  # a squared cosine, times the length: below that no pair is worth a second look
_SAME = 2.0**-19  # of a standard deviation
_OF_ONE = (256, 2_048)  # numbers of a stream that are compared with each other, at least and at most
_FAR_OUT = 60.0  # numbers that are expected beyond where the tails are looked at
_ROOM = 0.05  # by which a rate may be off, for the lattice and a spread that was measured


def repeats(name: str, streams: Sequence[tuple[str, Doubles]], *, shifts: bool) -> AuditCheck:
    """Check that no noise repeats another, as it is, with its sign turned, or (few streams) shifted.

    Of two independent Gaussian vectors the cosine follows Student's t exactly, and the part of it where a shifted one
    overlaps is smaller. All pairs and shifts share ALPHA. Vectors of 2 to 7 numbers may not be equal.
    """
    pairs = max(1, math.comb(len(streams), 2))
    found: list[str] = []
    names = np.array([name for name, _ in streams], object)
    sizes = np.array([len(noise) for _, noise in streams])
    above = math.inf
    for length in LENGTHS:
        places = np.flatnonzero(sizes >= length)
        if len(places) < 2:
            continue
        rows = np.array([streams[place][1][:length] for place in places.tolist()])
        rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-300)
        lags = 2 * length - 1 if shifts and len(rows) <= _SHIFTED else 1
        cosines = _shifted(rows) if lags > 1 else np.abs(rows @ rows.T)
        short = sizes[places] < above  # pairs of longer ones were compared over a greater length
        firsts, seconds = np.nonzero(
            np.triu((short[:, np.newaxis] | short) & (cosines**2 * length > min(_UNLIKELY, length / 2)), 1)
        )
        r = np.minimum(cosines[firsts, seconds], 1.0 - 1e-15)
        chances = 2.0 * stdtr(length - 1, -r * np.sqrt((length - 1) / (1.0 - r * r)))
        near = np.flatnonzero(chances < ALPHA / (pairs * lags * len(LENGTHS)))
        found += [f"{names[places[firsts[at]]]} and {names[places[seconds[at]]]}" for at in near]
        above = length
    for size in range(2, LENGTHS[-1]):
        places = np.flatnonzero(sizes == size)
        if len(places) > 1:
            rows = np.array([streams[place][1] for place in places.tolist()])
            apart = np.abs(rows[:, np.newaxis] - rows).max(axis=-1)
            equal = np.argwhere(np.triu(apart <= _SAME * np.std(rows), 1))
            found += [
                f"{streams[int(places[first])][0]} and {streams[int(places[second])][0]}" for first, second in equal
            ]
    return AuditCheck(name, len(found), "is", 0, not found, "".join(found[:1]), ALPHA)


def _shifted(rows: Doubles) -> Doubles:
    """The largest cosine of two vectors over all shifts of one of them, [n, n] above the diagonal."""
    count, length = rows.shape
    waves, found = np.fft.rfft(rows, 2 * length, axis=1), np.zeros((count, count))
    for row in range(count - 1):
        crossed = np.fft.irfft(waves[row] * waves[row + 1 :].conj(), 2 * length, axis=1)
        found[row, row + 1 :] = np.abs(crossed).max(axis=1)
    return found


def within(name: str, streams: Sequence[tuple[str, Doubles]]) -> AuditCheck:
    """Check that no stream of noise repeats itself: shifted by any lag, or by single numbers, whatever their signs.

    Of independent Gaussian numbers the sum of products at a lag is nearly normal, and how many absolute values agree to
    2^-19 standard deviations is at most Poisson. All streams and lags share ALPHA.
    """
    found: list[str] = []
    fewest, most = _OF_ONE
    long = [(what, noise[:most]) for what, noise in streams if len(noise) >= fewest]
    for what, noise in long:
        n, unit = len(noise), noise / max(float(np.sqrt(np.mean(noise**2))), 1e-300)
        lags = np.arange(1, n // 2)
        products = np.fft.irfft(np.abs(np.fft.rfft(unit, 2 * n)) ** 2, 2 * n)[lags] / np.sqrt(n - lags)
        # halved again for the tails of a sum of products, which are a little heavier than a normal's
        least = ALPHA / (8.0 * len(lags) * len(long))
        shifted = 2.0 * float(ndtr(-np.abs(products).max())) < least
        equal = int(np.count_nonzero(np.diff(np.sort(np.abs(unit))) <= _SAME))
        chance = 2.0 * (n * n / 2.0) * (2.0 * _SAME / math.sqrt(math.pi))  # twice, for the lattice
        if shifted or (equal > 0 and float(pdtrc(equal - 1, chance)) < ALPHA / (2.0 * len(long))):
            found.append(what)
    return AuditCheck(name, len(found), "is", 0, not found, "".join(found[:1]), ALPHA if long else 0.0)


def tails(name: str, noise: Doubles, where: str) -> Iterator[AuditCheck]:
    """Check that Gaussian noise reaches as far out as it has to: noise that is cut off hides nobody beyond the cut."""
    if len(noise) < LENGTHS[0]:
        return
    rate = min(_FAR_OUT / len(noise), 0.1)
    far = -float(ndtri(rate / 2.0)) * float(np.sqrt(np.mean(noise**2)))
    hits = int(np.count_nonzero(np.abs(noise) > far))
    yield rate_at_least(name, hits, len(noise), rate * (1.0 - _ROOM), where)
