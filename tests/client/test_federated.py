"""A client on disk: bytes in, bytes out, paid for before they leave, and everything that it keeps sealed."""

import sqlite3
import threading
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from tests.methods.tastes import build, small_problem
from veilrec.client.federated import FederatedClient, RoundIsOver
from veilrec.client.local_training import Cohort, OwnItems, examples_if_asked, nothing_if_overflown
from veilrec.client.mf import ITEMS, USER
from veilrec.core.csr import Csr
from veilrec.core.errors import BadInput, VeilrecError
from veilrec.core.files import Seal, key_in
from veilrec.core.schema import ClientUpdates, Factors, RoundSpec, Rows, Schema, Tensor, whole_model
from veilrec.privacy.ledger import BudgetExhausted, Ledger, LedgerError
from veilrec.privacy.randomness import SeededSource, noise_of_client, noise_of_report
from veilrec.simulation.real_clients import SECRET, budget_for
from veilrec.wire import messages, rounds
from veilrec.wire.messages import BadMessage, Declined

OWN = OwnItems(Csr(np.array([0, 3]), np.array([3, 17, 5], np.int32)))
NOISY = "dp-fedmf:as-published"
ASKED = "priv-fedmf-sub:as-published"


@cache
def plan_of(name, *settings):
    simulated = build(name, small_problem(4), ("cohort.size=2", *settings))
    return simulated.plan


def make(folder, plan, budgets=None, **options):
    return FederatedClient.create(folder, plan, OWN, [budget_for(plan)] if budgets is None else budgets, **options)


def broadcast(plan, number=0):
    return rounds.encode(RoundSpec(number), whole_model(plan.schema, plan.start, number), plan.schema)


def charged(client):
    return client.spent()[0].messages


def test_the_message_is_what_the_trainer_and_the_mechanism_give_for_a_cohort_of_one(tmp_path):
    plan = plan_of(NOISY)
    client = make(tmp_path, plan, number=6, draws_seed=9, noise_of_message=lambda n: noise_of_client(SECRET, n, 6))
    message = client.take_part(broadcast(plan, 2), 2)
    private = plan.trainer.fresh_private_state(np.array([6]), 9)
    learned = plan.trainer.learn(Cohort(np.array([6]), OWN, private, 9), plan.start, RoundSpec(2))
    released = plan.mechanism.message(
        examples_if_asked(learned.updates, False), RoundSpec(2), noise_of_client(SECRET, 2, 6)
    )
    assert message == messages.encode_update(released.value, plan.schema)
    assert np.array_equal(client.private[USER], private[USER])


def test_the_number_of_examples_leaves_only_when_the_round_weighs_by_it(tmp_path):
    for aggregation, tells in (("mean", False), ("weighted-mean", True)):
        plan = plan_of("fedmf", f"aggregation={aggregation}")
        message = make(tmp_path / aggregation, plan, unprotected=True).take_part(broadcast(plan), 0)
        assert (messages.decode_update(message, plan.schema, 0).examples is not None) == tells


def test_a_model_that_overflows_on_own_data_is_answered_and_paid_for(tmp_path, monkeypatch):
    """Whoever sends the model would else learn, from silence and for nothing, who has the items it overflows on."""
    plan = plan_of(NOISY)
    usual = make(tmp_path / "other", plan).take_part(broadcast(plan), 0)
    learn = type(plan.trainer).learn

    def overflowing(self, cohort, weights, spec):
        learned = learn(self, cohort, weights, spec)
        for rows in learned.updates.tables.values():
            rows.values[:1] = np.inf
        return learned

    monkeypatch.setattr(type(plan.trainer), "learn", overflowing)
    client = make(tmp_path / "own", plan)
    assert len(client.take_part(broadcast(plan), 0)) == len(usual)
    assert (charged(client), client.overflown()) == (1, 1)


def test_a_model_that_overflows_takes_a_client_out_of_no_later_round(tmp_path):
    """Its state would be none from then on, and all its later updates zeros, which hide nobody."""
    plan = plan_of("fedncf")
    client = make(tmp_path, plan, unprotected=True)
    before, draws = client.private, np.random.default_rng(1)
    weights = {name: 2.0**20 * np.sign(draws.standard_normal(values.shape)) for name, values in plan.start.items()}
    loud = whole_model(plan.schema, {name: values.astype(np.float32) for name, values in weights.items()}, 0)
    client.take_part(rounds.encode(RoundSpec(0), loud, plan.schema), 0)
    assert client.overflown() == 1 and all(np.array_equal(client.private[name], before[name]) for name in before)
    sent = messages.decode_update(client.take_part(broadcast(plan, 1), 1), plan.schema, 1)
    assert client.overflown() == 1 and np.abs(sent.tables[ITEMS].values).max() > 0.0


@pytest.mark.parametrize(
    ("weight", "reason"), [(3e38, "beyond the bound"), (-(2.0**20) - 1, "beyond the bound"), (np.nan, "not finite")]
)
def test_weights_that_nobody_learns_from_are_declined_and_cost_nothing(tmp_path, weight, reason):
    """Whether a client declines depends on the model alone: everybody does."""
    plan = plan_of(NOISY)
    weights = {name: values.copy() for name, values in plan.start.items()}
    weights[ITEMS][17] = 2.0**20  # is learnt from
    sent = rounds.encode(RoundSpec(0), whole_model(plan.schema, weights, 0), plan.schema)
    client = make(tmp_path, plan)
    client.take_part(sent, 0)
    weights[ITEMS][17] = weight
    sent = rounds.encode(RoundSpec(1), whole_model(plan.schema, weights, 1), plan.schema)
    with pytest.raises(Declined) as declined:
        client.take_part(sent, 1)
    assert declined.value.reason == reason
    assert (charged(client), client.overflown()) == (1, 0)


def test_a_round_is_answered_once_and_repeated_free_of_charge(tmp_path):
    plan = plan_of(NOISY)
    with make(tmp_path, plan) as client:
        message, private = client.take_part(broadcast(plan, 3), 3), client.private[USER]
        assert client.take_part(broadcast(plan, 3), 3) == message and charged(client) == 1
    with FederatedClient.open(tmp_path, plan, OWN) as again:
        assert again.take_part(b"whatever came with it", 3) == message and charged(again) == 1
        assert np.array_equal(again.private[USER], private) and again.take_part(broadcast(plan, 4), 4) != message
        assert charged(again) == 2


def test_an_older_round_is_refused(tmp_path):
    plan = plan_of(NOISY)
    client = make(tmp_path, plan)
    client.take_part(broadcast(plan, 3), 3)
    with pytest.raises(RoundIsOver, match="round 2 is over: the client has answered round 3 already"):
        client.take_part(broadcast(plan, 2), 2)
    assert charged(client) == 1


def test_two_threads_get_the_same_message_for_one_charge(tmp_path):
    plan = plan_of(NOISY)
    client = make(tmp_path, plan)
    answers = []
    threads = [threading.Thread(target=lambda: answers.append(client.take_part(broadcast(plan), 0))) for _ in range(4)]
    for act in (threading.Thread.start, threading.Thread.join):
        for thread in threads:
            act(thread)
    assert (len(answers), len(set(answers)), charged(client)) == (4, 1, 1)


def test_a_broadcast_that_is_not_of_this_round_and_plan_is_refused(tmp_path):
    plan = plan_of(NOISY)
    client = make(tmp_path, plan)
    before = client.private[USER]
    some = Rows(np.array([0, 2]), np.array([0, 1], np.int32), np.zeros((2, 1), np.float32))
    other = Schema((Tensor(ITEMS, (plan.schema[ITEMS].shape[0], 1), by_row=True),))
    nothing = rounds.encode(RoundSpec(0), ClientUpdates(0, 1), plan.schema)
    wrong_shape = rounds.encode(RoundSpec(0), ClientUpdates(0, 1, {ITEMS: some}), other)
    for bad in (broadcast(plan, 1), broadcast(plan)[:-1], b"", nothing, wrong_shape):
        with pytest.raises(BadMessage):
            client.take_part(bad, 0)
    assert np.array_equal(before, client.private[USER]) and charged(client) == 0


def test_when_the_budget_is_gone_nothing_leaves_but_what_has_left_before(tmp_path):
    plan = plan_of(NOISY)
    small = budget_for(plan)
    cost = small.cost(plan.mechanism.event(), plan.mechanism.unit, plan.mechanism.adjacency)
    client = make(tmp_path, plan, [replace(small, epsilon=1.5 * cost.pure)])
    message, private = client.take_part(broadcast(plan), 0), client.private[USER]
    with pytest.raises(BudgetExhausted):
        client.take_part(broadcast(plan, 1), 1)
    assert np.array_equal(client.private[USER], private) and client.take_part(broadcast(plan), 0) == message


def test_a_budget_too_small_and_seeded_noise_keep_everything_inside(tmp_path):
    plan = plan_of(ASKED)
    poor = make(tmp_path / "poor", plan, [budget_for(plan, epsilon=0.1)])
    seeded = make(tmp_path / "seeded", plan, noise_of_message=SeededSource, noise_of_report=SeededSource)
    for client, error, told in ((poor, BudgetExhausted, "budget"), (seeded, BadInput, "protects nobody")):
        with pytest.raises(error, match=told):
            client.take_part(broadcast(plan), 0)
        with pytest.raises(error, match=told):
            client.report(0, 0)
        assert charged(client) == 0


@pytest.mark.parametrize("name", ["fedmf", "dp-fedmf-topk:as-published", "fedmf-sub-rr"])
def test_messages_in_the_clear_need_consent_and_void_every_statement(name, tmp_path):
    plan = plan_of(name)
    with pytest.raises(BadInput, match="leaves in plaintext, and no budget covers it: give unprotected=True"):
        make(tmp_path, plan)
    client = make(tmp_path, plan, unprotected=True)
    assert client.spent()[0].spent.basis == "proven"
    client.take_part(broadcast(plan), 0)
    (account,) = client.spent()
    assert (account.spent.basis, account.messages) == ("none", 0)
    assert any("1 message without protection" in caveat for caveat in account.spent.caveats)
    if plan.reports is not None:  # which are not free for that
        client.report(0, 0)
        assert charged(client) == 1


def test_budgets_have_to_cover_the_messages_and_say_who_is_trusted(tmp_path):
    plan = plan_of("dp-fedmf", "cohort.sampling=fixed")
    budget = budget_for(plan)
    with pytest.raises(BadInput, match="says that its messages trust nobody, but cohort-sum trusts the server"):
        make(tmp_path, plan, [replace(budget, trust="nobody")])
    with pytest.raises(BadInput, match="no budget covers a message that protects one user"):
        make(tmp_path, plan, [replace(budget, adjacency="add-remove")])
    assert not list(tmp_path.iterdir())


def test_a_client_has_one_row_of_data_and_stays_with_its_plan(tmp_path):
    plan = plan_of(NOISY)
    make(tmp_path, plan).close()
    with pytest.raises(BadInput, match="the data of 2 clients"):
        FederatedClient.open(tmp_path, plan, OwnItems(Csr(np.array([0, 1, 3]), OWN.rows.items)))
    with pytest.raises(BadInput, match="made for another plan"):
        FederatedClient.open(tmp_path, plan_of(NOISY, "privacy.epsilon=3"), OWN)
    with pytest.raises(LedgerError, match="there is a ledger already"):
        make(tmp_path, plan)
    FederatedClient.open(tmp_path, plan, OWN).close()


def test_a_report_is_drawn_once_a_period_and_repeated_for_every_round(tmp_path):
    plan = plan_of(ASKED)
    length = plan.reports.mechanism.length
    with make(tmp_path, plan, noise_of_report=lambda period: noise_of_report(SECRET, period, 6)) as client:
        first = client.report(0, 0)
        assert charged(client) == 1
    own = np.zeros(length, np.bool_)
    own[OWN.rows.items] = True
    wanted = plan.reports.mechanism.report(own, noise_of_report(SECRET, 0, 6)).value
    assert np.array_equal(messages.decode_report(first, length, 0), wanted)
    with FederatedClient.open(tmp_path, plan, OWN) as again:
        assert np.array_equal(messages.decode_report(again.report(7, 0), length, 7), wanted) and charged(again) == 1
        with pytest.raises(BadInput, match="told once, and not for period 1"):
            again.report(7, 1)
        assert charged(again) == 1
    asked_anew = replace(plan, reports=replace(plan.reports, fresh=True))
    with FederatedClient.open(tmp_path, asked_anew, OWN) as again:
        fresh = messages.decode_report(again.report(7, 1), length, 7)
        assert charged(again) == 2 and not np.array_equal(fresh, wanted)
        with pytest.raises(RoundIsOver, match="period 0 is over"):
            again.report(8, 0)
    with pytest.raises(BadInput, match="asks clients for no reports"):
        make(tmp_path / "other", plan_of(NOISY)).report(0, 0)


@pytest.mark.parametrize("item", [-1, 300])
def test_items_that_do_not_exist_are_not_reported(item, tmp_path):
    plan = plan_of(ASKED)
    data = OwnItems(Csr(np.array([0, 1]), np.array([item], np.int32)))
    client = FederatedClient.create(tmp_path, plan, data, [budget_for(plan)])
    with pytest.raises(BadInput, match="a report is on items 0 to 299"):
        client.report(0, 0)
    assert charged(client) == 0


def test_nothing_that_the_client_keeps_can_be_read_without_the_key(tmp_path):
    plan = plan_of(ASKED)
    with make(tmp_path, plan, draws_seed=123456789) as client:
        message = client.take_part(broadcast(plan), 0)
        report = client.report(0, 0)
        private = client.private[USER].tobytes()
        files = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
        modes = {path.name: oct(path.stat().st_mode & 0o777) for path in tmp_path.iterdir()}
    assert set(files) == {"key", "ledger", "ledger.seq", "ledger-wal", "ledger-shm"}
    assert set(modes.values()) == {"0o600"}
    for content in files.values():
        for told_apart in (message[100:132], report[12:44], private[:16], b"123456789", b"draws_seed", b"epsilon"):
            assert told_apart not in content


def test_what_is_kept_is_bound_to_its_place_and_to_the_key(tmp_path):
    plan = plan_of(NOISY)
    with make(tmp_path / "one", plan) as client:
        client.take_part(broadcast(plan), 0)
    database = sqlite3.connect(tmp_path / "one" / "ledger")
    other = "SELECT content FROM kept WHERE name = 'outbox'"
    with database:
        database.execute(f"UPDATE kept SET content = ({other}) WHERE name = 'private'")  # noqa: S608
    database.close()
    client = FederatedClient.open(tmp_path / "one", plan, OWN)
    with client, pytest.raises(LedgerError, match="kept private does not open"):
        client.take_part(broadcast(plan, 1), 1)
    make(tmp_path / "two", plan).close()
    with pytest.raises(LedgerError, match="cannot be read"):
        FederatedClient.open(tmp_path / "two", plan, OWN, key=tmp_path / "one" / "key")


def test_a_key_that_is_missing_damaged_or_open_to_others_is_refused(tmp_path):
    plan = plan_of(NOISY)
    key = tmp_path / "elsewhere"
    make(tmp_path / "client", plan, key=key).close()
    with pytest.raises(BadInput, match="there is no key here"):
        FederatedClient.open(tmp_path / "client", plan, OWN)
    FederatedClient.open(tmp_path / "client", plan, OWN, key=key).close()
    key.chmod(0o640)
    with pytest.raises(VeilrecError, match="others can read this key"):
        FederatedClient.open(tmp_path / "client", plan, OWN, key=key)
    key.write_bytes(b"short")
    key.chmod(0o600)
    with pytest.raises(VeilrecError, match="this is not a key: it has 5 bytes"):
        FederatedClient.open(tmp_path / "client", plan, OWN, key=key)


def test_the_ledger_of_something_else_is_no_client(tmp_path):
    plan = plan_of(NOISY)
    seal = Seal(key_in(tmp_path / "key"))
    Ledger.create(tmp_path / "ledger", [budget_for(plan)], minimum_period_seconds=1.0, seal=seal).close()
    with pytest.raises(VeilrecError, match="this is not the ledger of a client"):
        FederatedClient.open(tmp_path, plan, OWN)


@pytest.mark.parametrize(("size", "total"), [(np.nan, 0.0), (np.inf, 0.0), (1e30, 0.0), (2.0, 32.0)])
def test_factors_that_overflow_become_zeros(size, total):
    ones = np.ones((1, 4, 1), np.float32)
    factors = Factors(size * ones, np.ones((1, 1), np.float32), ones.transpose(0, 2, 1))
    left = nothing_if_overflown(ClientUpdates(0, 1, factors={"matrix": factors})).factors["matrix"]
    assert left.product().sum() == total and left.left.shape == (1, 4, 1)
