"""What devices and helpers do with reports under masks, whoever asks: sums at a table, without a network."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.federation.loopback import basis_of, lay_out_in
from tests.federation.table import AT_TABLE, Table, table_of
from veilrec.audit.contract_subject import ContractSubject
from veilrec.client.federated import RoundIsOver
from veilrec.core.errors import BadInput, VeilrecError
from veilrec.core.schema import FIRST_REPORT_SUM, ReportSum, RoundSpec, whole_model
from veilrec.federation.facts import ATTEMPTS, largest_answer, report_sum, terms_in, width_for
from veilrec.federation.federation import BadTask, FederationTask, joined
from veilrec.federation.secagg.helpers import HelperSum, Proposal
from veilrec.federation.secagg.pairs import PairwiseSum
from veilrec.federation.secagg.terms import Terms
from veilrec.privacy.ledger import BudgetExhausted, Transaction
from veilrec.wire import messages as bits
from veilrec.wire import rounds
from veilrec.wire.messages import BadMessage

FIRST = FIRST_REPORT_SUM


class ReportTable(Table):
    """A table of veil, whose reports are added up."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        assert self.plan.reports is not None
        self.mechanism = self.plan.reports.mechanism
        self.terms = terms_in(self.made, self.plan, ReportSum())

    def wanted(self, *places: int) -> np.ndarray:
        """The votes of these, from the data that only a test may look at."""
        total = np.zeros(self.mechanism.length, np.int64)
        for place in places:
            items = np.unique(self.opened[place].data.rows.row(0))
            total[items] += int(2**24 / np.sqrt(len(items)))
        return total

    def charged(self, place: int = 0) -> int:
        return self.paid()[place]

    def report(self, place: int, content: bytes, number: int = FIRST) -> bytes:
        return self.ask(place, "report", content, number)

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


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = {}
    for secagg in ("helpers", "pairs"):
        made[secagg] = tmp_path_factory.mktemp(secagg) / "base"
        basis = basis_of(ContractSubject("veil"), "cohort.size=0", users=AT_TABLE, rounds=2)
        lay_out_in(made[secagg], basis, secagg=secagg, minimum_messages=3)
    return made


@pytest.fixture
def helped(bases: dict[str, Path], tmp_path: Path) -> Iterator[ReportTable]:
    yield from table_of(bases["helpers"], tmp_path / "federation", ReportTable)


@pytest.fixture
def paired(bases: dict[str, Path], tmp_path: Path) -> Iterator[ReportTable]:
    yield from table_of(bases["pairs"], tmp_path / "federation", ReportTable)


# Terms


def test_every_sum_of_votes_fits_its_width(helped: ReportTable) -> None:
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


def test_terms_are_those_of_the_federation_and_rounds_keep_to_their_numbers(helped: ReportTable) -> None:
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


def test_what_leaves_is_masked_votes_that_are_paid_for_once_and_their_sum_is_exact(
    helped: ReportTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    adding, invitation = helped.sum_of(helped.terms)
    content = joined(invitation, b"")
    messages = {place: helped.report(place, content) for place in (0, 1, 3)}
    assert helped.report(0, content) == messages[0]
    helped.devices[0] = helped.start(0)  # killed
    assert helped.report(0, content) == messages[0]
    for place, message in messages.items():
        assert helped.charged(place) == 1
        with pytest.raises(BadMessage):
            bits.decode_report(message, helped.mechanism.length, 0)
        sent = np.frombuffer(message, "<u4", helped.mechanism.length, len(message) - helped.terms.vector_bytes)
        assert (sent == helped.wanted(place)).sum() < 5  # one of 2^32 each by chance
        adding.receive(message)
    np.testing.assert_array_equal(helped.opened_sum(adding), helped.wanted(0, 1, 3))
    assert helped.charged(2) == 0

    def refuse(*_: object, **__: object) -> None:
        raise BudgetExhausted("gone")

    monkeypatch.setattr(Transaction, "charge", refuse)
    with pytest.raises(BudgetExhausted):  # what cannot be paid for does not leave
        helped.report(2, content)


def test_other_terms_other_numbers_and_open_questions_get_nothing(helped: ReportTable) -> None:
    changes = ({"round_number": 0}, {"round_number": FIRST + 1}, {"length": 9}, {"width": 64}, {"least": 4})
    for change in changes:
        _, invitation = helped.sum_of(replace(helped.terms, **change))
        with pytest.raises(BadInput, match="terms are not those"):
            helped.report(0, joined(invitation, b""))
        for helper in helped.helpers:  # which open a round under one proposal
            helper._helper._journal.database.execute("DELETE FROM rounds")
    _, invitation = helped.sum_of(helped.terms)
    for number, line in ((0, "is that of a round"), (FIRST + 1, "1 time at most")):
        with pytest.raises(BadInput, match=line):
            helped.report(0, joined(invitation, b""), number)
    for content in (b"", joined(b"", b"")):  # as where reports are seen
        with pytest.raises(VeilrecError):
            helped.report(0, content)
    schema, about = helped.plan.schema, helped.plan.agenda.next(0, helped.plan.start, None)
    model = rounds.encode(about, whole_model(schema, helped.plan.start, 0), schema)
    right = terms_in(helped.made, helped.plan, about)
    for terms in (replace(right, width=63), replace(right, round_number=1)):
        _, invitation = helped.sum_of(terms)
        with pytest.raises(BadInput, match="terms are not those"):
            helped.ask(0, "round", joined(invitation, model))
    assert helped.paid() == [0] * AT_TABLE


# Among devices alone


def shared(table: ReportTable, attempt: int = 0) -> tuple[PairwiseSum, dict[int, bytes]]:
    terms = replace(table.terms, round_number=FIRST + attempt)
    adding = PairwiseSum(terms, table.made.woven(), table.keys)
    return adding, table.shared(adding, table.advertised(adding), b"")


def finished(table: ReportTable, adding: PairwiseSum, places: tuple[int, ...]) -> np.ndarray:
    number, survivors = adding.terms.round_number, adding.survivors()
    for place in places:
        adding.receive_signature(table.ask(place, "sign", survivors, number))
    for place in places:
        adding.receive_reveal(table.ask(place, "reveal", adding.signatures(), number))
    return adding.finish()


def test_among_devices_alone_votes_are_masked_and_a_second_sum_costs_nothing_more(paired: ReportTable) -> None:
    _, contents = shared(paired)
    assert paired.charged() == 0
    first = paired.report(0, contents[0])
    assert paired.charged() == 1
    assert paired.report(0, contents[0]) == first
    paired.devices[4] = paired.start(4)  # killed, and so out of this sum, which comes to nothing
    with pytest.raises(BadTask, match="left it for good"):
        paired.report(4, contents[4])
    with pytest.raises(RoundIsOver):
        paired.ask(4, "advertise", paired.terms.encode(), FIRST)
    adding, contents = shared(paired, 1)
    for place in range(AT_TABLE):
        message = paired.report(place, contents[place], FIRST + 1)
        assert message != first
        adding.receive_masked(message)
        assert paired.charged(place) == 1
    np.testing.assert_array_equal(finished(paired, adding, tuple(range(AT_TABLE))), paired.wanted(*range(AT_TABLE)))
    with pytest.raises(RoundIsOver):  # the first sum is not answered any more
        paired.report(0, contents[0])


def test_among_devices_alone_sums_of_reports_are_counted_and_terms_are_the_plan_s(paired: ReportTable) -> None:
    most = ATTEMPTS["pairs"]
    with pytest.raises(BadInput, match=f"{most} times at most"):
        paired.ask(0, "advertise", replace(paired.terms, round_number=FIRST + most).encode(), FIRST + most)
    paired.terms = replace(paired.terms, length=paired.terms.length + 1)
    _, contents = shared(paired)
    with pytest.raises(BadInput, match="terms are not those"):
        paired.report(0, contents[0])
    with pytest.raises(BadInput, match="is that of a round"):
        paired.report(1, contents[1], 0)
    assert paired.paid() == [0] * AT_TABLE
