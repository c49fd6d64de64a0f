"""Test vectors of secure sums: fixed keys, and the bytes that a client in Python sends with them."""

import base64
import hashlib
from dataclasses import replace
from unittest.mock import patch

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from tests.web.trainer_vectors import ID
from veilrec.client.veil import MAP, WEIGHTS
from veilrec.core.fixed_point import FixedPoint
from veilrec.core.schema import ClientUpdates, ReportSum, Schema, Tensor
from veilrec.federation.secagg import helpers
from veilrec.federation.secagg.helpers import HelperInvitation, HelperSumClient, Proposal
from veilrec.federation.secagg.terms import RoundKey, Terms, check_value, public_half
from veilrec.privacy.mechanisms.reports import VoteReports
from veilrec.wire.signing import SigningKey

LENGTHS = (1, 2, 7, 100, 1000)
PLACE, LEAST, CLIENTS = 3, 2, 1 << 20
BOUNDS = (1.0, 0.25, 0.3, 0.5 + 2.0**-50, 7.0)
HELPERS = 2
ROUND, WIDTH = 5, 64
REPORTING = (2, 5, 63, 64, 1000)  # clients: numbers of up to 63 travel in 32 bits
VOTES = 40  # items
MECHANISM = VoteReports(length=VOTES, epsilon=1.0, delta=1e-6, adjacency="add-remove")
FEDERATION = hashlib.sha256(ID.encode()).digest()  # stands for what was agreed on
MODEL = b"round spec and weights, as they came"


def _secret(number):
    return bytes((number * 37 + at * 11 + 5) % 256 for at in range(32))


def _identity(number):
    return SigningKey(Ed25519PrivateKey.from_private_bytes(_secret(number)))


def _invitation(length, *, number=ROUND, width=WIDTH, least=LEAST, federation=FEDERATION):
    identities = [_identity(100 + place) for place in range(HELPERS)]
    terms = Terms(federation, number, length, width, least).about(MODEL, range(CLIENTS // 2**10))
    proposal = Proposal(terms, tuple(identity.public for identity in identities))
    keys = []
    for place, identity in enumerate(identities):
        public = public_half(X25519PrivateKey.from_private_bytes(_secret(200 + place)))
        keys.append(RoundKey.signed(public, identity, proposal.session, "helper", place))
    return HelperInvitation(proposal, tuple(keys), _secret(300))


def _update(length):
    values = np.random.default_rng([95, length]).integers(-(2**60), 2**60, length)
    return {"clients": CLIENTS, **_upload(_invitation(length), values)}


def _report(clients):
    told = np.random.default_rng([98, clients]).random(VOTES) < 0.2
    width = MECHANISM.masked_width(clients)
    invitation = _invitation(VOTES, number=ReportSum().number, width=width)
    return {"clients": clients, **_upload(invitation, MECHANISM.weigh(told))}


def _upload(invitation, values):
    terms = invitation.proposal.terms
    keys = invitation.proposal.helpers
    client = HelperSumClient(PLACE, _identity(1), federation=FEDERATION, helpers=keys, least=LEAST)
    own = X25519PrivateKey.from_private_bytes(_secret(2))
    with patch.object(helpers.X25519PrivateKey, "generate", lambda: own):
        sent = client.update(invitation.encode(), MODEL, values)
    return {
        "number": terms.round_number,
        "width": terms.width,
        "invitation": _text(invitation.encode()),
        "values": [str(value) for value in values.tolist()],
        "check": str(int(check_value(values, invitation.check_key)[0])),
        "session": invitation.session.hex(),
        "sent": _text(sent),
    }


def _fixed_point(bound, clients):
    generator = np.random.default_rng([96, clients])
    values = (bound * generator.uniform(-1.0, 1.0, 30)).astype(np.float32)
    schema = Schema((Tensor(WEIGHTS, (10,), by_row=False), Tensor(MAP, (4, 5), by_row=False)))
    numbers = FixedPoint.fitting(schema, {WEIGHTS: bound, MAP: bound}, clients=clients, saturates=True)
    values[:4] = np.array([0.0, 0.7, -0.7, 5.7]) * numbers.steps[WEIGHTS]  # cut towards 0
    updates = ClientUpdates(0, 1, dense={WEIGHTS: values[np.newaxis, :10], MAP: values[10:].reshape(1, 4, 5)})
    whole = [str(value) for value in numbers.integers(updates)[0].tolist()]
    return {"bound": bound, "clients": clients, "values": values.tolist(), "whole": whole}


def _votes(count):
    history = np.random.default_rng([97, count]).permutation(VOTES)[:count]
    votes = MECHANISM.weigh(np.isin(np.arange(VOTES), history)).tolist()
    return {"history": history.tolist(), "votes": [str(value) for value in votes]}


def _text(content):
    return base64.b64encode(content).decode()


def _refused():
    """Invitations that no client follows, by what is wrong with them."""
    good = _invitation(7)
    unsigned = (RoundKey(0, good.keys[1].public, good.keys[0].signature), good.keys[1])
    other = Proposal(good.proposal.terms, good.proposal.helpers[::-1])
    odd = {
        "another federation": _invitation(7, federation=bytes(32)).encode(),
        "another width": _invitation(7, width=32).encode(),
        "another round": _invitation(7, number=ROUND + 1).encode(),
        "a sum of reports": _invitation(7, number=ReportSum().number).encode(),
        "a sum of more": _invitation(7, least=LEAST + 1).encode(),
        "another length": _invitation(8).encode(),
        "another model": replace(
            good, proposal=replace(good.proposal, terms=good.proposal.terms.about(b"louder", (0, 1)))
        ).encode(),
        "another list of clients": replace(
            good, proposal=replace(good.proposal, terms=good.proposal.terms.about(MODEL, (0, 1)))
        ).encode(),
        "keys in no order": replace(good, keys=good.keys[::-1]).encode(),
        "a key that nobody signed": replace(good, keys=unsigned).encode(),
        "other helpers": replace(good, proposal=other).encode(),
        "cut off": good.encode()[:-1],
        "something behind it": good.encode() + b"\0",
    }
    return {name: _text(content) for name, content in odd.items()}


def masks():
    """Messages under masks, with all keys; whole numbers and votes that are added up; invitations that are refused."""
    proposal = _invitation(1).proposal
    return {
        "federation": FEDERATION.hex(),
        "model": _text(MODEL),
        "secure_sums": {"helpers": [key.hex() for key in proposal.helpers], "least": LEAST, "max_clients": CLIENTS},
        "place": PLACE,
        "identity": _secret(1).hex(),
        "own": _secret(2).hex(),
        "own_public": public_half(X25519PrivateKey.from_private_bytes(_secret(2))).hex(),
        "updates": [_update(length) for length in LENGTHS],
        "reports": [_report(clients) for clients in REPORTING],
        "fixed_points": [_fixed_point(bound, clients) for bound in BOUNDS for clients in (1, 2, 5, 1000, CLIENTS)],
        "votes": [_votes(count) for count in (0, 1, 2, 3, 7, 39, 40)],
        "refused": _refused(),
    }
