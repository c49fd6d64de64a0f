"""Impressions of a client: examples drawn from them, and PrivateRec's training with local noise."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from veilrec.audit.contract_subject import histories_of
from veilrec.client import news_data as data
from veilrec.client.local_training import Cohort, OwnSources, SharedSource
from veilrec.client.news import LocalNoise, NewsTrainingSettings, PrivateNewsLocalTrainer, start_weights
from veilrec.core.errors import BadInput
from veilrec.core.schema import RoundSpec
from veilrec.data.population import Impressions
from veilrec.data.synthetic_news import generate
from veilrec.methods.news.prepare import make_model
from veilrec.models.news_model import NewsInput, NewsShape, NewsSizes
from veilrec.privacy.mechanisms.attention import PaddedNoise
from veilrec.privacy.mechanisms.responses import LabelPermutation, LabelPerturbation, LabelResponse
from veilrec.privacy.randomness import SeededSource


def impressions():
    return Impressions(
        users=np.array([1, 1, 0, 2], np.int32),
        times=np.array([20, 10, 5, 1]),
        shown=histories_of([[5, 6, 7], [8, 9], [3, 4], [1, 2]]),
        clicked=np.array([0, 1, 1, 1, 0, 1, 1, 0, 1], np.uint8),  # the third has no news without a click
        histories=histories_of([[1, 2, 3], []]),
        history_of=np.array([0, 0, 0, 1], np.int32),
    )


def draw(logs, clients, *, negatives=4, number=0):
    return data.draw_examples(logs, np.array(clients, np.int64), negatives=negatives, longest=3, seed=7, number=number)


def test_a_log_has_history_clicks_and_others_in_time_order():
    logs = data.pack_logs(impressions(), 4, longest=2)
    assert (logs.row(0).tolist(), logs.row(1).tolist()) == ([], [2, 1, 1, 2, 3, 8, 9, 2, 2, 1, 2, 3, 6, 7, 5])
    assert (logs.row(2).tolist(), logs.row(3).tolist()) == ([0, 1, 1, 2, 1], [])
    assert data.count_clicks(logs).tolist() == [0, 3, 1, 0]


def test_examples_have_the_click_first_and_share_histories():
    examples = draw(data.pack_logs(impressions(), 4), [0, 1, 2, 3])
    assert (examples.client.tolist(), examples.candidates[:, 0].tolist()) == ([1, 1, 1, 2], [8, 6, 7, 2])
    assert examples.candidates[:, 1:].tolist() == [[x, data.NONE, data.NONE, data.NONE] for x in (9, 5, 5, 1)]
    assert examples.history_of.tolist() == [0, 0, 0, 1]
    assert examples.histories.tolist() == [[1, 2, 3], [data.NONE, data.NONE, data.NONE]]


def test_negatives_are_distinct_unclicked_and_keyed_by_client_and_round():
    train = generate(users=40, news=300, days=3, seed=2).impressions["train"]
    logs = data.pack_logs(train, 40)
    everyone = list(range(40))
    examples = draw(logs, everyone)
    users, yes = train.users[train.shown.row_numbers()], train.clicked > 0
    clicked = set(zip(users[yes], train.shown.items[yes], strict=True))
    for client, candidates in zip(examples.client, examples.candidates, strict=True):
        real = candidates[candidates != data.NONE]
        assert len(set(real)) == len(real) and (client, candidates[0]) in clicked
    alone = draw(logs.take(np.array([7])), [7])
    assert np.array_equal(alone.candidates, examples.candidates[examples.client == 7])
    assert not np.array_equal(draw(logs, everyone, number=1).candidates, examples.candidates)


def test_every_unclicked_news_is_drawn_equally_often():
    log = histories_of([[0, 1, 5, 9, 0, 1, 2, 3, 4]])
    counts = np.zeros(5)
    for number in range(2000):
        counts[draw(log, [0], negatives=2, number=number).candidates[0, 1:]] += 1
    # Each has 800 expected, standard deviation about 22: off by 110 (5 deviations) once in 300,000 runs.
    assert np.abs(counts - 800).max() < 110


WORDS = "words.weight"
BASIS, NEWS = 3, 12
SIZES = NewsSizes(word_dim=4, heads=2, head_dim=3, attention=3, basis=BASIS, attention_clip=0.8)
SHAPE = NewsShape(words=2 + NEWS, categories=2, subcategories=2, entities=2)
# history, clicks, others of every impression; client 0 has two impressions, client 1 one
ROWS = [
    [3, 1, 4, *(0, 1, 2), *(3,), *(4, 5, 6, 7), 3, 2, 1, *(0, 1, 2), *(4, 5), *(8,)],
    [1, 1, 2, *(9,), *(10,), *(3, 11)],
]


def logs():
    return histories_of(ROWS)


def news():
    """Every news has one word, its own."""
    empty = torch.zeros(NEWS, 0, dtype=torch.int64)
    zero = torch.zeros(NEWS, dtype=torch.int64)
    title = torch.arange(NEWS).unsqueeze(1) + 2
    return NewsInput(title, empty, zero, zero, torch.zeros_like(title), torch.zeros(NEWS, 0))


def attention(epsilon=5.0, pad_probability=0.0):
    published = {"delta": 0.0, "noise": "laplace", "calibration": "as-published"}
    clip = SIZES.attention_clip
    return PaddedNoise(basis=BASIS, clip_norm=clip, epsilon=epsilon, pad_probability=pad_probability, **published)


def trainer(path, *, epsilon=5.0, pad_probability=0.0):
    model = make_model("interest-nrms", SIZES, SHAPE, torch.Generator().manual_seed(1))
    way = LabelPermutation if path == "through" else LabelResponse
    labels = LabelPerturbation(way, negatives=2, epsilon=epsilon)
    noise = LocalNoise(attention(epsilon, pad_probability), labels, path, None if path == "through" else 1)
    return PrivateNewsLocalTrainer(
        model, news(), frozenset(), NewsTrainingSettings(negatives=2, history=4), noise=noise
    )


def cohort(*clients, seed=1):
    numbers = np.array(clients or (0, 1), np.int64)
    own = OwnSources(lambda client: SeededSource(seed, client))
    return Cohort(numbers, data.OwnImpressions(logs()).take(numbers), {}, 5, own)


def weights(made):
    return start_weights(made.start, frozenset())


def test_every_click_is_a_sample_with_what_was_not_clicked():
    samples = data.every_click(logs(), longest=4)
    assert samples.client.tolist() == [0, 0, 0, 1]
    rows = [samples.shown.row(number).tolist() for number in range(4)]
    assert (rows, samples.clicked.tolist()) == ([[3, 4, 5, 6, 7], [4, 8], [5, 8], [10, 3, 11]], [0, 0, 0, 0])
    assert samples.history_of.tolist() == [0, 0, 0, 1]
    assert samples.histories.tolist() == [[0, 1, 2, data.NONE], [9, data.NONE, data.NONE, data.NONE]]


def test_a_report_is_on_one_click_of_one_impression_in_an_order_that_tells_nothing():
    seen = set()
    for number in range(40):
        samples = data.one_click_of_some(logs(), np.array([0, 1]), most=1, longest=2, seed=1, number=number)
        assert samples.client.tolist() == [0, 1]
        for row in range(2):
            shown = samples.shown.row(row)
            assert shown.tolist() == sorted(shown.tolist())
        seen.add(int(samples.shown.row(0)[samples.clicked[0]]))
        assert samples.histories.tolist()[0] == [1, 2]  # the latest two
    assert seen == {3, 4, 5}  # every click has its turn


def test_the_noise_of_an_example_is_what_the_mechanism_added():
    made = trainer("through")
    examples, shares = made.ready(cohort(), weights(made), RoundSpec(0))
    assert len(examples) == 4 and not examples.padded.any() and shares.sum() == pytest.approx(1.0, abs=1e-5)
    # Laplace with scale theta / eps: 4000 draws, mean of absolute values off by more than 8 % once in 10^6
    noises = [made.ready(cohort(seed=seed), weights(made), RoundSpec(0))[0].noise for seed in range(340)]
    size = np.mean([np.abs(noise).mean() for noise in noises if noise is not None])
    assert size == pytest.approx(SIZES.attention_clip / 5.0, rel=0.08)


def test_padding_is_drawn_afresh_for_every_sample():
    made = trainer("through", pad_probability=0.5)
    drawn = [made.ready(cohort(seed=seed), weights(made), RoundSpec(0))[0].padded for seed in range(60)]
    real = np.array([[True] * 3 + [False]] * 3 + [[True] + [False] * 3])
    masks = np.array([mask for mask in drawn if mask is not None])
    assert not masks[:, ~real].any()
    assert masks[:, real].mean() == pytest.approx(0.5, abs=0.12)  # 600 coins: six standard errors
    assert (masks[:, 0] != masks[:, 1]).any()  # the same history, another mask


def test_a_told_label_stands_first_and_the_click_is_always_a_candidate_as_published():
    made = trainer("through", epsilon=0.01)
    first, clicks = set(), [3, 4, 5, 10]
    for seed in range(30):
        examples, _ = made.ready(cohort(seed=seed), weights(made), RoundSpec(0))
        assert all(click in row for click, row in zip(clicks, examples.candidates.tolist(), strict=True))
        first.add(int(examples.candidates[0, 0]))
        assert examples.candidates[1].tolist()[2] == data.NONE  # one other item: fewer than k
    assert len(first) == 5


def test_as_published_the_rows_of_clicked_words_are_in_the_message():
    made = trainer("through")
    rows = made.learn(cohort(1), weights(made), RoundSpec(0)).updates.tables[WORDS]
    of_history = np.flatnonzero(rows.index == 9 + 2)
    assert np.abs(rows.values[of_history]).max() > 0.0


def test_of_reports_nothing_of_the_history_reaches_the_gradient():
    made = trainer("released")
    found = made.learn(cohort(), weights(made), RoundSpec(0)).updates
    for name, values in found.dense.items():
        if name.startswith("clicks.") or name in ("newcomer", "pad"):  # the user encoder
            assert not values.any(), name
    assert found.dense["basis"].any()
    assert not set(found.tables[WORDS].index.tolist()) & {2, 3, 4, 11}  # words of histories alone


def test_a_trainer_with_noise_needs_something_to_draw_it_from():
    made = trainer("through")
    with pytest.raises(BadInput, match="nothing to draw"):
        made.learn(replace(cohort(), noise=None), weights(made), RoundSpec(0))


def test_a_shared_source_is_drawn_from_once():
    made = trainer("through")
    shared = replace(cohort(), noise=SharedSource(SeededSource(3)))
    examples, _ = made.ready(shared, weights(made), RoundSpec(0))
    assert len(np.unique(examples.noise)) == examples.noise.size


def test_tiny_epsilons_give_numbers():
    made = trainer("through", epsilon=1e-3, pad_probability=0.9)
    learned = made.learn(cohort(), weights(made), RoundSpec(0))
    assert np.isfinite(learned.loss).all()
    assert all(np.isfinite(values).all() for values in learned.updates.dense.values())


def test_a_model_that_overflows_on_a_history_does_not_make_its_client_fall_silent():
    """Whoever sends the model would else learn, whatever the noise, who has read the news that it overflows on."""
    made = trainer("released")
    sent = {name: values.copy() for name, values in weights(made).items()}
    sent[WORDS][9 + 2] = 1e30  # a word of the one click in the history of client 1, which no candidate has
    found = made.learn(cohort(1), sent, RoundSpec(0)).updates
    assert all(np.isfinite(values).all() for values in found.dense.values())
