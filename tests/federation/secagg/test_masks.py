from __future__ import annotations

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given
from hypothesis import strategies as st

from tests.federation.secagg.rounds import identity
from veilrec.federation.secagg.terms import (
    MaskStream,
    MessageReader,
    RoundKey,
    agreed_key,
    check_value,
    derived_key,
    missed,
    public_half,
)
from veilrec.wire.messages import BadMessage
from veilrec.wire.signing import BadSignature


@pytest.mark.parametrize("dtype", ["<u4", "<u8"])
def test_a_mask_is_the_stream_of_aes_256_in_counter_mode_and_comes_off_again(dtype):
    length = (1 << 18) // 4 + 77  # more than a piece of 32-bit words
    values = np.arange(length).astype(dtype)
    words = values.copy()
    MaskStream(bytes(32)).add_to(words)
    parts, stream = values.copy(), MaskStream(bytes(32))
    for start, end in ((0, 3), (3, 1000), (1000, length)):
        stream.add_to(parts[start:end])
    np.testing.assert_array_equal(words, parts)
    stream = Cipher(algorithms.AES(bytes(32)), modes.CTR(bytes(16))).encryptor()
    np.testing.assert_array_equal(words - values, np.frombuffer(stream.update(bytes(values.nbytes)), dtype))
    MaskStream(bytes(32)).add_to(words, sign=-1)
    np.testing.assert_array_equal(words, values)


def test_both_sides_agree_and_every_use_has_its_own_key():
    one, other = X25519PrivateKey.generate(), X25519PrivateKey.generate()
    about = (b"mask", b"session")
    key = agreed_key(one, public_half(other), *about)
    assert key == agreed_key(other, public_half(one), *about)
    uses = [about, (b"mask", b"another"), (b"masks", b"ession"), (b"mask",), (b"", b"mask", b"session")]
    assert len({agreed_key(one, public_half(other), *use) for use in uses}) == len(uses)
    with pytest.raises(BadMessage, match="no key to agree by"):
        agreed_key(one, bytes(32), *about)  # a point of small order


def test_keys_are_not_drawn_from_few():
    """Of 2^16 keys of 28 bits two would be the same, but with chance e^-8; of 256 bits never, but with 2^-225."""
    keys = {derived_key(bytes(32), number.to_bytes(4, "little")) for number in range(1 << 16)}
    assert len(keys) == 1 << 16
    assert len({key[:3] + bytes([key[3] >> 4]) for key in keys}) < 1 << 16


def test_a_round_key_is_bound_to_session_role_number_and_key():
    key = RoundKey.signed(b"p" * 32, identity(1), b"s" * 32, "device", 7)
    key.check(identity(1).public, b"s" * 32, "device")
    assert RoundKey.read(MessageReader(key.encode())) == key
    assert len(key.encode()) == RoundKey.size()
    for signer, session, role, claimed in (
        (2, b"s" * 32, "device", key),
        (1, b"t" * 32, "device", key),
        (1, b"s" * 32, "helper", key),
        (1, b"s" * 32, "device", RoundKey(8, key.public, key.signature)),
        (1, b"s" * 32, "device", RoundKey(7, b"q" * 32, key.signature)),
    ):
        with pytest.raises(BadSignature):
            claimed.check(identity(signer).public, session, role)


@given(st.integers(1, 70), st.integers(0, 2**32))
def test_the_check_of_a_sum_is_the_sum_of_the_checks(length, seed):
    draws = np.random.default_rng(seed)
    values = draws.integers(-(2**40), 2**40, (5, length))
    key = draws.bytes(32)
    checks = sum((check_value(row, key) for row in values), np.zeros(1, np.uint64))
    assert check_value(values.sum(axis=0), key) == checks
    assert check_value(values.sum(axis=0), bytes(32)) != checks


def test_a_change_of_one_number_passes_the_check_just_as_often_as_is_said():
    """The bound is attained by a change of one number by a power of 2; 1,000 keys each, five standard deviations.

    False alarms: 6e-7 for each of the two powers, and 1,000 * 2^-28 = 4e-6 for the third.
    """
    values = np.arange(50)
    for bit in (62, 60, 31):
        changed = values.copy()
        changed[11] += 1 << bit
        keys = [number.to_bytes(32, "little") for number in range(1000)]
        same = np.mean([check_value(values, key) == check_value(changed, key) for key in keys])
        expected = missed(bit + 1)
        assert abs(same - expected) <= 5 * np.sqrt(expected / 1000)
    assert missed(32) < 2.0**-28
    assert missed(46) < 2.0**-15
