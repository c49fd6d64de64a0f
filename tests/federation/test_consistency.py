"""A coordinator that tells clients different things: no sum opens, and whoever notices says so."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from tests.federation.loopback import basis_of, lay_out_in
from tests.federation.test_masked_clients import AT_TABLE, RoundTable, Table, table_of
from tests.wire.raising import raises
from veilrec.audit.contract_subject import ContractSubject
from veilrec.client.federated import check_planned
from veilrec.core.errors import Diverged, VeilrecError
from veilrec.core.schema import BOUND, RoundSpec, Rows, Schema, Tensor, whole_model, with_bound
from veilrec.federation.facts import terms_in
from veilrec.federation.federation import FederationTask, joined
from veilrec.federation.link import answer_to
from veilrec.federation.secagg.helpers import HelperSum, Proposal
from veilrec.federation.secagg.pairs import PairwiseSum
from veilrec.server.round_specs import LearntBound, SeededParts
from veilrec.wire import rounds
from veilrec.wire.messages import BadMessage, Declined

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


def helper_sum(table, content, spec=None):
    terms = terms_in(table.made, table.plan, spec or RoundSpec(0)).about(content, EVERYBODY)
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


@pytest.mark.parametrize(
    ("method", "settings", "failure"),
    [
        ("fedmf", (), None),
        ("fedmf", ("aggregation=weighted-mean",), None),
        ("dp-fedmf", ("privacy.noise=distributed", "privacy.lost=0.4"), Diverged),
        ("dpals-features", (), np.linalg.LinAlgError),
    ],
)
def test_nobody_falls_silent_because_of_own_data(tmp_path, monkeypatch, method, settings, failure):
    """A model of one loud item would else tell, of each client by name, whether it has the item."""
    basis = basis_of(ContractSubject(method), "cohort.size=0", *settings, users=AT_TABLE, rounds=2)
    lay_out_in(tmp_path / "base", basis, secagg="helpers", minimum_messages=3 if method == "fedmf" else None)
    for table in table_of(tmp_path / "base", tmp_path / "federation", Table):
        weights = {name: values.copy() for name, values in table.plan.start.items()}
        first = next(iter(weights))
        if failure is None:
            weights[first][:] = 2.0**20 * np.sign(np.random.default_rng(1).standard_normal(weights[first].shape))
        else:
            monkeypatch.setattr(type(table.plan.trainer), "learn", _failing(failure))
        spec = table.plan.round_planner.next(0, weights, None)
        content = rounds.encode(spec, whole_model(table.plan.schema, weights, 0), table.plan.schema)
        adding = helper_sum(table, content, spec)
        invitation = opened(table, adding)
        for place in EVERYBODY:
            adding.receive(table.ask(place, "round", joined(invitation, content)))
        assert sum(client.overflown() for client in table.opened.values()) >= (1 if failure is None else AT_TABLE)


def _failing(failure):
    def learn(*_):
        raise failure("with this data")

    return learn


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


@pytest.mark.parametrize(
    "changes", [{"shares": {"items": 0.01}}, {"rank": 1}, {"clip_norm": 0.1}, {"coding": "int4"}, {"rows": [0, 1, 2]}]
)
def test_a_round_that_is_not_the_plan_s_is_declined(helped, changes):
    """Noise is drawn on what a round is about: in a round of other parts the rest would leave with little or none."""
    spec, schema = RoundSpec(0, **changes), helped.plan.schema
    whole = whole_model(schema, helped.plan.start, 0)
    if spec.rows is not None:
        chosen, ends = np.array(spec.rows, np.int32), np.array([0, len(spec.rows)])
        parts = {name: Rows(ends, chosen, rows.values[chosen]) for name, rows in whole.tables.items()}
        whole = replace(whole, tables=parts)
    content = rounds.encode(spec, whole, schema)
    adding = helper_sum(helped, content)
    told = joined(opened(helped, adding), content)
    words = "something else than the plan|neither is possible"
    raises(BadMessage, words, helped.ask, TARGET, "round", told)
    assert helped.paid() == [0] * AT_TABLE


def test_the_spec_of_a_round_follows_the_plan_s_planner_whatever_its_rows():
    schema = Schema((Tensor("items", (4, 2), by_row=True), Tensor("layer", (6,), by_row=False)))
    start = {tensor.name: np.zeros(tensor.shape, np.float32) for tensor in schema.tensors}
    rows = np.array([1, 2], np.int32)
    planner = SeededParts(schema=schema, public_seed=9, entry_share=0.5, names=("layer",))
    plan = SimpleNamespace(schema=schema, start=start, round_planner=planner)
    right = planner.next(3, start, None)
    check_planned(plan, replace(right, rows=rows), start)
    raises(Declined, "than the plan", check_planned, plan, replace(right, public_seed=10), start)
    raises(Declined, "than the plan", check_planned, plan, RoundSpec(3, None, 9, {"layer": 0.25}), start)
    bounded = with_bound(schema)
    weights = {**start, BOUND: np.array([0.5], np.float32)}
    plan = SimpleNamespace(schema=bounded, start={**start, BOUND: np.ones(1, np.float32)}, round_planner=LearntBound())
    check_planned(plan, RoundSpec(3, clip_norm=0.5), weights)
    raises(Declined, "than the plan", check_planned, plan, RoundSpec(3, clip_norm=1.0), weights)
    raises(Declined, "than the plan", check_planned, plan, RoundSpec(3, rows, clip_norm=0.5), weights)
