"""In which coordinates weights are learnt: those in which features of made-up histories are uncorrelated.

Noise is as large in every direction, so that what moves scores a lot needs few steps and gets little of it. How
features vary is learnt from no one: histories are made up, each next item drawn as much like the last ones as content
says.
"""

from __future__ import annotations

import numpy as np

from veilrec._arrays import Doubles, Floats, Indices
from veilrec.device.veil_history import Reading
from veilrec.models.veil_content import Content, decays_of, second_moment

_HISTORIES, _LENGTH, _TARGETS, _BESIDE = 600, 60, 3, 12
_SEED, _TRIED, _PULL, _JUMP, _NEAR = 9, 64, 3.0, 0.25, 8
_ALIKE = 2.4  # of all kernels together; chosen on the validation items of ML-100K, between 0.5 and 15
_SMALLEST = 1e-2  # of the largest variance: what is below is taken for that
# Popularity and its second form vary together, the others by themselves: differences of two items, in logarithms.
_OF_POPULARITY, _TOGETHER, _OF_OTHERS = 2.0, 1.8, 1.5


def whitening_of(content: Content, reading: Reading) -> Floats:
    """Weights = whitening @ coordinates."""
    n_popular, size = reading.popularity_features(), reading.features(content)
    moment = np.zeros((size, size))
    moment[:n_popular, :n_popular] = _OF_OTHERS * np.eye(n_popular)
    moment[:2, :2] = [[_OF_POPULARITY, _TOGETHER], [_TOGETHER, _OF_POPULARITY]]
    if content.n_kernels:
        moment[n_popular:, n_popular:] = _of_kernels(content, reading)
    values, vectors = np.linalg.eigh(moment)
    return np.asarray(vectors / np.sqrt(np.maximum(values, _SMALLEST * values[-1])), np.float32)


def start_of(content: Content, reading: Reading, whitening: Floats) -> Floats:
    """Where weights begin, in these coordinates: items are as likely as they are popular, and liked for being alike."""
    weights = np.zeros(len(whitening))
    weights[0] = 1.0
    weights[reading.popularity_features() :] = _ALIKE / max(content.n_kernels * len(reading.recency), 1)
    return np.asarray(np.linalg.solve(whitening.astype(np.float64), weights), np.float32)


def _of_kernels(content: Content, reading: Reading) -> Doubles:
    generator = np.random.default_rng(_SEED)
    histories = _made_up(content, generator)
    ends = np.arange(_LENGTH - 1, _LENGTH - 1 - _TARGETS, -1)
    differences = []
    for history in histories:
        beside = generator.integers(0, content.n_items, (_TARGETS, _BESIDE)).astype(np.int32)
        candidates = np.column_stack([history[ends], beside])
        described = content.features(history, ends, candidates, decays_of(reading.recency), reading.latest)
        differences.append((described[:, 1:] - described[:, :1]).reshape(-1, described.shape[2]))
    return second_moment(np.concatenate(differences))


def _made_up(content: Content, generator: np.random.Generator) -> Indices:
    """Histories side by side, one item after another: [histories, length]."""
    histories = np.zeros((_HISTORIES, _LENGTH), np.int32)
    histories[:, 0] = generator.integers(0, content.n_items, _HISTORIES)
    rows = np.arange(_HISTORIES)
    for place in range(1, _LENGTH):
        tried = generator.integers(0, content.n_items, (_HISTORIES, _TRIED)).astype(np.int32)
        recent = histories[rows, generator.integers(max(0, place - _NEAR), place, _HISTORIES)]
        alike = np.zeros((_HISTORIES, _TRIED))
        for item in (histories[:, place - 1], recent):
            pairs = content.similar(np.repeat(item, _TRIED), tried.reshape(-1))
            alike += pairs.mean(axis=1).reshape(_HISTORIES, _TRIED)
        pull = np.where(generator.random(_HISTORIES) < _JUMP, 0.0, _PULL)[:, np.newaxis]
        best = (pull * alike + generator.gumbel(size=alike.shape)).argmax(axis=1)
        histories[:, place] = tried[rows, best]
    return histories
