"""A client that asks: drawn once a public period, charged before it leaves, the same for somebody without a history."""

from dataclasses import replace

import numpy as np
import pytest

from tests.evaluation.served import DIM, NEWS, MeanModel, categories, impressions
from veilrec.client.queries import PooledInput, QueryClient, Serving, kept, latest
from veilrec.core.csr import Csr
from veilrec.core.errors import BadInput
from veilrec.evaluation.serving import make_plan
from veilrec.privacy import ledger as ledger_module
from veilrec.privacy.budget import Budget
from veilrec.privacy.ledger import BudgetExhausted, Ledger
from veilrec.privacy.randomness import SeededSource
from veilrec.wire.queries import decode

DAY = 86400.0
CLICK = Budget(unit="click", adjacency="replace-one", epsilon=3.0, delta=1e-6)
MODES = [
    Serving(mode="pooled", epsilon=1.0, delta=1e-6),
    Serving(mode="pooled", epsilon=1.0, delta=1e-6, sensitive=("subject-1",)),
    Serving(mode="attention", epsilon=1.0, delta=1e-6),
    Serving(mode="attention", epsilon=1.0, padding=0.5),
    Serving(mode="interest", epsilon=1.0),
    Serving(mode="vector", epsilon=1.0),
]
by_mode = pytest.mark.parametrize("serving", MODES, ids=lambda how: f"{how.mode}-{how.padding or how.sensitive or ''}")


@pytest.fixture
def uptime(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(ledger_module, "_uptime", lambda: now[0])
    return now


@pytest.fixture
def ledger(tmp_path, uptime):
    return Ledger.create(tmp_path / "ledger", [CLICK], minimum_period_seconds=DAY)


def _asking(serving):
    return make_plan(serving, MeanModel(basis=4), categories()).asking


def _client(ledger, serving, history, **options):
    right = {"model_version": "1", "history": np.array(history, np.int32), "unprotected": serving.sensitive is not None}
    return QueryClient(_asking(serving), ledger, **right | options)


def _next_period(ledger, uptime, number):
    uptime[0] += DAY + 1.0
    assert ledger.advance_period(number, b"", lambda number, proof: True)


@by_mode
def test_a_query_is_drawn_once_a_period_whatever_is_clicked(serving, ledger, uptime):
    client = _client(ledger, serving, [1, 5, 9])
    first = client.ask()
    spent = ledger.report()[0].messages
    for item in (2, 3, 40):
        client.clicked(item)
        assert client.ask() == first
    assert ledger.report()[0].messages == spent == 1
    decode(first, _asking(serving).question)
    _next_period(ledger, uptime, 1)
    again = {client.ask() for _ in range(3)}
    assert (len(again), ledger.report()[0].messages) == (1, 2)
    if serving.mode != "interest":  # one of four answers may come twice
        assert again != {first}


@by_mode
def test_somebody_without_a_history_sends_as_many_bytes_and_pays_as_much(serving, tmp_path):
    sent = []
    for name, history in (("empty", []), ("full", list(range(30)))):
        ledger = Ledger.create(tmp_path / name, [CLICK], minimum_period_seconds=DAY)
        sent.append((len(_client(ledger, serving, history).ask()), ledger.report()[0].spent))
    assert sent[0] == sent[1]


class _Overflows(MeanModel):
    """Of whoever has clicked news 7, it makes no number."""

    def users_before_basis(self, histories):
        users = super().users_before_basis(histories)
        users[[7 in histories.row(row) for row in range(len(histories))]] = np.nan
        return users

    def users_in_slots(self, clicks, taken):
        users = super().users_in_slots(clicks, taken)
        users[(clicks == self.news[7]).all(axis=2).any(axis=1)] = np.inf
        return users


@by_mode
@pytest.mark.parametrize("clicked", [7, NEWS, NEWS + 10**6])
def test_no_click_keeps_a_query_back(serving, clicked, ledger):
    """Neither one on which the model overflows, nor one on news that it does not know: silence would tell it."""
    asking = make_plan(serving, _Overflows(basis=4), categories()).asking
    history, agreed = np.array([3, clicked], np.int32), serving.sensitive is not None
    client = QueryClient(asking, ledger, model_version="1", history=history, unprotected=agreed)
    decode(client.ask(), asking.question)
    assert ledger.report()[0].messages == 1


def test_another_model_is_another_question_and_a_budget_ends(ledger):
    one = Serving(mode="interest", epsilon=1.0)
    for version in ("1", "2", "3"):
        _client(ledger, one, [1], model_version=version).ask()
    before = ledger.report()
    with pytest.raises(BudgetExhausted, match="spent"):
        _client(ledger, one, [1], model_version="4").ask()
    assert ledger.report() == before
    _client(ledger, one, [1], model_version="3").ask()  # what was drawn is still there, and free
    assert ledger.report() == before


def test_what_is_refused_costs_nothing(ledger):
    pooled = Serving(mode="pooled", epsilon=1.0, delta=1e-6)
    with pytest.raises(BadInput, match="seeded"):
        _client(ledger, pooled, [1], source=SeededSource(1)).ask()
    with pytest.raises(BadInput, match="version"):
        _client(ledger, pooled, [1], model_version="")
    with pytest.raises(BadInput, match="unprotected=True"):  # clicks in plaintext, without the user's consent
        _client(ledger, replace(pooled, sensitive=("subject-1",)), [3], unprotected=False)
    assert ledger.report()[0].messages == 0


@by_mode
def test_many_clients_say_what_each_would_say_but_for_noise(serving):
    asking, histories = _asking(serving), impressions(20).histories
    told = asking.told(histories, SeededSource(3))
    assert told.shape == (20, 1 if serving.mode == "interest" else asking.question.size)
    np.testing.assert_array_equal(told, asking.told(histories, SeededSource(3)))
    clear = asking.encoder.clear(histories)
    for row in range(20):
        alone = asking.encoder.clear(histories.take(np.array([row])))
        assert (clear is None) == (alone is None)
        if clear is not None and alone is not None:
            np.testing.assert_array_equal(clear[row], alone[0])
    assert asking.told(Csr(np.zeros(1, np.int64), np.zeros(0, np.int32)), SeededSource(3)).shape[0] == 0


def test_clicks_in_the_clear_do_not_tell_how_many_sensitive_ones_there_are():
    """The latest clicks are counted apart: a sensitive click must not push another one out."""
    table = np.eye(NEWS, DIM)
    encoder = PooledInput(table, slots=4, sensitive=np.arange(NEWS) % 4 == 1)
    plain = [0, 2, 3, 4, 6, 7]
    quiet, busy = (
        encoder.clear(Csr(np.array([0, len(row)]), np.array(row, np.int32)))
        for row in (plain, [*plain, 1, 5, 9, 13, 17])
    )
    np.testing.assert_array_equal(quiet, busy)
    nothing = encoder.inputs(Csr(np.array([0, len(plain)]), np.array(plain, np.int32)))
    assert len(nothing.items) == 0


def test_the_latest_clicks_and_those_of_some_items():
    rows = Csr(np.array([0, 3, 3, 4]), np.array([5, 6, 7, 8], np.int32))
    np.testing.assert_array_equal(latest(rows, 2).items, [6, 7, 8])
    np.testing.assert_array_equal(latest(rows, 2).offsets, [0, 2, 2, 3])
    some = kept(rows, np.isin(np.arange(10), [5, 8]))
    np.testing.assert_array_equal(some.items, [5, 8])
    np.testing.assert_array_equal(some.offsets, [0, 1, 1, 2])


def test_another_list_of_what_is_sensitive_is_another_question(ledger):
    """The query of the old list would hold clicks in plaintext that the new one protects."""
    asked = {}
    for subject in ("subject-1", "subject-2"):
        serving = Serving(mode="pooled", epsilon=0.5, delta=1e-7, sensitive=(subject,))
        asked[subject] = _client(ledger, serving, [1, 2, 3, 5, 6]).ask()
    assert asked["subject-1"] != asked["subject-2"] and ledger.report()[0].messages == 2
