"""Every model whose user has a vector: a client's gradient is that of autograd on this client alone."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from veilrec.client.news_data import NONE, ClickExamples
from veilrec.kernels.news_gradients import CutAtNews, differentiation
from veilrec.kernels.title_encoder import WORDS
from veilrec.methods.news.prepare import make_model
from veilrec.models.news_model import NewsInput, NewsShape, NewsSizes, losses, make_batch, take_news

VOCABULARY, NEWS, LONGEST_HISTORY, BASIS = 50, 40, 12, 3
SHAPE = NewsShape(words=VOCABULARY, categories=5, subcategories=7, entities=2, sentence_dim=9)
SIZES = NewsSizes(
    word_dim=6, heads=2, head_dim=5, attention=4, category_dim=3, recent=3, dropout=0.0, basis=BASIS, attention_clip=0.6
)
ONE_WORD, NO_WORD = [7, 10, 11], 13  # news with titles of one word and of none
HISTORIES = [list(range(20, 32)), [], [7], [5, 5, 6, 5], [1, 2, 3], [], [NO_WORD]]
HISTORY_OF = [0, 0, 1, 2, 3, 4, 5, 6]
CLIENT = [0, 0, 1, 2, 3, 3, 3, 4]  # client 1 has one click and no history, client 3 several histories
CANDIDATES = [
    [1, 2, 3, 4, 5],
    [20, 21, 22, 23, 24],
    [1, 2, NONE, NONE, NONE],  # one negative
    [10, 11, 12, NONE, NONE],
    [5, 6, 7, 8, 9],
    [1, 2, 3, 4, 5],
    [30, NO_WORD, 31, 32, 33],
    [NO_WORD, 10, 4, NONE, NONE],
]
N = max(CLIENT) + 1
PLAIN = ["fednewsrec", "nrms", "naml", "plm-nr", "lstur-ini", "lstur-con", "ebnr"]
WITH_BASIS = ["interest-nrms", "interest-naml", "interest-plm-nr"]


def examples(padded=None, noise=None):
    histories = np.full((len(HISTORIES), LONGEST_HISTORY), NONE, np.int32)
    for row, items in zip(histories, HISTORIES, strict=True):
        row[: len(items)] = items
    return ClickExamples(
        np.array(CLIENT), np.array(CANDIDATES, np.int32), np.array(HISTORY_OF), histories, padded=padded, noise=noise
    )


def noisy_examples():
    """Some clicks are the pad; the noise leaves one history without attention."""
    generator = np.random.default_rng(3)
    padded = generator.random((len(HISTORIES), LONGEST_HISTORY)) < 0.3
    noise = generator.normal(0.0, 0.4, (len(HISTORIES), BASIS)).astype(np.float32)
    noise[2] = -5.0
    return examples(padded & (examples().histories != NONE), noise)


def news():
    """Titles and abstracts of all lengths; some news have no abstract, one has no word at all."""
    generator = np.random.default_rng(1)

    def texts(longest, empty):
        codes = generator.integers(1, VOCABULARY, (NEWS, longest))
        lengths = generator.integers(1, longest + 1, NEWS)
        lengths[ONE_WORD], lengths[empty] = 1, 0
        codes[np.arange(longest) >= lengths[:, np.newaxis]] = 0
        return torch.from_numpy(codes)

    title, abstract = texts(9, [NO_WORD]), texts(15, [2, 5, NO_WORD, 21])
    category, subcategory = (torch.from_numpy(generator.integers(0, n, NEWS)) for n in (5, 7))
    sentence = torch.from_numpy(generator.standard_normal((NEWS, 9)).astype(np.float32))
    return NewsInput(title, abstract, category, subcategory, torch.zeros_like(title), sentence)


def model(name, sizes=SIZES):
    return make_model(name, sizes, SHAPE, torch.Generator().manual_seed(2))


def weights_of(made, frozen=frozenset()):
    return {name: value.detach().numpy() for name, value in made.named_parameters() if name not in frozen}


def losses_alone(made, every, rows):
    """By torch alone, of some examples."""
    batch = make_batch(every.histories, every.history_of[rows], every.candidates[rows], every.padded, every.noise)
    return losses(made, take_news(news(), batch.news), batch)


def parts_of(found, client):
    parts = {name: value[client] for name, value in found.dense.items()}
    if found.words is not None:
        rows = slice(found.words.offsets[client], found.words.offsets[client + 1])
        parts[WORDS] = np.zeros((VOCABULARY, found.words.values.shape[1]), np.float32)
        parts[WORDS][found.words.index[rows]] = found.words.values[rows]
    return parts


def assert_those_of_autograd(parts, made, loss):
    made.zero_grad()
    loss.backward()
    for name, part in parts.items():
        gradient = made.get_parameter(name).grad
        expected = np.zeros_like(part) if gradient is None else gradient.numpy()
        assert np.allclose(part, expected, atol=1e-6, rtol=1e-5), name


def assert_every_client_is_alone(name, every, frozen=frozenset(), sizes=SIZES):
    made = model(name, sizes)
    way, weights = differentiation(made, news(), frozen), weights_of(made, frozen)
    found = way.each(weights, every, N)
    assert not any(part._forward_hooks for part in made.modules())
    for client in range(N):
        parts = parts_of(found, client)
        assert parts.keys() == weights.keys()
        loss = losses_alone(made, every, np.flatnonzero(every.client == client)).mean()
        assert found.losses[client] == pytest.approx(loss.item(), rel=1e-5)
        assert_those_of_autograd(parts, made, loss)


@pytest.mark.parametrize("name", PLAIN + WITH_BASIS)
@pytest.mark.parametrize("frozen", [frozenset(), frozenset({WORDS})])
def test_every_client_has_the_gradient_that_it_has_alone(name, frozen):
    assert_every_client_is_alone(name, examples(), frozen)


@pytest.mark.parametrize(("heads", "width", "window"), [(3, 8, 1), (2, 16, 3), (2, 5, 5)])
def test_compiled_gradients_fit_heads_and_windows_of_every_width(heads, width, window):
    sizes = replace(SIZES, heads=heads, head_dim=width, window=window)
    assert_every_client_is_alone("fednewsrec", examples(), sizes=sizes)


def test_only_users_without_history_move_the_newcomer():
    made = model("fednewsrec")
    found = differentiation(made, news(), frozenset()).each(weights_of(made), examples(), N)
    assert (np.abs(found.dense["newcomer"]).sum(1) > 0).tolist() == [False, True, False, True, False]


@pytest.mark.parametrize("name", WITH_BASIS)
@pytest.mark.parametrize("frozen", [frozenset(), frozenset({WORDS, "basis"})])
def test_padded_clicks_and_noise_are_those_of_the_history(name, frozen):
    assert_every_client_is_alone(name, noisy_examples(), frozen)


@pytest.mark.parametrize("name", WITH_BASIS)
def test_of_released_attention_only_basis_and_news_learn(name):
    every = replace(noisy_examples(), padded=None)
    assert_every_client_is_alone(name, every)
    made = model(name)
    found = differentiation(made, news(), frozenset()).each(weights_of(made), every, N)
    assert not any(value.any() for name, value in found.dense.items() if name.startswith("clicks."))


@pytest.mark.parametrize("name", PLAIN + WITH_BASIS)
def test_one_pass_gives_the_weighted_sum(name):
    made, share = model(name), np.linspace(0.1, 0.8, len(CLIENT), dtype=np.float32)
    every = noisy_examples() if name in WITH_BASIS else examples()
    found = differentiation(made, news(), frozenset()).together(weights_of(made), every, share)
    loss = (losses_alone(made, every, np.arange(len(CLIENT))) * torch.from_numpy(share)).sum()
    parts = parts_of(found, 0)
    assert parts.keys() == weights_of(made).keys()
    assert_those_of_autograd(parts, made, loss)


@pytest.mark.parametrize(
    ("name", "texts"), [("fednewsrec", ["title"]), ("nrms", ["title"]), ("naml", ["title", "abstract"])]
)
def test_a_client_has_rows_of_its_own_words_only(name, texts):
    made, every = model(name), examples()
    way = differentiation(made, news(), frozenset())
    words = way.each(weights_of(made), every, N).words
    assert way.count_words(every, N).tolist() == np.diff(words.offsets).tolist()
    for client in range(N):
        own = every.client == client
        seen = np.unique(np.r_[every.candidates[own].ravel(), every.histories[every.history_of[own]].ravel()])
        codes = np.concatenate([getattr(news(), text)[seen[seen != NONE]].numpy().ravel() for text in texts])
        rows = words.index[words.offsets[client] : words.offsets[client + 1]]
        assert rows.tolist() == np.unique(codes[codes > 0]).tolist()


@pytest.mark.parametrize("name", ["fednewsrec", "nrms", "naml", "plm-nr"])
def test_nothing_goes_by_row_where_words_stay_as_they_are(name):
    made, frozen = model(name), frozenset({WORDS})
    way = differentiation(made, news(), frozen)
    assert way.each(weights_of(made, frozen), examples(), N).words is None
    assert way.count_words(examples(), N).tolist() == [0] * N


@pytest.mark.parametrize("name", ["fednewsrec", "nrms", "naml", "plm-nr"])
def test_a_client_without_examples_has_no_gradient(name):
    made, every = model(name), examples()
    later = replace(every, client=every.client + (every.client > 0))  # nobody is client 1
    found = differentiation(made, news(), frozenset()).each(weights_of(made), later, N + 2)
    for client in (1, N + 1):
        assert not any(value[client].any() for value in found.dense.values())


def test_models_with_other_parameters_are_differentiated_whole():
    made = model("sentence-head")
    way, weights = differentiation(made, news(), frozenset()), weights_of(made)
    assert not isinstance(way, CutAtNews)
    found = way.each(weights, examples(), N)
    for client in range(N):
        loss = losses_alone(made, examples(), np.flatnonzero(np.array(CLIENT) == client)).mean()
        assert_those_of_autograd(parts_of(found, client), made, loss)
