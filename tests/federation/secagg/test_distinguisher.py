"""Everything that a server sees is not told apart from what it would see of other vectors with the same sum.

Worlds: of two clients, one has the vector v and the other w; or the other way round. Everybody else, and so the sum, is
the same. The server knows v and w, follows the protocol, and holds all that colluding helpers (all but one) or
colluding clients (fewer than the threshold) can tell it; it takes off the masks that this opens, and guesses by what is
left. Every way to guess below breaks one kind of bug. Each guesses in 100 worlds drawn by coins.

Sound: the number of right guesses is binomial with 1/2. A test fails if it lies outside of the interval of confidence
1 - 1e-6 (exact, two-sided): together 10 such decisions in this file, one false alarm in 100,000 runs; seeds are fixed,
so that an alarm stays. Whoever guesses right 9 times in 10 is seen in all but one in 100,000 runs.
"""

from dataclasses import dataclass, field

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from scipy.stats import binom

from tests.federation.secagg.rounds import MODEL, Paired, identity
from veilrec.federation.secagg import helpers, pairs
from veilrec.federation.secagg.helpers import HelperInvitation, HelperSumClient, Proposal, mask_key, read_update
from veilrec.federation.secagg.pairs import decode_masked
from veilrec.federation.secagg.terms import MaskStream, Neighbourhood, RoundKey, Terms, digest, public_half

TRIALS, LENGTH = 100, 32


@dataclass
class View:
    """What is left of the two clients' vectors, in two rounds, once all that can be taken off is."""

    first: list[np.ndarray] = field(default_factory=list)  # by round
    second: list[np.ndarray] = field(default_factory=list)


GUESSES = {
    # How many numbers have no mask; how many masks have bare high bits, and so do not fill the ring.
    "bare": lambda view, v, w: (view.first[0] == v[0]).sum() + (view.second[0] == w[0]).sum(),
    "small": lambda view, v, w: (view.first[0] - v[0] < 2**29).sum(),
    # How many differences show through: of two clients that have one mask; of one client in two rounds.
    "shared": lambda view, v, w: (view.first[0] - view.second[0] == v[0] - w[0]).sum(),
    "repeated": lambda view, v, w: (view.first[0] - view.first[1] == v[0] - v[1]).sum(),
    # How far from half of the bits are set: of masks of any kind that are not uniform.
    "biased": lambda view, v, w: abs(np.unpackbits((view.first[0] - v[0]).view(np.uint8)).mean() - 0.5),
}


def right_guesses(look, trials=TRIALS):
    """How often each way of guessing finds the world out; `look` plays two rounds of a world and is given vectors."""
    draws, right = np.random.default_rng(7), dict.fromkeys(GUESSES, 0)
    for trial in range(trials):
        vectors = draws.integers(-(2**29), 2**29, (2, 2, LENGTH))  # of v and w, by round
        swapped = bool(draws.integers(2))
        view = look(*(vectors[::-1] if swapped else vectors), trial)
        v, w = vectors.astype("<u4", casting="unsafe")
        for name, score in GUESSES.items():
            straight, crossed = score(view, v, w), score(view, w, v)
            says_swapped = bool(draws.integers(2)) if straight == crossed else crossed > straight
            right[name] += says_swapped == swapped
    return right


def seen(right, trials=TRIALS):
    """The ways of guessing that are better (or worse) than chance."""
    low, high = binom.ppf([5e-7, 1 - 5e-7], trials, 0.5)
    return {name for name, count in right.items() if not low <= count <= high}


def look_at_helpers(first, second, trial):
    """Two rounds with two helpers, of which the second tells the server its keys; no folders, for speed."""
    left = View()
    honest, traitor = X25519PrivateKey.generate(), X25519PrivateKey.generate()
    names = (identity(1000), identity(1001))
    for number in range(2):
        proposal = Proposal(
            Terms(bytes(32), 2 * trial + number, LENGTH, 32, 2).about(MODEL, (0, 1)), tuple(key.public for key in names)
        )
        keys = tuple(
            RoundKey.signed(public_half(secret), name, proposal.session, "helper", place)
            for place, (secret, name) in enumerate(zip((honest, traitor), names, strict=True))
        )
        invitation = HelperInvitation(proposal, keys, bytes(32)).encode()
        for client, values, stripped in ((0, first, left.first), (1, second, left.second)):
            known = {"federation": bytes(32), "helpers": proposal.helpers, "least": 2}
            update = HelperSumClient(client, identity(client), **known).update(invitation, MODEL, values[number])
            claim, _, check, words = read_update(update, proposal.terms)
            stream = MaskStream(mask_key(traitor, claim.public, proposal.session, 1, client))
            stream.add_to(check.copy(), sign=-1)
            words = words.copy()
            stream.add_to(words, sign=-1)
            stripped.append(words)
    return left


def look_at_pairs(first, second, trial):
    """Two rounds of five clients: the last drops out, so that its key is opened; client 3 tells the server all."""
    left, nothing = View(), np.zeros(LENGTH, np.int64)
    for number in range(2):
        one = Paired(Neighbourhood(5, 4, 3, 1), clients=5, length=LENGTH, round_number=2 * trial + number)
        boxes = one.share()
        values = {0: first[number], 1: second[number], 2: nothing, 3: nothing}
        masked = {client: one.made[client].mask(boxes[client], MODEL, values[client]) for client in values}
        for content in masked.values():
            one.server.receive_masked(content)
        one.signed(values)
        one.reveal(values)
        gone = X25519PrivateKey.from_private_bytes(one.server._secret(4, "key"))
        for client, stripped in ((0, left.first), (1, left.second)):
            words = decode_masked(masked[client], one.terms)[1].copy()
            pairs._own_mask(one.server._secret(client, "seed"), one.server._sharing).add_to(words, sign=-1)
            for other, secret in ((4, gone), (3, one.made[3]._mask_key)):
                public = one.server._adverts[client].public[32:]
                pairs._add_pair_mask(words, secret, other, client, public, one.server._sharing)
            stripped.append(words)
    return left


LOOKS = {"helpers": look_at_helpers, "pairs": look_at_pairs}


@pytest.mark.parametrize("protocol", LOOKS)
def test_no_way_of_guessing_is_better_than_a_coin(protocol):
    assert seen(right_guesses(LOOKS[protocol])) == set()


class PartlyMasked(MaskStream):
    """Bug: the last numbers of a vector have no mask."""

    def add_to(self, total, *, sign=1):
        super().add_to(total[: max(len(total) - 4, 1)], sign=sign)


class SmallMasks(MaskStream):
    """Bug: a mask has 28 of 32 bits."""

    def add_to(self, total, *, sign=1):
        mask = np.zeros_like(total)
        super().add_to(mask)
        mask &= np.uint32(2**28 - 1) if total.itemsize == 4 else np.uint64(2**60 - 1)
        (np.add if sign == 1 else np.subtract)(total, mask, out=total)


def plant(monkeypatch, bug):
    if bug in ("missing mask", "28 bits"):
        broken = PartlyMasked if bug == "missing mask" else SmallMasks
        for module in (helpers, pairs):
            monkeypatch.setattr(module, "MaskStream", broken)
        monkeypatch.setitem(globals(), "MaskStream", broken)
    elif bug == "one mask for all":
        for module in (helpers, pairs):
            monkeypatch.setattr(module, "agreed_key", lambda *about: bytes(32))
    else:  # "keys without the round": what two sides agree on is the same in every session
        for module in (helpers, pairs):
            monkeypatch.setattr(module, "agreed_key", lambda own, other, use, session, *sides: digest(use, *sides))


@pytest.mark.parametrize("protocol", LOOKS)
@pytest.mark.parametrize(
    ("bug", "by"),
    [
        ("missing mask", "bare"),
        ("28 bits", "small"),
        ("one mask for all", {"helpers": "shared", "pairs": "bare"}),
        ("keys without the round", "repeated"),
    ],
)
def test_planted_bugs_are_seen(monkeypatch, protocol, bug, by):
    plant(monkeypatch, bug)
    found = seen(right_guesses(LOOKS[protocol], 40), 40)
    assert (by if isinstance(by, str) else by[protocol]) in found
