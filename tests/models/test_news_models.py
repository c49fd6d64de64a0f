"""News models: layers against plain implementations, and what every model owes."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from veilrec.methods.news.prepare import MODELS, make_model
from veilrec.models import news_model
from veilrec.models.federated_news import Interests, PublicHead
from veilrec.models.news_networks import Fm

N, LENGTH, DIM = 4, 6, 5
LENGTHS = (6, 3, 1, 0)


@pytest.fixture
def values():
    return torch.randn(N, LENGTH, DIM, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.fixture
def mask():
    return torch.arange(LENGTH) < torch.tensor(LENGTHS)[:, None]


def started(layer):
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_(0.0, 0.5, generator=generator)
    return layer.double()


def weights(layer):
    return {name: p.detach().numpy() for name, p in layer.named_parameters()}


def softmax(scores):
    exponents = np.exp(np.array(scores) - max(scores))
    return exponents / exponents.sum()


def assert_same(found, wanted):
    assert np.allclose(found.detach().numpy(), wanted, atol=1e-12)


@pytest.mark.parametrize("personal", [False, True])
def test_attention_over_values(personal, values, mask):
    layer = started(news_model.PersonalAttention(DIM, 3) if personal else news_model.AdditiveAttention(DIM, 3))
    w, name = weights(layer), "keys" if personal else "hidden"
    queries = torch.arange(N * 3, dtype=torch.float64).view(N, 3) / 5
    wanted = np.zeros((N, DIM))
    for row, length in enumerate(LENGTHS):
        x, query = values[row, :length].numpy(), queries[row].numpy() if personal else w["query.weight"][0]
        if length:
            scores = [float(query @ np.tanh(w[f"{name}.weight"] @ v + w[f"{name}.bias"])) for v in x]
            wanted[row] = sum(a * v for a, v in zip(softmax(scores), x, strict=True))
    assert_same(layer(values, mask, queries) if personal else layer(values, mask), wanted)


def test_self_attention(values, mask):
    heads, width = 2, 3
    layer = started(news_model.SelfAttention(DIM, heads, width))
    w = weights(layer)["projections.weight"].reshape(3, heads, width, DIM)
    wanted = np.zeros((N, LENGTH, heads * width))
    for row, length in enumerate(LENGTHS):
        x = values[row, :length].numpy()
        for head in range(heads):
            queries, keys, content = (x @ w[part, head].T for part in range(3))
            for place in range(length):
                attention = softmax([float(queries[place] @ key) / width**0.5 for key in keys])
                wanted[row, place, head * width : (head + 1) * width] = attention @ content
    assert_same(layer(values, mask), wanted)


def test_word_cnn(values, mask):
    layer = started(news_model.WordCnn(DIM, 4, window=3))
    w = weights(layer)
    kernel = w["kernel.weight"].reshape(4, 3, DIM)
    wanted = np.zeros((N, LENGTH, 4))
    for row, length in enumerate(LENGTHS):
        for place in range(length):
            total = w["kernel.bias"].copy()
            for shift in range(3):
                at = place + shift - 1
                if 0 <= at < length:
                    total += kernel[:, shift] @ values[row, at].numpy()
            wanted[row, place] = np.maximum(total, 0.0)
    assert_same(layer(values, mask), wanted)


def test_gru_is_that_of_torch_up_to_the_end_of_each_sequence(values, mask):
    layer = started(news_model.Gru(DIM, 4))
    theirs = nn.GRU(DIM, 4, batch_first=True).double()
    with torch.no_grad():
        for mine, name in (("inputs", "ih"), ("recurrent", "hh")):
            getattr(theirs, f"weight_{name}_l0").copy_(layer.get_parameter(f"{mine}.weight"))
            getattr(theirs, f"bias_{name}_l0").copy_(layer.get_parameter(f"{mine}.bias"))
    start = torch.full((N, 4), 0.3, dtype=torch.float64)
    wanted = start.unsqueeze(1).repeat(1, LENGTH, 1)  # without a step the state stays
    for row, length in enumerate(LENGTHS):
        if length:
            states, _ = theirs(values[row : row + 1, :length], start[None, row : row + 1])
            wanted[row, :length], wanted[row, length:] = states[0], states[0, -1]
    assert_same(layer(values, mask, start), wanted.detach().numpy())


def test_masked_softmax_and_mean_of_nothing_are_zero():
    nothing = torch.zeros(1, 3, dtype=torch.bool)
    assert news_model.masked_softmax(torch.ones(1, 3), nothing).tolist() == [[0.0, 0.0, 0.0]]
    assert news_model.masked_mean(torch.ones(1, 3, 2), nothing).tolist() == [[0.0, 0.0]]
    some = torch.tensor([[True, True, False]])
    assert news_model.masked_mean(torch.tensor([[[1.0], [3.0], [100.0]]]), some).tolist() == [[2.0]]


def test_dropout_draws_from_its_generator_only():
    layer = news_model.Dropout(0.5)
    ones = torch.ones(100, 100)
    assert torch.equal(layer(ones), ones)
    state = torch.get_rng_state()
    drawn = []
    for _ in range(2):
        layer.generator = torch.Generator().manual_seed(3)
        drawn.append(layer(ones))
    assert torch.equal(torch.get_rng_state(), state) and torch.equal(drawn[0], drawn[1])
    # 10,000 fair coins: the mean is off by 0.05 (5 standard errors of 2 * 0.005) once in a million runs.
    assert abs(float(drawn[0].mean()) - 1.0) < 0.05


SIZES = news_model.NewsSizes(word_dim=6, heads=2, head_dim=4, attention=5, category_dim=3, recent=2)
SHAPE = news_model.NewsShape(words=20, categories=5, subcategories=6, entities=7, entity_dim=4, sentence_dim=9)
N_NEWS, WORDS = 8, 7


def make(name):
    return make_model(name, SIZES, SHAPE, torch.Generator().manual_seed(4)).double()


def some_news():
    generator = torch.Generator().manual_seed(5)
    real = torch.arange(WORDS) < torch.randint(1, WORDS - 2, (N_NEWS, 1), generator=generator)

    def codes(most):
        return torch.randint(1, most, (N_NEWS, WORDS), generator=generator) * real

    return news_model.NewsInput(
        title=codes(20),
        abstract=codes(20),
        category=torch.arange(N_NEWS) % 5,
        subcategory=torch.arange(N_NEWS) % 6,
        entities=codes(7),
        sentence=torch.randn(N_NEWS, 9, generator=generator, dtype=torch.float64),
    )


HISTORY = torch.tensor([[0, 1, 2, 3], [4, 5, 0, 0], [0, 0, 0, 0]])
MASK = torch.arange(4) < torch.tensor([[4], [2], [0]])
CANDIDATES = torch.tensor([[5, 6, 7], [1, 2, 3], [0, 6, 2]])


def scores(model, news, history, mask, candidates):
    states = model.encode_news(news)
    return model.score(states[history], mask, states[candidates])


def padded_batch():
    """Histories of which some clicks are padded, with noise on their attention."""
    noise = torch.linspace(-0.1, 0.4, 15, dtype=torch.float64).view(3, 5)
    padded = torch.tensor([[True, False, False, True], [False, True, False, False], [False] * 4])
    return news_model.Batch(
        torch.arange(N_NEWS), HISTORY, MASK, torch.arange(3), CANDIDATES, torch.ones_like(CANDIDATES) > 0, padded, noise
    )


@pytest.mark.parametrize("name", MODELS)
def test_scores_have_a_row_per_user_and_a_column_per_candidate(name):
    model = make(name)
    found = scores(model, some_news(), HISTORY, MASK, CANDIDATES)
    assert found.shape == CANDIDATES.shape and torch.isfinite(found).all()
    states = model.encode_news(some_news())
    if model.is_dot_product:
        assert states.shape == (N_NEWS, model.dim)
        users = model.user(states[HISTORY], MASK)
        assert torch.allclose((users[:, None] * states[CANDIDATES]).sum(-1), found)
        if not isinstance(model, Interests):
            assert torch.equal(users[2], model.newcomer)
        elif not isinstance(model, PublicHead):
            assert torch.equal(model.whole_user(states[HISTORY], MASK)[2], model.newcomer)


@pytest.mark.parametrize("name", MODELS)
def test_padding_changes_no_score(name):
    model, news = make(name), some_news()
    wanted = scores(model, news, HISTORY, MASK, CANDIDATES)
    assert news_model.trimmed(news).title.shape[1] < WORDS
    assert torch.allclose(scores(model, news_model.trimmed(news), HISTORY, MASK, CANDIDATES), wanted, atol=1e-12)
    longer = torch.cat([HISTORY, torch.full((3, 3), 7)], 1)
    unreal = torch.cat([MASK, torch.zeros(3, 3, dtype=torch.bool)], 1)
    assert torch.allclose(scores(model, news, longer, unreal, CANDIDATES), wanted, atol=1e-12)


@pytest.mark.parametrize("name", MODELS)
def test_the_order_of_candidates_and_users_changes_no_score(name):
    model, news = make(name), some_news()
    wanted = scores(model, news, HISTORY, MASK, CANDIDATES)
    turned = scores(model, news, HISTORY.flip(0), MASK.flip(0), CANDIDATES.flip(0).flip(1))
    assert torch.allclose(turned.flip(0).flip(1), wanted, atol=1e-12)
    alone = scores(model, news, HISTORY[:1], MASK[:1], CANDIDATES[:1, :1])
    assert torch.allclose(alone, wanted[:1, :1], atol=1e-12)


@pytest.mark.parametrize("name", MODELS)
def test_every_parameter_can_learn(name):
    model = make(name)
    frozen = model.take_in(some_news())
    with torch.no_grad():  # away from the zeros that some weights start at
        for parameter in model.parameters():
            parameter.add_(torch.linspace(-0.3, 0.4, parameter.numel(), dtype=torch.float64).view(parameter.shape))
    total = scores(model, some_news(), HISTORY, MASK, CANDIDATES).square().sum()
    if "pad" not in frozen and isinstance(model, Interests):  # the pad learns only where clicks are padded
        total = total + news_model.losses_of(model, model.encode_news(some_news()), padded_batch()).sum()
    total.backward()
    for parameter_name, parameter in model.named_parameters():
        if parameter_name in frozen:
            continue
        assert parameter.grad is not None, parameter_name
        assert parameter.grad.abs().max() > 0, parameter_name


@pytest.mark.parametrize("name", ["fednewsrec", "lstur-ini", "lstur-con", "ebnr"])
def test_the_order_of_clicks_matters_to_recurrent_models_only(name):
    news = some_news()
    for model, expected in ((make(name), True), (make("naml"), False)):
        turned = scores(model, news, HISTORY[:1].flip(1), MASK[:1], CANDIDATES[:1])
        changed = not torch.allclose(turned, scores(model, news, HISTORY[:1], MASK[:1], CANDIDATES[:1]))
        assert changed == expected


def test_the_head_starts_as_the_cosine_with_the_mean_and_a_bonus_for_known_categories():
    model, news = make("sentence-head"), some_news()
    unit = replace(news, sentence=torch.nn.functional.normalize(news.sentence, dim=-1))
    found = scores(model, unit, HISTORY[:1], MASK[:1], CANDIDATES[:1])
    cosine = unit.sentence[CANDIDATES[0]] @ unit.sentence[HISTORY[0]].mean(0)
    bonus = torch.zeros(3, dtype=torch.float64)
    for codes in (news.category, news.subcategory):
        offered, read = codes[CANDIDATES[0]], codes[HISTORY[0]]
        bonus += 0.3**2 * ((offered[:, None] == read) & (read > 1)).double().mean(1)
    assert torch.allclose(found[0], 5.0 * (cosine + bonus))


@pytest.mark.parametrize("name", ["fednewsrec", "fednewsrec-long", "fednewsrec-short", "nrms"])
@pytest.mark.parametrize("mask", [MASK, torch.ones_like(MASK)])
def test_users_from_projected_clicks_are_those_from_vectors(name, mask):
    model = make(name)
    with torch.inference_mode():
        states = model.encode_news(some_news())
        found = model.user_from(model.project_clicks(states), HISTORY, mask)
        assert torch.allclose(found, model.user(states[HISTORY], mask))


@pytest.mark.parametrize("network", ["nrms", "naml", "dkn"])
def test_news_that_are_encoded_in_parts_have_the_same_states(network, monkeypatch):
    generator = torch.Generator().manual_seed(1)

    def codes(*shape):
        return torch.randint(1, 9, shape, generator=generator).numpy()

    news = news_model.news_input(codes(10, 6), codes(10, 7), codes(10), codes(10), codes(10, 6))
    sizes = news_model.NewsSizes(word_dim=8, heads=2, head_dim=4, attention=4, category_dim=4)
    model = make_model(network, sizes, news_model.NewsShape(9, 9, 9, 9), generator)
    whole = model.encode_news(news)
    monkeypatch.setattr(news_model, "_NEWS_AT_ONCE", 4)
    assert torch.allclose(news_model.encode_in_parts(model, news), whole, atol=1e-6)


def test_latest_keeps_the_end_of_each_history():
    history = torch.arange(8.0).view(2, 4, 1)
    mask = torch.tensor([[True] * 4, [True, False, False, False]])
    kept, real = news_model.latest(history, mask, 2)
    assert (kept[0].flatten().tolist(), real.tolist()) == ([2.0, 3.0], [[True, True], [True, False]])
    assert kept[1, 0].item() == 4.0


def test_a_model_that_scores_by_itself_has_no_user_vector():
    model = object.__new__(Fm)
    with pytest.raises(TypeError, match="Fm scores candidates beside the history"):
        model.encode_user(torch.zeros(1, 2, 4), torch.ones(1, 2, dtype=torch.bool))
