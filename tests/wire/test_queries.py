"""Queries and pools: what is read is what was written, and nothing else is read."""

import json
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load, save

from tests.wire.raising import raises
from veilrec.core.errors import BadInput
from veilrec.wire.messages import BadMessage, NotFinite
from veilrec.wire.queries import KINDS, PoolInfo, QueryShape, decode, encode, pool_file, read_pool


def test_numbers_come_back_and_nothing_else_travels():
    told = np.array([0.5, -1.25, 0.0, 3e8, -0.0], np.float32)
    for kind in KINDS:
        question = QueryShape(kind, 300 if kind == "interest" else 5)
        for values in ([0.0], [299.0]) if kind == "interest" else (told,):
            sent = encode(np.asarray(values, np.float32), question)
            assert len(sent) == question.bytes == (9 if kind == "interest" else 7 + 20)
            np.testing.assert_array_equal(decode(sent, question), values)


def test_what_is_no_number_interest_or_size_is_not_sent_and_not_read():
    for bad in (np.nan, np.inf, -np.inf, 1e39):
        raises(BadInput, "not finite", encode, np.array([0.0, bad]), QueryShape("pooled", 2))
    for interest in (-1.0, 5.0, 1.5, np.nan):
        raises(BadInput, "no interest", encode, np.array([interest], np.float32), QueryShape("interest", 5))
    for size in (0, -1, 1 << 16):
        raises(BadInput, "size", QueryShape, "vector", size)
    with pytest.raises(NotFinite, match="finite"):
        decode(struct.pack("<4sBHff", b"VRQ1", KINDS.index("pooled"), 2, 0.0, np.nan), QueryShape("pooled", 2))


def test_anything_odd_is_refused():
    question = QueryShape("attention", 3)
    good = encode(np.zeros(3, np.float32), question)
    changed = [good[:at] + byte + good[at + 1 :] for at, byte in ((4, b"\x03"), (4, b"\xff"), (5, b"\x04"))]
    for content in (b"", good[:-1], good + b"\0", b"VRM1" + good[4:], *changed):
        raises(BadMessage, None, decode, content, question)
    with pytest.raises(BadMessage, match="interest 7"):
        decode(encode(np.array([7], np.float32), QueryShape("interest", 8)), QueryShape("interest", 5))


ABOUT = PoolInfo("toy 3", 10, whole=True, exact=False)
VECTORS = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)
SCORES = VECTORS[:, :3].copy()
IDS, TITLES, CATEGORIES = ["a", "b", "c", "d"], ["A", "Bé", "", "D\n"], ["news", "", "sport", "news"]
FILE = pool_file(IDS, TITLES, CATEGORIES, SCORES, VECTORS, ABOUT)


def test_what_is_written_is_read():
    pool = read_pool(FILE)
    assert (pool.about, pool.ids, pool.titles, pool.categories) == (ABOUT, IDS, TITLES, CATEGORIES)
    np.testing.assert_array_equal(pool.scores, SCORES)
    assert np.abs(pool.vectors - VECTORS).max() <= np.abs(VECTORS).max() / 127 / 2 + 1e-6
    assert len(pool) == 4
    nothing = np.zeros((0, 6), np.float32)
    assert len(read_pool(pool_file([], [], [], nothing[:, :3], nothing, ABOUT))) == 0
    assert read_pool(pool_file(IDS, TITLES, CATEGORIES, None, VECTORS, ABOUT)).scores is None


def test_the_same_pool_has_the_same_bytes_and_is_a_file_of_safetensors():
    assert pool_file(IDS, TITLES, CATEGORIES, SCORES, VECTORS, ABOUT) == FILE
    arrays = load(FILE)
    assert arrays["vectors"].dtype == np.int8
    assert arrays["ids.offsets"].dtype == np.int32
    assert arrays["scores"].shape == (4, 3)


def _changed(**changes):
    arrays = {name: array for name, array in {**load(FILE), **changes}.items() if array is not None}
    return save(arrays, {"release": "toy 3", "k": "10", "whole": "1", "exact": "0"})


ODD = (
    {"scales": None},
    {"more": np.zeros(1, np.float32)},
    {"scales": np.full(6, np.nan, np.float32)},
    {"scales": np.zeros(5, np.float32)},
    {"scores": np.full((4, 3), np.inf, np.float32)},
    {"scores": np.zeros((3, 3), np.float32)},
    {"scores": np.zeros((4, 3), np.float64)},
    {"category": np.full(4, 2, np.int32)},
    {"category": np.full(4, -2, np.int32)},
    {"category": np.zeros(3, np.int32)},
    {"vectors": np.zeros((4, 6), np.uint8)},
    {"ids.offsets": np.array([0, 2, 1, 3, 4], np.int32)},
    {"ids.offsets": np.array([0, 1, 2, 3, 5], np.int32)},
    {"ids.data": np.frombuffer(b"abca", np.uint8)},
    {"ids.data": np.frombuffer(b"ab\xffd", np.uint8)},
)


def test_odd_pools_are_refused():
    facts = ({}, {"k": "10"}, {"release": "x", "k": "-1", "whole": "1", "exact": "1"})
    header = json.dumps({"__metadata__": {}}).encode()
    lies = [length.to_bytes(8, "little") + header for length in (len(header) + 1, 1 << 40, 0)]
    for content in (*(_changed(**odd) for odd in ODD), *(save(dict(load(FILE)), told) for told in facts), *lies):
        raises(BadMessage, None, read_pool, content)


@given(st.integers(0, len(FILE) - 1), st.integers(1, 255))
@settings(max_examples=300, deadline=None)
def test_a_changed_byte_is_refused_or_read_whole(place, difference):
    changed = bytearray(FILE)
    changed[place] ^= difference
    try:
        pool = read_pool(bytes(changed))
    except BadMessage:
        return
    assert len(pool.ids) == len(pool.titles) == len(pool.categories) == len(pool.vectors)
    assert np.isfinite(pool.vectors).all()


@given(st.binary(max_size=200))
def test_any_bytes_are_refused(content):
    raises(BadMessage, None, read_pool, content)
