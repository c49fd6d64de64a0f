from dataclasses import replace

import numpy as np
import pytest

from tests.federation.secagg.rounds import FEDERATION, MODEL, Helped, identity, made_values, total
from tests.wire.raising import raises
from veilrec.core.errors import BadInput, VeilrecError
from veilrec.federation.secagg import helpers
from veilrec.federation.secagg.helpers import (
    MAX_OPEN,
    HelperInvitation,
    HelperRefusal,
    HelperSum,
    MaskRequest,
    Proposal,
    check_digest,
    signed_session,
)
from veilrec.federation.secagg.terms import BrokenSum, MessageReader, RoundKey, Terms, TooFew, Void
from veilrec.wire.messages import BadMessage, Declined, OtherDigest
from veilrec.wire.signing import BadSignature


@pytest.fixture
def helped(tmp_path):
    made = []

    def make(sent=False, **settings):
        made.append(one := Helped(tmp_path / str(len(made)), **settings))
        if sent:
            one.send(made_values(one.clients, one.length, 0))
        return one

    yield make
    for one in made:
        one.close()


def test_a_third_is_lost_in_random_rounds_and_every_sum_is_exact_or_void(helped):
    draws, outcomes = np.random.default_rng(0), []
    for trial in range(12):
        clients, width = int(draws.integers(3, 20)), (32, 50, 64)[trial % 3]
        least, helpers = max(2, int(0.7 * clients)), int(draws.integers(1, 4))
        one = helped(clients=clients, length=int(draws.integers(1, 400)), width=width, least=least, helpers=helpers)
        values = made_values(clients, one.length, trial, largest=2 ** (width - 5))
        came = one.send(values, lambda step, numbers: [n for n in numbers if draws.random() > 0.3])
        try:
            np.testing.assert_array_equal(one.finish(), total(values, came))
            outcomes.append("exact")
        except Void:
            assert len(came) < one.least
            outcomes.append("void")
    assert {"exact", "void"} == set(outcomes)


def test_too_few_vectors_or_a_missing_helper_void_the_round(helped):
    one = helped(least=5)
    one.send(made_values(4, one.length, 0))
    raises(TooFew, "4 vectors came, and sums of 5", one.server.request)
    one = helped(sent=True, helpers=3)
    one.server.receive_answer(one.made[0].answer(one.server.request()))
    raises(Void, "no answer came from helpers 1, 2", one.server.finish)
    raises(Void, "no key came from helpers 0, 1", helped(helpers=2).server.invite, [])


@pytest.mark.parametrize("width", [32, 40])
def test_a_helper_that_answers_wrongly_is_noticed(helped, monkeypatch, width):
    """Misses: one in 2^28 (width 32), one in 2^20 (width 40, where 2^31 is the hardest change here: 2^-28)."""
    honest = helpers._masks
    for entry, change in ((0, 1), (17, 2**31), (49, 2**16), (-1, 1)):

        def lying(asked, proposal, secret, place, entry=entry, change=change):
            body = honest(asked, proposal, secret, place)
            check, words = np.frombuffer(body[:8], "<u8").copy(), np.frombuffer(body[8:], proposal.terms.words).copy()
            if place == 1 and entry < 0:
                check += np.uint64(change)
            elif place == 1:
                words[entry : entry + 1] += words.dtype.type(change)
            return check.tobytes() + words.tobytes()

        monkeypatch.setattr(helpers, "_masks", lying)
        one = helped(sent=True, width=width)
        raises(BrokenSum, "does not pass its check|beyond 40 bits", one.finish)


def test_a_sum_that_does_not_fit_is_noticed_rather_than_wrapped(helped):
    one = helped(width=32)
    one.send(made_values(one.clients, one.length, 0, largest=2**31))
    raises(BrokenSum, None, one.finish)
    narrow = helped(width=20)
    narrow.send(made_values(8, narrow.length, 0, largest=2**19))
    raises(BrokenSum, "beyond 20 bits", narrow.finish)


class Killed(BaseException):
    """The process is gone."""


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_helper_answers_one_list_a_round_whatever_happens_to_its_process(helped, monkeypatch, is_killed):
    """The list is on disk before the answer is made."""
    one = helped(sent=True)
    request = one.server.request()
    asked = MaskRequest.decode(request)
    fewer = replace(asked, claims=asked.claims[1:]).encode()
    helper = one.made[0]
    if is_killed:
        with monkeypatch.context() as patched, pytest.raises(Killed):
            patched.setattr(helpers, "_masks", lambda *_: (_ for _ in ()).throw(Killed))
            helper.answer(request)
        helper.close()
        helper = one.made[0] = one.helper(0)
        raises(HelperRefusal, "answered for another list", helper.answer, fewer)
    answer = helper.answer(request)
    for _ in range(2):
        assert helper.answer(request) == answer
        raises(HelperRefusal, "answered for another list", helper.answer, fewer)
        raises(BadInput, "is another helper running on it", one.helper, 0)
        helper.close()
        helper = one.made[0] = one.helper(0)
    one.finish()


def _forged(claim, **changes):
    return RoundKey(**{"number": claim.number, "public": claim.public, "signature": claim.signature} | changes)


def test_a_helper_refuses_lists_that_are_not_of_registered_clients_and_their_keys(helped):
    one = helped(sent=True, least=4)
    asked = MaskRequest.decode(one.server.request())
    session, claims = asked.session, asked.claims
    stranger = RoundKey.signed(bytes(32), identity(99), session, "client", 99)
    other_session = RoundKey.signed(claims[0].public, identity(0), bytes(32), "client", 0)
    as_helper = RoundKey.signed(claims[0].public, identity(0), session, "helper", 0)
    bad = {
        "3 clients: 4 at least": claims[:3],
        "client 99 is not on the list": (*claims, stranger),
        "signature is not that of": (_forged(claims[0], public=bytes(32)), *claims[1:]),
        "order of their numbers": (claims[0], claims[0], *claims[1:]),
        "not that of": (other_session, *claims[1:]),
        "is not that": (as_helper, *claims[1:]),
    }
    for words, listed in bad.items():
        raises(VeilrecError, words, one.made[0].answer, replace(asked, claims=tuple(listed)).encode())
    with pytest.raises(HelperRefusal, match="another session"):
        one.made[0].answer(replace(asked, session=bytes(32)).encode())
    raises(HelperRefusal, "never opened", one.made[0].answer, replace(asked, round_number=7).encode())
    one.finish()  # nothing of that was an answer
    twice = helped(clients=4, least=4)
    twice.registered[3] = twice.registered[2]
    twice.send(made_values(3, twice.length, 0))
    check = check_digest(twice.server.check_key)
    session = signed_session(twice.proposal, check)
    claims = [RoundKey.signed(bytes([n]) * 32, identity(min(n, 2)), session, "client", n) for n in range(4)]
    with pytest.raises(HelperRefusal, match="two clients of the request are one"):
        twice.made[0].answer(MaskRequest(session, check, twice.round_number, (0, 1, 2, 3), tuple(claims)).encode())


def test_helpers_open_rounds_of_their_federation_once_and_forwards(helped):
    one = helped()
    helper, names = one.made[0], one.proposal.helpers

    def proposal(number=one.round_number, federation=FEDERATION, least=one.least, length=50, helpers=names):
        terms = Terms(federation, number, length, 32, least)
        return Proposal(terms.about(MODEL, range(one.clients)), helpers).encode()

    assert helper.open(proposal()) == helper.open(proposal())
    for words, asked in {
        "other terms": proposal(length=51),
        "another federation": proposal(federation=bytes(32)),
        "this helper asks for 3": proposal(least=2),
        "does not name this helper": proposal(helpers=names[1:]),
        "with other terms: a": replace(one.proposal, terms=one.terms.about(b"louder", range(one.clients))).encode(),
    }.items():
        raises(HelperRefusal, words, helper.open, asked)
    one.send(made_values(one.clients, one.length, 0))
    one.finish()
    raises(HelperRefusal, "round 4 is over", helper.open, proposal(number=4))
    for number in range(6, 6 + MAX_OPEN):
        helper.open(proposal(number=number))
    raises(HelperRefusal, f"{MAX_OPEN} rounds are open", helper.open, proposal(number=60))


def test_a_helper_counts_those_on_the_list_who_signed_the_one_digest(helped):
    """A server that told some clients something else, or that has put others on its list, gets no masks."""
    one = helped(sent=True)
    asked = MaskRequest.decode(one.server.request())
    louder = replace(one.proposal, terms=one.terms.about(b"louder", range(one.clients)))
    elsewhere = RoundKey.signed(asked.claims[3].public, identity(3), louder.session, "client", 3)
    apart = (*asked.claims[:3], elsewhere, *asked.claims[4:])
    for words, changes in {
        "signature is not that of": {"claims": apart},
        "another session": {"claims": apart, "session": louder.session},
        "another list of clients": {"cohort": asked.cohort[:-1]},
        "another list of": {"cohort": (*asked.cohort, 8)},
    }.items():
        raises(VeilrecError, words, one.made[0].answer, replace(asked, **changes).encode())
    few = helped(clients=6)
    few.proposal = replace(few.proposal, terms=few.terms.about(MODEL, range(1, 6)))
    few.server = HelperSum(few.proposal, few.registered, range(1, 6))
    values = made_values(6, few.length, 0)
    invitation = few.invitation()
    for number in range(1, 6):
        few.server.receive(few.client(number).update(invitation, MODEL, values[number]))
    stranger = few.client(0).update(invitation, MODEL, values[0])
    raises(BadMessage, "not in the cohort", few.server.receive, stranger)
    asked = MaskRequest.decode(few.server.request())
    with_stranger = replace(asked, claims=(RoundKey.read(MessageReader(stranger)), *asked.claims))
    raises(HelperRefusal, "client 0 is not on the list", few.made[0].answer, with_stranger.encode())


def test_a_helper_counts_those_who_have_the_same_key_of_the_check(helped):
    """Under another key for one client the sum of all checks would tell, beside the sum, what that client has sent."""
    one = helped(length=1)
    values, given = made_values(one.clients, 1, 0), HelperInvitation.decode(one.invitation())
    apart = replace(given, check_key=bytes(32))
    sent = [one.client(n).update((given if n else apart).encode(), MODEL, values[n]) for n in values]
    raises(OtherDigest, "client 0 has acted", one.server.receive, sent[0])
    for update in sent[1:]:
        one.server.receive(update)
    asked = MaskRequest.decode(one.server.request())
    everybody = (RoundKey.read(MessageReader(sent[0])), *asked.claims)
    for changes in ({}, {"session": apart.session}, {"session": apart.session, "check": check_digest(bytes(32))}):
        raises(VeilrecError, None, one.made[0].answer, replace(asked, claims=everybody, **changes).encode())
    np.testing.assert_array_equal(one.finish(), total(values, range(1, one.clients)))


def test_a_client_acts_on_what_the_terms_name_and_the_server_says_who_acted_on_something_else(helped):
    one = helped()
    invitation, values = one.invitation(), np.zeros(one.length, np.int64)
    raises(Declined, "not what the terms of the sum name", one.client(0).update, invitation, b"louder", values)
    update = one.client(2).update(invitation, MODEL, values)
    claim, rest = RoundKey.read(MessageReader(update)), update[RoundKey.size() + 32 :]
    louder = replace(one.proposal, terms=one.terms.about(b"louder", range(one.clients)))
    signed = RoundKey.signed(claim.public, identity(2), louder.session, "client", 2)
    raises(OtherDigest, "client 2 has acted", one.server.receive, signed.encode() + louder.session + rest)
    raises(BadSignature, None, one.server.receive, claim.encode() + louder.session + rest)  # which it has not signed
    one.server.receive(update)


def test_keys_of_rounds_that_are_over_are_gone_from_the_disk(tmp_path):
    secrets = []
    for number in (5, 6):
        one = Helped(tmp_path, round_number=number, helpers=1)
        one.send(made_values(one.clients, one.length, 0))
        (row,) = one.made[0]._journal.database.execute("SELECT secret FROM rounds WHERE number = ?", (number,))
        secrets.append(row[0])
        request = one.server.request()
        one.finish()
        if number == 5:
            earlier = request
        else:
            raises(HelperRefusal, "its key is gone", one.made[0].answer, earlier)
        one.close()
    on_disk = b"".join(path.read_bytes() for path in sorted((tmp_path / "helper-0").iterdir()))
    assert secrets[0] not in on_disk
    assert secrets[1] in on_disk


def test_clients_refuse_other_helpers_federations_and_smaller_sums(helped):
    one = helped()
    invitation, values = one.invitation(), np.zeros(one.length, np.int64)
    raises(BadInput, "another federation", one.client(0, federation=bytes(32)).update, invitation, MODEL, values)
    raises(
        BadInput, "other helpers", one.client(0, helpers=one.proposal.helpers[::-1]).update, invitation, MODEL, values
    )
    raises(BadInput, "only among 4 or more", one.client(0, least=4).update, invitation, MODEL, values)
    raises(BadInput, "adds up 50 int64", one.client(0).update, invitation, MODEL, values[1:])
    # A server that puts a key of its own in the place of a helper's is found out.
    own = RoundKey.signed(bytes(32), identity(7), one.proposal.session, "helper", 0).encode()
    forged = invitation.replace(one.made[0].open(one.proposal.encode()), own)
    assert forged != invitation
    raises(BadSignature, None, one.client(0).update, forged, MODEL, values)


def test_the_server_refuses_strangers_second_vectors_and_late_ones(helped):
    one = helped()
    values = made_values(one.clients, one.length, 0)
    one.send(values, lambda step, numbers: list(numbers)[:-1])
    invitation = one.invitation()
    for words, update in {
        "client 2 has sent a vector already": one.client(2).update(invitation, MODEL, values[2]),
        "not registered": one.client(99).update(invitation, MODEL, values[0]),
        "ends after": one.client(7).update(invitation, MODEL, values[7])[:-1],
    }.items():
        raises(BadMessage, words, one.server.receive, update)
    raises(BadMessage, "no helper has been asked", one.server.receive_answer, b"")
    one.server.request()
    raises(BadMessage, "asked already", one.server.receive, one.client(7).update(invitation, MODEL, values[7]))
    np.testing.assert_array_equal(one.finish(), total(values, range(7)))


def test_answers_are_signed_for_their_request_and_count_once(helped):
    one = helped(sent=True)
    request = one.server.request()
    answer = one.made[0].answer(request)
    flipped = bytearray(answer)
    flipped[-1] ^= 1
    as_other = (1).to_bytes(4, "little") + answer[4:]
    for bad in (bytes(flipped), as_other):
        raises(BadSignature, None, one.server.receive_answer, bad)
    raises(BadMessage, "there are 2", one.server.receive_answer, (2).to_bytes(4, "little") + answer[4:])
    raises(BadMessage, "another request", one.server.receive_answer, answer[:4] + bytes(32) + answer[36:])
    one.server.receive_answer(answer)
    raises(BadMessage, "has answered already", one.server.receive_answer, answer)


def test_a_server_that_starts_again_with_the_same_messages_asks_the_same(helped):
    one = helped()
    values, invitation = made_values(one.clients, one.length, 0), one.invitation()
    updates = [one.client(number).update(invitation, MODEL, values[number]) for number in values]
    again = HelperSum(one.proposal, one.registered, range(one.clients), check_key=one.server.check_key)
    for first, second in zip(updates, updates[::-1], strict=True):
        one.server.receive(first)
        again.receive(second)
    assert one.server.request() == again.request()
    one.server = again
    np.testing.assert_array_equal(one.finish(), total(values, values))
