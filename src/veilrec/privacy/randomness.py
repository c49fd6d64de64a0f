"""Where random bits come from: a cryptographic source for people, a seeded one for simulations and tests.

The streams of noise that a secret names: no two uses share one, and each is the same again after a restart.
"""

from __future__ import annotations

import hmac
import os
from typing import Any, Protocol, runtime_checkable

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from veilrec.core import rng

_TO_UNIT = 2.0**-53


class Source(Protocol):
    """Independent uniform 64-bit words."""

    protects: bool  # whether noise made of it protects anybody: False for a seeded source

    def words(self, count: int) -> NDArray[np.uint64]:
        """The next `count` words."""


@runtime_checkable
class NumberedSource(Source, Protocol):
    """One of many streams that differ in a number, such as that of a round."""

    def of(self, number: int) -> Source:
        """The stream of another number, from its beginning."""


class _CounterCipher:
    """AES-256 in counter mode, read as a stream of words: gigabytes a second, and as unpredictable as its key."""

    def __init__(self, key: bytes) -> None:
        self._stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()

    def words(self, count: int) -> NDArray[np.uint64]:
        """The next `count` words."""
        return np.frombuffer(self._stream.update(bytes(8 * count)), np.dtype("<u8"))


class SecureSource:
    """For real clients: keyed by the operating system's generator; the key never leaves the process."""

    protects = True

    def __init__(self) -> None:
        self._cipher = _CounterCipher(os.urandom(32))
        self._process = os.getpid()

    def words(self, count: int) -> NDArray[np.uint64]:
        """The next `count` words; a forked process starts a stream of its own."""
        if os.getpid() != self._process:
            self.__init__()  # type: ignore[misc]
        return self._cipher.words(count)


class SeededSource(_CounterCipher):
    """For simulations, tests and audits: the same seed gives the same noise, which therefore protects nobody."""

    protects = False

    def __init__(self, *seed: int) -> None:
        words: NDArray[Any] = np.random.SeedSequence(list(seed)).generate_state(8, np.uint32)
        super().__init__(words.astype("<u4").tobytes())


class FastSource(SeededSource):
    """For simulations: numpy's generators, which make noise off the lattice, several times faster.

    `words` of a seed name a generator for every use; or all uses share the one of a key.
    """

    def __init__(self, *seed: int, one_generator: bool = False) -> None:
        super().__init__(*seed)
        self._seed = seed
        key = np.random.SeedSequence(list(seed))
        self._shared = np.random.Generator(np.random.Philox(key)) if one_generator else None

    def of(self, number: int) -> FastSource:
        """The one whose seed ends in another number, from its beginning."""
        return FastSource(*self._seed[:-1], number, one_generator=self._shared is not None)

    def generator(self) -> np.random.Generator:
        """For the next tensor."""
        if self._shared is not None:
            return self._shared
        return np.random.Generator(np.random.SFC64(int(self.words(1)[0])))


class KeyedSource(_CounterCipher):
    """The stream of one purpose of somebody who keeps a secret: the same again after a restart, for nobody else."""

    protects = True

    def __init__(self, secret: bytes, *purpose: int) -> None:
        if len(secret) < 16:
            raise ValueError("a secret has at least 16 bytes")
        self._secret, self._purpose = secret, purpose
        label = b"".join(int(part).to_bytes(8, "little") for part in purpose)
        super().__init__(hmac.digest(secret, label, "sha256"))

    def of(self, number: int) -> KeyedSource:
        """The one whose purpose ends in another number, from its beginning."""
        return KeyedSource(self._secret, *self._purpose[:-1], number)

    def again(self) -> KeyedSource:
        """The same stream from its beginning."""
        return KeyedSource(self._secret, *self._purpose)


def uniforms(source: Source, count: int) -> NDArray[np.float64]:
    """Numbers in [0, 1) with 53 random bits."""
    return (source.words(count) >> np.uint64(11)).astype(np.float64) * _TO_UNIT


def noise_of_sum(secret: bytes, round_number: int) -> KeyedSource:
    """The noise that a secret names for the sum of a round."""
    return KeyedSource(secret, rng.NOISE, round_number)


def noise_of_histogram(secret: bytes, period: int) -> KeyedSource:
    """The noise that a secret names for the counts of a period's reports."""
    return KeyedSource(secret, rng.HISTOGRAM, period)


def noise_of_comparison(secret: bytes) -> KeyedSource:
    """The noise that a secret names for the sum of the validation clients' gains."""
    return KeyedSource(secret, rng.COMPARISON)


def noise_of_client(secret: bytes, round_number: int, client: int) -> KeyedSource:
    """The noise that a secret names for the message of a client."""
    return KeyedSource(secret, rng.NOISE, round_number, client)


def noise_of_learning(secret: bytes, round_number: int, client: int) -> KeyedSource:
    """The noise that a secret names for what a client learns from, before there is a message."""
    return KeyedSource(secret, rng.LOCAL_NOISE, round_number, client)


def share_of_report(secret: bytes, period: int, client: int) -> KeyedSource:
    """The share of the noise on a period's counts that a secret names for a client."""
    return KeyedSource(secret, rng.HISTOGRAM, period, client)


def share_of_comparison(secret: bytes, client: int) -> KeyedSource:
    """The share of the noise on the sum of gains that a secret names for a validation client."""
    return KeyedSource(secret, rng.COMPARISON, 0, client)


def noise_of_report(secret: bytes, period: int, client: int) -> KeyedSource:
    """The lies that a secret names for a client's report."""
    return KeyedSource(secret, rng.REPORT, period, client)
