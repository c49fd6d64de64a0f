"""Pairwise secure aggregation, and the sharing of secrets."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.federation.secagg.rounds import MODEL, Paired, everybody, identity, made_values, total
from tests.wire.raising import raises
from veilrec.core.errors import BadInput, VeilrecError
from veilrec.federation.secagg import pairs, terms
from veilrec.federation.secagg.terms import BrokenSum, Neighbourhood, RoundKey, TooFew, Void, encode_numbers
from veilrec.wire.messages import BadMessage, Declined, OtherDigest
from veilrec.wire.signing import BadSignature

SPARSE = Neighbourhood(clients=12, degree=8, threshold=3, corrupt=1)
COMPLETE = Neighbourhood(clients=5, degree=20, threshold=3, corrupt=0)


def losing(**gone):
    """Those who are lost for good at each step, by number."""

    def stay(step, numbers):
        return [number for number in numbers if number not in gone.get(step, ())]

    return stay


def test_a_third_may_be_lost_at_every_step_and_a_sum_is_exact_or_void_never_wrong():
    draws, outcomes = np.random.default_rng(1), []
    for trial in range(24):
        lost, clients = (0.05, 0.1, 0.3)[trial % 3], int(draws.integers(6, 20))
        degree, width = int(draws.choice([4, 6, clients])), int(draws.choice([32, 40, 64]))
        woven = Neighbourhood(max(3, int(0.6 * clients)), degree, int(draws.integers(2, 4)), int(draws.integers(0, 2)))
        one = Paired(woven, clients=clients, length=int(draws.integers(1, 60)), width=width, round_number=trial)
        values = made_values(clients, one.length, trial)
        try:
            got, came = one.run(values, lambda step, numbers: [n for n in numbers if draws.random() > lost])  # noqa: B023
        except Void:
            outcomes.append("void")
            continue
        np.testing.assert_array_equal(got, total(values, came))
        outcomes.append("exact")
    assert min(outcomes.count("exact"), outcomes.count("void")) >= 4


def test_late_clients_are_left_out_and_stay_hidden_behind_their_own_mask():
    """The server holds the vector of a late client, opens its key to finish, and still sees no value of it."""
    one = Paired(COMPLETE)
    values = made_values(one.clients, one.length, 0)
    boxes = one.share()
    masked = {number: one.made[number].mask(boxes[number], MODEL, values[number]) for number in range(one.clients)}
    for number in range(1, one.clients):
        one.server.receive_masked(masked[number])
    one.server.survivors()
    raises(BadMessage, "client 0 comes too late", one.server.receive_masked, masked[0])
    one.signed(range(1, one.clients))
    np.testing.assert_array_equal(one.reveal(range(1, one.clients)), total(values, range(1, one.clients)))
    kinds = {reveal.shares[0][0] for reveal in one.server._reveals.values()}
    assert kinds == {"key"}


def test_a_server_cannot_have_two_lists_signed():
    """Half of the clients see one list, half another: neither is signed by a quorum, and nobody reveals anything."""
    one = Paired(COMPLETE, clients=10)
    values = made_values(one.clients, one.length, 0)
    came = one.mask(values)
    lists = {number: tuple(n for n in came if n != (0 if number >= 5 else 9)) for number in range(1, 9)}
    signatures = {}
    for number, listed in lists.items():
        encoded = one.made[number].sign(encode_numbers(listed))
        signatures[number] = encoded[8:]
    for number, listed in lists.items():
        same = {n: s for n, s in signatures.items() if lists[n] == listed}
        raises(TooFew, "6 of those in it", one.made[number].reveal, pairs.encode_parts(same))


def boxes_of(told):
    """The boxes that a client was handed, without the list of those whose shares came."""
    return pairs.whole(told, lambda reader: (terms.read_numbers(reader), pairs.read_boxes(reader)))[1]


def told_of(one, number, shared, held=None):
    """What a server tells a client of whose shares came, and the boxes of those."""
    sealed = {n: one.server._shares[n].boxes[number] for n in held or shared if n in one.made[number]._keys}
    return encode_numbers(shared) + pairs.encode_parts(sealed)


def test_a_server_that_hands_boxes_on_within_small_parts_opens_no_sum_of_a_part():
    """Were four of ten told of each other's shares alone, their masks would cancel among them: a sum of four."""
    one = Paired(COMPLETE, clients=10, least=8)
    values = made_values(10, one.length, 0)
    one.share()
    for number in range(10):
        part, client = range(4) if number < 4 else range(4, 10), one.made[number]
        raises(TooFew, "8 at least", client.mask, told_of(one, number, part), MODEL, values[number])
        client._step = 2
        raises(BadMessage, "not the shares", client.mask, told_of(one, number, range(10), part), MODEL, values[number])


def test_masks_of_clients_that_were_told_of_other_shares_do_not_cancel():
    """Four of seven would do for a list: whoever masked for another one than the quorum signs is in no sum."""
    one = Paired(COMPLETE, clients=7)
    values, others = made_values(7, one.length, 0), range(1, 7)
    one.share()
    for number in range(7):
        told = told_of(one, number, range(7) if number else range(4))
        one.server.receive_masked(one.made[number].mask(told, MODEL, values[number]))
    one.signed(others)
    signatures = one.server.signatures()
    wrong = one.reveal(others) != total(values, range(7))
    assert wrong.mean() > 0.9  # what is left are masks
    raises(BadMessage, "names somebody who took no part", one.made[0].sign, encode_numbers(range(7)))
    one.made[0]._step = 3
    one.made[0].sign(encode_numbers(range(4)))
    raises(TooFew, None, one.made[0].reveal, signatures)


def test_lists_that_leave_a_sparse_ring_in_parts_are_neither_masked_for_nor_signed():
    woven = Neighbourhood(clients=12, degree=4, threshold=2, corrupt=0)
    one = Paired(woven, clients=12)
    values = made_values(12, one.length, 0)
    one.share()
    order = one.made[0]._ring
    runs = {*order[:2], *order[6:8]}
    left = tuple(sorted(set(range(12)) - runs))
    number = left[0]
    told = told_of(one, number, left)
    raises(TooFew, "would not be one sum", one.made[number].mask, told, MODEL, values[number])
    for each in left:
        one.made[each]._step = 2
        one.server.receive_masked(one.made[each].mask(one.server.boxes()[each], MODEL, values[each]))
    raises(TooFew, "would not be one sum", one.made[number].sign, one.server.survivors())
    assert terms.holds_together(order, 4, [n for n in range(12) if n not in order[:2]])
    assert not terms.holds_together(order, 4, left)


def test_signatures_of_another_list_or_of_strangers_do_not_count():
    one = Paired(COMPLETE, clients=6)
    _, signed = one.sign(made_values(6, one.length, 0))
    right = one.server._signed
    quorum = one.neighbourhood.quorum(6)
    other = {number: identity(number).sign(pairs.SURVIVORS, bytes(32)) for number in signed}
    for signatures in (other, dict(list(right.items())[: quorum - 1]), right | {77: bytes(64)}):
        client = one.made[3]
        raises((BadSignature, TooFew), None, client.reveal, pairs.encode_parts(signatures))
        client._step = 4  # each as if it were the first


def test_clients_that_act_on_different_models_have_no_key_no_quorum_and_no_list_in_common():
    """A server that tells one client another model than the others, with everybody next to everybody."""
    one, other = Paired(COMPLETE, clients=6), Paired(COMPLETE, clients=6)
    other.terms = other.terms.about(b"louder", range(6))
    other.server = pairs.PairwiseSum(other.terms, COMPLETE, other.registered, range(6))
    target = one.made[0].advertise(other.server.propose())
    raises(OtherDigest, "client 0 enters another", one.server.receive_advert, target)
    relabelled = target[:-32] + one.server._session
    raises(BadSignature, None, one.server.receive_advert, relabelled)  # it has not signed that
    for number in range(1, 6):
        one.server.receive_advert(one.made[number].advertise(one.server.propose()))
    one.server._adverts[0] = pairs.decode_advert(target)[0]  # a server that does not look
    groups = one.server.groups()
    for number in (0, 1):
        raises(BadSignature, None, one.made[number].share, groups[number])
    late = Paired(COMPLETE, clients=6)
    boxes, values = late.share(), np.zeros(late.length, np.int64)
    raises(Declined, "not what the terms", late.made[0].mask, boxes[0], b"louder", values)
    raises(BadInput, "for others than this device", late.client(7).advertise, late.server.propose())
    smaller = pairs.PairwiseProposal(late.terms, tuple(range(5))).encode()
    raises(BadMessage, "not the one that the terms name", late.client(1).advertise, smaller)


def test_steps_are_taken_once_and_in_order_and_odd_lists_are_not_signed():
    one = Paired(COMPLETE, clients=6)
    one.sign(made_values(6, one.length, 0))
    signatures = one.server.signatures()
    one.made[0].reveal(signatures)
    for repeat in (lambda: one.made[0].reveal(signatures), lambda: one.made[0].sign(encode_numbers(range(6)))):
        raises(BadInput, "leaves the round", repeat)
    for numbers, error in (((0, 1), TooFew), ((1, 2, 3, 4), BadMessage), ((0, 1, 2, 88), BadMessage)):
        one.made[0]._step = 3  # lists that are too short, leave the device out, or name a stranger are not signed
        raises(error, None, one.made[0].sign, encode_numbers(numbers))
    fresh = one.client(1)
    raises(BadInput, "does not follow", fresh.share, b"")
    raises(BadInput, "does not follow", fresh.advertise, one.server.propose())


def _forged(group, **changes):
    told = pairs.Group.decode(group)
    return pairs.Group(**{"members": told.members, "adverts": told.adverts} | changes).encode()


def test_clients_check_who_takes_part_and_with_which_keys():
    one = Paired(SPARSE)
    groups = one.group()
    told = pairs.Group.decode(groups[0])
    swapped = RoundKey.signed(bytes(64), identity(55), one.server._session, "client", told.adverts[0].number)
    for words, group in {
        "planned for 12": _forged(groups[0], members=told.members[:-1]),
        "not in the cohort": _forged(groups[0], members=(*told.members, 99)),
        "not those that the session names": groups[1],
        "signature is not": _forged(groups[0], adverts=(swapped, *told.adverts[1:])),
    }.items():
        client = one.made[0]
        raises(VeilrecError, words, client.share, group)
        client._step = 1
    client.share(groups[0])
    planned = Paired(replace(SPARSE, clients=5, most=11))
    groups = planned.group()
    raises(BadMessage, "11 at most", planned.made[0].share, groups[0])


def test_no_choice_of_terms_moves_the_ring():
    """A server that could try out lengths, widths or thresholds of a round would choose everybody's neighbours."""
    rings = []
    for changed in ({}, {"length": 41}, {"width": 64}, {"least": 4}, {"round_number": 6}):
        one = Paired(SPARSE, **changed)
        one.group()
        rings.append(one.server._around)
    assert rings[0] == rings[1] == rings[2] == rings[3] != rings[4]


def test_a_server_goes_on_from_what_it_kept():
    one = Paired(COMPLETE)
    values = made_values(one.clients, one.length, 0)
    boxes = one.share(losing(advertise=[2], share=[7]))
    kept = one.server.kept()
    masked = [one.made[number].mask(boxes[number], MODEL, values[number]) for number in sorted(boxes) if number != 4]
    heard = one.server
    for anew in (pairs.PairwiseSum.restored(kept, COMPLETE, one.registered), heard.again(), heard.again()):
        one.server = anew  # killed while clients sign, too, or asked once more by the same server
        assert one.server.boxes() == boxes
        came = [one.server.receive_masked(content) for content in masked]
        one.server.survivors()
    one.signed(came)
    np.testing.assert_array_equal(one.reveal(came), total(values, [0, 1, 3, 5, 6, 8, 9, 10, 11]))
    raises(BadMessage, None, pairs.PairwiseSum.restored, kept + b"!", COMPLETE, one.registered)


def test_boxes_open_only_for_their_neighbour_in_their_round():
    one, other = Paired(COMPLETE, clients=6), Paired(COMPLETE, clients=6, round_number=6)
    boxes, foreign = one.share(), other.share()
    values = np.zeros(one.length, np.int64)
    named, mixed = encode_numbers(range(6)), boxes_of(boxes[0])
    mixed[1] = boxes_of(boxes[2])[1]
    for bad in (named + pairs.encode_parts(mixed), foreign[0]):
        raises(BadMessage, "does not open", one.made[0].mask, bad, MODEL, values)
        one.made[0]._step = 2
    sparse = Paired(Neighbourhood(clients=12, degree=4, threshold=3, corrupt=0))
    sparse.share()
    few = tuple(sorted(set(range(12)) - set(list(sparse.made[0]._keys)[:2])))
    raises(TooFew, "2 neighbours sent shares", sparse.made[0].mask, told_of(sparse, 0, few), MODEL, values)


@pytest.mark.parametrize("kind", ["seed", "key"])
def test_wrong_shares_void_the_round(kind):
    one = Paired(COMPLETE, clients=8)
    values = made_values(8, one.length, 0)
    _, signed = one.sign(values, losing(mask=[5]))
    signatures = one.server.signatures()
    for number in signed:
        reveal = pairs.Reveal.decode(one.made[number].reveal(signatures))
        owner = 5 if kind == "key" else 0 if number else 1
        changed = dict(reveal.shares)
        if number == 1:
            changed[owner] = (kind, bytes(33))
        one.server.receive_reveal(pairs.Reveal(number, changed).encode())
    raises(BrokenSum, f"{kind} are wrong", one.server.finish)


def test_the_server_refuses_what_comes_late_twice_or_from_strangers():
    one = Paired(COMPLETE, clients=6)
    groups = one.group(losing(advertise=[5]))
    raises(BadMessage, "too late", one.server.receive_advert, one.made[5].advertise(one.server.propose()))
    shares = one.made[0].share(groups[0])
    one.server.receive_shares(shares)
    few = pairs.SealedShares.decode(shares)
    raises(BadMessage, "second time", one.server.receive_shares, shares)
    with pytest.raises(BadMessage, match="than its neighbours"):
        one.server.receive_shares(pairs.SealedShares(1, few.commitment, few.boxes).encode())
    stranger = Paired(COMPLETE, clients=6)
    stranger.server._registered = {}
    with pytest.raises(BadMessage, match="not registered"):
        stranger.server.receive_advert(stranger.made[0].advertise(stranger.server.propose()))
    raises(TooFew, "0 clients came", stranger.server.groups)
    without = Paired(Neighbourhood(3, 10, 2, 0), clients=4)
    without.mask(made_values(4, 40, 0), losing(share=[0]))
    raises(BadMessage, "without shares", without.server.receive_masked, pairs.encode_masked(0, np.zeros(40, "<u4")))


def test_too_few_to_begin_to_add_up_to_sign_or_to_open_void_the_round():
    values = made_values(12, 40, 0)
    for gone, words in (
        ({"advertise": range(8)}, "planned for 5"),
        ({"share": range(6)}, "7 have to stay"),
        ({"mask": range(10)}, "sums of 3 at least"),
        ({"sign": range(8)}, "clients signed the list"),
        ({"reveal": range(10)}, "shares came, and 3 are needed"),
    ):
        raises(TooFew, words, Paired(COMPLETE).run, values, losing(**gone))
    assert len(Paired(COMPLETE).run(values, everybody)[1]) == 12


@given(st.binary(min_size=32, max_size=32), st.integers(1, 6), st.sets(st.integers(1, 2**32), min_size=6, max_size=9))
def test_any_threshold_of_the_shares_gives_the_secret_back(secret, threshold, points):
    shares = dict(zip(points, terms.split(secret, threshold, list(points)), strict=True))
    assert terms.combine(shares, threshold) == secret
    assert terms.combine(dict(list(shares.items())[-threshold:]), threshold) == secret


def test_below_the_threshold_every_secret_is_as_likely():
    """Given two shares of three, each secret belongs to exactly one third share: nothing is told."""
    shares = dict(zip((1, 2, 3), terms.split(bytes(32), 3, (1, 2, 3)), strict=True))
    for other in (b"\1" * 32, b"\xff" * 32):
        # The value at 3 of the polynomial through (0, other), (1, .), (2, .): s(3) = s(0) - 3 s(1) + 3 s(2)
        first, second = (int.from_bytes(shares[x], "big") for x in (1, 2))
        third = (int.from_bytes(other, "big") - 3 * first + 3 * second) % terms.PRIME
        assert terms.combine({1: shares[1], 2: shares[2], 3: third.to_bytes(33, "big")}, 3) == other


def test_the_modulus_is_a_prime():
    """Miller-Rabin with twenty bases: a composite passes one time in 4^20."""
    odd, twos = terms.PRIME - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for base in range(2, 22):
        power = pow(base, odd, terms.PRIME)
        assert power == 1 or any(pow(power, 2**r, terms.PRIME) == terms.PRIME - 1 for r in range(twos))


def test_what_is_no_sharing_is_refused():
    raises(BadInput, "threshold is 3 with 2 shares", terms.split, bytes(32), 3, [1, 2])
    for secret, points in ((bytes(31), [1, 2]), (bytes(32), [1, 1]), (bytes(32), [0, 1])):
        raises(ValueError, "bytes|distinct", terms.split, secret, 2, points)
    raises(BadMessage, "no secret", terms.combine, {1: (2**256 + 1).to_bytes(33, "big")}, 1)
    raises(
        TooFew, "3 shares came, and 4", terms.combine, dict(enumerate(terms.split(bytes(32), 4, range(1, 7))[:3], 1)), 4
    )
