"""Gradients of news models: one per device, or their weighted sum.

`CutAtNews` is for FedNewsRec: autograd gives the gradient in the vectors of the news, compiled code takes it on through
the title model, where nearly all of the work is. `WholeModel` is for models that learn no words: autograd does it all.
Devices are differentiated side by side, each with its own news. Where nothing is non-linear per device, one backward
pass over all examples (`together`) gives the sum of their gradients.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from veilrec._arrays import Bools, Floats, Offsets
from veilrec.device.news_log import NONE, Examples
from veilrec.device.title_encoder import TITLE_TENSORS, WORDS, encode_titles
from veilrec.device.title_gradients import Pairs, count_words, pull_back
from veilrec.models.fednewsrec import FedNewsRec
from veilrec.models.news_model import Batch, NewsInput, NewsModel, losses_of, make_batch, take_news
from veilrec.updates import Rows

Weights = Mapping[str, Floats]
NEWCOMER = "newcomer"
_DEVICES_AT_ONCE = 64  # differentiated side by side: those with histories of like length


@dataclass(frozen=True)
class Gradients:
    """Of n devices; words go by row."""

    dense: dict[str, Floats]  # [n, ...]
    words: Rows | None  # None: words do not learn
    losses: Floats  # of every device or, where the gradient is a sum, of every example


class Differentiation(Protocol):
    """How a model is differentiated; a single device is a cohort of one."""

    def each(self, weights: Weights, examples: Examples, n: int) -> Gradients:
        """Of the mean loss of every device."""

    def together(self, weights: Weights, examples: Examples, share: Floats) -> Gradients:
        """Of the sum of all losses times `share`, as if of one device."""

    def count_words(self, examples: Examples, n: int) -> Offsets:
        """How many rows of words each device's gradient has."""


def differentiation(model: NewsModel, news: NewsInput, frozen: frozenset[str]) -> Differentiation:
    """The way that suits the model."""
    if isinstance(model, FedNewsRec):
        return CutAtNews(model, news, learns_words=WORDS not in frozen)
    return WholeModel(model, news)


class WholeModel:
    """Autograd from the loss to every parameter."""

    def __init__(self, model: NewsModel, news: NewsInput) -> None:
        self._losses = _Losses(model)
        self._news = news

    def each(self, weights: Weights, examples: Examples, n: int) -> Gradients:
        """Every device encodes its own news."""
        own, learned = own_news(examples, n), _tensors(weights)
        dense = {name: np.empty((n, *value.shape), np.float32) for name, value in weights.items()}
        values = np.empty(n, np.float32)

        def mean_loss(parameters: dict[str, Tensor], share: Tensor, *inputs: Tensor) -> Tensor:
            each: Tensor = functional_call(self._losses, parameters, inputs)
            return (each * share).sum()

        for group in own.groups(_DEVICES_AT_ONCE):
            share, batch = own.padded(group)
            inputs = (share, *_fields(batch), *vars(take_news(self._news, batch.news)).values())
            found, of_group = vmap(grad_and_value(mean_loss), (None, *(0 for _ in inputs)))(learned, *inputs)
            for name, value in dense.items():
                value[group] = found[f"model.{name}"].numpy()
            values[group] = of_group.numpy()
        return Gradients(dense, None, values)

    def together(self, weights: Weights, examples: Examples, share: Floats) -> Gradients:
        """Every distinct news is encoded once."""
        batch = make_batch(examples.histories, examples.history_of, examples.candidates)
        news = take_news(self._news, batch.news)
        learned = {name: value.requires_grad_() for name, value in _tensors(weights).items()}
        each = functional_call(self._losses, learned, (*_fields(batch), *vars(news).values()))
        found = torch.autograd.grad(
            (each * torch.from_numpy(share)).sum(), list(learned.values()), materialize_grads=True
        )
        dense = {name: g.numpy()[np.newaxis] for name, g in zip(weights, found, strict=True)}
        return Gradients(dense, None, each.detach().numpy())

    def count_words(self, examples: Examples, n: int) -> Offsets:
        """Nothing goes by row."""
        return np.zeros(n, np.int64)


class CutAtNews:
    """Autograd down to the vectors of the news, then `title_gradients`; every distinct title goes forward once."""

    def __init__(self, model: FedNewsRec, news: NewsInput, *, learns_words: bool) -> None:
        self._losses = _LossesOfStates(model)
        self._heads, self._dim = model.sizes.heads, model.dim
        self._codes = news.title.numpy()
        self._words = model.words.weight.detach().numpy()  # where they stay as they are
        self._learns_words = learns_words

    def each(self, weights: Weights, examples: Examples, n: int) -> Gradients:
        """The gradient of a device in the vectors of its own news, and on from there."""
        own = own_news(examples, n)
        distinct, pairs = _pairs(own)
        whole = {WORDS: self._words, **weights}
        encoded = encode_titles(whole, self._codes[distinct], self._heads)
        of_users = {k: v for k, v in weights.items() if k not in TITLE_TENSORS}
        dense = {name: np.zeros((n, *value.shape), np.float32) for name, value in of_users.items()}
        in_vectors, values = np.empty((len(pairs.title), self._dim), np.float32), np.zeros(n, np.float32)
        shares = own.shares()
        for group in own.groups(_DEVICES_AT_ONCE):
            histories, rows, batch = own.packed(group)
            own_pairs = batch.news.numpy()
            vectors = encoded.vectors[pairs.title[own_pairs]]
            found, in_vectors[own_pairs], loss = self._by_history(of_users, vectors, shares[rows], batch)
            np.add.at(values, own.device[rows], loss * shares[rows])
            for name, value in dense.items():
                _add_up(value, own.owner[histories], found[name])
        of_titles, words = pull_back(whole, encoded, pairs, in_vectors, learns_words=self._learns_words)
        return Gradients(dense | of_titles, words if self._learns_words else None, values)

    def _by_history(
        self, weights: Weights, vectors: Floats, share: Floats, batch: Batch
    ) -> tuple[dict[str, Floats], Floats, Floats]:
        """Gradients of each history in the user model, and of all in the vectors; losses of the examples."""
        count = len(batch.histories)
        learned = _tensors(weights)
        leaf = torch.from_numpy(vectors).requires_grad_()
        newcomer = learned[f"model.{NEWCOMER}"].expand(count, -1).clone().requires_grad_()
        with LinearTape(self._losses) as tape:
            inputs = (leaf, *_fields(batch))
            each = functional_call(self._losses, learned | {f"model.{NEWCOMER}": newcomer}, inputs)
        total = (each * torch.from_numpy(share)).sum()
        found, (in_vectors, in_newcomer) = tape.gradients(total, (leaf, newcomer))
        by_name = {name.removeprefix("model."): g.numpy() for name, g in found.items()}
        return by_name | {NEWCOMER: in_newcomer.numpy()}, in_vectors.numpy(), each.detach().numpy()

    def together(self, weights: Weights, examples: Examples, share: Floats) -> Gradients:
        """The same for all devices as one."""
        batch = make_batch(examples.histories, examples.history_of, examples.candidates)
        whole = {WORDS: self._words, **weights}
        encoded = encode_titles(whole, self._codes[batch.news.numpy()], self._heads)
        of_users = {k: v for k, v in weights.items() if k not in TITLE_TENSORS}
        learned = {name: value.requires_grad_() for name, value in _tensors(of_users).items()}
        vectors = torch.from_numpy(encoded.vectors).requires_grad_()
        each = functional_call(self._losses, learned, (vectors, *_fields(batch)))
        *found, in_vectors = torch.autograd.grad(
            (each * torch.from_numpy(share)).sum(), [*learned.values(), vectors], materialize_grads=True
        )
        count = len(encoded.vectors)
        of_titles, words = pull_back(
            whole,
            encoded,
            Pairs(np.array([0, count]), np.arange(count)),
            in_vectors.numpy(),
            learns_words=self._learns_words,
        )
        dense = {name: g.numpy()[np.newaxis] for name, g in zip(of_users, found, strict=True)}
        return Gradients(dense | of_titles, words if self._learns_words else None, each.detach().numpy())

    def count_words(self, examples: Examples, n: int) -> Offsets:
        """Distinct words of the titles of each device."""
        if not self._learns_words:
            return np.zeros(n, np.int64)
        distinct, pairs = _pairs(own_news(examples, n))
        return count_words(self._codes[distinct], pairs, len(self._words))


class _Losses(nn.Module):
    """The losses of examples, as a module: `functional_call` can then exchange the weights."""

    def __init__(self, model: NewsModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, *tensors: Tensor) -> Tensor:
        """Fields of a Batch without its news, then those of a NewsInput."""
        news = NewsInput(*tensors[5:])
        return losses_of(self.model, self.model.encode_news(news), Batch(news.category, *tensors[:5]))


class _LossesOfStates(nn.Module):
    """The same for news whose vectors are known."""

    def __init__(self, model: NewsModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, vectors: Tensor, *tensors: Tensor) -> Tensor:
        """Fields of a Batch without its news."""
        return losses_of(self.model, vectors, Batch(vectors, *tensors))


def _fields(batch: Batch) -> tuple[Tensor, ...]:
    """Of a batch, all but its news."""
    return (batch.histories, batch.history_mask, batch.history_of, batch.candidates, batch.candidate_mask)


def _tensors(weights: Weights) -> dict[str, Tensor]:
    """Parameters under the names that they have in `_Losses`; the arrays themselves, not copies."""
    return {f"model.{name}": torch.from_numpy(value) for name, value in weights.items()}


def _pairs(own: OwnNews) -> tuple[Offsets, Pairs]:
    """The distinct news of all devices, and which of them each device has."""
    distinct, title = np.unique(own.items, return_inverse=True)
    return distinct, Pairs(own.offsets, title.astype(np.int64))


def _add_up(sums: Floats, owner: Offsets, values: Floats) -> None:
    """Add the gradients of histories to those of the devices that own them, in rising order."""
    if len(np.unique(owner)) == len(owner):
        sums[owner] = values
        return
    np.add.at(sums, owner, values)


class LinearTape:
    """Gradients of linear layers for every row of a batch at once, from a single backward pass.

    Notes what goes in and out of every linear layer of a module while it is open. The gradient of W in y = x W' + b is
    the sum of (gradient in y) x' over positions; kept apart by the first dimension, it is one product of small matrices
    per row, however often the layer was used.
    """

    def __init__(self, module: nn.Module) -> None:
        self._uses: dict[str, list[tuple[Tensor, Tensor]]] = defaultdict(list)  # inputs, outputs
        self._layers = {name: part for name, part in module.named_modules() if isinstance(part, nn.Linear)}

    def __enter__(self) -> LinearTape:
        self._hooks = [layer.register_forward_hook(partial(self._note, name)) for name, layer in self._layers.items()]
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

    def gradients(self, total: Tensor, leaves: Sequence[Tensor]) -> tuple[dict[str, Tensor], tuple[Tensor, ...]]:
        """Gradients of weights and biases, [rows, ...] each, and of the leaves."""
        outputs = [output for uses in self._uses.values() for _, output in uses]
        found = torch.autograd.grad(total, [*outputs, *leaves], materialize_grads=True)
        of_outputs = iter(found)
        result = {}
        for name, uses in self._uses.items():
            inputs = torch.cat([_positions(x.detach()) for x, _ in uses], 1)  # [rows, positions, in]
            slopes = torch.cat([_positions(next(of_outputs)) for _ in uses], 1)  # [rows, positions, out]
            result[f"{name}.weight"] = slopes.transpose(1, 2) @ inputs
            if self._layers[name].bias is not None:
                result[f"{name}.bias"] = slopes.sum(1)
        return result, found[len(outputs) :]


def _positions(values: Tensor) -> Tensor:
    """[rows, d] or [rows, positions, d] -> [rows, positions, d]."""
    return values.unsqueeze(1) if values.dim() == 2 else values


@dataclass(frozen=True)
class OwnNews:
    """Examples of n devices; items are places among the distinct news of their own device.

    They are taken out for some devices: packed, or padded side by side.
    """

    items: Offsets  # [pairs], the distinct news of device 0, then those of device 1, ...
    offsets: Offsets  # [n + 1], into `items`
    owner: Offsets  # [histories], device, in rising order
    histories: Offsets  # [histories, h]; 0 where the mask is False
    history_mask: Bools
    device: Offsets  # [examples], in rising order
    history_of: Offsets  # [examples]
    candidates: Offsets  # [examples, 1 + negatives]
    candidate_mask: Bools

    def groups(self, count: int) -> Iterator[Offsets]:
        """Devices with histories of like length, so that little is padded."""
        longest = np.zeros(len(self.offsets) - 1, np.int64)
        np.maximum.at(longest, self.owner, self.history_mask.sum(1))
        order = np.argsort(longest, kind="stable")
        for begin in range(0, len(order), count):
            yield np.sort(order[begin : begin + count])

    def shares(self) -> Floats:
        """What an example counts in the mean of its device: [examples]."""
        counts = np.bincount(self.device, minlength=len(self.offsets) - 1)
        return (1.0 / counts[self.device]).astype(np.float32)

    def packed(self, devices: Offsets) -> tuple[Offsets, Offsets, Batch]:
        """Of some devices: the rows of histories and of examples, and these with items as places in `batch.news`,
        which are rows of `items`.
        """
        chosen = np.zeros(len(self.offsets) - 1, np.bool_)
        chosen[devices] = True
        rows, examples = np.flatnonzero(chosen[self.owner]), np.flatnonzero(chosen[self.device])
        width = max(1, int(self.history_mask[rows].any(0).sum()))
        counts = np.diff(self.offsets)
        first = np.cumsum(counts * chosen) - counts * chosen  # place of a device's first item
        arrays = (
            np.flatnonzero(np.repeat(chosen, counts)),
            self.histories[rows, :width] + first[self.owner[rows], np.newaxis],
            self.history_mask[rows, :width],
            np.searchsorted(rows, self.history_of[examples]),
            self.candidates[examples] + first[self.device[examples], np.newaxis],
            self.candidate_mask[examples],
        )
        return rows, examples, Batch(*map(torch.from_numpy, arrays))

    def padded(self, devices: Offsets) -> tuple[Tensor, Batch]:
        """The same side by side: shares and examples, every tensor begins with the devices."""
        rows, examples, _ = self.packed(devices)
        width = max(1, int(self.history_mask[rows].any(0).sum()))
        n = len(devices)
        owner = np.searchsorted(devices, self.owner[rows])
        device = np.searchsorted(devices, self.device[examples])
        first = np.searchsorted(self.owner, devices)[device]
        counts = np.diff(self.offsets)
        own = np.repeat(np.isin(np.arange(len(counts)), devices), counts)
        return _stack(self.shares()[examples], device, n), Batch(
            _stack(self.items[own], np.repeat(np.arange(n), counts[devices]), n),
            _stack(self.histories[rows, :width], owner, n),
            _stack(self.history_mask[rows, :width], owner, n),
            _stack(self.history_of[examples] - first, device, n),
            _stack(self.candidates[examples], device, n),
            _stack(self.candidate_mask[examples], device, n),
        )


def own_news(examples: Examples, n: int) -> OwnNews:
    """Number the news of every device."""
    owner = np.zeros(len(examples.histories), np.int64)
    owner[examples.history_of] = examples.device
    history_mask, candidate_mask = examples.histories != NONE, examples.candidates != NONE
    span = 1 + max(int(examples.histories.max(initial=0)), int(examples.candidates.max(initial=0)))
    past = owner[:, np.newaxis] * span + examples.histories
    shown = examples.device[:, np.newaxis] * span + examples.candidates
    pairs, place = np.unique(np.concatenate([past[history_mask], shown[candidate_mask]]), return_inverse=True)
    offsets = np.searchsorted(pairs // span, np.arange(n + 1)).astype(np.int64)
    histories, candidates = np.zeros(past.shape, np.int64), np.zeros(shown.shape, np.int64)
    split = int(history_mask.sum())
    histories[history_mask] = place[:split] - offsets[np.repeat(owner, history_mask.sum(1))]
    candidates[candidate_mask] = place[split:] - offsets[np.repeat(examples.device, candidate_mask.sum(1))]
    return OwnNews(
        pairs % span,
        offsets,
        owner,
        histories,
        history_mask,
        examples.device,
        examples.history_of,
        candidates,
        candidate_mask,
    )


def _stack(values: NDArray[np.generic], owner: Offsets, n: int) -> Tensor:
    """Rows of the devices, in rising order of their owner, as [n, most, ...]; zero where a device has fewer."""
    counts = np.bincount(owner, minlength=n)
    first = np.cumsum(counts) - counts
    out = np.zeros((n, max(1, int(counts.max(initial=0))), *values.shape[1:]), values.dtype)
    out[owner, np.arange(len(owner)) - first[owner]] = values
    return torch.from_numpy(out)
