"""What a device of `veil` adds to a sum where it has seen impressions: how a ranking of news should move.

The score of news c after a history h is

    (start + scales) . features(h, c)  +  taste . appeal(c)  +  kinds[subcategory of c].

A device compares what was clicked with all that was shown beside it (softmax), and sends the mean gradient over its
impressions, cut to a length that most gradients reach: everybody's word then counts the same, and is as long as the
noise was chosen for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from veilrec._arrays import Floats, Indices, Offsets
from veilrec._jit import jit
from veilrec.device.learner import Cohort, Learned
from veilrec.device.news_log import HEAD, OwnImpressions
from veilrec.models.news_content import NO_NAME, NewsContent, describe
from veilrec.updates import Round, Uploads

SCALES, TASTE, KINDS = "scales", "taste", "kinds"
CLIP = 0.4  # of a device's gradient, all of it; shorter ones stay in proportion
_BELOW = 1.0 - 1e-6  # what is cut stays within the bound however it is rounded


def counts_of(content: NewsContent, model: Mapping[str, Floats]) -> Floats:
    """What each feature counts."""
    return np.asarray(content.start + model[SCALES], np.float32)


def appeal_of(content: NewsContent, model: Mapping[str, Floats]) -> Floats:
    """What everybody thinks of each news, whatever the history: [news]."""
    scores = np.zeros(content.n_news, np.float32)
    if TASTE in model:
        scores += content.appeal @ model[TASTE]
    if KINDS in model:
        known = content.subcategories != NO_NAME
        scores[known] += model[KINDS][content.subcategories[known]]
    return scores


@dataclass(frozen=True)
class VeilNewsLearner:
    """The gradient of a device on its own impressions; nothing is drawn, and nothing kept."""

    content: NewsContent
    keeps_state = False

    def fresh_private_state(self, devices: Offsets, draws_seed: int) -> dict[str, Floats]:
        """Nothing."""
        return {}

    def learn(self, cohort: Cohort[OwnImpressions], model: Mapping[str, Floats], about: Round) -> Learned:
        """The messages of some devices, and their loss."""
        content, rows = self.content, cohort.data.rows
        n, width = len(cohort.devices), content.appeal.shape[1]
        message = np.zeros((n, content.n_features + width + len(content.rarity)), np.float32)
        loss, examples = np.zeros(n, np.float32), np.zeros(n, np.int64)
        _add_gradients(
            rows.offsets,
            rows.items,
            *content.packed,
            content.appeal,
            counts_of(content, model),
            appeal_of(content, model),
            message,
            loss,
            examples,
        )
        cut = _cut(message, 1.0 if about.clip_norm is None else about.clip_norm)
        first, second = content.n_features, content.n_features + width
        parts = {SCALES: cut[:, :first], TASTE: cut[:, first:second], KINDS: cut[:, second:]}
        dense = {name: part for name, part in parts.items() if name in model}
        return Learned(Uploads(about.number, n, dense=dense), examples, loss)


def _cut(gradients: Floats, length: float) -> Floats:
    """Gradients [n, numbers] of length CLIP or more become `length` long, shorter ones in proportion."""
    norms = np.sqrt(np.einsum("nd,nd->n", gradients, gradients, dtype=np.float64))
    factors = length / np.maximum(norms, CLIP) * _BELOW
    return np.asarray(gradients * factors[:, np.newaxis], np.float32)


@jit
def _add_gradients(
    offsets: Offsets,
    rows: Indices,
    vectors: Floats,
    ends: Offsets,
    means: Floats,
    softs: Floats,
    categories: Indices,
    subcategories: Indices,
    rarity: Floats,
    appeal: Floats,
    counts: Floats,
    everybodys: Floats,
    message: Floats,
    loss: Floats,
    examples: Offsets,
) -> None:
    """Add the mean direction in which each device's loss falls; a row of logs is as in `news_log`."""
    n_features, width = len(counts), appeal.shape[1]
    for device in range(len(offsets) - 1):
        at, impressions = offsets[device], 0
        while at < offsets[device + 1]:
            past, clicks, others = rows[at], rows[at + 1], rows[at + 2]
            history = rows[at + HEAD : at + HEAD + past]
            shown = rows[at + HEAD + past : at + HEAD + past + clicks + others]
            features = np.zeros((len(shown), n_features), np.float32)
            describe(history, shown, vectors, ends, means, softs, categories, subcategories, rarity, features)
            scores = np.zeros(len(shown), np.float32)
            for c in range(len(shown)):
                scores[c] = everybodys[shown[c]]
                for f in range(n_features):
                    scores[c] += counts[f] * features[c, f]
            highest = scores.max()
            total = np.exp(scores - highest).sum()
            for c in range(len(shown)):
                item = shown[c]
                chance = np.exp(scores[c] - highest) / total
                slope = np.float32(c < clicks) / np.float32(clicks) - chance
                if c < clicks:
                    loss[device] += (highest + np.log(total) - scores[c]) / np.float32(clicks)
                for f in range(n_features):
                    message[device, f] += slope * features[c, f]
                for q in range(width):
                    message[device, n_features + q] += slope * appeal[item, q]
                if subcategories[item] != NO_NAME:
                    message[device, n_features + width + subcategories[item]] += slope
            examples[device] += len(shown)
            impressions += 1
            at += HEAD + past + clicks + others
        if impressions:
            message[device] /= np.float32(impressions)
            loss[device] /= np.float32(impressions)
