"""News methods: rankings, user vectors for serving, and data with every oddity that data check counts."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.methods.tastes import ON_RATINGS
from tests.methods.tiny_news import SMALL, build, method, population, problem, split
from veilrec.core.csr import Csr
from veilrec.core.errors import BadInput
from veilrec.data.datasets import load
from veilrec.evaluation.evaluator import evaluate
from veilrec.evaluation.protocols import make_split
from veilrec.methods.base import Problem, configure, make_trainer
from veilrec.methods.news.ranker import NewsUsers
from veilrec.methods.registry import METHODS
from veilrec.privacy.mechanisms.attention import decompose
from veilrec.runs.request import news_data

NAMES = [name for name in METHODS if name not in ON_RATINGS]


def settings_of(name):
    return ("cohort.size=20",) if method(name).kind == "federated" else ("batch=64",)


pytestmark = pytest.mark.usefixtures("synthetic_sentences")


@pytest.mark.parametrize("name", NAMES)
def test_impressions_are_scored_as_items_are(name):
    trainer = build(name, settings_of(name))
    trainer.step(0)
    model, dev = trainer.model(), population().impressions["dev"]
    scores = model.score_impressions(dev)
    folded = model.fold_in(dev.histories)
    for row in (0, 1, len(dev) - 1):
        user = np.array([dev.history_of[row]], np.int64)
        low, high = dev.shown.offsets[row], dev.shown.offsets[row + 1]
        items = dev.shown.items[low:high]
        some = folded.score_some(user, items[np.newaxis])[0]
        assert np.allclose(some, scores[low:high], atol=1e-4)
        assert np.allclose(folded.score_all(user)[0][items], some, atol=1e-4)
    metrics = evaluate(split().test, split().train, model)
    assert 0.0 < metrics["auc"] < 1.0


@pytest.mark.parametrize("name", ["nrms", "dfm"])
def test_training_fits_what_it_sees(name):
    trainer = build(name, ("batch=64", "rate=0.01", "size.dropout=0"))
    losses = [trainer.step(number).loss for number in range(8)]
    assert losses[-1] < losses[0] - 0.1


@pytest.mark.parametrize("name", NAMES)
def test_data_without_news_is_refused(name):
    config, _ = configure(method(name), preset="tuned", dataset="")
    with pytest.raises(BadInput, match=f"^{name} needs news with titles and train impressions") as error:
        make_trainer(method(name), config, replace(problem(), news=None))
    assert "\n" not in str(error.value)


def test_frozen_word_vectors_stay(tmp_path_factory):
    path = tmp_path_factory.mktemp("vectors") / "glove.txt"
    path.write_text("the 1 0 0\nto 0 1 0\n")
    trainer = build("nrms", (f"text.words={path}", "text.freeze_words=true"))
    trainer.step(0)
    assert "words.weight" not in trainer.state()
    learning = build("nrms", (f"text.words={path}",))
    assert learning.state()["words.weight"].shape[1] == 3


def _scorer(name, *settings):
    return build(name, settings).model()


def _histories():
    asked = split().test.impressions
    rows = asked.histories.take(np.arange(12, dtype=np.int64))
    lengths = rows.lengths()
    return Csr(np.concatenate(([0], [0], np.cumsum(lengths))).astype(np.int64), rows.items)  # the first has none


def test_attention_and_reconstruction_are_the_model_s():
    scorer = _scorer("privaterec", "calibration=none", "cohort.size=10")
    users, histories, model = NewsUsers(scorer), _histories(), scorer.model
    assert users.basis is not None and users.interests is not None and users.pad is not None
    attention = decompose(users.users_before_basis(histories).astype(np.float64), users.basis)
    np.testing.assert_allclose(attention @ users.interests, users.users(histories), atol=1e-5)
    width = int(histories.lengths().max())
    items, taken = np.zeros((len(histories), width), np.int64), np.zeros((len(histories), width), np.bool_)
    for row in range(len(histories)):
        clicks = histories.row(row)[-scorer.longest :]
        items[row, : len(clicks)], taken[row, : len(clicks)] = clicks, True
    padded = np.random.default_rng(1).random(taken.shape) < 0.5
    vectors = np.where((padded & taken)[..., np.newaxis], users.pad, users.news[items]).astype(np.float64)
    with torch.inference_mode():
        expected = model.padded_attention(
            model.as_clicks(scorer.states)[torch.from_numpy(items)],
            torch.from_numpy(taken),
            torch.from_numpy(padded & taken),
        )
    np.testing.assert_allclose(decompose(users.users_in_slots(vectors, taken), users.basis), expected, atol=1e-5)


def test_a_model_without_basis_vectors_has_none():
    users = NewsUsers(_scorer("nrms"))
    assert users.basis is None and users.interests is None and users.pad is None
    assert users.users(_histories()).shape == (13, users.news.shape[1]) and len(users.news) == population().n_items
    with pytest.raises(BadInput, match="no basis vectors"):
        users.users_before_basis(_histories())


ON_ODD_NEWS = ("nrms", "naml", "dkn", "lstur-con", "npa", "fednewsrec")
CITY = json.dumps([{"WikidataId": "Q65", "SurfaceForms": ["city"]}])
TITLES = ("Rain over the city", "Sun", "A long day of news", "The city votes", "Snow", "More rain")
PLAIN = [[f"N{k}", "news", "us", title, f"About {title}", "", "[]", "[]"] for k, title in enumerate(TITLES)]


def impressions(*changed, first=1):
    """Rows of behaviors.tsv for six users; some history and candidates are replaced."""
    rows = []
    for k in range(6):
        past, shown = changed[k] if k < len(changed) else (f"N{k} N{(k + 1) % 6}", "N2-1 N3-0 N4-0 N5-0")
        rows.append(f"{first + k}\tU{k}\t11/{10 + k}/2019 8:00:00 AM\t{past}\t{shown}")
    return rows


ODD = ("N1 N2", "N0-1 N3-0")
CASES = {
    "no title": ([[*row[:3], "" if k % 2 else row[3], *row[4:]] for k, row in enumerate(PLAIN)], impressions()),
    "no text": ([[*row[:3], "" if k % 2 else row[3], "", *row[5:]] for k, row in enumerate(PLAIN)], impressions()),
    "one word": ([[*row[:3], "Rain", *row[4:]] for row in PLAIN], impressions()),
    "no category": ([[row[0], "", "", *row[3:]] for row in PLAIN], impressions()),
    "other scripts": ([[*row[:3], "東京 の 天気 😀 Дождь", *row[4:]] for row in PLAIN], impressions()),
    "invisible": ([[*row[:3], "\u200b\u200d", *row[4:]] for row in PLAIN[:3]] + PLAIN[3:], impressions()),
    "very long": ([[*row[:3], "word " * 400, "word " * 900, *row[5:]] for row in PLAIN], impressions()),
    "broken entities": ([[*row[:6], "{broken", "[]"] for row in PLAIN], impressions()),
    "no vectors": ([[*row[:6], CITY, "[]"] for row in PLAIN], impressions()),
    "empty histories": (PLAIN, impressions(*[("", shown) for _, shown in [ODD] * 6])),
    "some empty histories": (PLAIN, impressions(("", ODD[1]))),
    "unknown in histories": (PLAIN, impressions(*[("X1 X2", ODD[1])] * 6)),
    "unknown candidates": (PLAIN, impressions(*[(ODD[0], "X1-1 X2-0 N1-0")] * 6)),
    "one label": (PLAIN, impressions((ODD[0], "N1-1"), (ODD[0], "N1-0 N2-0"))),
}


def write(folder, news, rows):
    for part in ("train", "dev"):
        (folder / part).mkdir(parents=True)
        (folder / part / "news.tsv").write_text("".join("\t".join(row) + "\n" for row in news))
        (folder / part / "behaviors.tsv").write_text("\n".join(rows) + "\n")
    return folder


def learn(folder, name):
    """Two steps, and what the model then says."""
    population = load(f"mind:{folder}")
    split = make_split(population, "mind", seed=1)
    chosen = method(name)
    kind = ("cohort.size=3", "calibration=none") if chosen.kind == "federated" else ()
    config, _ = configure(chosen, preset="tuned", dataset="mind", settings=[*SMALL, *kind])
    problem = Problem(split.train, split.n_items, 1, 2, news_data(population, split))
    trainer = make_trainer(chosen, config, problem)
    for step in range(2):
        trainer.step(step)
    assert all(np.isfinite(values).all() for values in trainer.state().values())
    return evaluate(split.test, split.train, trainer.model())


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path_factory):
    monkeypatch.setenv("VEILREC_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.mark.parametrize("name", ON_ODD_NEWS)
@pytest.mark.parametrize("case", CASES)
def test_odd_news_are_learnt_from(case, name, tmp_path):
    metrics = learn(write(tmp_path / "mind", *CASES[case]), name)
    assert 0.0 <= metrics["auc"] <= 1.0


def test_given_vectors_of_entities_may_be_few(tmp_path):
    folder = write(tmp_path / "mind", *CASES["no vectors"])
    (folder / "train" / "entity_embedding.vec").write_text("Q1\t0.5\t-0.5\nQ2\t1\t2\n")
    assert 0.0 <= learn(folder, "dkn")["auc"] <= 1.0


@pytest.mark.parametrize("name", ["nrms", "fednewsrec"])
def test_news_without_any_title_and_training_without_a_choice_are_refused(name, tmp_path):
    untitled = write(tmp_path / "untitled", [[*row[:3], "", *row[4:]] for row in PLAIN], impressions())
    with pytest.raises(BadInput, match=f"{name} reads titles, and no news of this data has one"):
        learn(untitled, name)
    one_sided = write(tmp_path / "one sided", PLAIN, impressions())
    (one_sided / "train" / "behaviors.tsv").write_text("\n".join(impressions(*[(ODD[0], "N1-1 N2-1")] * 6)) + "\n")
    with pytest.raises(BadInput, match=f"{name} has nothing to learn from"):
        learn(one_sided, name)
