"""A catalogue without an index: every item is scored, every time. What the real one must answer like."""

import numpy as np

from veilrec.serving.index.blocks import Filter, best_of, scores_of


class PlainCatalogue:
    def __init__(self, vectors, interests, category=None):
        self.interests = interests
        self.items = {}
        self.next_number = 0
        values = vectors @ interests.T  # all at once: a sum of one row alone may be rounded in another way
        for number, vector in enumerate(vectors):
            code = -1 if category is None else int(category[number])
            self.items[number] = (vector, values[number], code, -1, 0.0)
            self.next_number += 1

    def put(self, vector, category=-1, region=-1, prior=0.0):
        values = (vector[np.newaxis] @ self.interests.T + np.float32(prior))[0]
        self.items[self.next_number] = (vector, values, category, region, prior)
        self.next_number += 1
        return self.next_number - 1

    def remove(self, number):
        del self.items[number]

    def _wanted(self, wanted):
        wanted = wanted or Filter()
        return [
            number
            for number, (_, _, category, region, _) in sorted(self.items.items())
            if (not wanted.categories or category in wanted.categories)
            and (wanted.region < 0 or region == wanted.region)
        ]

    def best(self, weights, k, wanted=None):
        return self._best(lambda items: scores_of(np.array([item[1] for item in items]), weights), k, wanted)

    def best_by_vector(self, vector, k, wanted=None):
        return self._best(lambda items: np.array([item[0] @ vector + np.float32(item[4]) for item in items]), k, wanted)

    def _best(self, score, k, wanted):
        numbers = self._wanted(wanted)
        if not numbers:
            return np.zeros(0, np.int64), np.zeros(0, np.float32)
        scores = score([self.items[number] for number in numbers])
        rows = best_of(scores, k)
        return np.array(numbers)[rows], scores[rows]
