"""Local training and ranking of `veil` on news impressions.

The score of news c after a history h is

    (start + scales) . features(h, c)  +  taste . appeal(c)  +  kinds[subcategory of c].

A client contrasts clicked with all other shown news (softmax) and sends the mean gradient over its impressions, clipped
to a norm that most gradients reach, so that every client has equal weight and the noise scale fits. Ranking uses public
text, released weights, and a history that never leaves the client.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np

from veilrec.client.local_training import Cohort, LocalResults
from veilrec.client.news_data import HEAD, OwnImpressions
from veilrec.core.arrays import Floats, Indices, Offsets
from veilrec.core.csr import Csr
from veilrec.core.errors import counted
from veilrec.core.jit import jit
from veilrec.core.schema import ClientUpdates, RoundSpec
from veilrec.data.population import Impressions
from veilrec.models.news_content import NO_NAME, NewsContent, describe
from veilrec.models.scores import RestsOn, Source

SCALES, TASTE, KINDS = "scales", "taste", "kinds"
CLIP = 0.4  # of a client's gradient, all of it; shorter ones stay in proportion
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
class VeilNewsLocalTrainer:
    """The gradient of a client on its own impressions; nothing is drawn, and nothing kept."""

    content: NewsContent
    keeps_state = False
    reads = ("impressions",)

    def fresh_private_state(self, clients: Offsets, draws_seed: int) -> dict[str, Floats]:
        """Nothing."""
        return {}

    def learn(self, cohort: Cohort[OwnImpressions], model: Mapping[str, Floats], spec: RoundSpec) -> LocalResults:
        """The messages of some clients, and their loss."""
        content, rows = self.content, cohort.data.rows
        n, width = len(cohort.clients), content.appeal.shape[1]
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
        cut = _cut(message, 1.0 if spec.clip_norm is None else spec.clip_norm)
        first, second = content.n_features, content.n_features + width
        parts = {SCALES: cut[:, :first], TASTE: cut[:, first:second], KINDS: cut[:, second:]}
        dense = {name: part for name, part in parts.items() if name in model}
        return LocalResults(ClientUpdates(spec.number, n, dense=dense), examples, loss)


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
    """Add the mean direction in which each client's loss falls; a row of logs is as in `news_log`."""
    n_features, width = len(counts), appeal.shape[1]
    for client in range(len(offsets) - 1):
        at, impressions = offsets[client], 0
        while at < offsets[client + 1]:
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
                    loss[client] += (highest + np.log(total) - scores[c]) / np.float32(clicks)
                for f in range(n_features):
                    message[client, f] += slope * features[c, f]
                for q in range(width):
                    message[client, n_features + q] += slope * appeal[item, q]
                if subcategories[item] != NO_NAME:
                    message[client, n_features + width + subcategories[item]] += slope
            examples[client] += len(shown)
            impressions += 1
            at += HEAD + past + clicks + others
        if impressions:
            message[client] /= np.float32(impressions)
            loss[client] /= np.float32(impressions)


_ENTRIES_AT_ONCE = 1 << 20  # scores that are worked out together


class VeilNewsModel:
    """Scores from histories; without one, what everybody thinks of a news is all that counts."""

    def __init__(self, content: NewsContent, weights: Mapping[str, Floats], histories: Csr, latest: int) -> None:
        self.content, self.weights, self.histories, self.latest = content, weights, histories, latest
        self.n_items = content.n_news
        self._counts, self._appeal = counts_of(content, weights), appeal_of(content, weights)

    def score_all(self, users: Offsets) -> Floats:
        """Scores of every news: [len(users), news]."""
        everything = np.arange(self.n_items, dtype=np.int32)
        return self.score_some(users, np.tile(everything, (len(users), 1)))

    def score_some(self, users: Offsets, items: Indices) -> Floats:
        """Scores of the given news: [T, C] for T users with C news each."""
        at_once = max(1, _ENTRIES_AT_ONCE // max(1, items.shape[1]))
        scores = np.empty(items.shape, np.float32)
        for begin in range(0, len(users), at_once):
            some = items[begin : begin + at_once]
            lists = Csr(np.arange(len(some) + 1, dtype=np.int64) * items.shape[1], np.ascontiguousarray(some).ravel())
            rows = np.asarray(users[begin : begin + at_once], np.int64)
            scores[begin : begin + at_once] = self._in_lists(self.histories, rows, lists).reshape(some.shape)
        return scores

    def score_impressions(self, impressions: Impressions) -> Floats:
        """A score for everything that was shown."""
        return self._in_lists(impressions.histories, impressions.history_of.astype(np.int64), impressions.shown)

    def fold_in(self, histories: Csr) -> Self:
        """New users do what all others do."""
        return type(self)(self.content, self.weights, histories, self.latest)

    def rests_on(self, history: Indices) -> RestsOn:
        """Describe what the list for this history rests on."""
        read = min(len(history), self.latest)
        if not read:
            said = "Nothing was used yet: ranked by what everybody likes of news (appeal), the same for everybody."
            return RestsOn(("appeal",), 0, said)
        whole = read == len(history)
        clicks = counted(read, "click") if whole else f"the latest {read} of {len(history):,} clicks"
        order: tuple[Source, ...] = () if whole else ("order",)  # which are the latest
        said = f"Ranked here by how near the content of news is to {clicks}, and by what everybody likes (appeal)."
        return RestsOn(("history", *order, "content", "appeal"), read, said)

    def _in_lists(self, histories: Csr, row_of: Offsets, lists: Csr) -> Floats:
        features = self.content.described(histories, row_of, lists, self.latest)
        return np.asarray(features @ self._counts + self._appeal[lists.items], np.float32)
