"""What clients and helpers do under masks, whoever asks: sums at a table, without a network."""

import shutil
from dataclasses import replace

import numpy as np
import pytest
import yaml

from tests.federation.loopback import basis_of, known_in, lay_out_in
from tests.wire.raising import raises
from veilrec.audit.contract_subject import ContractSubject
from veilrec.client.federated import RoundIsOver
from veilrec.core.errors import BadInput, VeilrecError
from veilrec.core.schema import FIRST_REPORT_SUM, ReportSum, RoundSpec, whole_model
from veilrec.federation import federation
from veilrec.federation.client import folder as client_folder
from veilrec.federation.client.process import answers_of
from veilrec.federation.facts import ATTEMPTS, largest_answer, terms_in, terms_of, told_once
from veilrec.federation.federation import CLIENTS, FILE, HELPERS, INVITED, BadTask, FederationTask, joined
from veilrec.federation.helper import HelperAnswers
from veilrec.federation.identity import Invitation, identity_of, listed, read_invitation
from veilrec.federation.secagg.helpers import HelperSum, Proposal
from veilrec.federation.secagg.pairs import Group, PairwiseProposal, PairwiseSum, Reveal, encode_parts
from veilrec.federation.secagg.terms import MaskStream, RoundKey, Terms, encode_numbers
from veilrec.privacy.ledger import BudgetExhausted, Transaction
from veilrec.wire import messages as bits
from veilrec.wire import rounds
from veilrec.wire.messages import BadMessage
from veilrec.wire.signing import BadSignature, new_key

AT_TABLE = 5  # clients


class Table:
    def __init__(self, folder):
        self.folder, self.known = folder, known_in(folder)
        self.made, self.plan = self.known.federation, self.known.plan
        self.folders = sorted((folder / CLIENTS).iterdir())
        self.opened = {}
        self.clients = {place: self.start(place) for place in range(AT_TABLE)}
        self.keys = {place: identity_of(path).public for place, path in enumerate(self.folders)}
        self.helpers = [HelperAnswers(path, self.made) for path in sorted((folder / HELPERS).glob("*"))]

    def start(self, place):
        """The process of a client; killed before, if it was there."""
        if place in self.opened:
            self.opened[place].close()
        path = self.folders[place]
        self.opened[place] = client_folder.open_client(path, self.known)
        return answers_of(self.opened[place], self.known, place, identity_of(path))

    def named(self):
        """What the coordinator says of keys."""
        invitations = [read_invitation(path) for path in self.folders]
        return listed((p, key, invitations[p].endorse(self.made.id, key)) for p, key in self.keys.items())

    def ask(self, place, kind, content, number=0):
        return bytes(self.clients[place].answer(FederationTask(kind, number), content))

    def paid(self):
        return [client.spent()[0].messages for client in self.opened.values()]

    def advertised(self, adding):
        for place in self.clients:
            adding.receive_advert(self.ask(place, "advertise", adding.propose(), adding.terms.round_number))
        return adding.groups()

    def shared(self, adding, groups, first):
        """Every client shares its secrets; what each gets beside the first content."""
        for place, group in groups.items():
            answer = self.ask(place, "share", joined(self.named(), group), adding.terms.round_number)
            adding.receive_shares(answer)
        return {place: joined(first, boxes) for place, boxes in adding.boxes().items()}

    def close(self):
        for part in (*self.opened.values(), *self.helpers):
            part.close()


def table_of(base, folder, kind=Table):
    shutil.copytree(base, folder)
    made = kind(folder)
    yield made
    made.close()


class RoundTable(Table):
    def __init__(self, folder):
        super().__init__(folder)
        plan, made = self.plan, self.made
        self.model = rounds.encode(RoundSpec(0), whole_model(plan.schema, plan.start, 0), plan.schema)
        terms = terms_of(plan, RoundSpec(0), made.digest, made.least).about(self.model, range(AT_TABLE))
        self.sum = PairwiseSum(terms, made.woven(), self.keys, range(AT_TABLE))

    def advertise(self):
        return {place: joined(self.named(), group) for place, group in self.advertised(self.sum).items()}

    def share(self):
        return self.shared(self.sum, self.advertised(self.sum), self.model)

    def mask(self, *gone):
        for place, content in self.share().items():
            if place not in gone:
                self.sum.receive_masked(self.ask(place, "round", content))
        return self.sum.survivors()

    def sign(self, *gone):
        survivors = self.mask(*gone)
        for place in self.clients:
            if place not in gone:
                self.sum.receive_signature(self.ask(place, "sign", survivors))
        return self.sum.signatures()


def refuse(*_, **__):
    raise BudgetExhausted("gone")


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pairs") / "base"
    basis = basis_of(ContractSubject("dp-fedmf"), "cohort.size=0", users=AT_TABLE, rounds=3)
    lay_out_in(folder, basis, secagg="pairs", minimum_messages=3)
    return folder


@pytest.fixture
def table(base, tmp_path):
    yield from table_of(base, tmp_path / "federation", RoundTable)


def test_a_whole_round_opens_one_secret_of_everybody_and_the_ledgers_have_paid(table):
    signatures = table.sign(4)
    for place in range(4):
        answer = table.ask(place, "reveal", signatures)
        kinds = {owner: kind for owner, (kind, _) in Reveal.decode(answer).shares.items()}
        assert kinds == {owner: "key" if owner == 4 else "seed" for owner in range(5) if owner != place}
        table.sum.receive_reveal(answer)
    assert table.sum.finish().any()
    assert table.paid() == [1, 1, 1, 1, 0]


def test_a_masked_message_shows_nothing_of_an_update_most_of_which_is_zero(base, tmp_path, monkeypatch):
    """What the statement says of secure aggregation; without its masks the same message is full of zeros."""
    for place, masked in enumerate((True, False)):
        for table in table_of(base, tmp_path / str(place), RoundTable):
            told = table.made.guarantee["disclosure"]["server"]
            assert told[0] == "The sum over the clients of a round, exact, and no single message."
            if not masked:
                monkeypatch.setattr(MaskStream, "add_to", lambda self, words, **_: None)
            assert (bytes(64) in table.ask(0, "round", table.share()[0])) == (not masked)


def test_nothing_is_charged_before_the_vector_and_the_vector_leaves_only_paid_for(table, monkeypatch):
    contents = table.share()
    assert table.paid() == [0] * 5
    first = table.ask(0, "round", contents[0])
    assert table.paid()[0] == 1
    assert table.ask(0, "round", contents[0]) == first
    assert table.paid()[0] == 1

    monkeypatch.setattr(Transaction, "charge", refuse)
    raises(BudgetExhausted, None, table.ask, 1, "round", contents[1])
    monkeypatch.setattr(Transaction, "check", refuse)
    raises(BudgetExhausted, None, table.ask, 2, "advertise", terms(table, 1), 1)  # not begun: it could not be paid for


def test_asked_the_same_again_a_client_says_the_same_and_otherwise_it_has_left(table):
    proposal = table.sum.propose()
    advert = table.ask(0, "advertise", proposal)
    assert table.ask(0, "advertise", proposal) == advert
    groups = table.advertise()
    shares = table.ask(1, "share", groups[1])
    assert table.ask(1, "share", groups[1]) == shares
    smaller = Group(tuple(range(4)), tuple(a for a in Group.decode(table.sum.groups()[1]).adverts if a.number != 4))
    with pytest.raises(BadInput, match="leaves the round"):  # secrets are shared once, among one group
        table.ask(1, "share", joined(table.named(), smaller.encode()))
    raises(VeilrecError, "leaves the round", table.ask, 1, "round", joined(table.model, b""))


def test_a_client_signs_one_list_and_reveals_one_secret_of_everybody(table):
    survivors = table.mask()
    signature = table.ask(0, "sign", survivors)
    assert table.ask(0, "sign", survivors) == signature
    raises(BadInput, "leaves the round", table.ask, 0, "sign", encode_numbers((0, 1, 2, 3)))
    for place in range(1, 5):
        table.sum.receive_signature(table.ask(place, "sign", survivors))
    table.sum.receive_signature(signature)
    signatures = table.sum.signatures()
    raises(BadInput, "leaves the round", table.ask, 0, "reveal", signatures)
    answer = table.ask(1, "reveal", signatures)
    others = encode_parts({n: table.sum._signed[n] for n in (1, 2, 3, 4)})  # a coordinator that was started again
    assert others != signatures
    assert table.ask(1, "reveal", others) == answer
    raises(BadInput, "leaves the round", table.ask, 1, "sign", encode_numbers((0, 1, 2, 3)))


@pytest.mark.parametrize("after", ["advertise", "share", "round", "sign", "reveal"])
def test_a_client_that_was_killed_has_left_the_round_for_good(table, after):
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
    table.clients[0] = table.start(0)
    raises(RoundIsOver, None, table.ask, 0, "advertise", table.sum.propose())
    for kind, content in (("share", groups[0]), ("sign", survivors), ("reveal", signatures)):
        raises(BadTask, "left it for good", table.ask, 0, kind, content)
    if vector:  # it is paid for: the same bytes, and no other
        assert table.ask(0, "round", contents[0]) == vector
    else:
        raises(BadTask, "left it for good", table.ask, 0, "round", joined(table.model, b""))
    assert table.paid()[0] == bool(vector)
    table.ask(0, "advertise", terms(table, 1), number=1)  # the next round it is in again


def terms(table, number, **changes):
    fields = {**vars(table.sum.terms), "round_number": number, **changes}
    return PairwiseProposal(Terms(**fields), table.sum.cohort).encode()


def test_terms_of_another_round_sums_of_fewer_and_other_sizes_are_refused(table):
    raises(BadInput, "another round", table.ask, 0, "advertise", terms(table, 1))
    raises(BadInput, "only among 3 or more", table.ask, 1, "advertise", terms(table, 0, least=2))
    table.clients = {place: table.start(place) for place in range(AT_TABLE)}
    longer = replace(table.sum.terms, round_number=1, length=table.sum.terms.length + 1)
    table.model = rounds.encode(RoundSpec(1), whole_model(table.plan.schema, table.plan.start, 1), table.plan.schema)
    everybody = range(AT_TABLE)
    table.sum = PairwiseSum(longer.about(table.model, everybody), table.made.woven(), table.keys, everybody)
    contents = table.share()
    raises(BadInput, "not those of this plan's round", table.ask, 0, "round", contents[0], 1)
    assert table.paid()[0] == 0
    raises(RoundIsOver, "round 0 is over", table.ask, 0, "advertise", terms(table, 0))  # rounds do not go back


def test_nothing_is_learnt_for_a_sum_that_cannot_be_masked(table, monkeypatch):
    """Its message would not leave and not be paid for; how long it took would tell of the data, as often as asked."""
    contents, learnt = table.share(), []
    monkeypatch.setattr(type(table.plan.trainer), "learn", lambda *_: learnt.append(1))
    raises(BadMessage, "not the shares of neighbours|does not open", table.ask, 0, "round", contents[1])
    raises(BadInput, "it leaves the round", table.ask, 0, "round", contents[0])
    raises(BadInput, "another round", table.ask, 1, "advertise", terms(table, 2), 1)
    later = rounds.encode(RoundSpec(1), whole_model(table.plan.schema, table.plan.start, 1), table.plan.schema)
    raises(BadInput, "it leaves the round", table.ask, 1, "round", joined(later, b""), 1)
    assert learnt == [] and table.paid() == [0] * AT_TABLE


def test_a_key_counts_if_the_invitation_of_its_place_vouches_for_it(table, tmp_path):
    """The coordinator puts a key of its own in the place of client 4, and signs a round key with it."""
    groups = table.advertise()
    own = new_key(tmp_path / "own.key")
    endorsed = Invitation.new(table.folders[4].name).endorse(table.made.id, own.public)
    forged = table.named().replace(table.keys[4].hex().encode(), own.public.hex().encode())
    with_own_word = listed([(4, own.public, endorsed)])
    told = Group.decode(table.sum.groups()[0])
    public = RoundKey.signed(bytes(64), own, table.sum._session, "client", 4)
    group = Group(told.members, (*told.adverts[:-1], public)).encode()
    for named in (forged, with_own_word):
        raises(BadSignature, None, table.ask, 0, "share", joined(named, group))
    table.ask(1, "share", groups[1])  # knows the right ones from now on
    raises(BadSignature, None, table.ask, 1, "share", joined(with_own_word, group))
    first = read_invitation(table.folders[4])
    second = listed([(4, own.public, first.endorse(table.made.id, own.public))])  # an invitation that was used twice
    raises(BadTask, "another key than before", table.ask, 1, "share", joined(second, group))


def test_two_places_with_one_key_are_one_client(table):
    key = table.keys[3]
    invitations = [read_invitation(path) for path in table.folders]
    table.keys[4] = key
    for place in table.clients:
        advert = table.ask(place, "advertise", table.sum.propose())
        if place == 4:
            twin = identity_of(table.folders[3])
            advert = RoundKey.signed(advert[4:68], twin, table.sum._session, "client", 4).encode() + table.sum._session
        table.sum.receive_advert(advert)
    named = listed((p, k, invitations[p].endorse(table.made.id, k)) for p, k in table.keys.items())
    raises(VeilrecError, "same lasting key", table.ask, 0, "share", joined(named, table.sum.groups()[0]))


def test_the_list_of_invitations_and_the_neighbourhood_are_those_of_the_federation(table):
    path = table.folder / INVITED
    text = path.read_text()
    other = text.replace("d00000", "d00009")
    for content, line in ((other, "copy it again"), ("[]", "cannot be read"), (None, INVITED)):
        path.unlink() if content is None else path.write_text(content)
        raises(BadInput, line, table.start, 0)
    content = yaml.safe_load((table.folder / FILE).read_text())
    for woven in ({}, {"clients": 4}, {"clients": "many"}, "nobody"):
        (table.folder / FILE).write_text(yaml.safe_dump(content | {"neighbourhood": woven}))
        raises(BadInput, "bring back the one that init wrote", lambda: federation.read(table.folder).woven())


FIRST = FIRST_REPORT_SUM


class ReportTable(Table):
    def __init__(self, folder):
        super().__init__(folder)
        self.mechanism = self.plan.reports.mechanism
        self.terms = terms_in(self.made, self.plan, ReportSum()).about(b"", range(AT_TABLE))

    def wanted(self, *places):
        """The votes of these, from the data that only a test may look at."""
        total = np.zeros(self.mechanism.length, np.int64)
        for place in places:
            items = np.unique(self.opened[place].data.rows.row(0))
            total[items] += int(2**24 / np.sqrt(len(items)))
        return total

    def charged(self, place=0):
        return self.paid()[place]

    def report(self, place, content, number=FIRST):
        return self.ask(place, "report", content, number)

    def sum_of(self, terms):
        adding = HelperSum(Proposal(terms, tuple(map(bytes.fromhex, self.made.helpers))), self.keys, range(AT_TABLE))
        asked = joined(adding.proposal.encode(), self.named())
        keys = [helper.answer(FederationTask("open", terms.round_number), asked) for helper in self.helpers]
        return adding, adding.invite(keys)

    def opened_sum(self, adding):
        request = joined(adding.request(), self.named())
        for helper in self.helpers:
            adding.receive_answer(helper.answer(FederationTask("sum", adding.proposal.terms.round_number), request))
        return adding.finish()


@pytest.fixture(scope="module")
def bases(tmp_path_factory):
    made = {}
    for secagg in ("helpers", "pairs"):
        made[secagg] = tmp_path_factory.mktemp(secagg) / "base"
        basis = basis_of(ContractSubject("veil"), "cohort.size=0", users=AT_TABLE, rounds=2)
        lay_out_in(made[secagg], basis, secagg=secagg, minimum_messages=3)
    return made


@pytest.fixture
def helped(bases, tmp_path):
    yield from table_of(bases["helpers"], tmp_path / "federation", ReportTable)


@pytest.fixture
def paired(bases, tmp_path):
    yield from table_of(bases["pairs"], tmp_path / "federation", ReportTable)


def test_every_sum_of_votes_fits_its_width(helped):
    largest = helped.mechanism.largest
    one_item = np.arange(helped.mechanism.length) == 3
    assert helped.mechanism.weigh(one_item).max() == largest
    for clients in (1, 2, 12, 127, 128, 2**20):
        terms = replace(helped.terms, width=helped.mechanism.masked_width(clients), length=1)
        words = np.full(clients, largest, np.int64).astype(terms.words).sum(dtype=terms.words)
        assert terms.from_words(np.array([words], terms.words)).tolist() == [clients * largest]
    width_for = helped.mechanism.masked_width
    assert [width_for(clients) for clients in (12, 127, 128)] == [29, 32, 33]
    raises(BadInput, "there are 64", width_for, 2**40)


def test_terms_are_those_of_the_federation_and_rounds_keep_to_their_numbers(helped):
    made = helped.made
    assert terms_in(made, helped.plan, ReportSum()) == Terms(made.digest, FIRST, helped.mechanism.length, 28, 3)
    raises(BadInput, "rounds have smaller ones", terms_in, made, helped.plan, RoundSpec(FIRST))
    with pytest.raises(BadInput, match="no reports that are added up"):
        terms_in(made, replace(helped.plan, reports=None, from_reports=None), ReportSum())
    raises(BadInput, "is that of a round", told_once, 0)
    assert largest_answer(helped.known) > helped.terms.vector_bytes


def test_what_leaves_is_masked_votes_that_are_paid_for_once_and_their_sum_is_exact(helped, monkeypatch):
    adding, invitation = helped.sum_of(helped.terms)
    content = joined(invitation, b"")
    messages = {place: helped.report(place, content) for place in (0, 1, 3)}
    assert helped.report(0, content) == messages[0]
    helped.clients[0] = helped.start(0)  # killed
    assert helped.report(0, content) == messages[0]
    for place, message in messages.items():
        assert helped.charged(place) == 1
        raises(BadMessage, None, bits.decode_report, message, helped.mechanism.length, 0)
        sent = np.frombuffer(message, "<u4", helped.mechanism.length, len(message) - helped.terms.vector_bytes)
        assert (sent == helped.wanted(place)).sum() < 5  # one of 2^32 each by chance
        adding.receive(message)
    np.testing.assert_array_equal(helped.opened_sum(adding), helped.wanted(0, 1, 3))
    assert helped.charged(2) == 0
    monkeypatch.setattr(Transaction, "charge", refuse)
    raises(BudgetExhausted, None, helped.report, 2, content)  # what cannot be paid for does not leave


def test_other_terms_other_numbers_and_open_questions_get_nothing(helped):
    changes = ({"round_number": 0}, {"round_number": FIRST + 1}, {"length": 9}, {"width": 64}, {"least": 4})
    for change in changes:
        _, invitation = helped.sum_of(replace(helped.terms, **change))
        raises(BadInput, "terms are not those", helped.report, 0, joined(invitation, b""))
        for helper in helped.helpers:  # which open a round under one proposal
            helper._helper._journal.database.execute("DELETE FROM rounds")
    _, invitation = helped.sum_of(helped.terms)
    for number, line in ((0, "is that of a round"), (FIRST + 1, "1 time at most")):
        raises(BadInput, line, helped.report, 0, joined(invitation, b""), number)
    for content in (b"", joined(b"", b"")):  # as where reports are seen
        raises(VeilrecError, None, helped.report, 0, content)
    schema, about = helped.plan.schema, helped.plan.round_planner.next(0, helped.plan.start, None)
    model = rounds.encode(about, whole_model(schema, helped.plan.start, 0), schema)
    right = terms_in(helped.made, helped.plan, about).about(model, range(AT_TABLE))
    for terms in (replace(right, width=63), replace(right, round_number=1)):
        _, invitation = helped.sum_of(terms)
        raises(BadInput, "terms are not those", helped.ask, 0, "round", joined(invitation, model))
    assert helped.paid() == [0] * AT_TABLE


def shared(table, attempt=0):
    terms = replace(table.terms, round_number=FIRST + attempt)
    adding = PairwiseSum(terms, table.made.woven(), table.keys, range(AT_TABLE))
    return adding, table.shared(adding, table.advertised(adding), b"")


def finished(table, adding, places):
    number, survivors = adding.terms.round_number, adding.survivors()
    for place in places:
        adding.receive_signature(table.ask(place, "sign", survivors, number))
    for place in places:
        adding.receive_reveal(table.ask(place, "reveal", adding.signatures(), number))
    return adding.finish()


def test_among_clients_alone_votes_are_masked_and_a_second_sum_costs_nothing_more(paired):
    _, contents = shared(paired)
    assert paired.charged() == 0
    first = paired.report(0, contents[0])
    assert paired.charged() == 1
    assert paired.report(0, contents[0]) == first
    paired.clients[4] = paired.start(4)  # killed, and so out of this sum, which comes to nothing
    raises(BadTask, "left it for good", paired.report, 4, contents[4])
    raises(
        RoundIsOver,
        None,
        paired.ask,
        4,
        "advertise",
        PairwiseProposal(paired.terms, tuple(range(AT_TABLE))).encode(),
        FIRST,
    )
    adding, contents = shared(paired, 1)
    for place in range(AT_TABLE):
        message = paired.report(place, contents[place], FIRST + 1)
        assert message != first
        adding.receive_masked(message)
        assert paired.charged(place) == 1
    np.testing.assert_array_equal(finished(paired, adding, tuple(range(AT_TABLE))), paired.wanted(*range(AT_TABLE)))
    raises(RoundIsOver, None, paired.report, 0, contents[0])  # the first sum is not answered any more


def test_among_clients_alone_sums_of_reports_are_counted_and_terms_are_the_plan_s(paired):
    most = ATTEMPTS["pairs"]
    with pytest.raises(BadInput, match=f"{most} times at most"):
        terms = replace(paired.terms, round_number=FIRST + most)
        paired.ask(0, "advertise", PairwiseProposal(terms, tuple(range(AT_TABLE))).encode(), FIRST + most)
    paired.terms = replace(paired.terms, length=paired.terms.length + 1)
    _, contents = shared(paired)
    raises(BadInput, "terms are not those", paired.report, 0, contents[0])
    raises(BadInput, "is that of a round", paired.report, 1, contents[1], 0)
    assert paired.paid() == [0] * AT_TABLE
