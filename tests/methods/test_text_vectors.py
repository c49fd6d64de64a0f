"""Vectors of titles: sentence vectors kept by content, and vectors of the catalogue's own words."""

import numpy as np

from veilrec.data.population import ItemTable, Strings
from veilrec.methods.news import text_vectors
from veilrec.methods.news.text_vectors import TitleAxes, learnt_titles
from veilrec.models import text_embeddings


class _FakeModel:
    calls = 0

    def __init__(self, folder):
        pass

    def encode(self, texts, progress):
        _FakeModel.calls += 1
        progress(len(texts))
        return np.array([[len(text), 1.0, 0.0] for text in texts], np.float32)


def catalogue(*titles):
    return ItemTable(Strings.of(titles), Strings.of(titles), abstracts=Strings.of(["more"] * len(titles)))


def vectors_of(*titles):
    return text_vectors.whole_vectors(catalogue(*titles))


def test_vectors_are_computed_once_per_content(monkeypatch, tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    monkeypatch.setenv("VEILREC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(text_embeddings, "model_folder", lambda: tmp_path)
    monkeypatch.setattr(text_embeddings, "MiniLm", _FakeModel)
    first = vectors_of("a", "bc")
    assert first[:, 0].tolist() == [len("a. more"), len("bc. more")] and np.array_equal(vectors_of("a", "bc"), first)
    assert _FakeModel.calls == 1
    vectors_of("a", "b")
    assert _FakeModel.calls == 2
    entries = (tmp_path / "cache" / "sentences").iterdir()
    (entry,) = (path for path in entries if np.array_equal(np.load(path), first))
    entry.write_bytes(b"damaged")
    assert np.array_equal(vectors_of("a", "bc"), first)


def test_fewer_dimensions_are_principal_components():
    generator = np.random.default_rng(4)
    plane = generator.normal(size=(200, 2)) @ generator.normal(size=(2, 6))
    plane = plane.astype(np.float32)
    axes = text_vectors.principal_axes(plane, 2)
    kept = axes.reduced(plane)
    centred = plane - plane.mean(0)
    wanted = centred @ centred.T / np.outer(*[np.linalg.norm(centred, axis=1)] * 2)
    assert np.allclose(kept @ kept.T, wanted, atol=1e-4)
    assert np.array_equal(kept, text_vectors.principal_axes(plane, 2).reduced(plane))
    assert np.allclose(axes.reduced(plane[:3]), kept[:3], atol=1e-5)  # others on the same axes


TOPICS = (
    ("goal match team league", "striker cup"),
    ("court judge law trial", "verdict jury"),
    ("rain storm wind snow", "sun"),
    ("stock bank market bond", "share"),
    ("film actor stage song", "music"),
    ("plane train road ship", "travel"),
)  # a word of more than a fifth of the news says nothing


def news_of_topics(count=60, *, abstracts=True):
    generator = np.random.default_rng(1)
    titles, more = [], []
    for number in range(count):
        words = TOPICS[number % 6]
        titles.append(" ".join(generator.choice(words[0].split(), 3)))
        more.append(words[1])
    names = Strings.of(["news"] * count)
    return ItemTable(Strings.of(titles), names, names, Strings.of(more) if abstracts else None)


def test_news_of_one_topic_are_alike_and_of_two_are_not():
    vectors, _ = learnt_titles(news_of_topics(), 6)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-5)
    cosines = vectors @ vectors.T
    assert cosines[0, 6] > 0.9 and abs(cosines[0, 1]) < 0.1


def test_the_same_catalogue_gives_the_same_bits_and_is_read_as_it_was_learnt():
    (first, axes), (second, again) = (learnt_titles(news_of_topics(), 4), learnt_titles(news_of_topics(), 4))
    assert np.array_equal(first, second) and np.array_equal(axes.axes, again.axes)
    np.testing.assert_allclose(axes.vectors(news_of_topics()), first, atol=1e-6)


def test_other_news_need_only_what_was_kept():
    vectors, axes = learnt_titles(news_of_topics(), 6)
    kept = TitleAxes(axes.words, axes.rarity, axes.axes)
    names = Strings.of(["news"] * 3)
    other = ItemTable(Strings.of(["Match of the TEAM", "", "words nobody knows"]), names)
    found = kept.vectors(other)
    assert found[0] @ vectors[0] > 0.9 and not found[1:].any()


def test_fewer_news_than_directions_and_none_that_share_a_word():
    few, axes = learnt_titles(news_of_topics(4), 50)
    assert few.shape[1] == axes.axes.shape[1] <= 4
    names = Strings.of(["news"] * 2)
    nothing, axes = learnt_titles(ItemTable(Strings.of(["one", "two"]), names), 8)
    assert nothing.shape == (2, 1) and not nothing.any() and axes.vectors(news_of_topics(3)).shape == (3, 1)
