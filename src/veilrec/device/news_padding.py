"""Devices side by side for one differentiation: each with its own numbering of news and words, padded."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from veilrec._arrays import Bools, Indices, Offsets
from veilrec.device.news_log import NONE, Examples
from veilrec.models.news_model import NewsInput


@dataclass(frozen=True)
class Padded:
    """Inputs of n devices; every tensor begins with n."""

    tensors: tuple[
        Tensor, ...
    ]  # each example's share, the fields of NewsInput, those of Batch without its news
    words: Offsets  # [n, most], word codes in the device's own order; word 0 (padding) is always the first
    is_word: Bools  # [n, most], False for padding and for what the device does not have


def pad_devices(examples: Examples, n: int, news: NewsInput) -> Padded:
    """Number news, histories and words per device; an example that pads has share 0, others 1 / clicks."""
    owner = np.zeros(len(examples.histories), np.int64)
    owner[examples.history_of] = examples.device
    width = max(1, int((examples.histories != NONE).any(0).sum()))
    past = examples.histories[:, :width]
    (history_place, candidate_place), items, real_news = _number(
        [(owner, past), (examples.device, examples.candidates)], n
    )
    title, words, is_word = _own_words(news.title.numpy()[items] * real_news[..., np.newaxis], n)
    counts = np.bincount(examples.device, minlength=n)
    share = 1.0 / np.maximum(counts, 1)[examples.device]
    first_history = np.searchsorted(owner, np.arange(n))
    history_of = examples.history_of - first_history[examples.device]
    used = max(1, int((title > 0).any((0, 1)).sum()))
    rows = torch.from_numpy(items)
    tensors = (
        _stack(share.astype(np.float32), examples.device, n),
        torch.from_numpy(title[..., :used]),
        news.abstract[rows], news.category[rows], news.subcategory[rows], news.entities[rows][..., :used],
        news.sentence[rows],
        _stack(history_place, owner, n), _stack(past != NONE, owner, n),
        _stack(history_of, examples.device, n),
        _stack(candidate_place, examples.device, n), _stack(examples.candidates != NONE, examples.device, n),
    )  # fmt: skip
    return Padded(tensors, words, is_word)


def _number(parts: list[tuple[Offsets, Indices]], n: int) -> tuple[list[Offsets], Offsets, Bools]:
    """Places of codes among the distinct ones of their own device; these codes, [n, most]; and which are real.

    Each part has the devices of its rows, and rows of codes in which NONE is no code (its place is 0).
    """
    span = 1 + max(int(codes.max(initial=0)) for _, codes in parts)
    keys = [
        np.where(codes == NONE, -1, owner[:, np.newaxis] * span + codes).ravel() for owner, codes in parts
    ]
    distinct, place = np.unique(np.concatenate(keys), return_inverse=True)
    if len(distinct) and distinct[0] == -1:
        distinct, place = distinct[1:], place - 1
    device = distinct // span
    first = np.searchsorted(device, np.arange(n))
    counts = np.bincount(device, minlength=n)
    columns = np.arange(max(1, int(counts.max(initial=0))))
    real = columns < counts[:, np.newaxis]
    padded = np.zeros(real.shape, np.int64)
    padded[real] = distinct % span
    places, begin = [], 0
    for owner, codes in parts:
        own = place[begin : begin + codes.size].reshape(codes.shape) - first[owner][:, np.newaxis]
        places.append(np.where(codes == NONE, 0, own))
        begin += codes.size
    return places, padded, real


def _own_words(title: Offsets, n: int) -> tuple[Offsets, Offsets, Bools]:
    """Titles [n, m, l] in each device's own numbering, the words, and which of them are real."""
    flat = title.reshape(n, -1)
    with_padding = np.concatenate([np.zeros((n, 1), np.int64), flat], axis=1)
    (place,), words, real = _number([(np.arange(n), with_padding)], n)
    real[:, 0] = False
    return place[:, 1:].reshape(title.shape), words, real


def _stack(values: NDArray[np.generic], owner: Offsets, n: int) -> Tensor:
    """Rows of the devices, in rising order of their owner, as [n, most, ...]; zero where a device has fewer."""
    counts = np.bincount(owner, minlength=n)
    first = np.cumsum(counts) - counts
    out = np.zeros((n, max(1, int(counts.max(initial=0))), *values.shape[1:]), values.dtype)
    out[owner, np.arange(len(owner)) - first[owner]] = values
    return torch.from_numpy(out)
