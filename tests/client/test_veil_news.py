"""What a device of veil sends of its impressions, and what its list of news depends on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from veilrec.audit.contract_subject import histories_of
from veilrec.client.local_training import Cohort
from veilrec.client.news_data import OwnImpressions, blocks_of, pack_logs
from veilrec.client.veil_news import CLIP, KINDS, SCALES, TASTE, VeilNewsLocalTrainer, VeilNewsModel
from veilrec.core.arrays import Doubles, Floats
from veilrec.core.csr import Csr
from veilrec.core.schema import RoundSpec
from veilrec.data.population import Impressions
from veilrec.models.news_content import NO_NAME, NewsContent
from veilrec.privacy.mechanisms.clipping import upload_norms

NEWS, FEATURES, LATEST = 10, 4, 3
HISTORIES = histories_of([[0, 1, 2, 3], [4], []])
SHOWN = histories_of([[5, 6, 7], [8, 9, 1, 0], [2, 6], [3, 8, 9]])
CLICKED = np.array([0, 1, 0, 1, 0, 1, 0, 1, 0, 0, 0, 1], np.uint8)


def content() -> NewsContent:
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


def impressions() -> Impressions:
    """Of two users, one with three impressions."""
    return Impressions(
        np.array([0, 0, 1, 0], np.int32), np.arange(4), SHOWN, CLICKED, HISTORIES, np.array([0, 1, 2, 0], np.int32)
    )


def logs() -> Csr:
    return pack_logs(impressions(), 2, LATEST)


def model(seed: int = 0) -> dict[str, Floats]:
    generator = np.random.default_rng(seed)
    return {name: generator.standard_normal(size).astype(np.float32) for name, size in _sizes().items()}


def _sizes() -> dict[str, int]:
    return {SCALES: FEATURES, TASTE: 2, KINDS: 3}


def features_of(history: list[int], items: list[int]) -> Doubles:
    """The page's formulas, one news at a time."""
    known, out = content(), np.zeros((len(items), FEATURES))
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


def scores_of(history: list[int], items: list[int], weights: dict[str, Floats]) -> Doubles:
    known = content()
    counts = known.start + weights[SCALES]
    kinds = np.where(known.subcategories[items] == NO_NAME, 0.0, weights[KINDS][known.subcategories[items]])
    return np.asarray(features_of(history, items) @ counts + known.appeal[items] @ weights[TASTE] + kinds)


def losses_of(weights: dict[str, Floats]) -> Doubles:
    """The mean loss of each device over its impressions."""
    out = []
    for row in range(2):
        own = []
        for history, clicks, others in blocks_of(logs().row(row)):
            scores = scores_of(history.tolist(), [*clicks.tolist(), *others.tolist()], weights)
            own.append(np.log(np.exp(scores).sum()) - scores[: len(clicks)].mean())
        out.append(np.mean(own))
    return np.array(out)


def cohort(rows: Csr) -> Cohort[OwnImpressions]:
    return Cohort(np.arange(len(rows)), OwnImpressions(rows), {}, 7)


def test_features_are_those_of_the_page() -> None:
    lists = histories_of([[5, 6, 9], [9, 0], [3]])
    found = content().described(HISTORIES, np.array([0, 1, 2]), lists, LATEST)
    expected = [features_of([1, 2, 3], [5, 6, 9]), features_of([4], [9, 0]), features_of([], [3])]
    assert found == pytest.approx(np.concatenate(expected), abs=1e-5)


@pytest.mark.parametrize("name", [SCALES, TASTE, KINDS])
def test_the_message_is_the_gradient_of_the_loss_cut(name: str) -> None:
    weights = model()
    learned = VeilNewsLocalTrainer(content()).learn(cohort(logs()), weights, RoundSpec(0))
    assert learned.loss == pytest.approx(losses_of(weights), rel=1e-5)
    assert learned.examples.tolist() == [10, 2]
    slopes: dict[str, Doubles] = {part: np.zeros((2, size)) for part, size in _sizes().items()}
    for part, size in _sizes().items():
        for place in range(size):
            moved = [weights | {part: weights[part] + sign * 1e-2 * np.eye(size)[place]} for sign in (1.0, -1.0)]
            slopes[part][:, place] = (losses_of(moved[0]) - losses_of(moved[1])) / 2e-2  # type: ignore[arg-type]
    whole = np.concatenate(list(slopes.values()), axis=1)
    lengths = np.maximum(np.linalg.norm(whole, axis=1, keepdims=True), CLIP)
    assert learned.uploads.dense[name] == pytest.approx(-slopes[name] / lengths, abs=2e-3)


def test_no_message_is_longer_than_the_bound_of_its_round() -> None:
    steep = replace(content(), appeal=100.0 * content().appeal)
    for about, most in ((RoundSpec(0), 1.0), (RoundSpec(0, clip_norm=0.25), 0.25)):
        norms = upload_norms(VeilNewsLocalTrainer(steep).learn(cohort(logs()), model(), about).uploads)
        assert (norms <= most).all()
        assert norms == pytest.approx(most, rel=1e-5)  # as long as they may be


def test_who_has_seen_everything_twice_says_the_same() -> None:
    known = content()
    nameless = np.full(NEWS, NO_NAME, np.int32)
    faint = replace(
        known, appeal=0.05 * known.appeal, vectors=0.1 * known.vectors, categories=nameless, subcategories=nameless
    )
    once = logs().row(0)
    rows = Csr(np.array([0, len(once), 3 * len(once)]), np.concatenate([once, once, once]))
    sent = VeilNewsLocalTrainer(faint).learn(cohort(rows), model(), RoundSpec(0)).uploads
    assert (upload_norms(sent) < 0.9).all()  # shorter than the cut, which would make all of them alike
    for values in sent.dense.values():
        assert values[1] == pytest.approx(values[0], abs=1e-6)


def test_a_device_without_impressions_sends_nothing() -> None:
    learned = VeilNewsLocalTrainer(content()).learn(cohort(histories_of([[]])), model(), RoundSpec(0))
    assert not any(values.any() for values in learned.uploads.dense.values())
    assert (learned.loss[0], learned.examples[0]) == (0.0, 0)


def test_ranks_by_what_it_learnt() -> None:
    ranks, weights = VeilNewsModel(content(), model(), HISTORIES, LATEST), model()
    asked = np.array([0, 2])
    everything = ranks.score_all(asked)
    for row, history in zip(everything, ([1, 2, 3], []), strict=True):
        assert row == pytest.approx(scores_of(history, list(range(NEWS)), weights), abs=1e-4)
    shown = ranks.score_impressions(impressions())
    assert shown[:3] == pytest.approx(scores_of([1, 2, 3], [5, 6, 7], weights), abs=1e-4)
    assert shown[7:9] == pytest.approx(scores_of([], [2, 6], weights), abs=1e-4)
