"""veil: what it spends, what it works with and without, and what an audit finds in it."""

from dataclasses import replace

import numpy as np
import pytest

from tests.audit import planted_bugs as bugs
from tests.methods.tiny_news import population
from tests.methods.tiny_news import problem as news_problem
from tests.methods.tiny_news import split as tiny_split
from veilrec.audit.contract_subject import features, histories_of, split
from veilrec.audit.method import audit_method, small_problem, synthetic_for
from veilrec.audit.plan import audit_plan
from veilrec.client.veil import CLIPS, FURTHER, MAP, PASSES, PLACES, WEIGHTS, OwnHistory
from veilrec.client.veil_news import KINDS, SCALES, TASTE, VeilNewsLocalTrainer
from veilrec.core.csr import Csr
from veilrec.core.errors import BadInput
from veilrec.core.features import Features, Side
from veilrec.data.population import ItemTable, Strings
from veilrec.evaluation.evaluator import evaluate
from veilrec.methods.base import Problem, configure, make_trainer, promised
from veilrec.methods.registry import get
from veilrec.methods.veil import method as veil
from veilrec.methods.veil import news
from veilrec.methods.veil.news import SETTLED, reach, reading_of
from veilrec.privacy.mechanisms.reports import VoteReports
from veilrec.privacy.mechanisms.sums import CohortSum

MANY = "people=20000"  # a nominal number: all kinds of rounds


def configured(*settings):
    return configure(veil.METHOD, preset="tuned", dataset="", settings=settings)[0]


def problem(rounds=6, users=60):
    first = np.arange(users)
    return Problem(split("loo-99").train.take(first), 300, 5, rounds, features=features(first))


def model_of(*settings, on=None):
    on = on or problem()
    trainer = make_trainer(veil.METHOD, configured(*settings), on)
    for number in range(on.rounds):
        trainer.step(number)
    return trainer.model()


def test_shares_are_those_of_the_table():
    made = veil.plan(configured("privacy.epsilon=8", MANY), problem(rounds=18))
    event = made.reports.mechanism.event()
    votes = event.mu**2
    rounds = sum((bound / made.mechanism.sigma) ** 2 for bound in made.mechanism.clip_norms)
    row = veil.SPENDINGS[-1]
    assert votes / (votes + rounds) == pytest.approx(row.votes, rel=5e-3)
    for name, share in ((PLACES, row.places), (FURTHER, row.further)):
        spent = [
            (made.mechanism.clip_norms[number] / made.mechanism.sigma) ** 2
            for number in range(18)
            if made.round_planner.next(number, made.start, None).tensors == (name,)
        ]
        assert sum(spent) / (votes + rounds) == pytest.approx(share, rel=5e-3)


def test_what_is_learnt_follows_from_people_and_budget():
    kinds = {
        nu: {name for phase in veil.phases_of(veil.spending_for(1.0, nu, has_map=True), 18) for name in phase.tensors}
        for nu in (100, 800, 10000)
    }
    assert kinds == {100: {WEIGHTS, MAP}, 800: {WEIGHTS, MAP}, 10000: {WEIGHTS, MAP, PLACES, FURTHER}}
    assert veil.spending_for(1.0, 10**6, has_map=False).map == 0.0
    for row in (*veil.SPENDINGS, veil.WITHOUT_MAP):
        assert row.votes + row.weights + row.map + row.places + row.further == pytest.approx(1.0)
        for rounds in (1, 2, 3, 5, 18, 40):
            phases = veil.phases_of(row, rounds)
            assert sum(phase.rounds for phase in phases) == rounds and max(veil.bounds_of(phases)) == 1.0


def test_steps_go_as_far_as_noise_allows_or_until_they_settle():
    phases = veil.phases_of(veil.SPENDINGS[1], 18)
    bounds = veil.bounds_of(phases)
    loud, quiet, silent = (
        veil.steps_of(veil.SPENDINGS[1], phases, bounds, sigma, 1000).units for sigma in (100.0, 50.0, 1e-9)
    )
    for name in (WEIGHTS, MAP):
        assert quiet[name] == pytest.approx(2.0 * loud[name])  # half the noise: twice as far
        assert silent[name] > quiet[name]
    # All rounds together put as much noise on the map as is allowed.
    total = loud[MAP] * 100.0 * np.sqrt(phases[1].rounds) / (1.0 - veil.MOMENTUM)
    assert total == pytest.approx(0.3)


def test_places_that_were_released_are_saved_for_other_rankers():
    on = problem()
    trainer = make_trainer(veil.METHOD, configured("privacy.epsilon=100", MANY, "dim=5"), on)
    for number in range(on.rounds):
        trainer.step(number)
    made = trainer.model()
    saved = made._ranker.tables(trainer.server.weights)
    told = made._told
    assert np.array_equal(saved["places.values"], told.places.values)
    assert saved["places.values"].shape == saved["places.gains"].shape == saved["places.expected"].shape
    for among in np.hsplit(saved["places.values"], 2):  # of both passes
        assert np.abs(among).max() > 0.01
    # Content has fewer directions than the table would pay for: messages and units are of as many as there are.
    n_directions, bounds = saved["places.values"].shape[1] // 2, trainer.plan.mechanism.clip_norms
    assert n_directions == 5 < veil.SPENDINGS[-1].directions
    for name, bound in zip(PASSES, bounds, strict=False):
        units = made._ranker.steps.units[name]
        assert units * bound == pytest.approx(CLIPS[name] * np.sqrt(n_directions))
    assert told.basis.shape[1] > told.places.values.shape[1]


def test_without_order_the_latest_items_count_hardly_more_than_others():
    rows = histories_of([[1, 2, 3, 4, 5, 6, 7], [7, 6, 5, 4, 3, 2, 1]])
    apart = []
    for order in ("off", "on"):
        first, second = model_of(f"order={order}", "caution=0", MANY).fold_in(rows).score_all(np.arange(2))
        apart.append(np.linalg.norm(first - second) / np.linalg.norm(first))
    assert apart[0] < 0.2 * apart[1]


def test_without_features_and_titles_popularity_is_left():
    bare = replace(problem(), features=None)
    model = model_of("privacy.epsilon=100", on=bare)
    scores = model.fold_in(histories_of([[], [1, 2, 3, 4, 5, 6]])).score_all(np.arange(2))
    assert np.isfinite(scores).all()
    uses = np.bincount(bare.train.items, minlength=300)
    assert np.corrcoef(scores[0], np.log1p(uses))[0, 1] > 0.6


def test_a_new_item_is_ranked_by_its_content():
    on = problem(rounds=12, users=300)
    kinds = on.features.items.codes[:, 0]
    used = np.unique(on.train.items)
    history = [int(item) for item in used if kinds[item] == kinds[used[0]]][:8]
    # Item 0 is used by nobody any more.
    kept = on.train.items != 0
    lengths = np.bincount(on.train.row_numbers()[kept], minlength=len(on.train))
    alone = Csr(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64), on.train.items[kept])
    liked = on.features.items.codes.copy()
    liked[0] = liked[history[0]]
    items = Side(on.features.items.features, liked, on.features.items.numbers)
    on = replace(on, train=alone, features=Features(on.features.users, items))
    model = model_of("privacy.epsilon=100", MANY, on=on)
    scores = model.fold_in(histories_of([history])).score_all(np.zeros(1, int))[0]
    others = np.flatnonzero((kinds != kinds[history[0]]) & (np.bincount(alone.items, minlength=300) > 0))
    assert (scores[0] > scores[others]).mean() > 0.6


def test_titles_are_read_where_there_are_any():
    titles = Strings.of(f"the {word} story ({1950 + n % 40})" for n, word in enumerate(["green", "old", "last"] * 100))
    with_titles = replace(problem(), features=None, catalogue=ItemTable(titles, Strings.of([""] * 300)))
    content = veil.plan(configured(), with_titles).trainer.content
    assert content.texts.shape[1] > 0
    assert len(content.starts) == 2  # the year, wide and narrow
    off = veil.plan(configured("titles=off"), with_titles).trainer.content
    assert off.texts.shape[1] == 0


pytestmark = pytest.mark.usefixtures("synthetic_sentences")


def trained(*settings, on=None, rounds=None):
    on = on or news_problem()
    trainer = make_trainer(veil.METHOD, configured(*settings), on)
    for number in range(on.rounds if rounds is None else rounds):
        trainer.step(number)
    return trainer.model()


def test_impressions_make_another_plan_than_a_catalogue():
    assert isinstance(veil.plan(configured(), news_problem()).trainer, VeilNewsLocalTrainer)
    assert isinstance(veil.METHOD.clients(configured(), small_problem(veil.METHOD, 20, 2)), OwnHistory)


def test_steps_go_on_until_they_settle_or_the_mean_is_in_doubt():
    mechanism = veil.plan(configured("privacy.epsilon=2"), news_problem()).mechanism
    few, some, many = (reach(mechanism, people, 5) for people in (30, 1000, 10**7))
    assert few < some < many and many == pytest.approx(SETTLED, rel=1e-3)
    # Of very few people the noise decides alone: twice the noise, a quarter of the way.
    louder = veil.plan(configured("privacy.epsilon=0.01"), news_problem()).mechanism
    loudest = veil.plan(configured("privacy.epsilon=0.005"), news_problem()).mechanism
    squares = (loudest.sigma / louder.sigma) ** 2
    assert reach(louder, 30, 5) / reach(loudest, 30, 5) == pytest.approx(squares, rel=0.02)


def test_rounds_change_neither_the_noise_on_the_model_nor_how_far_it_goes():
    noises = []
    for rounds in (1, 18):
        made = veil.plan(configured(), news_problem(rounds=rounds))
        noises.append(made.server.rate * made.mechanism.sigma * np.sqrt(rounds))
    assert noises[1] == pytest.approx(noises[0], rel=1e-3)


def test_with_next_to_no_budget_the_ranking_stays_where_public_text_put_it():
    start = trained(rounds=0)
    assert not any(values.any() for values in start.weights.values())
    for epsilon in (0.001, 0.01):
        assert auc(trained(f"privacy.epsilon={epsilon}")) == pytest.approx(auc(start), abs=0.003)
    assert auc(start) > 0.65  # chance is 0.5; some 120 impressions, standard error 0.02


def auc(ranks):
    return evaluate(tiny_split().test, tiny_split().train, ranks)["auc"]


def test_without_shrinkage_by_doubt_it_would_not(monkeypatch):
    monkeypatch.setattr(news, "reach", lambda mechanism, people, rounds: SETTLED)
    # Noise alone then ranks: 0.5, standard error 0.03.
    assert auc(trained("privacy.epsilon=0.001")) < auc(trained(rounds=0)) - 0.05


def test_with_a_budget_it_learns():
    on = small_problem(veil.METHOD, 400, 12, "synthetic-news")
    learnt = trained("privacy.epsilon=100", on=on)
    shown = on.news.impressions
    before = evaluate_train(trained(on=on, rounds=0), shown)
    # Of the impressions that it learnt from: standard error of the difference about 0.003.
    assert evaluate_train(learnt, shown) > before + 0.01


def evaluate_train(ranks, shown):
    scores, gains = ranks.score_impressions(shown), []
    for row in range(len(shown)):
        place = slice(*shown.shown.offsets[row : row + 2])
        clicks, own = shown.clicked[place] > 0, scores[place]
        if 0 < clicks.sum() < len(clicks):
            gains.append((own[clicks][:, np.newaxis] > own[~clicks]).mean())
    return float(np.mean(gains))


def test_without_a_history_everybody_gets_what_everybody_likes():
    model = trained("privacy.epsilon=100")
    nobody, somebody = model.fold_in(histories_of([[], [1, 2, 3]])).score_all(np.arange(2))
    content = model.content
    appeal = content.appeal @ model.weights[TASTE] + model.weights[KINDS][content.subcategories]
    assert nobody == pytest.approx(appeal, abs=1e-5) and not np.allclose(nobody, somebody)


def part_and_whole(model):
    """Scores of a third of the news, read without the rest, and of the same among all."""
    catalogue = population().catalogue
    some = range(0, len(catalogue.titles), 3)
    fewer = ItemTable(
        *(Strings.of(column[n] for n in some) for column in (catalogue.titles, catalogue.categories)),
        Strings.of(catalogue.subcategories[n] for n in some),
        None if catalogue.abstracts is None else Strings.of(catalogue.abstracts[n] for n in some),
    )
    alone = model.on(fewer).fold_in(histories_of([[5, 1, 9]])).score_all(np.zeros(1, np.int64))[0]
    return alone, model.fold_in(histories_of([[15, 3, 27]])).score_all(np.zeros(1, np.int64))[0][::3]


@pytest.mark.parametrize("titles", ["words", "sentences", "off"])
def test_a_part_of_the_news_is_read_as_among_all(titles):
    alone, among_all = part_and_whole(trained(f"titles={titles}", "privacy.epsilon=100"))
    assert alone == pytest.approx(among_all, abs=1e-4)


def test_titles_that_nobody_wrote_are_not_read():
    bare = ItemTable(Strings.of([""] * 4), Strings.of(["a", "a", "b", ""]))
    content = reading_of(bare, "words").read(bare)
    assert (content.vectors.shape[1], content.appeal.shape[1], content.n_features) == (0, 0, 2)
    assert content.categories.tolist() == [0, 0, 1, -1]
    on = news_problem()
    unread = replace(on.news.catalogue, titles=Strings.of([""] * on.n_items), abstracts=None)
    weights = trained(on=replace(on, news=replace(on.news, catalogue=unread))).weights
    assert set(weights) == {SCALES, KINDS}


def test_impressions_without_a_choice_are_refused():
    on = news_problem()
    shown = on.news.impressions
    nobody = replace(on.news, impressions=replace(shown, clicked=np.zeros_like(shown.clicked)))
    with pytest.raises(BadInput, match="nothing to learn from"):
        veil.plan(configured(), replace(on, news=nobody))


def test_an_audit_names_the_people_that_it_is_about():
    assert synthetic_for(veil.METHOD) == "synthetic-ratings"
    assert synthetic_for(veil.METHOD, "synthetic-news") == "synthetic-news"
    assert synthetic_for(get("privaterec")) == "synthetic-news"
    with pytest.raises(BadInput, match="choose from synthetic-ratings, synthetic-news"):
        audit_method("veil", quick=True, data="ml-1m")


RATINGS, NEWS = "synthetic-ratings", "synthetic-news"


def failed(data, change=None):
    """The checks that a plan with all kinds of rounds fails; people=20000 is a nominal number."""
    on = small_problem(veil.METHOD, 40, 6, data)
    settings = ["privacy.epsilon=8", *(["people=20000"] if data == RATINGS else [])]
    config, _ = configure(veil.METHOD, preset="tuned", dataset="", settings=settings)
    made = veil.plan(config, on)
    if change is not None:
        change(made)
    checks = audit_plan(
        made, veil.METHOD.clients(config, on), on.train, promised(veil.METHOD, config, on), rounds=3, drawn=100
    )
    return {check.name for check in checks if not check.holds}


def longer_bounds(made):
    """Rounds that may be as long as the longest, and are charged by their own bound."""
    made.mechanism._clip_norm = lambda spec: 1.0


def charge_of_one_round(made):
    sound = made.mechanism.events
    made.mechanism.events = lambda rounds: sound(1)


def half_sigma(made):
    made.mechanism.sigma /= 2.0


def less_noise_on_places(patch):
    sound = CohortSum.sigma_in
    patch.setattr(
        CohortSum, "sigma_in", lambda self, name, spec: sound(self, name, spec) * (0.5 if name == PLACES else 1.0)
    )


def noise_of_one_round(patch):
    sound = news.noisy_sum
    patch.setattr(news, "noisy_sum", lambda *given, **named: sound(*given, **(named | {"rounds": 1})))


IN_CODE = {
    "no noise": (bugs.protect(lambda *arguments: None), bugs.BARE, (RATINGS, NEWS)),
    "half noise": (bugs.noisy(lambda self, total, noise: noise / 2), bugs.SPREAD, (RATINGS, NEWS)),
    "a tensor left out": (bugs.protect(bugs.all_but_the_last), bugs.BARE, (RATINGS, NEWS)),
    "no clip": (lambda patch: patch.setattr(CohortSum, "bound", lambda _, u, spec: u), bugs.HOSTILE, (RATINGS, NEWS)),
    "less on places": (less_noise_on_places, bugs.SPREAD, (RATINGS,)),
    "exact votes": (lambda patch: patch.setattr(VoteReports, "protect", bugs.exact_votes), bugs.COUNTS, (RATINGS,)),
    "noise of one round": (noise_of_one_round, bugs.DELTA, (NEWS,)),
}
IN_PLAN = {
    "half sigma": (half_sigma, bugs.SPREAD, (RATINGS, NEWS)),
    "charge of one round": (charge_of_one_round, bugs.CHARGED, (RATINGS, NEWS)),
    "longer bounds": (longer_bounds, bugs.HOSTILE, (RATINGS,)),
}


@pytest.mark.parametrize("data", [RATINGS, NEWS])
def test_the_audit_holds(data):
    assert failed(data) == set()


@pytest.mark.parametrize(("bug", "data"), [(bug, data) for bug, planted in IN_CODE.items() for data in planted[2]])
def test_a_bug_in_the_code_is_found(bug, data, monkeypatch):
    plant, seen_by, _ = IN_CODE[bug]
    plant(monkeypatch)
    assert seen_by in failed(data)


@pytest.mark.parametrize(("bug", "data"), [(bug, data) for bug, planted in IN_PLAN.items() for data in planted[2]])
def test_a_bug_in_a_plan_is_found(bug, data):
    change, seen_by, _ = IN_PLAN[bug]
    assert seen_by in failed(data, change)
