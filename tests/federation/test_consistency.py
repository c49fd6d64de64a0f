"""A coordinator that tells clients different things: no sum opens, and whoever notices says so."""

import numpy as np
import pytest

from tests.federation.loopback import basis_of, lay_out_in
from tests.federation.test_masked_clients import AT_TABLE, RoundTable, Table, table_of
from tests.wire.raising import raises
from veilrec.audit.contract_subject import ContractSubject
from veilrec.core.errors import VeilrecError
from veilrec.core.schema import RoundSpec, whole_model
from veilrec.federation.facts import terms_in
from veilrec.federation.federation import FederationTask, joined
from veilrec.federation.link import answer_to
from veilrec.federation.secagg.helpers import HelperSum, Proposal
from veilrec.federation.secagg.pairs import PairwiseSum
from veilrec.wire import rounds
from veilrec.wire.messages import Declined

TARGET, EVERYBODY = 0, range(AT_TABLE)


@pytest.fixture(scope="module")
def bases(tmp_path_factory):
    made = {}
    for secagg in ("helpers", "pairs"):
        made[secagg] = tmp_path_factory.mktemp(secagg) / "base"
        basis = basis_of(ContractSubject("dp-fedmf"), "cohort.size=0", users=AT_TABLE, rounds=2)
        lay_out_in(made[secagg], basis, secagg=secagg, minimum_messages=3)
    return made


@pytest.fixture
def helped(bases, tmp_path):
    yield from table_of(bases["helpers"], tmp_path / "federation", Table)


@pytest.fixture
def paired(bases, tmp_path):
    yield from table_of(bases["pairs"], tmp_path / "federation", RoundTable)


def model(table, factor=1.0):
    plan = table.plan
    weights = {name: (values * factor).astype(values.dtype) for name, values in plan.start.items()}
    return rounds.encode(RoundSpec(0), whole_model(plan.schema, weights, 0), plan.schema)


def models(table):
    """The model of round 0; one within all bounds that overflows wherever it is learnt from, and one beyond them."""
    loud = rounds.encode(
        RoundSpec(0),
        whole_model(table.plan.schema, {n: np.full_like(v, 2.0**20) for n, v in table.plan.start.items()}, 0),
        table.plan.schema,
    )
    return model(table), loud, model(table, 1e30)


def helper_sum(table, content):
    terms = terms_in(table.made, table.plan, RoundSpec(0)).about(content, EVERYBODY)
    proposal = Proposal(terms, tuple(map(bytes.fromhex, table.made.helpers)))
    return HelperSum(proposal, table.keys, EVERYBODY)


def opened(table, adding):
    asked = joined(adding.proposal.encode(), table.named())
    return adding.invite([helper.answer(FederationTask("open", 0), asked) for helper in table.helpers])


def test_one_invitation_and_two_models(helped):
    """The attack: everybody but the target gets a model that overflows, and the sum would be one person's update."""
    real, loud, _ = models(helped)
    adding = helper_sum(helped, real)
    invitation = opened(helped, adding)
    adding.receive(helped.ask(TARGET, "round", joined(invitation, real)))
    for place in range(1, AT_TABLE):
        raises(Declined, "not what the terms of the sum name", helped.ask, place, "round", joined(invitation, loud))
    raises(VeilrecError, "sums of 3 at least", adding.request)
    assert helped.paid() == [1, 0, 0, 0, 0]  # nothing is charged for what did not leave
    for place in range(1, AT_TABLE):  # nobody is shut out of the round by it
        adding.receive(helped.ask(place, "round", joined(invitation, real)))
    request = joined(adding.request(), helped.named())
    for helper in helped.helpers:
        adding.receive_answer(helper.answer(FederationTask("sum", 0), request))
    assert adding.finish().any()


def test_two_invitations_and_two_models(helped):
    """A helper has one key a round, for one session: those whom a server invites to another one believe no key."""
    real, loud, _ = models(helped)
    adding = helper_sum(helped, loud)
    invitation = opened(helped, adding)
    raises(VeilrecError, "other terms", opened, helped, helper_sum(helped, real))
    forged = helper_sum(helped, real).proposal.encode() + invitation[len(adding.proposal.encode()) :]
    raises(VeilrecError, "signature", helped.ask, TARGET, "round", joined(forged, real))
    assert helped.paid() == [0] * AT_TABLE


def test_among_clients_alone_two_models_have_no_quorum(paired):
    real, loud, _ = models(paired)
    contents = paired.shared(paired.sum, paired.advertised(paired.sum), b"")
    paired.sum.receive_masked(paired.ask(TARGET, "round", joined(real, contents[TARGET][8:])))
    for place in range(1, AT_TABLE):
        raises(Declined, "not what the terms", paired.ask, place, "round", joined(loud, contents[place][8:]))
    raises(VeilrecError, "sums of 3 at least", paired.sum.survivors)
    assert paired.paid() == [1, 0, 0, 0, 0]


def test_among_clients_alone_two_sessions_have_no_keys_in_common(paired):
    _, loud, _ = models(paired)
    terms = paired.sum.terms.about(loud, EVERYBODY)
    other = PairwiseSum(terms, paired.made.woven(), paired.keys, EVERYBODY)
    raises(
        VeilrecError,
        "client 0 enters another round",
        paired.sum.receive_advert,
        paired.ask(0, "advertise", other.propose()),
    )
    for place in range(1, AT_TABLE):
        paired.sum.receive_advert(paired.ask(place, "advertise", paired.sum.propose()))
    groups = paired.sum.groups()  # without the target, who is in a round of its own
    assert TARGET not in groups


@pytest.mark.parametrize("secagg", ["helpers", "pairs"])
def test_weights_beyond_their_bound_or_not_finite_are_declined_before_any_data_is_looked_at(
    bases, tmp_path, secagg, monkeypatch
):
    kind = Table if secagg == "helpers" else RoundTable
    for table in table_of(bases[secagg], tmp_path / "federation", kind):
        monkeypatch.setattr(type(table.plan.trainer), "learn", lambda *_: pytest.fail("it has learnt"))
        real, _, beyond = models(table)
        odd = bytearray(real)
        odd[-4:] = np.array([np.nan], "<f4").tobytes()
        said = []
        for content, reason in ((beyond, b"beyond the bound"), (bytes(odd), b"not finite")):
            task = FederationTask("round", 0)
            told = joined(opened_invitation(table, content), content) if secagg == "helpers" else joined(content, b"")
            declined, answer = answer_to(table.clients[0], task, told, said.append)
            assert (declined.kind, answer) == ("declined", reason)
        assert table.paid() == [0] * AT_TABLE
        assert len(said) == 2


def opened_invitation(table, content):
    for helper in table.helpers:
        helper._helper._journal.database.execute("DELETE FROM rounds")
    return opened(table, helper_sum(table, content))


def test_learning_that_overflows_is_answered_with_zeros_and_noted_for_the_client_alone(helped, monkeypatch):
    _, loud, _ = models(helped)
    trainer = type(helped.plan.trainer)
    learn = trainer.learn

    def overflowing(self, cohort, weights, spec):
        learned = learn(self, cohort, weights, spec)
        for rows in learned.updates.tables.values():
            rows.values[:] = np.inf
        return learned

    monkeypatch.setattr(trainer, "learn", overflowing)
    adding = helper_sum(helped, loud)
    invitation = opened(helped, adding)
    for place in EVERYBODY:
        adding.receive(helped.ask(place, "round", joined(invitation, loud)))
    assert [client.overflown() for client in helped.opened.values()] == [1] * AT_TABLE
    assert helped.paid() == [1] * AT_TABLE
