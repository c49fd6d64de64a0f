"""The compiled kernel of matrix factorisation against autograd in doubles, and what leaves a client."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from veilrec.client.local_training import Cohort, OwnItems
from veilrec.client.mf import ITEMS, USER, MfLocalTrainer, MfSettings, schema, start_weights
from veilrec.core import rng
from veilrec.core.csr import Csr
from veilrec.core.errors import BadInput
from veilrec.core.schema import RoundSpec
from veilrec.kernels.loops import draw_epoch

N_ITEMS, SEED, ROUND = 60, 3, 2
SETTINGS = MfSettings(dim=9, start=0.5, epochs=3)
WAYS = [(1, 4), (7, 4), (0, 4), (7, 0), (0, 0)]  # examples in a step, negatives


def table_of(settings):
    return start_weights(N_ITEMS, settings.dim, settings.start, SEED)[ITEMS]


def learn(settings, data, clients, *, round_number=ROUND, freeze_items=False):
    """What the clients learn in a round, and their user vectors afterwards."""
    trainer = MfLocalTrainer(settings, freeze_items=freeze_items)
    private = trainer.fresh_private_state(np.array(clients), SEED)
    cohort = Cohort(np.array(clients), OwnItems(data), private, SEED)
    return trainer.learn(cohort, {ITEMS: table_of(settings)}, RoundSpec(round_number)), private[USER]


def as_table(learned, client, settings):
    rows = learned.updates.tables[ITEMS]
    entries = slice(rows.offsets[client], rows.offsets[client + 1])
    change = np.zeros((N_ITEMS, settings.dim), np.float32)
    change[rows.index[entries]] = rows.values[entries]
    return change


def by_autograd(own, client, s):
    """User vector, what is sent of the item table, touched items, mean loss of the last epoch before each step."""
    private = MfLocalTrainer(s).fresh_private_state(np.array([client]), SEED)[USER]
    user = torch.tensor(private[0], dtype=torch.float64, requires_grad=True)
    first = torch.tensor(table_of(s), dtype=torch.float64)
    items = first.clone().requires_grad_()
    mine, is_own = own.copy(), np.full(N_ITEMS, -1, np.int32)
    is_own[own] = 0
    size = len(own) * (1 + s.negatives)
    drawn, labels = np.empty(size, np.int32), np.empty(size, np.float32)
    start = np.uint64(rng.stream(SEED, rng.LEARNING, ROUND, client))
    counter, touched, losses, sent = 0, set(), [], torch.zeros_like(first)
    for _ in range(s.epochs):
        counter = draw_epoch(mine, is_own, 0, N_ITEMS, s.negatives, start, counter, drawn, labels)
        touched |= set(drawn.tolist())
        losses = []
        for begin in range(0, size, s.batch or size):
            chosen = slice(begin, begin + (s.batch or size))
            rows = items[torch.tensor(drawn[chosen], dtype=torch.long)]
            wanted = torch.tensor(labels[chosen], dtype=torch.float64)
            if s.loss == "squared":
                loss = (wanted - rows @ user) ** 2
            else:
                loss = torch.nn.functional.binary_cross_entropy_with_logits(rows @ user, wanted, reduction="none")
            losses += loss.tolist()
            penalised = loss + s.decay / 2 * (rows.square().sum(1) + user.square().sum())
            total = penalised.sum() if s.reduction == "sum" else penalised.mean()
            user_gradient, item_gradient = torch.autograd.grad(total, (user, items))
            with torch.no_grad():
                user -= s.user_rate * user_gradient
                if s.update == "gradient":
                    sent -= item_gradient
                else:
                    items -= s.item_rate * item_gradient
                    sent = items.detach() - first
    return user.detach().numpy(), sent.numpy(), touched, float(np.mean(losses))


def compare(settings, own):
    """Learn from some items, and compare with autograd."""
    learned, users = learn(settings, Csr(np.array([0, len(own)]), own), [5])
    user, change, touched, loss = by_autograd(own, 5, settings)
    assert np.abs(users[0] - user).max() <= 1e-5 * np.abs(user).max()
    # A change is a difference of two singles: it keeps 1e-5 of itself or the last bits of the row.
    tolerance = 1e-5 * np.abs(change).max() + 3 * np.finfo(np.float32).eps * np.abs(table_of(settings)).max()
    assert np.abs(as_table(learned, 0, settings) - change).max() <= tolerance
    assert set(learned.updates.tables[ITEMS].index.tolist()) == touched
    assert learned.loss[0] == pytest.approx(loss, rel=1e-5)
    assert learned.examples.tolist() == [len(own) * (1 + settings.negatives) * settings.epochs]
    return learned


def some_items(count):
    return np.random.default_rng(count).choice(N_ITEMS, count, replace=False).astype(np.int32)


@pytest.mark.parametrize("update", ["change", "gradient"])
@pytest.mark.parametrize("loss", ["logistic", "squared"])
@pytest.mark.parametrize("decay", [0.0, 0.005, 0.1])
@pytest.mark.parametrize("reduction", ["sum", "mean"])
@pytest.mark.parametrize("batch", [1, 7, 0])
@pytest.mark.parametrize("length", [1, 13])
def test_the_kernel_follows_the_gradient(length, batch, reduction, decay, loss, update):
    settings = replace(SETTINGS, batch=batch, reduction=reduction, decay=decay, loss=loss, update=update)
    learned = compare(replace(settings, user_rate=0.01), some_items(length))
    if length == 13 and update == "change":  # of 60 items an epoch draws some twice, and so does a full batch
        assert len(learned.updates.tables[ITEMS].index) < 13 * 5 * 3


@pytest.mark.parametrize(("loss", "update"), [("logistic", "change"), ("squared", "change"), ("logistic", "gradient")])
@pytest.mark.parametrize("decay", [0.0, 40.0])
@pytest.mark.parametrize("length", [1, 13, N_ITEMS])
def test_full_batches_of_own_items_follow_the_gradient(length, decay, loss, update):
    """Without negatives an epoch draws nothing; a decay of 40 turns rows round with every step of rate 0.03."""
    settings = replace(SETTINGS, batch=0, negatives=0, decay=decay, loss=loss, update=update)
    compare(replace(settings, user_rate=0.0005), some_items(length))


def test_a_log_that_names_an_item_twice_learns_from_it_twice():
    """A caller's own data need not be distinct; a message names a row once."""
    learned = compare(replace(SETTINGS, batch=0, negatives=0), np.array([4, 9, 4, 4, 7], np.int32))
    assert sorted(learned.updates.tables[ITEMS].index.tolist()) == [4, 7, 9]


@pytest.mark.parametrize(("batch", "negatives"), WAYS)
def test_the_model_and_the_data_given_are_not_changed(tiny_train, batch, negatives):
    settings = replace(SETTINGS, batch=batch, negatives=negatives)
    trainer, table = MfLocalTrainer(settings), table_of(settings)
    items = tiny_train.items.copy()
    clients = np.arange(40)
    private = trainer.fresh_private_state(clients, SEED)
    trainer.learn(Cohort(clients, OwnItems(tiny_train), private, SEED), {ITEMS: table}, RoundSpec(0))
    assert np.array_equal(table, table_of(settings)) and np.array_equal(tiny_train.items, items)


def test_a_client_that_owns_every_item_draws_no_negatives(packed):
    learned, users = learn(SETTINGS, packed([list(range(N_ITEMS)), [3]]), [0, 1])
    assert learned.examples.tolist() == [N_ITEMS * 3, 5 * 3] and np.isfinite(users).all()
    assert learned.updates.tables[ITEMS].offsets[1] == N_ITEMS


@pytest.mark.parametrize(("batch", "negatives"), WAYS)
def test_an_empty_client_sends_no_rows_and_keeps_its_state(packed, batch, negatives):
    settings = replace(SETTINGS, batch=batch, negatives=negatives)
    learned, users = learn(settings, packed([[1, 2], [], [3]]), [4, 5, 6])
    rows = learned.updates.tables[ITEMS]
    assert rows.offsets[1] == rows.offsets[2] and learned.loss[1] == 0.0 and learned.examples[1] == 0
    assert np.array_equal(users[1], MfLocalTrainer(SETTINGS).fresh_private_state(np.array([5]), SEED)[USER][0])
    everybody_empty, _ = learn(settings, packed([[], []]), [0, 1])
    assert everybody_empty.updates.tables[ITEMS].offsets.tolist() == [0, 0, 0]


@pytest.mark.parametrize(("batch", "negatives"), WAYS)
@pytest.mark.parametrize("chunk", [1, 3, 16])
def test_a_cohort_gives_bit_for_bit_what_its_parts_give(tiny_train, batch, negatives, chunk):
    settings = replace(SETTINGS, batch=batch, negatives=negatives)
    together, users = learn(settings, tiny_train, list(range(40)))
    for begin in range(0, 40, chunk):
        some = list(range(begin, min(begin + chunk, 40)))
        apart, own_users = learn(settings, tiny_train.take(np.array(some)), some)
        assert np.array_equal(own_users, users[some]) and np.array_equal(apart.loss, together.loss[some])
        for place, client in enumerate(some):
            assert np.array_equal(as_table(apart, place, settings), as_table(together, client, settings))


def test_draws_depend_on_round_and_client_alone(packed):
    data = packed([[1, 2, 3], [1, 2, 3]])
    same, _ = learn(SETTINGS, data, [8, 8])
    assert np.array_equal(as_table(same, 0, SETTINGS), as_table(same, 1, SETTINGS))
    other, _ = learn(SETTINGS, data, [8, 9])
    assert not np.array_equal(as_table(other, 0, SETTINGS), as_table(other, 1, SETTINGS))
    later, _ = learn(SETTINGS, data, [8, 8], round_number=ROUND + 1)
    assert not np.array_equal(as_table(later, 0, SETTINGS), as_table(same, 0, SETTINGS))


@pytest.mark.parametrize(("batch", "negatives"), WAYS)
def test_frozen_items_stay_and_the_user_still_learns(packed, batch, negatives):
    settings = replace(SETTINGS, batch=batch, negatives=negatives)
    learned, users = learn(replace(settings, epochs=20), packed([[1, 2, 3]]), [0], freeze_items=True)
    assert np.all(learned.updates.tables[ITEMS].values == 0.0)
    before = MfLocalTrainer(SETTINGS).fresh_private_state(np.array([0]), SEED)[USER]
    assert not np.array_equal(users, before)
    short, _ = learn(replace(settings, epochs=1), packed([[1, 2, 3]]), [0], freeze_items=True)
    assert learned.loss[0] < short.loss[0]


def test_starting_values_have_the_size_asked_for():
    weights = start_weights(2_000, 16, 0.2, SEED)[ITEMS]
    assert weights.shape == schema(2_000, 16)[ITEMS].shape and weights.dtype == np.float32
    assert weights.std() == pytest.approx(0.2, rel=0.03)  # 32,000 draws: 7 standard errors
    assert not np.array_equal(weights, start_weights(2_000, 16, 0.2, SEED + 1)[ITEMS])


def test_item_numbers_outside_the_model_are_refused(packed):
    for items in ([N_ITEMS], [-1], [3, 2**31 - 1]):
        with pytest.raises(BadInput, match="the model has items 0 to 59"):
            learn(SETTINGS, packed([items]), [0])
