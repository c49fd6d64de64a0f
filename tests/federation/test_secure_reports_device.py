"""What devices and helpers do with reports under masks, whoever asks: sums at a table, without a network."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.federation.loopback import basis_of, known_in, lay_out_in
from veilrec.audit.contract_subject import ContractSubject
from veilrec.client.federated import FederatedClient, RoundIsOver
from veilrec.core.errors import BadInput, VeilrecError
from veilrec.core.schema import FIRST_REPORT_SUM, ReportSum, RoundSpec
from veilrec.federation.client import folder as device_folder
from veilrec.federation.client.process import answers_of
from veilrec.federation.facts import ATTEMPTS, largest_answer, report_sum, terms_in, width_for
from veilrec.federation.federation import DEVICES, HELPERS, BadTask, FederationTask, TaskKind, joined
from veilrec.federation.helper import HelperAnswers
from veilrec.federation.identity import identity_of, listed, read_invitation
from veilrec.federation.secagg.helpers import HelperRefusal, HelperSum, Proposal
from veilrec.federation.secagg.pairs import PairwiseSum
from veilrec.federation.secagg.terms import Terms
from veilrec.wire import messages as bits
from veilrec.wire.messages import BadMessage

AT_TABLE = 5
FIRST = FIRST_REPORT_SUM


class Table:
    """All devices of a federation of veil, its helpers if it has any, and what a coordinator would know."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.known = folder, known_in(folder)
        self.made, self.plan = self.known.federation, self.known.plan
        assert self.plan.reports is not None
        self.mechanism = self.plan.reports.mechanism
        self.folders = sorted((folder / DEVICES).iterdir())
        self.keys = {place: identity_of(path).public for place, path in enumerate(self.folders)}
        self.opened: dict[int, FederatedClient] = {}
        self.devices = {place: self.start(place) for place in range(AT_TABLE)}
        self.helpers = [HelperAnswers(path, self.made) for path in sorted((folder / HELPERS).glob("*"))]
        self.terms = terms_in(self.made, self.plan, ReportSum())

    def start(self, place: int):
        if place in self.opened:
            self.opened[place].close()
        path = self.folders[place]
        self.opened[place] = device_folder.open_device(path, self.known)
        return answers_of(self.opened[place], self.known, place, identity_of(path))

    def named(self) -> bytes:
        invitations = [read_invitation(path) for path in self.folders]
        return listed((p, key, invitations[p].endorse(self.made.id, key)) for p, key in self.keys.items())

    def wanted(self, *places: int) -> np.ndarray:
        """The votes of these, from the data that only a test may look at."""
        total = np.zeros(self.mechanism.length, np.int64)
        for place in places:
            items = np.unique(self.opened[place].data.rows.row(0))
            total[items] += int(2**24 / np.sqrt(len(items)))
        return total

    def charged(self, place: int = 0) -> int:
        return self.opened[place].spent()[0].messages

    def ask(self, place: int, kind: TaskKind, content: bytes, number: int = FIRST) -> bytes:
        return self.devices[place].answer(FederationTask(kind, number), content)

    # With helpers

    def sum_of(self, terms: Terms) -> tuple[HelperSum, bytes]:
        adding = HelperSum(Proposal(terms, tuple(map(bytes.fromhex, self.made.helpers))), self.keys)
        asked = joined(adding.proposal.encode(), self.named())
        keys = [helper.answer(FederationTask("open", terms.round_number), asked) for helper in self.helpers]
        return adding, adding.invite(keys)

    def opened_sum(self, adding: HelperSum) -> np.ndarray:
        request = joined(adding.request(), self.named())
        for helper in self.helpers:
            adding.receive_answer(helper.answer(FederationTask("sum", adding.proposal.terms.round_number), request))
        return adding.finish()

    def close(self) -> None:
        for part in (*self.opened.values(), *self.helpers):
            part.close()


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = {}
    for secagg in ("helpers", "pairs"):
        made[secagg] = tmp_path_factory.mktemp(secagg) / "base"
        basis = basis_of(ContractSubject("veil"), "cohort.size=0", users=AT_TABLE, rounds=2)
        lay_out_in(made[secagg], basis, secagg=secagg, minimum_messages=3)
    return made


def table_of(base: Path, folder: Path) -> Iterator[Table]:
    shutil.copytree(base, folder)
    made = Table(folder)
    yield made
    made.close()


@pytest.fixture
def helped(bases: dict[str, Path], tmp_path: Path) -> Iterator[Table]:
    yield from table_of(bases["helpers"], tmp_path / "federation")


@pytest.fixture
def paired(bases: dict[str, Path], tmp_path: Path) -> Iterator[Table]:
    yield from table_of(bases["pairs"], tmp_path / "federation")


# Terms


def test_every_sum_of_votes_fits_its_width(helped: Table) -> None:
    largest = helped.mechanism.largest
    one_item = np.arange(helped.mechanism.length) == 3
    assert helped.mechanism.weigh(one_item).max() == largest
    for devices in (1, 2, 12, 127, 128, 2**20):
        terms = replace(helped.terms, width=width_for(devices, largest), length=1)
        words = np.full(devices, largest, np.int64).astype(terms.words).sum(dtype=terms.words)
        assert terms.from_words(np.array([words], terms.words)).tolist() == [devices * largest]
    assert [width_for(devices, largest) for devices in (12, 127, 128)] == [29, 32, 33]
    with pytest.raises(BadInput, match="there are 64"):
        width_for(2**40, largest)


def test_terms_are_those_of_the_federation_and_rounds_keep_to_their_numbers(helped: Table) -> None:
    made = helped.made
    assert helped.terms == Terms(made.digest, FIRST, helped.mechanism.length, 28, 3)
    with pytest.raises(BadInput, match="rounds have smaller ones"):
        terms_in(made, helped.plan, RoundSpec(FIRST))
    with pytest.raises(BadInput, match="no reports that are added up"):
        terms_in(made, replace(helped.plan, reports=None, from_reports=None), ReportSum())
    with pytest.raises(BadInput, match="is that of a round"):
        report_sum(0)
    assert largest_answer(helped.known) > helped.terms.vector_bytes


# With helpers


def test_what_leaves_is_masked_votes_that_are_paid_for_and_their_sum_is_exact(helped: Table) -> None:
    adding, invitation = helped.sum_of(helped.terms)
    content = joined(invitation, b"")
    messages = {place: helped.ask(place, "report", content) for place in (0, 1, 3)}
    for place, message in messages.items():
        assert helped.charged(place) == 1
        with pytest.raises(BadMessage):
            bits.decode_report(message, helped.mechanism.length, 0)
        sent = np.frombuffer(message, "<u4", helped.mechanism.length, len(message) - helped.terms.vector_bytes)
        assert (sent == helped.wanted(place)).sum() < 5  # one of 2^32 each by chance
        adding.receive(message)
    np.testing.assert_array_equal(helped.opened_sum(adding), helped.wanted(0, 1, 3))
    assert helped.charged(2) == 0


def test_asked_again_a_device_says_the_same_and_pays_once(helped: Table) -> None:
    _, invitation = helped.sum_of(helped.terms)
    content = joined(invitation, b"")
    first = helped.ask(0, "report", content)
    assert helped.ask(0, "report", content) == first
    helped.devices[0] = helped.start(0)  # killed
    assert helped.ask(0, "report", content) == first
    assert helped.charged() == 1


def test_a_report_that_cannot_be_paid_for_does_not_leave(helped: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    from veilrec.privacy.ledger import BudgetExhausted, Transaction

    def refuse(*_: object, **__: object) -> None:
        raise BudgetExhausted("gone")

    _, invitation = helped.sum_of(helped.terms)
    monkeypatch.setattr(Transaction, "charge", refuse)
    with pytest.raises(BudgetExhausted):
        helped.ask(0, "report", joined(invitation, b""))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"round_number": 0}, "terms are not those"),
        ({"round_number": FIRST + 1}, "terms are not those"),
        ({"length": 9}, "terms are not those"),
        ({"width": 64}, "terms are not those"),
        ({"least": 4}, "terms are not those"),
    ],
)
def test_other_terms_get_nothing(helped: Table, changes: dict[str, int], words: str) -> None:
    _, invitation = helped.sum_of(replace(helped.terms, **changes))
    with pytest.raises(BadInput, match=words):
        helped.ask(0, "report", joined(invitation, b""))
    assert helped.charged() == 0


def test_neither_the_number_of_a_round_nor_a_second_sum_nor_an_open_question_is_answered(helped: Table) -> None:
    _, invitation = helped.sum_of(helped.terms)
    with pytest.raises(BadInput, match="is that of a round"):
        helped.ask(0, "report", joined(invitation, b""), number=0)
    with pytest.raises(BadInput, match="1 time at most"):
        helped.ask(0, "report", joined(invitation, b""), number=FIRST + 1)
    for content in (b"", joined(b"", b"")):  # as where reports are seen
        with pytest.raises(VeilrecError):
            helped.ask(0, "report", content)
    assert helped.charged() == 0


def test_a_round_under_the_terms_of_another_gets_nothing(helped: Table) -> None:
    from veilrec.core.schema import whole_model
    from veilrec.wire import rounds

    schema, about = helped.plan.schema, helped.plan.agenda.next(0, helped.plan.start, None)
    model = rounds.encode(about, whole_model(schema, helped.plan.start, 0), schema)
    right = terms_in(helped.made, helped.plan, about)
    for terms in (replace(right, round_number=1), replace(right, width=63)):
        _, invitation = helped.sum_of(terms)
        with pytest.raises(BadInput, match="terms are not those"):
            helped.ask(0, "round", joined(invitation, model), number=0)
    assert helped.charged() == 0


def test_a_helper_answers_one_list_of_reports_and_the_rounds_after_it(helped: Table) -> None:
    adding, invitation = helped.sum_of(helped.terms)
    content = joined(invitation, b"")
    messages = [helped.ask(place, "report", content) for place in range(AT_TABLE)]
    smaller = HelperSum(adding.proposal, helped.keys, check_key=adding.check_key)
    for message in messages:
        adding.receive(message)
    for message in messages[:-1]:
        smaller.receive(message)
    first = helped.opened_sum(adding)
    for helper in helped.helpers:
        with pytest.raises(HelperRefusal, match="another list of devices"):
            helper.answer(FederationTask("sum", FIRST), joined(smaller.request(), b"[]"))
    path = sorted((helped.folder / HELPERS).glob("*"))[0]
    helped.helpers[0].close()
    helped.helpers[0] = HelperAnswers(path, helped.made)  # killed: it knows no device until it is told again
    again = HelperSum(adding.proposal, helped.keys, check_key=adding.check_key)
    for message in messages:
        again.receive(message)
    np.testing.assert_array_equal(helped.opened_sum(again), first)
    about = helped.plan.agenda.next(0, helped.plan.start, None)
    helped.sum_of(terms_in(helped.made, helped.plan, about))  # the first round can be opened
    helper = helped.helpers[0]._helper
    helper._journal.settle(0, b"answered")
    with pytest.raises(HelperRefusal, match="its key is gone"):  # and once it is answered nobody opens reports any more
        helped.opened_sum(again)


# Among devices alone


def shared(table: Table, attempt: int = 0) -> tuple[PairwiseSum, dict[int, bytes]]:
    number = FIRST + attempt
    adding = PairwiseSum(terms_in(table.made, table.plan, ReportSum(attempt)), table.made.woven(), table.keys)
    for place in table.devices:
        adding.receive_advert(table.ask(place, "advertise", adding.propose(), number))
    for place, group in adding.groups().items():
        adding.receive_shares(table.ask(place, "share", joined(table.named(), group), number))
    return adding, {place: joined(b"", boxes) for place, boxes in adding.boxes().items()}


def finished(table: Table, adding: PairwiseSum, places: tuple[int, ...]) -> np.ndarray:
    number, survivors = adding.terms.round_number, adding.survivors()
    for place in places:
        adding.receive_signature(table.ask(place, "sign", survivors, number))
    for place in places:
        adding.receive_reveal(table.ask(place, "reveal", adding.signatures(), number))
    return adding.finish()


def test_among_devices_alone_votes_are_masked_and_a_second_sum_costs_nothing_more(paired: Table) -> None:
    _, contents = shared(paired)
    assert paired.charged() == 0
    first = paired.ask(0, "report", contents[0])
    assert paired.charged() == 1
    assert paired.ask(0, "report", contents[0]) == first
    paired.devices[4] = paired.start(4)  # killed, and so out of this sum, which comes to nothing
    with pytest.raises(BadTask, match="left it for good"):
        paired.ask(4, "report", contents[4])
    with pytest.raises(RoundIsOver):
        paired.ask(4, "advertise", paired.terms.encode())
    adding, contents = shared(paired, 1)
    for place in range(AT_TABLE):
        message = paired.ask(place, "report", contents[place], FIRST + 1)
        assert message != first
        adding.receive_masked(message)
        assert paired.charged(place) == 1
    np.testing.assert_array_equal(finished(paired, adding, tuple(range(AT_TABLE))), paired.wanted(*range(AT_TABLE)))
    with pytest.raises(RoundIsOver):  # the first sum is not answered any more
        paired.ask(0, "report", contents[0])


def test_among_devices_alone_sums_of_reports_are_counted_and_terms_are_the_plan_s(paired: Table) -> None:
    most = ATTEMPTS["pairs"]
    with pytest.raises(BadInput, match=f"{most} times at most"):
        paired.ask(0, "advertise", replace(paired.terms, round_number=FIRST + most).encode(), FIRST + most)
    paired.terms = replace(paired.terms, length=paired.terms.length + 1)
    adding = PairwiseSum(paired.terms, paired.made.woven(), paired.keys)
    for place in paired.devices:
        adding.receive_advert(paired.ask(place, "advertise", adding.propose()))
    for place, group in adding.groups().items():
        adding.receive_shares(paired.ask(place, "share", joined(paired.named(), group)))
    with pytest.raises(BadInput, match="terms are not those"):
        paired.ask(0, "report", joined(b"", adding.boxes()[0]))
    with pytest.raises(BadInput, match="is that of a round"):
        paired.ask(1, "report", joined(b"", adding.boxes()[1]), 0)
    assert [paired.charged(place) for place in range(AT_TABLE)] == [0] * AT_TABLE
