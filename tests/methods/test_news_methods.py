"""What every news method owes beside the contract: it ranks impressions as it ranks items, and refuses other data."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.methods.tastes import ON_RATINGS
from tests.methods.tiny_news import build, method, population, problem, split
from veilrec.core.errors import BadInput
from veilrec.evaluation.evaluator import evaluate
from veilrec.methods.base import configure, make_trainer
from veilrec.methods.news.ranker import NewsScorer
from veilrec.methods.registry import METHODS

NAMES = [name for name in METHODS if name not in ON_RATINGS]


def settings_of(name: str) -> tuple[str, ...]:
    return ("cohort.size=20",) if method(name).kind == "federated" else ("batch=64",)


pytestmark = pytest.mark.usefixtures("synthetic_sentences")


@pytest.mark.parametrize("name", NAMES)
def test_impressions_are_scored_as_items_are(name: str) -> None:
    trainer = build(name, settings_of(name))
    trainer.step(0)
    model, dev = trainer.model(), population().impressions["dev"]
    assert isinstance(model, NewsScorer)
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


@pytest.mark.parametrize("name", ["nrms", "ebnr", "dfm"])
def test_training_fits_what_it_sees(name: str) -> None:
    trainer = build(name, ("batch=64", "rate=0.01", "size.dropout=0"))
    losses = [trainer.step(number).loss for number in range(8)]
    assert losses[0] is not None
    assert losses[-1] is not None
    assert losses[-1] < losses[0] - 0.1


@pytest.mark.parametrize("name", NAMES)
def test_data_without_news_is_refused(name: str) -> None:
    config, _ = configure(method(name), preset="tuned", dataset="")
    with pytest.raises(BadInput, match=f"^{name} needs news with titles and train impressions") as error:
        make_trainer(method(name), config, replace(problem(), news=None))
    assert "\n" not in str(error.value)


def test_frozen_word_vectors_stay(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("vectors") / "glove.txt"
    path.write_text("the 1 0 0\nto 0 1 0\n")
    trainer = build("nrms", (f"text.words={path}", "text.freeze_words=true"))
    trainer.step(0)
    assert "words.weight" not in trainer.state()
    learning = build("nrms", (f"text.words={path}",))
    assert learning.state()["words.weight"].shape[1] == 3
