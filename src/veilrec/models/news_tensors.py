"""Codes of news as tensors, and batches in which every distinct news is encoded once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from veilrec._arrays import Floats, Indices, Offsets
from veilrec.models.news_model import NewsInput, NewsModel

NONE = -1  # no item


def news_input(
    titles: Indices, abstracts: Indices, categories: Indices, subcategories: Indices, entities: Indices,
    sentences: Floats | None = None,
) -> NewsInput:  # fmt: skip
    """Codes as tensors."""
    title, abstract, category, subcategory, entity = (
        torch.from_numpy(x.astype(np.int64)) for x in (titles, abstracts, categories, subcategories, entities)
    )
    sentence = np.zeros((len(titles), 0), np.float32) if sentences is None else sentences
    return NewsInput(title, abstract, category, subcategory, entity, torch.from_numpy(sentence))


def take_news(news: NewsInput, rows: Tensor) -> NewsInput:
    """The chosen news."""
    return NewsInput(
        news.title[rows], news.abstract[rows], news.category[rows], news.subcategory[rows], news.entities[rows],
        news.sentence[rows],
    )  # fmt: skip


def trimmed(news: NewsInput) -> NewsInput:
    """Without the columns of words that are padding everywhere."""
    title, abstract = _width(news.title), _width(news.abstract)
    return NewsInput(
        news.title[:, :title], news.abstract[:, :abstract], news.category, news.subcategory,
        news.entities[:, :title], news.sentence,
    )  # fmt: skip


def _width(codes: Tensor) -> int:
    used = (codes > 0).any(0)
    return max(1, int(used.sum()))


@dataclass(frozen=True)
class Batch:
    """Examples whose histories are distinct, and whose items point into their own distinct news."""

    news: Tensor  # [m], the distinct items
    histories: Tensor  # [u, h], row of `news`; 0 where the mask is False
    history_mask: Tensor
    history_of: Tensor  # [b], row of `histories`
    candidates: Tensor  # [b, 1 + negatives], row of `news`
    candidate_mask: Tensor


def make_batch(histories: Indices, history_of: Offsets, candidates: Indices) -> Batch:
    """Distinct news and histories of some examples; columns of history without any click are cut off."""
    needed, history_of = np.unique(history_of, return_inverse=True)
    past = histories[needed]
    past = past[:, : max(1, int((past != NONE).any(0).sum()))]
    distinct, place = np.unique(np.concatenate([past.ravel(), candidates.ravel()]), return_inverse=True)
    if distinct[0] == NONE:
        distinct, place = distinct[1:], np.maximum(place - 1, 0)
    arrays = (
        distinct.astype(np.int64), place[: past.size].reshape(past.shape), past != NONE,
        history_of.astype(np.int64), place[past.size :].reshape(candidates.shape), candidates != NONE,
    )  # fmt: skip
    return Batch(*(torch.from_numpy(np.ascontiguousarray(array)) for array in arrays))


def losses(model: NewsModel, news: NewsInput, batch: Batch) -> Tensor:
    """L^i of eq. 3 (FedNewsRec) for every example: [b]; `news` are the distinct news of the batch."""
    states = model.encode_news(news)
    candidates = states[batch.candidates]
    if model.is_dot_product:
        users = model.user(states[batch.histories], batch.history_mask)[batch.history_of]
        scores = (candidates @ users.unsqueeze(-1)).squeeze(-1)
    else:
        history = states[batch.histories[batch.history_of]]
        scores = model.score(history, batch.history_mask[batch.history_of], candidates)
    return -masked_log_softmax(scores, batch.candidate_mask)[:, 0]


def masked_log_softmax(scores: Tensor, mask: Tensor) -> Tensor:
    """Log-softmax among the real entries."""
    return scores.masked_fill(~mask, torch.finfo(scores.dtype).min).log_softmax(-1)
