"""Gradients of many rows at once from a single backward pass: a tape notes what goes in and out of every layer.

The news part of any model, and its gradients for every client.

Encoders of texts are compiled: every distinct text goes forward once, and back for every client that has it. What the
model does besides is little: every client does it for its own news, on a tape.

The user part of any model, and its gradients for every client: autograd for all of them at once, on a tape.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from types import TracebackType

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from veilrec.client.news_data import OwnNews
from veilrec.core.arrays import Floats, Offsets
from veilrec.core.schema import Rows
from veilrec.kernels.news_texts import TABLE, TEXTS, EncodedMixed, NewsEncoder, find_texts, without_words
from veilrec.kernels.text_cnn import EncodedTexts
from veilrec.kernels.title_encoder import WORDS
from veilrec.kernels.title_gradients import (
    Pairs,
    add_segments,
    add_to_rows,
    add_to_tables,
    multiply_segments,
    own_codes,
)
from veilrec.models.news_model import Batch, NewsInput, NewsModel, losses_of, take_news, trimmed


class Tape:
    """Notes what goes in and out of every linear layer and every table of a module while it is open.

    The gradient of W in y = x W' + b is the sum of (gradient in y) x' over positions, that of a table the sum of
    (gradient in y) at the row that was looked up. Kept apart by the first dimension, they are the gradients of every
    row of a batch, however often the layer was used.
    """

    def __init__(self, module: nn.Module, learned: Collection[str]) -> None:
        self._uses: dict[str, list[tuple[Tensor, Tensor]]] = defaultdict(list)  # inputs, outputs
        self.layers = {
            name: part
            for name, part in module.named_modules()
            if isinstance(part, nn.Linear | nn.Embedding) and f"{name}.weight" in learned
        }

    def __enter__(self) -> Tape:
        self._hooks = [layer.register_forward_hook(partial(self._note, name)) for name, layer in self.layers.items()]
        return self

    def _note(self, name: str, _: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        if not output.requires_grad:  # of an input that depends on nothing, such as a first state
            output.requires_grad_()
        self._uses[name].append((inputs[0], output))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for hook in self._hooks:
            hook.remove()

    @property
    def inputs(self) -> Mapping[str, Sequence[Tensor]]:
        """What went into every layer that was used."""
        return {name: [x for x, _ in uses] for name, uses in self._uses.items()}

    def slopes(
        self, result: Tensor, leaves: Sequence[Tensor] = (), gradient: Tensor | None = None, apart: Tensor | None = None
    ) -> tuple[dict[str, Noted], tuple[Tensor, ...]]:
        """What went through every layer that was used, and the gradient in the leaves. `gradient` is that in the
        result, which is a single number without it. Rows of `apart` are not rows of the batch.
        """
        outputs = [output for uses in self._uses.values() for _, output in uses]
        found = torch.autograd.grad(result, [*outputs, *leaves], gradient, materialize_grads=True)
        of_outputs, noted = iter(found), {}
        for name, uses in self._uses.items():
            width = 1 if isinstance(self.layers[name], nn.Linear) else 0  # of what one position puts in
            seen = [(x is apart, _positions(x.detach(), width), _positions(next(of_outputs), 1)) for x, _ in uses]
            own, others = ([(x, y) for is_apart, x, y in seen if is_apart == wanted] for wanted in (False, True))
            noted[name] = Noted(_side_by_side(own), _side_by_side(others))
        return noted, found[len(outputs) :]

    def has_bias(self, name: str) -> bool:
        """Whether a layer has one."""
        return getattr(self.layers[name], "bias", None) is not None


Through = tuple[Tensor, Tensor]  # inputs and output gradients, [rows, positions, ...]


@dataclass(frozen=True)
class Noted:
    """What went through a layer: of rows of the batch, and of rows that are apart."""

    rows: Through | None
    apart: Through | None


def _side_by_side(uses: list[Through]) -> Through | None:
    return (torch.cat([x for x, _ in uses], 1), torch.cat([y for _, y in uses], 1)) if uses else None


def _positions(values: Tensor, width: int) -> Tensor:
    """[rows, d] or [rows, positions, d] -> [rows, positions, d]; without d where the width is 0."""
    return values.unsqueeze(1) if values.dim() == 1 + width else values


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
        """Vectors of some news as part of a graph."""
        news = take_news(self.news, torch.from_numpy(items))
        news = trimmed(news) if self.reads_words else news
        vectors: Tensor = functional_call(self.encoder, own, (given, news))
        return vectors

    def count_words(self, items: Offsets, pairs: Pairs) -> Offsets:
        """How many distinct words the news of each client have, where words learn."""
        if self._words is None:
            return np.zeros(len(pairs.offsets) - 1, np.int64)
        return np.diff(own_codes(self._words[items], pairs, self._vocabulary)[0])

    def no_rows(self, items: Offsets, pairs: Pairs, width: int) -> Rows:
        """Zeros for the distinct words of every client."""
        if self._words is None:
            raise ValueError("words do not learn")
        offsets, index = own_codes(self._words[items], pairs, self._vocabulary)
        return Rows(offsets, index, np.zeros((len(index), width), np.float32))


@dataclass(frozen=True)
class TapedVectors:
    """News that were encoded, and the way back."""

    part: TapedNews
    own: dict[str, Tensor]  # the weights on the tape
    texts: tuple[EncodedMixed | EncodedTexts, ...]
    items: Offsets
    vectors: Floats  # [items, dim]

    def pull_back(self, pairs: Pairs, gradients: Floats) -> tuple[dict[str, Floats], Rows | None]:
        """From gradients in the vectors of the pairs to those of every client in the weights; rows of own words."""
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
    tape: Tape, noted: Mapping[str, Noted], offsets: Offsets, dense: Mapping[str, Floats], words: Rows | None
) -> None:
    """What a tape noted, added up for every client, whose rows begin at the offsets."""
    for name, found in noted.items():
        if found.rows is None:
            continue
        inputs, slopes = found.rows
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
    """Clients side by side with at most so many pairs together; a client that has more is alone."""
    first, n = 0, len(offsets) - 1
    while first < n:
        last = max(first + 1, int(np.searchsorted(offsets, offsets[first] + most, "right")) - 1)
        yield first, last
        first = last


BARE = ("newcomer", "basis", "pad", "shares")  # parameters of users that are no layers: every history gets a copy
CLIENTS_PER_BATCH = 64  # differentiated side by side: those with histories of like length


class TapedUsers:
    """For any model built of linear layers and tables."""

    def __init__(self, model: NewsModel) -> None:
        self._losses = LossesOfStates(model)

    def each(
        self, weights: Weights, vectors: Floats, own: OwnNews, pairs: Pairs
    ) -> tuple[dict[str, Floats], Floats, Floats]:
        """Gradients of every client for known news vectors: in the weights, and in the vectors; and the losses."""
        n = len(own.offsets) - 1
        dense = {name: np.zeros((n, *value.shape), np.float32) for name, value in weights.items()}
        in_vectors, values = np.empty((len(pairs.title), vectors.shape[1]), np.float32), np.zeros(n, np.float32)
        shares = own.shares()
        for group in own.groups(CLIENTS_PER_BATCH):
            histories, rows, batch = own.packed(group)
            own_pairs = batch.news.numpy()
            found = self._found(weights, vectors[pairs.title[own_pairs]], shares[rows], batch)
            in_vectors[own_pairs] = found.in_vectors
            np.add.at(values, own.client[rows], found.losses * shares[rows])
            ends = np.searchsorted(own.owner[histories], group, "right")
            ends_of_news = np.cumsum(np.diff(own.offsets)[group])
            low, low_news = 0, 0
            for client, high, high_news in zip(group, ends, ends_of_news, strict=True):
                out = {name: value[client] for name, value in dense.items()}
                found.add(slice(low, high), slice(low_news, high_news), out)
                low, low_news = high, high_news
        return dense, in_vectors, values

    def _found(self, weights: Weights, vectors: Floats, share: Floats, batch: Batch) -> _UserGradients:
        count = len(batch.histories)
        learned = tensors_of(weights)
        leaf = torch.from_numpy(vectors).requires_grad_()
        bare = [name for name in BARE if name in weights]
        copies = [repeated(learned[f"model.{name}"], count) for name in bare]
        with Tape(self._losses, learned.keys()) as tape:
            exchanged = learned | {f"model.{name}": copy for name, copy in zip(bare, copies, strict=True)}
            each = functional_call(self._losses, exchanged, (leaf, *fields_of(batch)))
        total = (each * torch.from_numpy(share)).sum()
        noted, (in_vectors, *in_copies) = tape.slopes(total, (leaf, *copies), apart=leaf)
        layers = {name.removeprefix("model."): part for name, part in noted.items()}
        of_copies = {name: g.numpy() for name, g in zip(bare, in_copies, strict=True)}
        return _UserGradients(layers, of_copies, in_vectors.numpy(), each.detach().numpy())


@dataclass(frozen=True)
class _UserGradients:
    """Gradients of some clients in the user model, as products that are not taken yet: one a client."""

    layers: dict[str, Noted]  # of rows of histories, and apart of rows of news
    bare: dict[str, Floats]  # [histories, ...]
    in_vectors: Floats
    losses: Floats  # of examples

    def add(self, histories: slice, news: slice, out: Mapping[str, Floats]) -> None:
        """Those of one client to its gradients, which come with zeros."""
        for name, noted in self.layers.items():
            for through, rows in ((noted.rows, histories), (noted.apart, news)):
                if through is None:
                    continue
                inputs, slopes = (part[rows].flatten(0, 1).numpy() for part in through)
                out[f"{name}.weight"][...] += slopes.T @ inputs
                if f"{name}.bias" in out:
                    out[f"{name}.bias"][...] += slopes.sum(0)
        for name, values in self.bare.items():
            values[histories].sum(0, out=out[name])


class LossesOfStates(nn.Module):
    """The losses of examples whose news have known states, as a module: `functional_call` can then exchange the
    weights.
    """

    def __init__(self, model: NewsModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, vectors: Tensor, *tensors: Tensor) -> Tensor:
        """Fields of a Batch without its news."""
        return losses_of(self.model, vectors, Batch(vectors, *tensors))


def fields_of(batch: Batch) -> tuple[Tensor | None, ...]:
    """All fields of a batch but its news."""
    return tuple(getattr(batch, part.name) for part in fields(batch)[1:])


def tensors_of(weights: Weights) -> dict[str, Tensor]:
    """Parameters under the names that they have in a module around the model; the arrays themselves, not copies."""
    return {f"model.{name}": torch.from_numpy(value) for name, value in weights.items()}


def repeated(value: Tensor, count: int) -> Tensor:
    """A copy for every history, so that each has a gradient of its own."""
    return value.expand(count, *value.shape).clone().requires_grad_()
