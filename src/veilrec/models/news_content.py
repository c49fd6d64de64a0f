"""What is public of news, and how a reader's history looks at a candidate.

Every view of the text (words, titles as sentences, titles and abstracts as sentences) gives a news a vector of length
1. With the clicks h of a history, a candidate c is described by

    the mean over h of c . h                      in each view
    ln(mean over h of e^(5 c . h)) / 5            in views of sentences: near the closest click
    the share of h in the category of c, and that in its subcategory times ln(news / news in that subcategory)

and, whatever the history, by its appeal: the whitened vector of one view, and how long its title is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veilrec.core.arrays import Csr, Floats, Indices, Offsets
from veilrec.core.jit import jit

NO_NAME = -1  # the code of a news whose category nobody knows
_SHARP = np.float32(5.0)  # of the soft maximum
_FROM_NAMES = 2  # features that come of categories


@dataclass(frozen=True)
class NewsContent:
    """A row for every news; arrays alone, so that a saved model keeps it as it is."""

    vectors: Floats  # [news, dim]: the views side by side, each of length 1 or 0
    ends: Offsets  # [views]: where each view ends
    means: Floats  # [views, features]: what the mean of a view counts in which feature
    softs: Floats  # [views, features]: the same of its soft maximum; zero where there is none
    categories: Indices  # [news]
    subcategories: Indices  # [news]
    rarity: Floats  # [subcategories]
    appeal: Floats  # [news, appeal]
    start: Floats  # [features]: what each counts before anything is learnt

    @property
    def n_news(self) -> int:
        """News of the catalogue."""
        return len(self.vectors)

    @property
    def n_features(self) -> int:
        """Features that depend on a history."""
        return len(self.start)

    def arrays(self, prefix: str) -> dict[str, NDArray[Any]]:
        """As a saved model keeps it."""
        return {prefix + field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]], prefix: str) -> NewsContent:
        """What `arrays` was taken from."""
        return cls(**{field.name: arrays[prefix + field.name] for field in fields(cls)})

    def described(self, histories: Csr, row_of: Offsets, lists: Csr, latest: int) -> Floats:
        """Features of what each list shows, for the history `row_of` the list: [entries of the lists, features].

        Only the `latest` clicks of a history count.
        """
        out = np.zeros((len(lists.items), self.n_features), np.float32)
        _describe_lists(
            histories.offsets, histories.items, row_of, lists.offsets, lists.items, latest, *self.packed, out
        )
        return out

    @property
    def packed(self) -> tuple[Floats, Offsets, Floats, Floats, Indices, Indices, Floats]:
        """What `describe` reads."""
        return (self.vectors, self.ends, self.means, self.softs, self.categories, self.subcategories, self.rarity)


@jit
def _describe_lists(
    offsets: Offsets,
    histories: Indices,
    row_of: Offsets,
    list_offsets: Offsets,
    shown: Indices,
    latest: int,
    vectors: Floats,
    ends: Offsets,
    means: Floats,
    softs: Floats,
    categories: Indices,
    subcategories: Indices,
    rarity: Floats,
    out: Floats,
) -> None:
    for row in range(len(row_of)):
        end = offsets[row_of[row] + 1]
        history = histories[max(offsets[row_of[row]], end - latest) : end]
        first, last = list_offsets[row], list_offsets[row + 1]
        describe(
            history, shown[first:last], vectors, ends, means, softs, categories, subcategories, rarity, out[first:last]
        )


@jit
def describe(
    history: Indices,
    candidates: Indices,
    vectors: Floats,
    ends: Offsets,
    means: Floats,
    softs: Floats,
    categories: Indices,
    subcategories: Indices,
    rarity: Floats,
    out: Floats,
) -> None:
    """Features of candidates beside a history, into `out` [candidates, features]; nothing without clicks."""
    clicks, features = len(history), out.shape[1]
    out[:, :] = np.float32(0.0)
    if clicks == 0:
        return
    middle = np.zeros(vectors.shape[1], np.float32)
    for click in history:
        middle += vectors[click]
    middle /= np.float32(clicks)
    for c in range(len(candidates)):
        item, first = candidates[c], 0
        for view in range(len(ends)):
            near = np.float32(0.0)
            for q in range(first, ends[view]):
                near += middle[q] * vectors[item, q]
            soft = np.float32(0.0)
            if softs[view].any():
                for click in history:
                    product = np.float32(0.0)
                    for q in range(first, ends[view]):
                        product += vectors[click, q] * vectors[item, q]
                    soft += np.exp(_SHARP * product)
                soft = np.log(soft / np.float32(clicks)) / _SHARP
            for f in range(features):
                out[c, f] += means[view, f] * near + softs[view, f] * soft
            first = ends[view]
        category, subcategory = categories[item], subcategories[item]
        same, alike = 0, 0
        for click in history:
            same += categories[click] == category
            alike += subcategories[click] == subcategory
        if category != NO_NAME:
            out[c, features - _FROM_NAMES] = np.float32(same / clicks)
        if subcategory != NO_NAME:
            out[c, features - 1] = np.float32(alike / clicks) * rarity[subcategory]
