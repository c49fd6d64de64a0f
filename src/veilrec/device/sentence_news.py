"""The news part of PLM-NR, one layer over given sentence vectors, and its gradients for every device, compiled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from veilrec._arrays import Floats, Offsets
from veilrec._jit import jit
from veilrec.device.segments import add_segments
from veilrec.device.title_gradients import Pairs
from veilrec.models.news_model import NewsInput
from veilrec.models.news_networks import PlmNr

WEIGHT, BIAS = "title.weight", "title.bias"


class SentenceNews:
    """Of PLM-NR, with basis vectors or without."""

    def __init__(self, model: PlmNr, news: NewsInput, learned: frozenset[str]) -> None:
        self._model, self._sentences = model, news.sentence.numpy()
        self.names = learned & {WEIGHT, BIAS}

    def encode(self, weights: Mapping[str, Floats], items: Offsets) -> EncodedSentences:
        """The vectors of some news."""
        whole = {name: value.detach().numpy() for name, value in self._model.title.named_parameters("title")}
        whole |= {name: weights[name] for name in self.names}
        sentences = self._sentences[items]
        return EncodedSentences(sentences, sentences @ whole[WEIGHT].T + whole[BIAS], self.names)

    def count_words(self, items: Offsets, pairs: Pairs) -> Offsets:
        """There are none."""
        return np.zeros(len(pairs.offsets) - 1, np.int64)


@dataclass(frozen=True)
class EncodedSentences:
    """News that were encoded, and the way back."""

    sentences: Floats  # [news, sentence_dim]
    vectors: Floats  # [news, dim]
    names: frozenset[str]  # that learn

    def pull_back(self, pairs: Pairs, gradients: Floats) -> tuple[dict[str, Floats], None]:
        """From gradients in the vectors of the pairs to those of every device in the layer."""
        n, dense = len(pairs.offsets) - 1, {}
        if WEIGHT in self.names:
            dense[WEIGHT] = np.zeros((n, gradients.shape[1], self.sentences.shape[1]), np.float32)
            _multiply_own(pairs.offsets, pairs.title, gradients, self.sentences, dense[WEIGHT])
        if BIAS in self.names:
            dense[BIAS] = np.zeros((n, gradients.shape[1]), np.float32)
            add_segments(pairs.offsets, gradients, dense[BIAS])
        return dense, None


@jit
def _multiply_own(offsets: Offsets, title: Offsets, gradients: Floats, sentences: Floats, out: Floats) -> None:
    """The product gradients' sentences over every device's pairs: [devices, dim, sentence_dim]."""
    most = 1
    for device in range(len(out)):
        most = max(most, offsets[device + 1] - offsets[device])
    own = np.empty((most, sentences.shape[1]), np.float32)
    for device in range(len(out)):
        low, high = offsets[device], offsets[device + 1]
        for pair in range(low, high):
            for q in range(sentences.shape[1]):
                own[pair - low, q] = sentences[title[pair], q]
        np.dot(gradients[low:high].T, own[: high - low], out[device])
