"""veil on impressions: what it spends, how far it goes, what it reads, and what an audit finds in it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.methods.tiny_news import population, problem
from tests.methods.tiny_news import split as tiny_split
from veilrec.audit.contract_subject import histories_of
from veilrec.audit.method import audit_method, small_problem, synthetic_for
from veilrec.client.veil import OwnHistory
from veilrec.client.veil_news import KINDS, SCALES, TASTE, VeilNewsLocalTrainer
from veilrec.core.arrays import Floats
from veilrec.core.errors import BadInput
from veilrec.data.population import ItemTable, Strings
from veilrec.evaluation.evaluator import evaluate
from veilrec.methods.base import Problem, configure, make_trainer
from veilrec.methods.registry import get
from veilrec.methods.veil import news
from veilrec.methods.veil.method import METHOD, plan
from veilrec.methods.veil.news import SETTLED, ReadingModel, reach, reading_of
from veilrec.privacy.mechanisms.sums import CohortSum

pytestmark = pytest.mark.usefixtures("synthetic_sentences")


def configured(*settings: str) -> Any:
    return configure(METHOD, preset="tuned", dataset="", settings=settings)[0]


def trained(*settings: str, on: Problem | None = None, rounds: int | None = None) -> ReadingModel:
    on = on or problem()
    trainer = make_trainer(METHOD, configured(*settings), on)
    for number in range(on.rounds if rounds is None else rounds):
        trainer.step(number)
    made = trainer.model()
    assert isinstance(made, ReadingModel)
    return made


def test_impressions_make_another_plan_than_a_catalogue() -> None:
    assert isinstance(plan(configured(), problem()).learner, VeilNewsLocalTrainer)
    assert isinstance(METHOD.devices(configured(), small_problem(METHOD, 20, 2)), OwnHistory)


def test_steps_go_on_until_they_settle_or_the_mean_is_in_doubt() -> None:
    mechanism = plan(configured("privacy.epsilon=2"), problem()).mechanism
    assert isinstance(mechanism, CohortSum)
    few, some, many = (reach(mechanism, people, 5) for people in (30, 1000, 10**7))
    assert few < some < many
    assert many == pytest.approx(SETTLED, rel=1e-3)
    # Of very few people the noise decides alone: twice the noise, a quarter of the way.
    louder = plan(configured("privacy.epsilon=0.01"), problem()).mechanism
    loudest = plan(configured("privacy.epsilon=0.005"), problem()).mechanism
    assert isinstance(louder, CohortSum)
    assert isinstance(loudest, CohortSum)
    squares = (loudest.sigma / louder.sigma) ** 2
    assert reach(louder, 30, 5) / reach(loudest, 30, 5) == pytest.approx(squares, rel=0.02)


def test_rounds_change_neither_the_noise_on_the_model_nor_how_far_it_goes() -> None:
    noises = []
    for rounds in (1, 18):
        made = plan(configured(), problem(rounds=rounds))
        assert isinstance(made.mechanism, CohortSum)
        noises.append(made.server.rate * made.mechanism.sigma * np.sqrt(rounds))
    assert noises[1] == pytest.approx(noises[0], rel=1e-3)


def test_with_next_to_no_budget_the_ranking_stays_where_public_text_put_it() -> None:
    start = trained(rounds=0)
    assert not any(values.any() for values in start.weights.values())
    for epsilon in (0.001, 0.01):
        assert auc(trained(f"privacy.epsilon={epsilon}")) == pytest.approx(auc(start), abs=0.003)
    assert auc(start) > 0.65  # chance is 0.5; some 120 impressions, standard error 0.02


def auc(ranks: ReadingModel) -> float:
    return evaluate(tiny_split().test, tiny_split().train, ranks)["auc"]


def test_without_shrinkage_by_doubt_it_would_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(news, "reach", lambda mechanism, people, rounds: SETTLED)
    # Noise alone then ranks: 0.5, standard error 0.03.
    assert auc(trained("privacy.epsilon=0.001")) < auc(trained(rounds=0)) - 0.05


def test_with_a_budget_it_learns() -> None:
    on = small_problem(METHOD, 400, 12, "synthetic-news")
    learnt = trained("privacy.epsilon=100", on=on)
    assert on.news is not None
    shown = on.news.impressions
    before = evaluate_train(trained(on=on, rounds=0), shown)
    # Of the impressions that it learnt from: standard error of the difference about 0.003.
    assert evaluate_train(learnt, shown) > before + 0.01


def evaluate_train(ranks: ReadingModel, shown: Any) -> float:
    scores, gains = ranks.score_impressions(shown), []
    for row in range(len(shown)):
        place = slice(*shown.shown.offsets[row : row + 2])
        clicks, own = shown.clicked[place] > 0, scores[place]
        if 0 < clicks.sum() < len(clicks):
            gains.append((own[clicks][:, np.newaxis] > own[~clicks]).mean())
    return float(np.mean(gains))


def test_without_a_history_everybody_gets_what_everybody_likes() -> None:
    model = trained("privacy.epsilon=100")
    nobody, somebody = model.fold_in(histories_of([[], [1, 2, 3]])).score_all(np.arange(2))
    content = model.content
    appeal = content.appeal @ model.weights[TASTE] + model.weights[KINDS][content.subcategories]
    assert nobody == pytest.approx(appeal, abs=1e-5)
    assert not np.allclose(nobody, somebody)


def part_and_whole(model: ReadingModel) -> tuple[Floats, Floats]:
    """Scores of a third of the news, read without the rest, and of the same among all."""
    catalogue = population().catalogue
    assert catalogue is not None
    assert catalogue.subcategories is not None
    some = range(0, len(catalogue.titles), 3)
    fewer = ItemTable(
        *(Strings.of(column[n] for n in some) for column in (catalogue.titles, catalogue.categories)),
        Strings.of(catalogue.subcategories[n] for n in some),
        None if catalogue.abstracts is None else Strings.of(catalogue.abstracts[n] for n in some),
    )
    alone = model.on(fewer).fold_in(histories_of([[5, 1, 9]])).score_all(np.zeros(1, np.int64))[0]
    return alone, model.fold_in(histories_of([[15, 3, 27]])).score_all(np.zeros(1, np.int64))[0][::3]


@pytest.mark.parametrize("titles", ["words", "sentences", "off"])
def test_a_part_of_the_news_is_read_as_among_all(titles: str) -> None:
    alone, among_all = part_and_whole(trained(f"titles={titles}", "privacy.epsilon=100"))
    assert alone == pytest.approx(among_all, abs=1e-4)


def test_titles_that_nobody_wrote_are_not_read() -> None:
    bare = ItemTable(Strings.of([""] * 4), Strings.of(["a", "a", "b", ""]))
    content = reading_of(bare, "words").read(bare)
    assert (content.vectors.shape[1], content.appeal.shape[1], content.n_features) == (0, 0, 2)
    assert content.categories.tolist() == [0, 0, 1, -1]
    on = problem()
    assert on.news is not None
    unread = replace(on.news.catalogue, titles=Strings.of([""] * on.n_items), abstracts=None)
    weights = trained(on=replace(on, news=replace(on.news, catalogue=unread))).weights
    assert set(weights) == {SCALES, KINDS}


def test_impressions_without_a_choice_are_refused() -> None:
    on = problem()
    assert on.news is not None
    shown = on.news.impressions
    nobody = replace(on.news, impressions=replace(shown, clicked=np.zeros_like(shown.clicked)))
    with pytest.raises(BadInput, match="nothing to learn from"):
        plan(configured(), replace(on, news=nobody))


def test_an_audit_names_the_people_that_it_is_about() -> None:
    assert synthetic_for(METHOD) == "synthetic-ratings"
    assert synthetic_for(METHOD, "synthetic-news") == "synthetic-news"
    assert synthetic_for(get("privaterec")) == "synthetic-news"
    with pytest.raises(BadInput, match="choose from synthetic-ratings, synthetic-news"):
        audit_method("veil", quick=True, data="ml-1m")
