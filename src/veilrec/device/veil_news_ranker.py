"""How `veil` ranks news: public text, released weights, and a history that never leaves the device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

import numpy as np

from veilrec._arrays import Floats, Indices, Offsets
from veilrec._csr import Csr
from veilrec._words import counted
from veilrec.data.population import Impressions
from veilrec.device.veil_news import appeal_of, counts_of
from veilrec.models.news_content import NewsContent
from veilrec.models.scores import RestsOn, Source

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
        """What the list of somebody with this history is made of."""
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
