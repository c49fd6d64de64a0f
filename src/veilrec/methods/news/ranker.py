"""Ranking with a trained news model: news and distinct histories are encoded once, then scored by dot products.

`NewsUsers` gives serving the user vectors of histories.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import TypeAdapter
from torch import Tensor

from veilrec.client.rankers import Arrays
from veilrec.core.arrays import Bools, Doubles, Floats, Indices, Offsets
from veilrec.core.csr import Csr
from veilrec.core.errors import BadInput
from veilrec.core.jit import jit
from veilrec.data.news_text import NewsNames, Vocabulary
from veilrec.data.population import Impressions, ItemTable, Strings
from veilrec.evaluation.evaluator import scores_of_shown
from veilrec.methods.news.common import Sentences
from veilrec.methods.news.prepare import Architecture, NewsReader, ReadNews
from veilrec.methods.news.text_vectors import SentenceAxes, TitleAxes
from veilrec.models.federated_news import Interests
from veilrec.models.news_model import NewsInput, NewsModel, take_news, trimmed
from veilrec.serving.answering import scores_in_lists

_NEWS_AT_ONCE = 1024
_STEPS_AT_ONCE = 1 << 13  # clicks of histories that are encoded together: few enough for the cache
_ENTRIES_AT_ONCE = 1 << 22  # of the states of candidates and histories, for models that need both
_NAMES = ("words", "categories", "subcategories", "entities")  # of NewsNames
_FROZEN = "frozen."


class EncodedNews:
    """A trained model, and the states of all news that it ranks."""

    def __init__(self, model: NewsModel, states: Tensor) -> None:
        self.model = model
        self.states = states  # [items, ...]

    @cached_property
    def projected(self) -> Tensor:
        """What user models need of every news: [items, ...]."""
        with torch.inference_mode():
            return self.model.project_clicks(self.states)


class NewsScorer:
    """Users with histories, and news with states; a user is a row of the histories."""

    def __init__(self, news: EncodedNews, histories: Csr, longest: int, reader: NewsReader) -> None:
        self.news = news
        self.model = news.model
        self.states = news.states
        self.reader = reader
        self.histories = histories
        self.longest = longest
        self.n_items = len(news.states)

    def score_all(self, users: Offsets) -> Floats:
        """Scores of every item."""
        if self.model.is_dot_product:
            every: Floats = self.user_vectors(users) @ self.states.numpy().T
            return every
        return self.score_some(users, np.tile(np.arange(self.n_items, dtype=np.int32), (len(users), 1)))

    def score_some(self, users: Offsets, items: Indices) -> Floats:
        """Scores of chosen items, [T, C]."""
        if self.model.is_dot_product:
            lists = Csr(np.arange(len(users) + 1, dtype=np.int64) * items.shape[1], items.ravel())
            rows = np.arange(len(users), dtype=np.int64)
            scores = scores_in_lists(self.user_vectors(users), self.states.numpy(), rows, lists)
            return scores.reshape(items.shape)
        return self._score_pairs(users, items)

    def fold_in(self, histories: Csr) -> NewsScorer:
        """New users need nothing but their history."""
        return NewsScorer(self.news, histories, self.longest, self.reader)

    def on(self, catalogue: ItemTable) -> NewsScorer:
        """Score other news with this model; its users come with their histories."""
        news = EncodedNews(self.model, encode_all(self.model, self.reader.read(catalogue)))
        nobody = Csr(np.zeros(1, np.int64), np.zeros(0, np.int32))
        return NewsScorer(news, nobody, self.longest, self.reader)

    def score_impressions(self, impressions: Impressions) -> Floats:
        """A score for everything that was shown."""
        shown = impressions.shown
        asked = self.fold_in(impressions.histories)
        needed, row = np.unique(impressions.history_of, return_inverse=True)
        if self.model.is_dot_product:
            vectors = asked.user_vectors(needed.astype(np.int64))
            return scores_in_lists(vectors, self.states.numpy(), row.astype(np.int64), shown)
        return scores_of_shown(impressions, asked)

    def user_vectors(self, users: Offsets) -> Floats:
        """[users, dim]."""
        return self._encoded_users(users, lambda items, mask: self.model.user_from(self.news.projected, items, mask))

    def vectors_before_basis(self, users: Offsets, model: Interests) -> Floats:
        """[users, dim], of a model with basis vectors: what is decomposed over them."""
        return self._encoded_users(users, lambda items, mask: model.whole_user(self.states[items], mask))

    def _encoded_users(self, users: Offsets, encode: Callable[[Tensor, Tensor], Tensor]) -> Floats:
        """Histories of like length go together."""
        out = np.empty((len(users), self.model.dim), np.float32)
        lengths = np.minimum(np.diff(self.histories.offsets)[users], self.longest)
        order = np.argsort(lengths, kind="stable")
        begin = 0
        with torch.inference_mode():
            while begin < len(order):
                some = order[begin : begin + max(1, _STEPS_AT_ONCE // max(1, int(lengths[order[begin]])))]
                some = some[: max(1, _STEPS_AT_ONCE // max(1, int(lengths[some[-1]])))]
                items, mask = self._history(users[some])
                out[some] = encode(items, mask).numpy()
                begin += len(some)
        return out

    def _history(self, users: Offsets) -> tuple[Tensor, Tensor]:
        """Items and mask of the latest clicks: [b, h] each."""
        rows = self.histories.take(users)
        width = max(1, min(self.longest, int(rows.lengths().max(initial=0))))
        items = np.zeros((len(users), width), np.int64)
        mask = np.zeros((len(users), width), np.bool_)
        _latest(rows.offsets, rows.items, items, mask)
        return torch.from_numpy(items), torch.from_numpy(mask)

    def _score_pairs(self, users: Offsets, items: Indices) -> Floats:
        """For models that look at history and candidates together."""
        width = self.states[0].numel()
        at_once = max(1, _ENTRIES_AT_ONCE // (width * (items.shape[1] + self.longest)))
        columns = max(1, _ENTRIES_AT_ONCE // (width * self.longest)) if at_once == 1 else items.shape[1]
        out = np.empty(items.shape, np.float32)
        with torch.inference_mode():
            for begin in range(0, len(users), at_once):
                past, mask = self._history(users[begin : begin + at_once])
                history = self.states[past]
                for left in range(0, items.shape[1], columns):
                    chosen = items[begin : begin + at_once, left : left + columns].astype(np.int64)
                    scores = self.model.score(history, mask, self.states[torch.from_numpy(chosen)])
                    out[begin : begin + at_once, left : left + columns] = scores.numpy()
        return out


@dataclass(frozen=True)
class NewsRankerSettings:
    """What a news ranker is beside its arrays."""

    architecture: Architecture
    history: int  # the latest clicks that a user is known by
    abstracts: bool  # whether abstracts are read
    sentences: Sentences
    pad_word: int | None = None  # the code that short texts are filled with


@dataclass(frozen=True)
class NewsRanker:
    """A news network: a user is a history, an item is its text."""

    kind: ClassVar[str] = "news"
    architecture: Architecture
    start: NewsModel  # with the weights that nobody changes
    frozen: frozenset[str]  # their names
    reader: NewsReader
    history: int
    items: NewsInput | Tensor  # what the items say, or the states that trained weights made of it

    @classmethod
    def of(cls, read: ReadNews, history: int) -> NewsRanker:
        """The ranker of a model that is about to learn."""
        return cls(read.architecture, read.model, read.frozen, read.reader, history, read.news)

    def settings(self) -> dict[str, Any]:
        """What makes this ranker again, beside its tables."""
        names = self.reader.names
        return asdict(
            NewsRankerSettings(
                self.architecture, self.history, names.abstracts, self.reader.sentences, self.reader.pad_word
            )
        )

    def tables(self, weights: Arrays) -> dict[str, NDArray[Any]]:
        """Frozen weights, the names that the model knows, the axes of sentences, and the states of the items."""
        found: dict[str, NDArray[Any]] = {"states": self._encoded(self._network(weights)).numpy()}
        for name in self.frozen:
            found[f"{_FROZEN}{name}"] = self.start.get_parameter(name).detach().numpy()
        for name in _NAMES:
            words = Strings.of(getattr(self.reader.names, name).words)
            found |= {f"names.{name}.offsets": words.offsets, f"names.{name}.data": words.data}
        found |= _axes_tables(self.reader.axes)
        return found

    @classmethod
    def restored(cls, settings: Mapping[str, Any], tables: Arrays) -> NewsRanker:
        """What `settings` and `tables` were taken from."""
        s = TypeAdapter(NewsRankerSettings).validate_python(settings)
        names = {
            name: Vocabulary(tuple(Strings(tables[f"names.{name}.offsets"], tables[f"names.{name}.data"])))
            for name in _NAMES
        }
        start = s.architecture.start(torch.Generator())
        frozen = {name.removeprefix(_FROZEN): tables[name] for name in tables if name.startswith(_FROZEN)}
        _put(start, frozen)
        reader = NewsReader(NewsNames(**names, abstracts=s.abstracts), s.sentences, _axes_of(tables), s.pad_word)
        states = torch.from_numpy(tables["states"])
        return cls(s.architecture, start, frozenset(frozen), reader, s.history, states)

    def model(self, weights: Arrays, private: object, histories: Csr) -> NewsScorer:
        """A copy of the network with these weights."""
        return self.scorer(self._network(weights), histories)

    def scorer(self, network: NewsModel, histories: Csr) -> NewsScorer:
        """With all news encoded."""
        return NewsScorer(EncodedNews(network, self._encoded(network)), histories, self.history, self.reader)

    def _network(self, weights: Arrays) -> NewsModel:
        network = deepcopy(self.start)
        _put(network, weights)
        return network

    def _encoded(self, network: NewsModel) -> Tensor:
        return self.items if isinstance(self.items, Tensor) else encode_all(network, self.items)


def _put(network: NewsModel, weights: Arrays) -> None:
    with torch.no_grad():
        for name, values in weights.items():
            network.get_parameter(name).copy_(torch.from_numpy(values))


def _axes_tables(axes: SentenceAxes | TitleAxes | None) -> dict[str, NDArray[Any]]:
    if axes is None:
        return {}
    if isinstance(axes, SentenceAxes):
        return {"sentences.mean": axes.mean, "sentences.axes": axes.axes}
    words = Strings.of(axes.words.words)
    return {
        "titles.offsets": words.offsets,
        "titles.data": words.data,
        "titles.rarity": axes.rarity,
        "titles.axes": axes.axes,
    }


def _axes_of(tables: Arrays) -> SentenceAxes | TitleAxes | None:
    if "sentences.axes" in tables:
        return SentenceAxes(tables["sentences.mean"], tables["sentences.axes"])
    if "titles.axes" in tables:
        words = Vocabulary(tuple(Strings(tables["titles.offsets"], tables["titles.data"])))
        return TitleAxes(words, tables["titles.rarity"], tables["titles.axes"])
    return None


def encode_all(model: NewsModel, news: NewsInput) -> Tensor:
    """States of all news."""
    parts = []
    with torch.inference_mode():
        for begin in range(0, len(news.title), _NEWS_AT_ONCE):
            rows = torch.arange(begin, min(begin + _NEWS_AT_ONCE, len(news.title)))
            some = take_news(news, rows)
            parts.append(model.encode_news(trimmed(some) if model.is_dot_product else some))
    return torch.cat(parts)


@jit
def _latest(offsets: Offsets, items: Indices, out: Offsets, mask: Bools) -> None:
    width = out.shape[1]
    for row in range(len(out)):
        end = offsets[row + 1]
        kept = min(width, end - offsets[row])
        for j in range(kept):
            out[row, j] = items[end - kept + j]
            mask[row, j] = True


class NewsUsers:
    """The user vectors of a model that has some, and what private queries need beside them."""

    def __init__(self, scorer: NewsScorer) -> None:
        self._scorer = scorer
        self._interests = scorer.model if isinstance(scorer.model, Interests) else None

    @property
    def longest(self) -> int:
        """The latest clicks that a user is known by."""
        return self._scorer.longest

    @property
    def news(self) -> Floats:
        """The vectors of all news, [items, dim]; of a model without user vectors, all that it knows of a news."""
        vectors: Floats = self._scorer.states.numpy()
        return vectors

    @property
    def basis(self) -> Doubles | None:
        """The model's basis vectors, [B, dim]; None where it has none."""
        return None if self._interests is None else self._interests.basis_vectors().detach().numpy().astype(np.float64)

    @property
    def interests(self) -> Floats | None:
        """The user vector that the model puts together of one interest alone, for each of them: [B, dim]."""
        if self._interests is None:
            return None
        with torch.inference_mode():
            together: Floats = self._interests.reconstruct(torch.eye(len(self._interests.basis))).numpy()
        return together

    @property
    def pad(self) -> Doubles | None:
        """r0, what a padded click looks like, [dim]: what training padded with; None where the model has no pad."""
        if self._interests is None:
            return None
        news = self._scorer.reader.pad()
        with torch.inference_mode():
            state = self._interests.pad_state() if news is None else self._interests.encode_news(news)[0]
        return state.detach().numpy().astype(np.float64)

    def users(self, histories: Csr) -> Floats:
        """The user vectors that the model ranks with."""
        return self._scorer.fold_in(histories).user_vectors(np.arange(len(histories), dtype=np.int64))

    def users_before_basis(self, histories: Csr) -> Floats:
        """Those that are decomposed over its basis vectors."""
        everybody = np.arange(len(histories), dtype=np.int64)
        return self._scorer.fold_in(histories).vectors_before_basis(everybody, self._with_basis())

    def users_in_slots(self, clicks: Doubles, taken: Bools) -> Doubles:
        """User vectors of clicks in places, some of them perhaps pads: [clients, slots, dim] -> [clients, dim]."""
        with torch.inference_mode():
            encoded = self._with_basis().whole_user(
                torch.from_numpy(clicks.astype(np.float32)), torch.from_numpy(taken)
            )
        return encoded.numpy().astype(np.float64)

    def _with_basis(self) -> Interests:
        if self._interests is None:
            raise BadInput("the model of this run has no basis vectors")
        return self._interests
