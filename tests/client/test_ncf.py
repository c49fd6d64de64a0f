"""NeuMF on a client against autograd of the torch module; deep gradient compression."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from veilrec.client import ncf
from veilrec.client.local_training import Cohort, LocalResults, OwnItems
from veilrec.core import rng
from veilrec.core.csr import Csr
from veilrec.core.schema import ClientUpdates, RoundSpec, Rows, Schema, Tensor
from veilrec.kernels.loops import draw_epoch
from veilrec.kernels.neumf import _TILE
from veilrec.models.baseline_networks import NeuMF
from veilrec.models.scores import ITEMS

SEED, ROUND, N_ITEMS = 7, 3, 60
RATES = {"user_rate": 0.02, "item_rate": 0.03, "network_rate": 0.01}
SMALL = ncf.NcfSettings(gmf=5, mlp=6, layers=(7, 4), start=0.5, epochs=2, batch=13, decay=0.05, **RATES)


def histories(lengths=(9, 1, 30, 4), n_items=N_ITEMS):
    generator = np.random.default_rng(1)
    rows = [generator.choice(n_items, n, replace=False) for n in lengths]
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return Csr(offsets, np.concatenate(rows).astype(np.int32))


def learn(settings, data, clients, n_items=N_ITEMS, **options):
    trainer = ncf.NcfLocalTrainer(settings, **options)
    numbers = np.asarray(clients, np.int64)
    private = trainer.fresh_private_state(numbers, SEED)
    weights = ncf.start_weights(n_items, settings.shape, settings.start, SEED)
    learned = trainer.learn(Cohort(numbers, OwnItems(data.take(numbers)), private, SEED), weights, RoundSpec(ROUND))
    return learned, private[ncf.USER]


class TorchClient:
    """One client, the slow way, in doubles: a torch module, autograd, and each optimiser in a line or two."""

    def __init__(self, settings, client, n_items):
        self.settings = settings
        self.net = NeuMF(1, n_items, settings.shape).double()
        weights = ncf.start_weights(n_items, settings.shape, settings.start, SEED)
        with torch.no_grad():
            for name, tensor in self.net.public().items():
                tensor.copy_(torch.from_numpy(weights[name]))
            user = ncf.NcfLocalTrainer(settings).fresh_private_state(np.array([client]), SEED)[ncf.USER]
            self.net.users.weight.copy_(torch.from_numpy(user))
        self.moments = {p: torch.zeros(2, *p.shape, dtype=p.dtype) for p in self.net.parameters()}
        self.gathered = NeuMF(1, n_items, settings.shape).double()  # negative gradients, in the same places
        for parameter in self.gathered.parameters():
            torch.nn.init.zeros_(parameter)
        self.steps = 0

    def learn(self, client, own, n_items):
        s = self.settings
        is_own = np.full(n_items, -1, np.int32)
        is_own[own] = 0
        own = own.copy()
        start = np.uint64(rng.stream(SEED, rng.LEARNING, ROUND, client))
        counter, size = 0, len(own) * (1 + s.negatives)
        items, labels = np.empty(size, np.int32), np.empty(size, np.float32)
        for _ in range(s.epochs):
            counter = draw_epoch(own, is_own, 0, n_items, s.negatives, start, counter, items, labels)
            losses = []
            for begin in range(0, size, s.batch or size):
                part = slice(begin, begin + (s.batch or size))
                numbers = torch.from_numpy(items[part].astype(np.int64))
                losses.append(self.step(numbers, torch.tensor(labels[part]).double()))
        return sum(losses) / size

    def sent(self, weights):
        """What leaves the device."""
        if self.settings.update == "gradient":
            return {name: value.detach().numpy() for name, value in self.gathered.public().items()}
        return {name: value.detach().numpy() - weights[name] for name, value in self.net.public().items()}

    def step(self, items, labels):
        s, net = self.settings, self.net
        users = torch.zeros_like(items)
        logits = net(users, items)
        loss = binary_cross_entropy_with_logits(logits, labels, reduction="sum")
        penalty = net.users(users).square().sum() + net.items(items).square().sum()
        net.zero_grad()
        scale = 1.0 / len(items) if s.reduction == "mean" else 1.0
        (scale * (loss + s.decay / 2 * penalty)).backward()
        self.steps += 1
        touched = torch.zeros(len(net.items.weight), 1, dtype=torch.float64)
        touched[items] = 1.0
        with torch.no_grad():
            for parameter, gathered in zip(net.parameters(), self.gathered.parameters(), strict=True):
                rate = s.network_rate
                if parameter is net.users.weight:
                    rate = s.user_rate
                elif parameter is net.items.weight:
                    rate = s.item_rate
                if s.update == "gradient" and parameter is not net.users.weight:
                    gathered.sub_(parameter.grad)
                    continue
                move = self.move(parameter, touched if parameter is net.items.weight else 1.0)
                parameter.sub_(rate * move)
        return loss.item()

    def move(self, parameter, touched):
        gradient, moments = parameter.grad, self.moments[parameter]
        if self.settings.optimiser == "sgd":
            return gradient
        first = 0.9 * moments[0] + 0.1 * gradient
        second = 0.999 * moments[1] + 0.001 * gradient.square()
        moments[0] = torch.where(torch.as_tensor(touched > 0), first, moments[0])
        moments[1] = torch.where(torch.as_tensor(touched > 0), second, moments[1])
        corrected = (second / (1 - 0.999**self.steps)).sqrt() + 1e-8
        return touched * first / (1 - 0.9**self.steps) / corrected


@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
@pytest.mark.parametrize("reduction", ["sum", "mean"])
@pytest.mark.parametrize(("batch", "layers"), [(13, (7, 4)), (0, (8,)), (1, (9, 5, 3))])
def test_equals_autograd(optimiser, reduction, batch, layers):
    settings = replace(SMALL, optimiser=optimiser, reduction=reduction, batch=batch, layers=layers)
    compare(settings, histories(), N_ITEMS, rtol=5e-5)


def test_equals_autograd_with_the_default_sizes_and_several_tiles():
    # SGD: Adam divides by the gradient's size, and so makes large errors of rounding where a gradient is near zero.
    settings = replace(ncf.NcfSettings(), optimiser="sgd", user_rate=0.5, item_rate=2.0, network_rate=0.1, batch=0)
    data = histories((80, 3), n_items=500)
    assert 80 * (1 + settings.negatives) * 0.8 > _TILE  # even where a fifth of the examples are repetitions
    compare(settings, data, 500, rtol=2e-5)


def test_equals_autograd_with_the_default_settings():
    compare(ncf.NcfSettings(), histories((80, 3), n_items=500), 500, rtol=1e-4)


@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
@pytest.mark.parametrize("batch", [13, 0])
def test_gradients_are_those_of_autograd_at_what_the_server_sent(optimiser, batch):
    compare(replace(SMALL, optimiser=optimiser, batch=batch, update="gradient"), histories(), N_ITEMS, rtol=5e-5)


def compare(settings, data, n_items, rtol):
    clients = np.arange(len(data))
    learned, users = learn(settings, data, clients, n_items)
    updates = learned.updates
    weights = ncf.start_weights(n_items, settings.shape, settings.start, SEED)
    rows = updates.tables[ITEMS]
    for client in clients:
        reference = TorchClient(settings, client, n_items)
        loss = reference.learn(client, data.row(client), n_items)
        expected = reference.sent(weights)
        got = np.zeros_like(weights[ITEMS])
        mine = slice(rows.offsets[client], rows.offsets[client + 1])
        got[rows.index[mine]] = rows.values[mine]
        assert len(set(rows.index[mine])) == len(rows.index[mine])
        steps = reference.steps
        close(got, expected[ITEMS], weights[ITEMS], steps, rtol)
        for name, values in updates.dense.items():
            close(values[client], expected[name], weights[name], steps, rtol)
        user = reference.net.users.weight[0].detach().numpy()
        close(users[client], user, user, steps, rtol)
        assert learned.loss[client] == pytest.approx(loss, rel=1e-4)


def close(got, change, start, steps, rtol):
    """Within rtol of the largest change, and what rounding the weights to single precision at every step adds."""
    rounding = 4 * 2.0**-24 * np.sqrt(steps) * np.abs(start).max()
    np.testing.assert_allclose(got, change, rtol=0, atol=rtol * np.abs(change).max() + rounding)


def test_the_number_of_threads_changes_nothing(monkeypatch):
    outcomes = []
    for threads in ("1", "3", "8"):
        monkeypatch.setenv("OMP_NUM_THREADS", threads)
        learned, users = learn(SMALL, histories(), range(4))
        rows = learned.updates.tables[ITEMS]
        parts = [users, learned.loss, rows.offsets, rows.index, rows.values, *learned.updates.dense.values()]
        outcomes.append([values.copy() for values in parts])
    for others in outcomes[1:]:
        for ours, theirs in zip(outcomes[0], others, strict=True):
            np.testing.assert_array_equal(ours, theirs)


def test_a_frozen_model_lets_only_the_user_learn():
    learned, users = learn(SMALL, histories(), range(4), freeze_public=True)
    assert not learned.updates.tables[ITEMS].values.any()
    assert not any(values.any() for values in learned.updates.dense.values())
    assert (users != ncf.NcfLocalTrainer(SMALL).fresh_private_state(np.arange(4), SEED)[ncf.USER]).all()


def test_a_client_that_owns_every_item_learns_without_negatives():
    data = Csr(np.array([0, 5]), np.arange(5, dtype=np.int32))
    learned, _ = learn(SMALL, data, [0], n_items=5)
    assert sorted(learned.updates.tables[ITEMS].index) == [0, 1, 2, 3, 4]
    assert np.isfinite(learned.updates.tables[ITEMS].values).all()


SCHEMA = Schema((Tensor("items", (6, 2), True), Tensor("layer", (4, 5), False)))
CLIENTS = np.array([3, 8])
DATA = OwnItems(Csr(np.array([0, 1, 2]), np.array([0, 1], np.int32)))


def spec(number, public_seed):
    """A round about everything, or about a tenth of the layer."""
    return (
        RoundSpec(number) if public_seed is None else RoundSpec(number, public_seed=public_seed, shares={"layer": 0.1})
    )


class Fixed:
    """Learns the same every round."""

    def __init__(self):
        self.layer = 0.01 * np.random.default_rng(0).standard_normal((2, 4, 5)).astype(np.float32)

    keeps_state = True

    def fresh_private_state(self, clients, draws_seed):
        return {"user": np.ones((len(clients), 1), np.float32)}

    def learn(self, cohort, model, spec):
        rows = Rows(np.array([0, 2, 3]), np.array([1, 4, 0], np.int32), np.ones((3, 2), np.float32))
        updates = ClientUpdates(spec.number, 2, {"items": rows}, {"layer": self.layer.copy()})
        return LocalResults(updates, np.array([1, 1]), np.zeros(2, np.float32))


def run(public_seed, momentum, rounds=40):
    trainer = ncf.DgcLocalTrainer(Fixed(), ncf.DgcSettings(0.1, momentum, 1.0), SCHEMA)
    private = trainer.fresh_private_state(CLIENTS, 0)
    sent = np.zeros((2, 20), np.float32)
    model = {"items": np.zeros((6, 2), np.float32)}
    for number in range(rounds):
        updates = trainer.learn(Cohort(CLIENTS, DATA, private, 0), model, spec(number, public_seed)).updates
        rows = updates.entries["layer"]
        assert np.diff(rows.offsets).tolist() == [2, 2]
        sent[np.repeat([0, 1], 2), rows.index] += rows.values[:, 0]
    return sent, private, updates


@pytest.mark.parametrize("public_seed", [None, 7])
def test_what_is_not_sent_is_kept(public_seed):
    sent, private, updates = run(public_seed, momentum=0.0)
    assert np.allclose(sent + private[ncf.ERROR], 40 * Fixed().layer.reshape(2, -1), rtol=1e-3, atol=1e-5)
    assert np.linalg.norm(private[ncf.ERROR]) < np.linalg.norm(sent) and "layer" not in updates.dense
    assert set(private) == {"user", ncf.MOMENTUM, ncf.ERROR}


def test_momentum_is_cleared_where_something_was_sent():
    _, private, updates = run(None, momentum=0.9)
    rows = updates.entries["layer"]
    client = np.repeat([0, 1], 2)
    assert np.all(private[ncf.MOMENTUM][client, rows.index] == 0.0) and np.all(
        private[ncf.ERROR][client, rows.index] == 0.0
    )


def test_local_clipping_bounds_what_is_accumulated():
    trainer = ncf.DgcLocalTrainer(Fixed(), ncf.DgcSettings(0.1, 0.0, 1e-3), SCHEMA)
    private = trainer.fresh_private_state(CLIENTS, 0)
    model = {"items": np.zeros((6, 2), np.float32)}
    updates = trainer.learn(Cohort(CLIENTS, DATA, private, 0), model, spec(0, 1)).updates
    sent = np.zeros((2, 20), np.float32)
    sent[np.repeat([0, 1], 2), updates.entries["layer"].index] = updates.entries["layer"].values[:, 0]
    assert np.linalg.norm(sent + private[ncf.ERROR], axis=1) == pytest.approx([1e-3, 1e-3], rel=1e-4)


def test_rows_are_cut_as_published_and_whole_where_a_seed_chooses():
    _, _, published = run(None, 0.0, rounds=1)
    _, _, public = run(7, 0.0, rounds=1)
    assert np.diff(published.entries["items"].offsets).tolist() == [2, 2]  # a tenth of 12 entries, rounded up
    assert "items" in public.tables
