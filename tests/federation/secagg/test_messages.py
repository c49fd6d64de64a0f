"""Bytes from strangers: read back as they were, or refused with one kind of error."""

from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.federation.secagg.rounds import FEDERATION, identity
from tests.wire.raising import raises
from veilrec.core.errors import BadInput, VeilrecError
from veilrec.federation.secagg import helpers, pairs
from veilrec.federation.secagg.pairs import Group, Reveal, SealedShares
from veilrec.federation.secagg.terms import (
    BrokenSum,
    MessageReader,
    RoundKey,
    Terms,
    digest,
    encode_numbers,
    read_numbers,
    whole,
)
from veilrec.wire.messages import BadMessage

TERMS = Terms(FEDERATION, 3, 20, 32, 4)
PROPOSAL = helpers.Proposal(TERMS, (b"a" * 32, identity(1).public))
number = st.integers(0, 2**32 - 1)
numbers = st.sets(number, max_size=6).map(sorted).map(tuple)


def exactly(size):
    return st.binary(min_size=size, max_size=size)


def keys_of(count):
    return st.builds(RoundKey, number, exactly(32 * count), exactly(64))


def by_number(value):
    return st.dictionaries(number, value, max_size=5).map(lambda found: dict(sorted(found.items())))


boxes = by_number(exactly(pairs.BOX_BYTES))
share = st.tuples(st.sampled_from(["seed", "key"]), exactly(33))
claims = by_number(keys_of(1)).map(lambda found: tuple(replace(key, number=at) for at, key in found.items()))
MESSAGES = st.one_of(
    st.builds(helpers.HelperInvitation, st.just(PROPOSAL), st.tuples(keys_of(1), keys_of(1)), exactly(32)),
    st.builds(helpers.MaskRequest, exactly(32), exactly(32), number, numbers, claims),
    numbers.map(lambda some: pairs.PairwiseProposal(TERMS.about(b"model", some), some)),
    st.builds(Group, numbers, st.lists(keys_of(2), max_size=4).map(tuple)),
    st.builds(SealedShares, number, exactly(32), boxes),
    st.builds(Reveal, number, by_number(share)),
    st.just(PROPOSAL),
)


@given(MESSAGES)
def test_every_message_comes_back_as_it_was(message):
    assert type(message).decode(message.encode()) == message


@given(boxes, numbers, by_number(exactly(64)))
def test_lists_come_back_as_they_were(some_boxes, some_numbers, signatures):
    assert whole(pairs.encode_parts(some_boxes), pairs.read_boxes) == some_boxes
    assert whole(encode_numbers(some_numbers), read_numbers) == some_numbers
    assert pairs.decode_signatures(pairs.encode_parts(signatures)) == signatures


DECODERS = (
    *(helpers.HelperInvitation.decode, helpers.MaskRequest.decode, helpers.Proposal.decode),
    *(Group.decode, SealedShares.decode, Reveal.decode, pairs.decode_advert),
    lambda content: whole(content, pairs.read_boxes),
    lambda content: whole(content, read_numbers),
    pairs.decode_signatures,
    lambda content: pairs.decode_masked(content, TERMS),
    lambda content: helpers.read_update(content, TERMS),
    lambda content: helpers.read_answer(content, PROPOSAL, b"request"),
)


@given(st.sampled_from(DECODERS), st.binary(max_size=400))
def test_bytes_that_are_no_message_are_refused_or_read_but_never_a_crash(decode, content):
    with suppress(VeilrecError):
        decode(content)


@settings(max_examples=200)
@given(MESSAGES, st.integers(0, 10**6), st.integers(1, 255), st.sampled_from(["cut", "more", "flip"]))
def test_messages_that_were_tampered_with_are_refused_or_are_another_message(message, place, change, how):
    content = bytearray(message.encode())
    if how == "cut":
        content = content[: place % len(content)]
    elif how == "more":
        content += bytes([change])
    else:
        content[place % len(content)] ^= change
    try:
        read = type(message).decode(bytes(content))
    except BadMessage:
        return
    assert how == "flip"
    assert read != message
    assert read.encode() == bytes(content)  # one message, one way to write it


def test_announced_sizes_are_capped_before_anything_is_made():
    huge = (2**32 - 1).to_bytes(4, "little")
    for content in (huge, (1 << 21).to_bytes(4, "little")):
        raises(BadMessage, "there can be", whole, content, read_numbers)
    with pytest.raises(BadMessage, match="length of a secure sum"):
        Terms.read(MessageReader(TERMS.encode()[:40] + huge + TERMS.encode()[44:]))


def test_messages_for_vectors_have_one_length():
    words = np.arange(20, dtype="<u4")
    masked = pairs.encode_masked(3, words)
    number, read = pairs.decode_masked(masked, TERMS)
    assert number == 3
    np.testing.assert_array_equal(read, words)
    for bad in (masked[:-1], masked + b"\0"):
        raises(BadMessage, None, pairs.decode_masked, bad, TERMS)
    body = bytes(8) + words.tobytes()
    answer = helpers.signed_answer(1, b"request", body, identity(1), PROPOSAL.session)
    assert helpers.read_answer(answer, PROPOSAL, b"request") == (1, body)


def test_terms_are_within_limits_and_sessions_differ_in_everything_that_was_agreed():
    right = {"federation": FEDERATION, "round_number": 3, "length": 20, "width": 32, "least": 4}
    for changes in (
        {"federation": b"x"},
        {"content": b"x"},
        {"cohort": bytes(33)},
        {"length": 0},
        {"width": 65},
        {"least": 1},
        {"round_number": -1},
    ):
        raises(BadInput, None, Terms, **right | changes)
    others = (
        {"federation": bytes(32)},
        {"round_number": 4},
        {"length": 21},
        {"width": 31},
        {"least": 5},
        {"content": b"c" * 32},
        {"cohort": b"c" * 32},
    )
    sessions = {Terms(**right | changes).session(b"pairs") for changes in ({}, *others)}
    sessions |= {TERMS.session(b"helpers"), TERMS.session(b"pairs", b"x"), PROPOSAL.session}
    assert len(sessions) == 11
    assert digest(b"ab", b"c") != digest(b"a", b"bc")
    for width in (8, 32, 33, 63, 64):  # numbers keep their sign, and those beyond the width are noticed
        terms, edge = Terms(**right | {"width": width, "length": 3}), 2 ** (width - 1)
        values = np.array([-edge, 0, edge - 1])
        assert terms.words.itemsize == (4 if width <= 32 else 8)
        np.testing.assert_array_equal(terms.from_words(terms.to_words(values)), values)
        if width not in (32, 64):
            raises(BrokenSum, f"beyond {width} bits", terms.from_words, terms.to_words(np.array([0, edge, 0])))
