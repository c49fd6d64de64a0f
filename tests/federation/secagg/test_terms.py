"""The mask graph, masks, and the keys that they come from."""

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import hypergeom

from tests.federation.secagg.rounds import identity
from tests.wire.raising import raises
from veilrec.core.errors import BadInput
from veilrec.federation.secagg import terms
from veilrec.wire.messages import BadMessage
from veilrec.wire.signing import BadSignature


def test_known_neighbourhoods_and_what_cannot_be():
    for clients, corrupt, degree, threshold in ((500, 0.05, 48, 19), (500, 0.2, 102, 52), (10_000, 0.05, 66, 26)):
        woven = terms.choose(clients, corrupt=corrupt, lost=0.3)
        assert (woven.degree, woven.threshold) == (degree, threshold)
    woven = terms.choose(5, corrupt=0.2, lost=0.2)  # chance does not help: everybody is next to everybody
    assert (woven.degree, woven.threshold, woven.quorum(5)) == (4, 2, 4)
    raises(BadInput, "have to stay to the end", terms.choose, 100, corrupt=0.05, lost=0.5)
    raises(BadInput, "give 3 or more", terms.choose, 2, corrupt=0.0, lost=0.0)


@pytest.mark.parametrize(
    ("fewest", "most", "corrupt", "lost"),
    [(20, 20, 0.2, 0.3), (100, 100, 0.05, 0.45), (70, 100, 0.2, 0.3), (450, 500, 0.05, 0.4)],
)
def test_the_chances_hold_for_every_number_of_clients_that_a_round_may_begin_with(fewest, most, corrupt, lost):
    woven = terms.choose(fewest, most=most, corrupt=corrupt, lost=lost)
    k, t, bad = woven.degree, woven.threshold, woven.corrupt
    assert (woven.clients, woven.most, bad) == (fewest, most, round(corrupt * most))
    for members in range(fewest, most + 1):
        gone = int(lost * members)
        assert members * hypergeom.sf(t - 1, members - 1, bad, k) <= terms.LEAK
        assert members * (members - 1) / 2 * hypergeom.pmf(k, members, bad + gone, k) <= terms.LEAK
        assert members * hypergeom.cdf(t - 1, members - 1, members - 1 - gone, k) <= terms.FAILURE
        assert 2 * woven.quorum(members) > members + bad
        assert woven.quorum(members) <= members - gone


def test_in_small_rounds_everybody_is_next_to_everybody_however_many_come():
    for most in (3, 4, 7, 20, 26):
        fewest = max(3, most - int(0.3 * most))
        woven = terms.choose(fewest, most=most, corrupt=0.2, lost=0.3)
        for members in range(fewest, most + 1):
            around = terms.neighbours(terms.ring(b"s", range(members)), woven.degree)
            assert {len(others) for others in around.values()} == {members - 1}
            assert woven.corrupt < woven.threshold < woven.quorum(members)


def test_one_neighbour_fewer_would_not_do():
    woven = terms.choose(100, corrupt=0.2, lost=0.3)
    k = woven.degree - 2
    enough = [t for t in range(1, k + 1) if 100 * hypergeom.sf(t - 1, 99, 20, k) <= terms.LEAK]
    torn = 4950 * hypergeom.pmf(k, 100, 50, k) > terms.LEAK
    assert torn or not enough or 100 * hypergeom.cdf(enough[0] - 1, 99, 69, k) > terms.FAILURE


def test_everybody_has_the_same_number_of_neighbours_and_is_theirs():
    for members, degree in ((range(30), 6), (range(5, 11), 8), ([3, 8, 100, 4], 2)):
        around = terms.neighbours(terms.ring(b"session", members), degree)
        assert set(around) == set(members)
        for one, others in around.items():
            assert len(set(others)) == min(degree, len(around) - 1)
            assert one not in others
            assert all(one in around[other] for other in others)
    first, second = (terms.neighbours(terms.ring(session, range(50)), 4) for session in (b"one", b"two"))
    assert first != second
    assert first == terms.neighbours(terms.ring(b"one", range(49, -1, -1)), 4)


def test_rings_fall_apart_no_more_often_than_the_bound_says():
    """30 clients, 6 neighbours, 15 missing: the bound allows 0.37, and 2,000 rings fall apart in fewer than that.

    False alarms: if the true rate were at the bound, one in 2; it is far below, 0.06 or so: fewer than 1e-100.
    """
    draws, torn = np.random.default_rng(0), 0
    for trial in range(2000):
        around = terms.neighbours(order := terms.ring(trial.to_bytes(4, "little"), range(30)), 6)
        left = set(draws.permutation(30)[:15].tolist())
        reached, border = set(), [min(left)]
        while border:
            one = border.pop()
            reached.add(one)
            border += [other for other in around[one] if other in left and other not in reached]
        torn += reached != left
        assert terms.holds_together(order, 6, left) == (reached == left)
    bound = 435 * hypergeom.pmf(6, 30, 15, 6)
    assert 0 < torn / 2000 <= min(bound, 1.0)


@pytest.mark.parametrize("dtype", ["<u4", "<u8"])
def test_a_mask_is_the_stream_of_aes_256_in_counter_mode_and_comes_off_again(dtype):
    length = (1 << 18) // 4 + 77  # more than a piece of 32-bit words
    values = np.arange(length).astype(dtype)
    words = values.copy()
    terms.MaskStream(bytes(32)).add_to(words)
    parts, stream = values.copy(), terms.MaskStream(bytes(32))
    for start, end in ((0, 3), (3, 1000), (1000, length)):
        stream.add_to(parts[start:end])
    np.testing.assert_array_equal(words, parts)
    stream = Cipher(algorithms.AES(bytes(32)), modes.CTR(bytes(16))).encryptor()
    np.testing.assert_array_equal(words - values, np.frombuffer(stream.update(bytes(values.nbytes)), dtype))
    terms.MaskStream(bytes(32)).add_to(words, sign=-1)
    np.testing.assert_array_equal(words, values)


def test_both_sides_agree_and_every_use_has_its_own_key():
    one, other = X25519PrivateKey.generate(), X25519PrivateKey.generate()
    about = (b"mask", b"session")
    key = terms.agreed_key(one, terms.public_half(other), *about)
    assert key == terms.agreed_key(other, terms.public_half(one), *about)
    uses = [about, (b"mask", b"another"), (b"masks", b"ession"), (b"mask",), (b"", b"mask", b"session")]
    assert len({terms.agreed_key(one, terms.public_half(other), *use) for use in uses}) == len(uses)
    raises(BadMessage, "no key to agree by", terms.agreed_key, one, bytes(32), *about)  # a point of small order


def test_keys_are_not_drawn_from_few():
    """Of 2^16 keys of 28 bits two would be the same, but with chance e^-8; of 256 bits never, but with 2^-225."""
    keys = {terms.derived_key(bytes(32), number.to_bytes(4, "little")) for number in range(1 << 16)}
    assert len(keys) == 1 << 16
    assert len({key[:3] + bytes([key[3] >> 4]) for key in keys}) < 1 << 16


def test_a_round_key_is_bound_to_session_role_number_and_key():
    key = terms.RoundKey.signed(b"p" * 32, identity(1), b"s" * 32, "client", 7)
    key.check(identity(1).public, b"s" * 32, "client")
    assert terms.RoundKey.read(terms.MessageReader(key.encode())) == key
    assert len(key.encode()) == terms.RoundKey.size()
    for signer, session, role, claimed in (
        (2, b"s" * 32, "client", key),
        (1, b"t" * 32, "client", key),
        (1, b"s" * 32, "helper", key),
        (1, b"s" * 32, "client", terms.RoundKey(8, key.public, key.signature)),
        (1, b"s" * 32, "client", terms.RoundKey(7, b"q" * 32, key.signature)),
    ):
        raises(BadSignature, None, claimed.check, identity(signer).public, session, role)


@given(st.integers(1, 70), st.integers(0, 2**32))
def test_the_check_of_a_sum_is_the_sum_of_the_checks(length, seed):
    draws = np.random.default_rng(seed)
    values = draws.integers(-(2**40), 2**40, (5, length))
    key = draws.bytes(32)
    checks = sum((terms.check_value(row, key) for row in values), np.zeros(1, np.uint64))
    assert terms.check_value(values.sum(axis=0), key) == checks
    assert terms.check_value(values.sum(axis=0), bytes(32)) != checks


def test_a_change_of_one_number_passes_the_check_just_as_often_as_is_said():
    """The bound is attained by a change of one number by a power of 2; 1,000 keys each, five standard deviations.

    False alarms: 6e-7 for each of the two powers, and 1,000 * 2^-28 = 4e-6 for the third.
    """
    values = np.arange(50)
    for bit in (62, 60, 31):
        changed = values.copy()
        changed[11] += 1 << bit
        keys = [number.to_bytes(32, "little") for number in range(1000)]
        same = np.mean([terms.check_value(values, key) == terms.check_value(changed, key) for key in keys])
        expected = terms.missed(bit + 1)
        assert abs(same - expected) <= 5 * np.sqrt(expected / 1000)
    assert terms.missed(32) < 2.0**-28
    assert terms.missed(46) < 2.0**-15
