"""Whole rounds of both protocols among synthetic clients, with whoever is lost at every step."""

from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from veilrec.federation.secagg.helpers import Helper, HelperSum, HelperSumClient, Proposal
from veilrec.federation.secagg.pairs import PairwiseSum, PairwiseSumClient
from veilrec.federation.secagg.terms import Neighbourhood, Terms
from veilrec.wire.signing import SigningKey

FEDERATION = bytes(range(32))
MODEL = b"round spec and weights, as they came"


def everybody(step, numbers):
    return list(numbers)


@lru_cache
def identity(number):
    return SigningKey(Ed25519PrivateKey.from_private_bytes(number.to_bytes(32, "big")))


def registry(clients):
    return {number: identity(number).public for number in range(clients)}


def made_values(clients, length, seed, largest=2**15):
    draws = np.random.default_rng([seed, clients, length])
    return {number: draws.integers(-largest, largest, length) for number in range(clients)}


def total(values, numbers):
    return np.sum([values[number] for number in numbers], axis=0)


@dataclass
class Helped:
    folder: Path
    clients: int = 8
    length: int = 50
    width: int = 32
    least: int = 3
    helpers: int = 2
    round_number: int = 5
    made: list[Helper] = field(default_factory=list)

    def __post_init__(self):
        self.registered = registry(self.clients)
        self.keys = [identity(1000 + place) for place in range(self.helpers)]
        terms = Terms(FEDERATION, self.round_number, self.length, self.width, self.least)
        self.terms = terms.about(MODEL, range(self.clients))
        self.proposal = Proposal(self.terms, tuple(key.public for key in self.keys))
        self.made = [self.helper(place) for place in range(self.helpers)]
        self.server = HelperSum(self.proposal, self.registered, range(self.clients))

    def helper(self, place, **other):
        known = {"federation": FEDERATION, "registered": self.registered}
        settings = known | {"least": lambda _number: self.least} | other
        return Helper(self.folder / f"helper-{place}", self.keys[place], **settings)

    def client(self, number, **other):
        settings = {"federation": FEDERATION, "helpers": self.proposal.helpers, "least": self.least} | other
        return HelperSumClient(number, identity(number), **settings)

    def invitation(self):
        return self.server.invite([helper.open(self.proposal.encode()) for helper in self.made])

    def send(self, values, stay=everybody):
        invitation = self.invitation()
        came = stay("upload", values)
        for number in came:
            self.server.receive(self.client(number).update(invitation, MODEL, values[number]))
        return came

    def finish(self):
        request = self.server.request()
        for helper in self.made:
            self.server.receive_answer(helper.answer(request))
        return self.server.finish()

    def close(self):
        for helper in self.made:
            helper.close()


@dataclass
class Paired:
    neighbourhood: Neighbourhood
    clients: int = 12
    length: int = 40
    width: int = 32
    least: int = 3
    round_number: int = 5

    def __post_init__(self):
        self.registered = registry(self.clients)
        terms = Terms(FEDERATION, self.round_number, self.length, self.width, self.least)
        self.terms = terms.about(MODEL, range(self.clients))
        self.server = PairwiseSum(self.terms, self.neighbourhood, self.registered, range(self.clients))
        self.made = {number: self.client(number) for number in range(self.clients)}

    def client(self, number):
        settings = {"federation": FEDERATION, "neighbourhood": self.neighbourhood, "least": self.least}
        return PairwiseSumClient(number, identity(number), self.registered, **settings)

    def group(self, stay=everybody):
        for number in stay("advertise", self.made):
            self.server.receive_advert(self.made[number].advertise(self.server.propose()))
        return self.server.groups()

    def share(self, stay=everybody):
        groups = self.group(stay)
        for number in stay("share", groups):
            self.server.receive_shares(self.made[number].share(groups[number]))
        return self.server.boxes()

    def mask(self, values, stay=everybody):
        boxes = self.share(stay)
        came = stay("mask", boxes)
        for number in came:
            self.server.receive_masked(self.made[number].mask(boxes[number], MODEL, values[number]))
        return came

    def sign(self, values, stay=everybody):
        came = self.mask(values, stay)
        signed = stay("sign", came)
        self.signed(signed)
        return came, signed

    def run(self, values, stay=everybody):
        """The sum, and whose vectors are in it."""
        came, signed = self.sign(values, stay)
        return self.reveal(stay("reveal", signed)), came

    def signed(self, numbers):
        survivors = self.server.survivors()
        for number in numbers:
            self.server.receive_signature(self.made[number].sign(survivors))

    def reveal(self, numbers):
        signatures = self.server.signatures()
        for number in numbers:
            self.server.receive_reveal(self.made[number].reveal(signatures))
        return self.server.finish()
