"""veil on a client: what it sends of items and of impressions, and what its list depends on."""

from dataclasses import replace

import numpy as np
import pytest

from tests.web.veil_vectors import N_ITEMS as N_RELEASED
from tests.web.veil_vectors import SIDES, made
from veilrec.audit.contract_subject import histories_of
from veilrec.client import veil as client
from veilrec.client.local_training import Cohort
from veilrec.client.news_data import OwnImpressions, blocks_of, pack_logs
from veilrec.client.released import one_history, packed, program_of, unpacked
from veilrec.client.veil_news import CLIP, KINDS, SCALES, TASTE, VeilNewsLocalTrainer, VeilNewsModel
from veilrec.core.csr import Csr
from veilrec.core.schema import RoundSpec
from veilrec.data.population import Impressions
from veilrec.models import veil
from veilrec.models.news_content import NO_NAME, NewsContent
from veilrec.models.veil import ALONE, Content, decays_of, placed
from veilrec.privacy.mechanisms.clipping import update_norms

N_ITEMS = 12
READING = client.Reading(recency=(1.0, 5.0), taste_recency=(3.0,), popularity_recency=(2.0,), targets=6, negatives=3)
STEPS = client.Steps(
    units={client.WEIGHTS: 0.5, client.MAP: 2.0, client.PLACES: 1.5},
    shares={client.WEIGHTS: 0.5, client.MAP: 0.5, client.PLACES: 1.0},
    noise={client.PLACES: 0.3},
)
HISTORIES = histories_of([[0, 3, 6, 9, 1, 4, 7, 10], [2, 5, 8, 11, 0], [1, 2], []])
EVERYTHING = RoundSpec(0)


def content():
    generator = np.random.default_rng(3)
    return Content(
        codes=(np.arange(N_ITEMS, dtype=np.int32) % 3)[np.newaxis],
        tables=np.eye(3, dtype=np.float32).ravel(),
        starts=np.array([0]),
        widths=np.array([3]),
        texts=np.zeros((N_ITEMS, 0), np.float32),
        kernels=np.array([[0, ALONE]], np.int32),
        scales=np.array([2.0], np.float32),
        basis=generator.standard_normal((N_ITEMS, 2)).astype(np.float32),
    )


def model(seed=0):
    generator = np.random.default_rng(seed)
    shapes = {client.POPULARITY: (N_ITEMS, 2), client.WEIGHTS: (6,), client.MAP: (4, 3), client.PLACES: (N_ITEMS, 1)}
    return {name: (0.3 * generator.standard_normal(shape)).astype(np.float32) for name, shape in shapes.items()}


def trainer(names=(client.WEIGHTS, client.MAP, client.PLACES)):
    return client.VeilLocalTrainer(content(), READING, np.eye(6, dtype=np.float32), STEPS, names)


def cohort(rows=HISTORIES, clients=(0, 1, 2, 3)):
    return Cohort(np.array(clients), client.OwnHistory(rows), {}, 7)


@pytest.mark.parametrize("name", [client.WEIGHTS, client.MAP])
def test_the_gradient_is_that_of_the_loss(name):
    made, start = trainer(), model()
    told = STEPS.told(start, content())
    read = client.HistoryReader(READING, content(), 7).examples_of_all(client.OwnHistory(HISTORIES), np.arange(4), told)
    gradients, loss = made._gradients(read, start, (client.WEIGHTS, client.MAP))
    direction = np.random.default_rng(1).standard_normal(start[name].shape).astype(np.float32)
    step = 1e-2

    def after(sign):
        moved = start[name] + np.float32(sign * step / STEPS.units[name]) * direction
        return made._gradients(read, start | {name: moved}, ())[1]

    slope = (after(1.0) - after(-1.0)) / (2 * step)
    expected = -(gradients[name] * direction).reshape(4, -1).sum(axis=1)
    assert slope[:2] == pytest.approx(expected[:2], rel=2e-2, abs=2e-3) and not loss[2:].any()
    assert not gradients[name][2:].any()  # too short a history says nothing


def test_a_place_is_that_of_what_came_before():
    """The sums of everybody's messages are votes times mean places; the first item of a history has none."""
    history, basis = HISTORIES.row(0), content().basis[:, 0]
    asked = RoundSpec(0, tensors=(client.PLACES,), clip_norm=client.CLIPS[client.PLACES])
    sent = trainer().learn(cohort(), model(), asked).updates
    decay = np.exp(-1.0 / READING.place_recency)
    scale = 2.0 / basis.std()
    expected = np.zeros(N_ITEMS)
    for place in range(1, len(history)):
        weights = decay ** np.arange(place)[::-1]
        expected[history[place]] = scale * (weights @ basis[history[:place]]) / weights.sum() / np.sqrt(len(history))
    length = np.linalg.norm(expected)
    expected *= min(1.0, client.CLIPS[client.PLACES] / length)
    assert sent.dense[client.PLACES][0, :, 0] == pytest.approx(expected, rel=1e-4, abs=1e-6)
    assert not sent.dense[client.PLACES][3].any()  # nobody who has nothing


TWICE = replace(
    STEPS,
    units={**STEPS.units, client.FURTHER: 0.8},
    shares={**STEPS.shares, client.FURTHER: 1.0},
    noise={**STEPS.noise, client.FURTHER: 0.2},
)


def in_two_passes():
    generator = np.random.default_rng(8)
    further = (0.3 * generator.standard_normal((N_ITEMS, 1))).astype(np.float32)
    reading = replace(READING, place_passes=2)
    names = (client.WEIGHTS, client.MAP, client.PLACES, client.FURTHER)
    return client.VeilLocalTrainer(content(), reading, np.eye(6, dtype=np.float32), TWICE, names), model() | {
        client.FURTHER: further,
        client.MAP: (0.3 * generator.standard_normal((5, 4))).astype(np.float32),
    }


def test_a_second_pass_is_among_what_the_first_said():
    made, start = in_two_passes()
    history, first = HISTORIES.row(0), STEPS.told(model(), content()).places.values
    asked = RoundSpec(1, tensors=(client.FURTHER,), clip_norm=client.CLIPS[client.FURTHER])
    sent = made.learn(cohort(), start | {client.FURTHER: 0.0 * start[client.FURTHER]}, asked).updates
    assert set(sent.dense) == {client.FURTHER}
    places = client.places_of(READING, first * np.float32(2.0) / first.std(axis=0), history)
    expected = np.zeros(N_ITEMS)
    expected[history] = client.share_of_places(places) * places[:, 0]
    assert sent.dense[client.FURTHER][0, :, 0] == pytest.approx(expected, rel=1e-4, abs=1e-6)
    # Before the first pass there is nothing to lie among.
    unknown = start | {name: 0.0 * start[name] for name in (client.PLACES, client.FURTHER)}
    assert not made.learn(cohort(), unknown, asked).updates.dense[client.FURTHER].any()


def test_of_both_passes_a_client_takes_its_own_part_away():
    made, start = in_two_passes()
    told = TWICE.told(start, content())
    first = STEPS.told(model(), content()).places.values
    assert np.array_equal(told.places.values[:, :1], first)
    # Content and the first pass predict the second.
    uses, known = np.exp(start[client.POPULARITY][:, 0].astype(np.float64)), np.column_stack([content().basis, first])
    again = placed(np.float32(0.8) * start[client.FURTHER], 0.2, uses, known)
    assert told.places.values[:, 1:] == pytest.approx(again.values, rel=1e-5)
    examples = client.HistoryReader(made.reading, content(), 7).made(HISTORIES.row(0), 0)
    item, end = int(examples.candidates[0, 0]), int(examples.ends[0])
    others = told.basis[examples.candidates[0, 1]] - client.seen(made.reading, told, examples).beside[0, 0]
    for place, among in enumerate(told.among):
        own = client.places_of(made.reading, among, examples.history)
        gain, expected = told.places.gains[item, place], told.places.expected[item, place]
        taken = told.basis[item, 2 + place] - others[2 + place]
        assert taken == pytest.approx(0.5 * gain * client.share_of_places(own) * (own[end, 0] - expected), rel=1e-4)
        assert abs(taken) > 1e-4


def test_parts_of_a_message_share_the_bound():
    spec = RoundSpec(0, clip_norm=0.25, tensors=(client.WEIGHTS, client.MAP))
    sent = trainer().learn(cohort(), model(), spec).updates
    assert set(sent.dense) == {client.WEIGHTS, client.MAP}
    norms = update_norms(sent)
    assert (norms <= 0.25).all()
    for name in (client.WEIGHTS, client.MAP):
        length = np.linalg.norm(sent.dense[name].reshape(4, -1), axis=1)
        assert (length <= 0.25 * np.sqrt(0.5)).all()
    assert set(trainer().learn(cohort(), model(), RoundSpec(0, tensors=(client.PLACES,))).updates.dense) == {
        client.PLACES
    }
    assert client.CLIPS[client.MAP] < client.CLIPS[client.WEIGHTS]


def test_what_is_remembered_is_what_would_be_worked_out_again():
    data = client.OwnHistory(HISTORIES)
    first = trainer().learn(Cohort(np.arange(4), data, {}, 7), model(), EVERYTHING).updates
    again = trainer().learn(Cohort(np.arange(4), data, {}, 7), model(), EVERYTHING).updates
    # Other places alone: tastes and rows are worked out anew.
    elsewhere = model() | {client.PLACES: model(1)[client.PLACES]}
    told_again = trainer().learn(Cohort(np.arange(4), data, {}, 7), elsewhere, EVERYTHING).updates
    told_first = trainer().learn(cohort(), elsewhere, EVERYTHING).updates
    assert np.array_equal(told_again.dense[client.MAP], told_first.dense[client.MAP])
    other = trainer().learn(Cohort(np.arange(4), data, {}, 7), model(1), EVERYTHING).updates
    fresh = trainer().learn(cohort(), model(1), EVERYTHING).updates
    # The same memory with another history in its place: nothing of the old one is used.
    swapped = client.OwnHistory(HISTORIES.take(np.array([1, 0, 2, 3])), data.remembered)
    replaced = trainer().learn(Cohort(np.arange(4), swapped, {}, 7), model(), EVERYTHING).updates
    for name in first.dense:
        assert np.array_equal(first.dense[name], again.dense[name])
        assert np.array_equal(other.dense[name], fresh.dense[name])
        assert not np.array_equal(replaced.dense[name], first.dense[name])


def test_items_beside_a_target_were_not_used():
    examples = client.HistoryReader(READING, content(), 7).made(HISTORIES.row(0), 0)
    assert examples.candidates[:, 0].tolist() == [10, 7, 4, 1]  # the latest, those with four items before them
    assert not np.isin(examples.candidates[:, 1:], HISTORIES.row(0)).any()
    everything = client.HistoryReader(READING, content(), 7).made(np.arange(N_ITEMS, dtype=np.int32), 0)
    assert everything.candidates.shape == (6, 4)  # nothing is left to draw, and drawing ends


NEWS, FEATURES, LATEST = 10, 4, 3
CLICKS = histories_of([[0, 1, 2, 3], [4], []])
SHOWN = histories_of([[5, 6, 7], [8, 9, 1, 0], [2, 6], [3, 8, 9]])
CLICKED = np.array([0, 1, 0, 1, 0, 1, 0, 1, 0, 0, 0, 1], np.uint8)


def news_content():
    """A view of words by its mean, and one of sentences by both; the last news has no names."""
    generator = np.random.default_rng(3)
    parts = [generator.standard_normal((NEWS, width)) for width in (3, 2)]
    vectors = np.concatenate([part / np.linalg.norm(part, axis=1, keepdims=True) for part in parts], axis=1)
    categories, subcategories = np.arange(NEWS) % 2, np.arange(NEWS) % 3
    categories[-1] = subcategories[-1] = NO_NAME
    return NewsContent(
        vectors=vectors.astype(np.float32),
        ends=np.array([3, 5]),
        means=np.array([[1, 0, 0, 0], [0, 0.5, 0, 0]], np.float32),
        softs=np.array([[0, 0, 0, 0], [0, 0.5, 0, 0]], np.float32),
        categories=categories.astype(np.int32),
        subcategories=subcategories.astype(np.int32),
        rarity=np.array([1.0, 2.0, 3.0], np.float32),
        appeal=generator.standard_normal((NEWS, 2)).astype(np.float32),
        start=np.array([2.0, 1.0, 0.5, 0.25], np.float32),
    )


def impressions():
    """Of two users, one with three impressions."""
    return Impressions(
        np.array([0, 0, 1, 0], np.int32), np.arange(4), SHOWN, CLICKED, CLICKS, np.array([0, 1, 2, 0], np.int32)
    )


def logs():
    return pack_logs(impressions(), 2, LATEST)


def news_weights(seed=0):
    generator = np.random.default_rng(seed)
    return {name: generator.standard_normal(size).astype(np.float32) for name, size in LENGTHS.items()}


LENGTHS = {SCALES: FEATURES, TASTE: 2, KINDS: 3}


def features_of(history, items):
    """The page's formulas, one news at a time."""
    known, out = news_content(), np.zeros((len(items), FEATURES))
    for place, item in enumerate(items if history else []):
        views = [slice(0, 3), slice(3, 5)]
        near = [known.vectors[history, v] @ known.vectors[item, v] for v in views]
        out[place, 0] = near[0].mean()
        out[place, 1] = 0.5 * near[1].mean() + 0.5 * np.log(np.exp(5.0 * near[1]).mean()) / 5.0
        if known.categories[item] != NO_NAME:
            out[place, 2] = np.mean(known.categories[history] == known.categories[item])
            same = np.mean(known.subcategories[history] == known.subcategories[item])
            out[place, 3] = same * known.rarity[known.subcategories[item]]
    return out


def scores_of(history, items, weights):
    known = news_content()
    counts = known.start + weights[SCALES]
    kinds = np.where(known.subcategories[items] == NO_NAME, 0.0, weights[KINDS][known.subcategories[items]])
    return np.asarray(features_of(history, items) @ counts + known.appeal[items] @ weights[TASTE] + kinds)


def losses_of(weights):
    """The mean loss of each client over its impressions."""
    out = []
    for row in range(2):
        own = []
        for history, clicks, others in blocks_of(logs().row(row)):
            scores = scores_of(history.tolist(), [*clicks.tolist(), *others.tolist()], weights)
            own.append(np.log(np.exp(scores).sum()) - scores[: len(clicks)].mean())
        out.append(np.mean(own))
    return np.array(out)


def readers(rows):
    return Cohort(np.arange(len(rows)), OwnImpressions(rows), {}, 7)


def test_features_are_those_of_the_page():
    lists = histories_of([[5, 6, 9], [9, 0], [3]])
    found = news_content().described(CLICKS, np.array([0, 1, 2]), lists, LATEST)
    expected = [features_of([1, 2, 3], [5, 6, 9]), features_of([4], [9, 0]), features_of([], [3])]
    assert found == pytest.approx(np.concatenate(expected), abs=1e-5)


@pytest.mark.parametrize("name", [SCALES, TASTE, KINDS])
def test_the_message_is_the_gradient_of_the_loss_cut(name):
    weights = news_weights()
    learned = VeilNewsLocalTrainer(news_content()).learn(readers(logs()), weights, RoundSpec(0))
    assert learned.loss == pytest.approx(losses_of(weights), rel=1e-5) and learned.examples.tolist() == [10, 2]
    slopes = {part: np.zeros((2, size)) for part, size in LENGTHS.items()}
    for part, size in LENGTHS.items():
        for place in range(size):
            moved = [weights | {part: weights[part] + sign * 1e-2 * np.eye(size)[place]} for sign in (1.0, -1.0)]
            slopes[part][:, place] = (losses_of(moved[0]) - losses_of(moved[1])) / 2e-2
    whole = np.concatenate(list(slopes.values()), axis=1)
    lengths = np.maximum(np.linalg.norm(whole, axis=1, keepdims=True), CLIP)
    assert learned.updates.dense[name] == pytest.approx(-slopes[name] / lengths, abs=2e-3)


def test_no_message_is_longer_than_the_bound_of_its_round():
    steep = replace(news_content(), appeal=100.0 * news_content().appeal)
    for spec, most in ((RoundSpec(0), 1.0), (RoundSpec(0, clip_norm=0.25), 0.25)):
        norms = update_norms(VeilNewsLocalTrainer(steep).learn(readers(logs()), news_weights(), spec).updates)
        assert (norms <= most).all()
        assert norms == pytest.approx(most, rel=1e-5)  # as long as they may be


def test_who_has_seen_everything_twice_says_the_same():
    known = news_content()
    nameless = np.full(NEWS, NO_NAME, np.int32)
    faint = replace(
        known, appeal=0.05 * known.appeal, vectors=0.1 * known.vectors, categories=nameless, subcategories=nameless
    )
    once = logs().row(0)
    rows = Csr(np.array([0, len(once), 3 * len(once)]), np.concatenate([once, once, once]))
    sent = VeilNewsLocalTrainer(faint).learn(readers(rows), news_weights(), RoundSpec(0)).updates
    assert (update_norms(sent) < 0.9).all()  # shorter than the cut, which would make all of them alike
    for values in sent.dense.values():
        assert values[1] == pytest.approx(values[0], abs=1e-6)


def test_a_client_without_impressions_sends_nothing():
    learned = VeilNewsLocalTrainer(news_content()).learn(readers(histories_of([[]])), news_weights(), RoundSpec(0))
    assert not any(values.any() for values in learned.updates.dense.values())
    assert (learned.loss[0], learned.examples[0]) == (0.0, 0)


def test_ranks_by_what_it_learnt():
    ranks, weights = (VeilNewsModel(news_content(), news_weights(), CLICKS, LATEST), news_weights())
    asked = np.array([0, 2])
    everything = ranks.score_all(asked)
    for row, history in zip(everything, ([1, 2, 3], []), strict=True):
        assert row == pytest.approx(scores_of(history, list(range(NEWS)), weights), abs=1e-4)
    shown = ranks.score_impressions(impressions())
    assert shown[:3] == pytest.approx(scores_of([1, 2, 3], [5, 6, 7], weights), abs=1e-4)
    assert shown[7:9] == pytest.approx(scores_of([], [2, 6], weights), abs=1e-4)


@pytest.mark.parametrize("at_once", [7, 4096])
def test_features_are_the_same_without_a_compiler(monkeypatch, at_once):
    ranker, _ = made(0, plain=True, directions=3, caution=30.0)
    content, decays = ranker.content, decays_of((1.0, 8.0, 100.0))
    generator = np.random.default_rng(3)
    history = generator.permutation(N_RELEASED)[:30].astype(np.int32)
    ends = np.array([0, 1, 5, 9, 30])
    candidates = generator.integers(0, N_RELEASED, (5, 20)).astype(np.int32)
    compiled = content.features(history, ends, candidates, decays, 9)
    monkeypatch.setattr(veil, "compiles", lambda: False)
    monkeypatch.setattr(veil, "_AT_ONCE", at_once)
    assert np.abs(content.features(history, ends, candidates, decays, 9) - compiled).max() < 1e-5
    assert np.abs(compiled[1:]).min(axis=(0, 1)).max() > 0.0


def test_packing_keeps_what_sixteen_bits_hold_and_the_rest_exactly():
    ranker, learnt = made(0, plain=True, directions=3, caution=30.0)
    arrays = packed(ranker, learnt)
    assert arrays["content.codes"].dtype == np.uint8 and arrays["content.kernels"].dtype == np.int8
    assert int(arrays["content.widths"].max()) == max(SIDES)
    assert np.array_equal(arrays["learnt.weights"], learnt.weights)
    halves = {"content.basis": ranker.content.basis, "places.values": learnt.told.places.values}
    assert float(np.abs(halves["places.values"]).max()) > 2.0
    for name, values in halves.items():
        assert arrays[name].dtype == np.float16 and np.abs(arrays[name] - values).max() < 2e-3
    again = unpacked(program_of(ranker), arrays, N_RELEASED)
    twice = packed(again._ranker, again._learnt)
    assert all(np.array_equal(values, twice[name]) for name, values in arrays.items())
    history = np.arange(12, dtype=np.int32)
    scores = again.fold_in(one_history(history)).score_all(np.zeros(1, np.int64))[0]
    assert np.isfinite(scores).all() and len(scores) == N_RELEASED
