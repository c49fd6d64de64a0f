"""The news part of any model, and its gradients for every device.

Encoders of texts are compiled: every distinct text goes forward once, and back for every device that has it. What the
model does besides is little: every device does it for its own news, on a tape.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from veilrec._arrays import Floats, Offsets
from veilrec.device.compiled_texts import TABLE, TEXTS, EncodedText, NewsEncoder, find_texts, without_words
from veilrec.device.segments import add_segments, add_to_rows, add_to_tables, multiply_segments, own_codes
from veilrec.device.tape import Tape
from veilrec.device.title_encoder import WORDS
from veilrec.device.title_gradients import Pairs
from veilrec.models.news_model import NewsInput, NewsModel, take_news, trimmed
from veilrec.updates import Rows

Weights = Mapping[str, Floats]
_PAIRS_AT_ONCE = 512  # differentiated together: the tensors of more leave the processor's cache
_WITHOUT_WORDS_AT_ONCE = 2048  # the same where no tensor has a row per word


class TapedNews:
    """For any model built of linear layers and tables."""

    def __init__(self, model: NewsModel, news: NewsInput, learned: frozenset[str]) -> None:
        one = take_news(news, slice(0, 1))
        with Tape(model, learned) as tape:
            model.encode_news(one)
        used = {f"{layer}.{kind}" for layer in tape.inputs for kind in ("weight", "bias")}
        self.names = frozenset(used & learned)
        looked_up = tape.inputs.get(TABLE, ())
        read = [f.name for f in fields(one) if any(getattr(one, f.name) is codes for codes in looked_up)]
        self._words = np.concatenate([getattr(news, name).numpy() for name in read], 1) if read else None
        self._vocabulary = len(model.get_parameter(WORDS)) if read else 0
        self.texts = find_texts(model, one)
        self.codes = tuple(getattr(news, text.field).numpy() for text in self.texts)
        self.encoder = NewsEncoder(model, self.texts)
        self.is_text = self.encoder.is_text(one)
        with Tape(model, frozenset(name for name, _ in model.named_parameters())) as tables:
            model.encode_news(one)
        used_codes = [codes for noted in tables.inputs.values() for codes in noted]
        compiled = {text.field for text in self.texts}
        unread = {name for name in TEXTS if not any(getattr(one, name) is codes for codes in used_codes)}
        self.news = without_words(news, compiled | unread)
        self.reads_words = compiled | unread < set(TEXTS)  # on the tape
        self.at_once = _PAIRS_AT_ONCE if self.reads_words else _WITHOUT_WORDS_AT_ONCE
        of_texts = {name for text in self.texts for name in (*text.names.values(), WORDS)}
        self.on_tape = self.names - of_texts

    def encode(self, weights: Weights, items: Offsets) -> TapedVectors:
        """The vectors of some news."""
        texts = tuple(text.encode(weights, codes[items]) for text, codes in zip(self.texts, self.codes, strict=True))
        if self.is_text:
            return TapedVectors(self, {}, texts, items, texts[0].vectors)
        own = {f"model.{name}": torch.from_numpy(weights[name]) for name in self.on_tape}
        parts = []
        with torch.no_grad():
            for at in range(0, len(items), self.at_once):
                some = slice(at, at + self.at_once)
                given = tuple(torch.from_numpy(text.vectors[some]) for text in texts)
                parts.append(self.encoded(own, items[some], given))
        return TapedVectors(self, own, texts, items, torch.cat(parts).numpy())

    def encoded(self, own: dict[str, Tensor], items: Offsets, given: tuple[Tensor, ...]) -> Tensor:
        """The same as part of a graph."""
        news = take_news(self.news, torch.from_numpy(items))
        news = trimmed(news) if self.reads_words else news
        vectors: Tensor = functional_call(self.encoder, own, (given, news))
        return vectors

    def count_words(self, items: Offsets, pairs: Pairs) -> Offsets:
        """How many distinct words the news of each device have, where words learn."""
        if self._words is None:
            return np.zeros(len(pairs.offsets) - 1, np.int64)
        return np.diff(own_codes(self._words[items], pairs, self._vocabulary)[0])

    def no_rows(self, items: Offsets, pairs: Pairs, width: int) -> Rows:
        """Zeros for the distinct words of every device."""
        if self._words is None:
            raise ValueError("words do not learn")
        offsets, index = own_codes(self._words[items], pairs, self._vocabulary)
        return Rows(offsets, index, np.zeros((len(index), width), np.float32))


@dataclass(frozen=True)
class TapedVectors:
    """News that were encoded, and the way back."""

    part: TapedNews
    own: dict[str, Tensor]  # the weights on the tape
    texts: tuple[EncodedText, ...]
    items: Offsets
    vectors: Floats  # [items, dim]

    def pull_back(self, pairs: Pairs, gradients: Floats) -> tuple[dict[str, Floats], Rows | None]:
        """From gradients in the vectors of the pairs to those of every device in the weights; rows of own words."""
        dense, rows, in_texts = self._through_tape(pairs, gradients)
        for text, encoded, slopes in zip(self.part.texts, self.texts, in_texts, strict=True):
            found, words = encoded.pull_back(pairs, slopes)
            names = text.names
            dense |= {names[name]: value for name, value in found.items() if names[name] in self.part.names}
            if words is not None:
                rows.append(words)
        return dense, self._joined(rows, pairs)

    def _through_tape(
        self, pairs: Pairs, gradients: Floats
    ) -> tuple[dict[str, Floats], list[Rows], tuple[Floats, ...]]:
        """To the weights on the tape, rows of words if they are there, and to the vectors of the texts."""
        n, part = len(pairs.offsets) - 1, self.part
        if part.is_text:
            return {}, [], (gradients,)
        shapes = {name: self.own[f"model.{name}"].shape for name in part.on_tape}
        dense = {name: np.zeros((n, *shape), np.float32) for name, shape in shapes.items() if name != WORDS}
        rows = [part.no_rows(self.items, pairs, shapes[WORDS][1])] if WORDS in part.on_tape else []
        in_texts = tuple(np.empty((len(gradients), text.vectors.shape[1]), np.float32) for text in self.texts)
        for first, last in _runs(pairs.offsets, part.at_once):
            low, high = pairs.offsets[first], pairs.offsets[last]
            chosen = pairs.title[low:high]
            given = tuple(torch.from_numpy(text.vectors[chosen]).requires_grad_() for text in self.texts)
            with Tape(part.encoder.model, part.on_tape) as tape:
                vectors = part.encoded(self.own, self.items[chosen], given)
            noted, in_given = tape.slopes(vectors, given, torch.from_numpy(gradients[low:high]))
            for slopes, value in zip(in_texts, in_given, strict=True):
                slopes[low:high] = value.numpy()
            some = {name: value[first:last] for name, value in dense.items()}
            words = Rows(rows[0].offsets[first : last + 1], rows[0].index, rows[0].values) if rows else None
            _add_noted(tape, noted, pairs.offsets[first : last + 1] - low, some, words)
        return dense, rows, in_texts

    def _joined(self, rows: list[Rows], pairs: Pairs) -> Rows | None:
        """The sum of rows of words."""
        if len(rows) <= 1:
            return rows[0] if rows else None
        joined = self.part.no_rows(self.items, pairs, rows[0].values.shape[1])
        for some in rows:
            add_to_rows(some.offsets, some.index, some.values, joined.offsets, joined.index, joined.values)
        return joined


def _add_noted(
    tape: Tape,
    noted: Mapping[str, tuple[Tensor, Tensor]],
    offsets: Offsets,
    dense: Mapping[str, Floats],
    words: Rows | None,
) -> None:
    """What a tape noted, added up for every device, whose rows begin at the offsets."""
    for name, (inputs, slopes) in noted.items():
        begin, into = offsets * slopes.shape[1], slopes.flatten(0, 1).numpy()
        if isinstance(tape.layers[name], nn.Linear):
            multiply_segments(begin, into, inputs.flatten(0, 1).numpy(), dense[f"{name}.weight"])
            if tape.has_bias(name):
                add_segments(begin, into, dense[f"{name}.bias"])
            continue
        codes = inputs.flatten().numpy().astype(np.int32)
        if name == TABLE and words is not None:
            add_to_rows(begin, codes, into, words.offsets, words.index, words.values)
        else:
            add_to_tables(begin, codes, into, dense[f"{name}.weight"])


def _runs(offsets: Offsets, most: int) -> Iterator[tuple[int, int]]:
    """Devices side by side with at most so many pairs together; a device that has more is alone."""
    first, n = 0, len(offsets) - 1
    while first < n:
        last = max(first + 1, int(np.searchsorted(offsets, offsets[first] + most, "right")) - 1)
        yield first, last
        first = last
