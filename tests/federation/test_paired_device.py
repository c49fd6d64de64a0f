"""What a device that masks against others never does, whoever asks: table rounds without a network."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.federation.loopback import basis_of, lay_out_in
from tests.federation.table import AT_TABLE, Table, table_of
from veilrec.audit.contract_subject import ContractSubject
from veilrec.client.federated import RoundIsOver
from veilrec.core.errors import BadInput, VeilrecError
from veilrec.core.schema import RoundSpec, whole_model
from veilrec.federation import federation
from veilrec.federation.facts import terms_of
from veilrec.federation.federation import FILE, INVITED, BadTask, joined
from veilrec.federation.identity import Invitation, identity_of, listed, read_invitation
from veilrec.federation.secagg.pairs import Group, PairwiseSum, Reveal, encode_numbers, encode_parts
from veilrec.federation.secagg.terms import RoundKey, Terms
from veilrec.privacy.ledger import BudgetExhausted, Transaction
from veilrec.wire import rounds
from veilrec.wire.signing import BadSignature, new_key


class RoundTable(Table):
    """A table, and a coordinator's sum: one round, number 0."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        plan, made = self.plan, self.made
        self.sum = PairwiseSum(terms_of(plan, RoundSpec(0), made.digest, made.least), made.woven(), self.keys)
        self.model = rounds.encode(RoundSpec(0), whole_model(plan.schema, plan.start, 0), plan.schema)

    def advertise(self) -> dict[int, bytes]:
        return {place: joined(self.named(), group) for place, group in self.advertised(self.sum).items()}

    def share(self) -> dict[int, bytes]:
        return self.shared(self.sum, self.advertised(self.sum), self.model)

    def mask(self, *gone: int) -> bytes:
        for place, content in self.share().items():
            if place not in gone:
                self.sum.receive_masked(self.ask(place, "round", content))
        return self.sum.survivors()

    def sign(self, *gone: int) -> bytes:
        survivors = self.mask(*gone)
        for place in self.devices:
            if place not in gone:
                self.sum.receive_signature(self.ask(place, "sign", survivors))
        return self.sum.signatures()


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pairs") / "base"
    basis = basis_of(ContractSubject("dp-fedmf"), "cohort.size=0", users=AT_TABLE, rounds=3)
    lay_out_in(folder, basis, secagg="pairs", minimum_messages=3)
    return folder


@pytest.fixture
def table(base: Path, tmp_path: Path) -> Iterator[RoundTable]:
    yield from table_of(base, tmp_path / "federation", RoundTable)


def test_a_whole_round_opens_one_secret_of_everybody_and_the_ledgers_have_paid(table: RoundTable) -> None:
    signatures = table.sign(4)
    for place in range(4):
        answer = table.ask(place, "reveal", signatures)
        kinds = {owner: kind for owner, (kind, _) in Reveal.decode(answer).shares.items()}
        assert kinds == {owner: "key" if owner == 4 else "seed" for owner in range(5) if owner != place}
        table.sum.receive_reveal(answer)
    assert table.sum.finish().any()
    paid = table.paid()
    assert paid == [1, 1, 1, 1, 0]


def test_nothing_is_charged_before_the_vector_and_the_vector_leaves_only_paid_for(
    table: RoundTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    contents = table.share()
    assert table.paid() == [0] * 5
    first = table.ask(0, "round", contents[0])
    assert table.paid()[0] == 1
    assert table.ask(0, "round", contents[0]) == first
    assert table.paid()[0] == 1

    def refuse(*_: object, **__: object) -> None:
        raise BudgetExhausted("gone")

    monkeypatch.setattr(Transaction, "charge", refuse)
    with pytest.raises(BudgetExhausted):
        table.ask(1, "round", contents[1])
    monkeypatch.setattr(Transaction, "check", refuse)
    with pytest.raises(BudgetExhausted):  # a round that could not be paid for is not begun
        table.ask(2, "advertise", terms(table, 1), number=1)


def test_asked_the_same_again_a_device_says_the_same_and_otherwise_it_has_left(table: RoundTable) -> None:
    proposal = table.sum.propose()
    advert = table.ask(0, "advertise", proposal)
    assert table.ask(0, "advertise", proposal) == advert
    groups = table.advertise()
    shares = table.ask(1, "share", groups[1])
    assert table.ask(1, "share", groups[1]) == shares
    smaller = Group(tuple(range(4)), tuple(a for a in Group.decode(table.sum.groups()[1]).adverts if a.number != 4))
    with pytest.raises(BadInput, match="leaves the round"):  # secrets are shared once, among one group
        table.ask(1, "share", joined(table.named(), smaller.encode()))
    with pytest.raises(VeilrecError, match="leaves the round"):
        table.ask(1, "round", joined(table.model, b""))


def test_a_device_signs_one_list_and_reveals_one_secret_of_everybody(table: RoundTable) -> None:
    survivors = table.mask()
    signature = table.ask(0, "sign", survivors)
    assert table.ask(0, "sign", survivors) == signature
    with pytest.raises(BadInput, match="leaves the round"):
        table.ask(0, "sign", encode_numbers((0, 1, 2, 3)))
    for place in range(1, 5):
        table.sum.receive_signature(table.ask(place, "sign", survivors))
    table.sum.receive_signature(signature)
    signatures = table.sum.signatures()
    with pytest.raises(BadInput, match="leaves the round"):
        table.ask(0, "reveal", signatures)
    answer = table.ask(1, "reveal", signatures)
    others = encode_parts({n: table.sum._signed[n] for n in (1, 2, 3, 4)})  # a coordinator that was started again
    assert others != signatures
    assert table.ask(1, "reveal", others) == answer
    with pytest.raises(BadInput, match="leaves the round"):
        table.ask(1, "sign", encode_numbers((0, 1, 2, 3)))


@pytest.mark.parametrize("after", ["advertise", "share", "round", "sign", "reveal"])
def test_a_device_that_was_killed_has_left_the_round_for_good(table: RoundTable, after: str) -> None:
    groups, contents, steps = table.advertise(), dict[int, bytes](), ("share", "round", "sign", "reveal")
    done = steps[: steps.index(after) + 1] if after in steps else ()
    vector, survivors, signatures = b"", encode_numbers(range(AT_TABLE)), encode_parts({})
    if "share" in done:
        for place, content in groups.items():
            table.sum.receive_shares(table.ask(place, "share", content))
        contents = {place: joined(table.model, boxes) for place, boxes in table.sum.boxes().items()}
    if "round" in done:
        answers = {place: table.ask(place, "round", content) for place, content in contents.items()}
        for answer in answers.values():
            table.sum.receive_masked(answer)
        vector, survivors = answers[0], table.sum.survivors()
    if "sign" in done:
        for place in range(AT_TABLE):
            table.sum.receive_signature(table.ask(place, "sign", survivors))
        signatures = table.sum.signatures()
    if "reveal" in done:
        table.ask(0, "reveal", signatures)
    table.devices[0] = table.start(0)
    with pytest.raises(RoundIsOver):
        table.ask(0, "advertise", table.sum.propose())
    for kind, content in (("share", groups[0]), ("sign", survivors), ("reveal", signatures)):
        with pytest.raises(BadTask, match="left it for good"):
            table.ask(0, kind, content)  # type: ignore[arg-type]
    if vector:  # it is paid for: the same bytes, and no other
        assert table.ask(0, "round", contents[0]) == vector
    else:
        with pytest.raises(BadTask, match="left it for good"):
            table.ask(0, "round", joined(table.model, b""))
    assert table.paid()[0] == bool(vector)
    table.ask(0, "advertise", terms(table, 1), number=1)  # the next round it is in again


def terms(table: RoundTable, number: int, **changes: int) -> bytes:
    fields = {**vars(table.sum.terms), "round_number": number, **changes}
    return Terms(**fields).encode()


def test_terms_of_another_round_sums_of_fewer_and_other_sizes_are_refused(table: RoundTable) -> None:
    with pytest.raises(BadInput, match="another round"):
        table.ask(0, "advertise", terms(table, 1))
    with pytest.raises(BadInput, match="only among 3 or more"):
        table.ask(1, "advertise", terms(table, 0, least=2))
    table.devices = {place: table.start(place) for place in range(AT_TABLE)}
    longer = Terms.decode(terms(table, 1, length=table.sum.terms.length + 1))
    table.sum = PairwiseSum(longer, table.made.woven(), table.keys)
    table.model = rounds.encode(RoundSpec(1), whole_model(table.plan.schema, table.plan.start, 1), table.plan.schema)
    contents = table.share()
    with pytest.raises(BadInput, match="not those of this plan's round"):
        table.ask(0, "round", contents[0], 1)
    assert table.paid()[0] == 0
    with pytest.raises(RoundIsOver, match="round 0 is over"):  # rounds do not go back
        table.ask(0, "advertise", terms(table, 0))


def test_a_key_counts_if_the_invitation_of_its_place_vouches_for_it(table: RoundTable, tmp_path: Path) -> None:
    """The coordinator puts a key of its own in the place of device 4, and signs a round key with it."""
    groups = table.advertise()
    own = new_key(tmp_path / "own.key")
    endorsed = Invitation.new(table.folders[4].name).endorse(table.made.id, own.public)
    forged = table.named().replace(table.keys[4].hex().encode(), own.public.hex().encode())
    with_own_word = listed([(4, own.public, endorsed)])
    told = Group.decode(table.sum.groups()[0])
    public = RoundKey.signed(bytes(64), own, table.sum._session, "device", 4)
    group = Group(told.members, (*told.adverts[:-1], public)).encode()
    for named in (forged, with_own_word):
        with pytest.raises(BadSignature):
            table.ask(0, "share", joined(named, group))
    table.ask(1, "share", groups[1])  # knows the right ones from now on
    with pytest.raises(BadSignature):
        table.ask(1, "share", joined(with_own_word, group))
    first = read_invitation(table.folders[4])
    second = listed([(4, own.public, first.endorse(table.made.id, own.public))])  # an invitation that was used twice
    with pytest.raises(BadTask, match="another key than before"):
        table.ask(1, "share", joined(second, group))


def test_two_places_with_one_key_are_one_device(table: RoundTable) -> None:
    key = table.keys[3]
    invitations = [read_invitation(path) for path in table.folders]
    table.keys[4] = key
    for place in table.devices:
        advert = table.ask(place, "advertise", table.sum.propose())
        if place == 4:
            twin = identity_of(table.folders[3])
            advert = RoundKey.signed(advert[4:68], twin, table.sum._session, "device", 4).encode()
        table.sum.receive_advert(advert)
    named = listed((p, k, invitations[p].endorse(table.made.id, k)) for p, k in table.keys.items())
    with pytest.raises(VeilrecError, match="same lasting key"):
        table.ask(0, "share", joined(named, table.sum.groups()[0]))


def test_the_list_of_invitations_and_the_neighbourhood_are_those_of_the_federation(table: RoundTable) -> None:
    path = table.folder / INVITED
    text = path.read_text()
    other = text.replace("d00000", "d00009")
    for content, line in ((other, "copy it again"), ("[]", "cannot be read"), (None, INVITED)):
        path.unlink() if content is None else path.write_text(content)
        with pytest.raises(BadInput, match=line):
            table.start(0)
    content = yaml.safe_load((table.folder / FILE).read_text())
    for woven in ({}, {"devices": 4}, {"devices": "many"}, "nobody"):
        (table.folder / FILE).write_text(yaml.safe_dump(content | {"neighbourhood": woven}))
        with pytest.raises(BadInput, match="bring back the one that init wrote"):
            federation.read(table.folder).woven()
