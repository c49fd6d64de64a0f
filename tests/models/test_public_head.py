"""The public head: a dot product that is its formula, a start without anybody's data, and messages over a basis."""

import numpy as np
import torch

from veilrec.methods.news.prepare import make_model
from veilrec.models.federated_news import START
from veilrec.models.news_model import NewsInput, NewsShape, NewsSizes

NEWS, DIM, CATEGORIES, SUBCATEGORIES, TASTE, BASIS = 40, 6, 5, 7, 4, 3
HISTORY = torch.tensor([[1, 2, 3], [4, 0, 0], [0, 0, 0]])
MASK = torch.tensor([[True, True, True], [True, False, False], [False, False, False]])


def some_news(count=NEWS):
    generator = torch.Generator().manual_seed(3)
    sentence = torch.nn.functional.normalize(torch.randn(count, DIM, generator=generator), dim=-1)
    none = torch.zeros(count, 0, dtype=torch.int64)
    category = torch.randint(0, CATEGORIES, (count,), generator=generator)
    subcategory = torch.randint(0, SUBCATEGORIES, (count,), generator=generator)
    return NewsInput(none, none, category, subcategory, none, sentence)


def make(news, *, train_basis=False):
    sizes = NewsSizes(taste=TASTE, basis=BASIS, train_basis=train_basis)
    shape = NewsShape(2, CATEGORIES, SUBCATEGORIES, 2, sentence_dim=DIM)
    model = make_model("public-head", sizes, shape, torch.Generator().manual_seed(1))
    return model, model.take_in(news)


def share(codes, clicks, item):
    if codes[item] < 2 or not clicks:
        return 0.0
    return float(np.mean([int(codes[click] == codes[item]) for click in clicks]))


def test_the_dot_product_is_the_formula():
    news = some_news()
    model, _ = make(news)
    a, w = torch.tensor([2.0, -0.5, 3.0]), torch.linspace(-1.0, 1.0, TASTE)
    with torch.no_grad():
        model.scales.copy_(a)
        model.taste.copy_(w)
        states = model.encode_news(news)
        scores = model.user(states[HISTORY], MASK) @ states.T
    z = states[:, -TASTE:]
    for row, clicks in enumerate(([1, 2, 3], [4], [])):
        pooled = news.sentence[clicks].mean(0) if clicks else torch.zeros(DIM)
        direction = pooled / pooled.norm().clamp(min=1e-12)
        for item in (0, 7, 11, 25):
            wanted = a[0] * (direction @ news.sentence[item]) + w @ z[item]
            wanted = wanted + a[1] * share(news.category, clicks, item) + a[2] * share(news.subcategory, clicks, item)
            assert torch.isclose(scores[row, item], wanted, atol=1e-5)


def test_the_start_is_public_and_the_same_whatever_the_seed():
    news = some_news()
    first, second = make(news)[0], make(news)[0]
    assert all(torch.equal(one, other) for one, other in zip(first.parameters(), second.parameters(), strict=True))
    assert tuple(first.scales.tolist()) == START and not first.taste.any()


def test_whitened_components_have_length_one_on_average_and_no_direction_of_their_own():
    news = some_news(2_000)
    model, _ = make(news)
    with torch.no_grad():
        z = model.encode_news(news)[:, -TASTE:]
    assert torch.allclose(z.T @ z / len(z), torch.eye(TASTE) / TASTE, atol=1e-4)


def test_news_that_are_all_alike_give_numbers():
    news = some_news()
    alike = NewsInput(*(values[:1].expand(NEWS, *values.shape[1:]) for values in vars(news).values()))
    model, _ = make(alike)
    assert all(torch.isfinite(values).all() for values in model.parameters())


def test_messages_are_attention_over_public_centres_and_everybodys_taste_is_added():
    news = some_news()
    model, _ = make(news)
    with torch.no_grad():
        model.taste.fill_(0.7)
        states = model.encode_news(news)
        attention = model.attention(model.whole_user(states[HISTORY], MASK))
        assert torch.allclose(attention.sum(-1), torch.ones(3))
        assert attention[:2].max() > 0.6  # it tells users apart: flat would be a third
        found = model.reconstruct(attention)
    assert torch.allclose(found[:, -TASTE:], torch.full((3, TASTE), 0.7))
    assert torch.linalg.vector_norm(found[:, :-TASTE], dim=-1).max() <= START[0] + 1e-4
