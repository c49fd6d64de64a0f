"""Scores of items for users, without torch: the protocols, matrix factorisation, NeuMF and SASRec.

NeuMF (He et al., Neural Collaborative Filtering, 2017: GMF, MLP and their fusion):

score(u, i) = w_g . (p_u^g * q_i^g) + w_h . h_L + b,  h_l = relu(W_l h_{l-1} + b_l),  h_0 = [p_u^m ; q_i^m]

As h_0 is two vectors end to end, W_1 h_0 = W_1^u p_u + W_1^i q_i: the user's half is the same for all items, the
items' half for all users.

SASRec (Kang and McAuley, 2018): see `veilrec.methods.references`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from veilrec.core.arrays import Floats, Indices, Offsets
from veilrec.core.csr import Csr
from veilrec.core.features import Side
from veilrec.core.jit import jit


class Scorer(Protocol):
    """Scores for some users; a user is a row. Higher scores rank first."""

    n_items: int

    def score_all(self, users: Offsets) -> Floats:
        """Scores of every item: [len(users), n_items]."""

    def score_some(self, users: Offsets, items: Indices) -> Floats:
        """Scores of the given items: [T, C] for T users with C items each."""


class Model(Scorer, Protocol):
    """A scorer for known users that also takes in new ones."""

    def fold_in(self, histories: Csr) -> Scorer:
        """A scorer for new users of whom only the history is known: row r of `histories` is user r."""


@runtime_checkable
class KnowsPeople(Model, Protocol):
    """A model that also reads what a client knows of its user."""

    people: Side  # the features that it reads, without rows

    def fold_in_people(self, histories: Csr, people: Side) -> Scorer:
        """Scorer of new users with these histories and features."""


Source = Literal["history", "order", "own weights", "content", "popularity", "appeal"]


@dataclass(frozen=True)
class RestsOn:
    """What a list was made of."""

    uses: tuple[Source, ...]  # what changes this list: without a history, only what is the same for everybody
    items: int  # of the history that count
    said: str  # the same for people, in a sentence

    def as_json(self) -> Mapping[str, Any]:
        """For programs."""
        return asdict(self)


@runtime_checkable
class SaysWhatItUses(Protocol):
    """A model that can tell what its list for a history rests on."""

    def rests_on(self, history: Indices) -> RestsOn:
        """Describe what the list for this history rests on."""


@runtime_checkable
class ReadsRatings(KnowsPeople, Protocol):
    """A model that may also learn from how people rated what they used."""

    reads_ratings: bool  # with its settings
    predicts_ratings: bool  # whether its scores are ratings out of 1

    def fold_in_rated(self, histories: Csr, people: Side, ratings: Floats) -> Scorer:
        """Scorer of new users with these histories, rated so (out of 1), and features."""


def joined(model: Model, histories: Csr, people: Side | None = None) -> Scorer:
    """A scorer for new users, by all that is known of them and that the model can read."""
    if people is not None and isinstance(model, KnowsPeople):
        return model.fold_in_people(histories, people)
    return model.fold_in(histories)


def best_first(worse: NDArray[Any], k: int) -> Offsets:
    """Columns of the k smallest numbers of every row, the smallest first, of equal ones the first: [rows, k]."""
    if k < worse.shape[1]:
        last = np.partition(worse, k - 1, axis=1)[:, k - 1 : k]
        worse = np.where(worse > last, np.inf, worse)  # what is left are at least k: those that tie with the last, too
    return np.argsort(worse, axis=1, kind="stable")[:, :k]


class FactorScores:
    """score(u, i) = users[u] . items[i]."""

    def __init__(self, users: Floats, items: Floats) -> None:
        self.users = users
        self.items = items
        self.n_items = len(items)

    def score_all(self, users: Offsets) -> Floats:
        """Scores of every item: [len(users), items]."""
        scores: Floats = self.users[users] @ self.items.T
        return scores

    def score_some(self, users: Offsets, items: Indices) -> Floats:
        """Scores of the given items: [T, C] for T users with C items each."""
        out = np.empty(items.shape, np.float32)
        _score_some(self.users, self.items, np.ascontiguousarray(users), np.ascontiguousarray(items), out)
        return out


@jit
def _score_some(user_rows: Floats, item_rows: Floats, users: Offsets, items: Indices, out: Floats) -> None:
    for case in range(items.shape[0]):
        user = user_rows[users[case]]
        for j in range(items.shape[1]):
            item = item_rows[items[case, j]]
            score = np.float32(0.0)
            for q in range(len(user)):
                score += user[q] * item[q]
            out[case, j] = score


ITEMS = "items"
_FIRST = "layer1.weight"
_ZERO = np.float32(0.0)
_SCORED_AT_ONCE = 256  # items, few enough that their activations stay in the cache


class NeumfLayout(NamedTuple):
    """Where everything lies in the flat network: W_1^u; of every layer W_l [out, in] and b_l; then w_g, w_h and b.

    Of W_1 the half that meets the item lies among the layers.
    """

    gmf: int  # length of w_g, and where the second half of a row [gmf | mlp] starts
    widths: Offsets  # [L + 1]: of the item's half of the input, and of every layer
    weights_at: Offsets  # [L]: where W_l starts; its bias follows it
    output_at: int  # where w_g starts
    size: int


@dataclass(frozen=True)
class NeumfShape:
    """The sizes of a NeuMF: an item has a row [gmf | mlp], and so has a user."""

    gmf: int
    mlp: int
    layers: tuple[int, ...]  # widths of the hidden layers

    @property
    def row(self) -> int:
        """Length of an item's row and of a user's vector."""
        return self.gmf + self.mlp

    def network(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the dense tensors, in the order of the flat network."""
        shapes: dict[str, tuple[int, ...]] = {}
        below = 2 * self.mlp  # [user | item]
        for number, width in enumerate(self.layers, start=1):
            shapes[f"layer{number}.weight"] = (width, below)
            shapes[f"layer{number}.bias"] = (width,)
            below = width
        return shapes | {"output.weight": (self.gmf + below,), "output.bias": (1,)}

    def layout(self) -> NeumfLayout:
        """Layout of the tensors in the flat network."""
        widths = (self.mlp, *self.layers)
        starts, at = [], self.layers[0] * self.mlp
        for inputs, outputs in pairwise(widths):
            starts.append(at)
            at += outputs * inputs + outputs
        return NeumfLayout(
            self.gmf, np.array(widths, np.int64), np.array(starts, np.int64), at, at + self.gmf + widths[-1] + 1
        )

    def flat(self, weights: Mapping[str, Floats]) -> Floats:
        """The dense tensors end to end, both halves of the first layer one after the other."""
        halves = np.split(weights[_FIRST], 2, axis=1)
        rest = [weights[name] for name in self.network() if name != _FIRST]
        return np.concatenate([part.ravel() for part in (*halves, *rest)]).astype(np.float32)

    def named(self, flat: Floats) -> dict[str, Floats]:
        """The dense tensors of flat networks [n, size], each [n, *shape]."""
        tensors, start = {}, 0
        for name, shape in self.network().items():
            size = math.prod(shape)
            part = flat[:, start : start + size]
            if name == _FIRST:
                halves = part.reshape(len(flat), 2, shape[0], self.mlp)
                tensors[name] = np.concatenate([halves[:, 0], halves[:, 1]], axis=2)
            else:
                tensors[name] = part.reshape(len(flat), *shape)
            start += size
        return tensors


@jit
def matrix_at(flat: Floats, start: int, rows: int, columns: int) -> Floats:
    """A view of a flat vector as a matrix."""
    return flat[start : start + rows * columns].reshape(rows, columns)


@jit
def layer_bias(layout: NeumfLayout, network: Floats, layer: int) -> Floats:
    """b_l of layer l >= 1."""
    start = layout.weights_at[layer - 1] + layout.widths[layer] * layout.widths[layer - 1]
    return network[start : start + layout.widths[layer]]


@jit
def set_layer(layout: NeumfLayout, network: Floats, layer: int, below: Floats, bias: Floats, above: Floats) -> None:
    """above = relu(below W_l^T + bias) of layer l >= 1; of the first, the half of W_1 that meets the item."""
    outputs, inputs = layout.widths[layer], layout.widths[layer - 1]
    np.dot(below, matrix_at(network, layout.weights_at[layer - 1], outputs, inputs).T, above)
    for j in range(len(above)):
        for q in range(outputs):
            above[j, q] = max(above[j, q] + bias[q], _ZERO)


class NeumfScores:
    """NeuMF bound to a set of users."""

    def __init__(self, shape: NeumfShape, users: Floats, weights: Mapping[str, Floats]) -> None:
        self.shape = shape
        self.n_items = len(weights[ITEMS])
        gmf, mlp = shape.gmf, shape.mlp
        first = weights[_FIRST]
        self._gmf_users: Floats = users[:, :gmf] * weights["output.weight"][:gmf]
        self._gmf_items = np.ascontiguousarray(weights[ITEMS][:, :gmf])
        self._user_terms: Floats = users[:, gmf:] @ first[:, :mlp].T + weights["layer1.bias"]
        self._item_terms: Floats = weights[ITEMS][:, gmf:] @ first[:, mlp:].T
        self._layout, self._network = shape.layout(), shape.flat(weights)

    def score_all(self, users: Offsets) -> Floats:
        """Scores of every item: [len(users), items]."""
        return self._score(users, np.arange(self.n_items, dtype=np.int32)[np.newaxis])

    def score_some(self, users: Offsets, items: Indices) -> Floats:
        """Scores of the given items: [T, C] for T users with C items each."""
        return self._score(users, np.ascontiguousarray(items, dtype=np.int32))

    def _score(self, users: Offsets, lists: Indices) -> Floats:
        scores = np.empty((len(users), lists.shape[1]), np.float32)
        _score_lists(
            self._layout,
            self._network,
            self._gmf_users[users],
            self._user_terms[users],
            self._gmf_items,
            self._item_terms,
            lists,
            scores,
        )
        return scores


@jit
def _score_lists(
    layout: NeumfLayout,
    network: Floats,
    gmf_users: Floats,
    user_terms: Floats,
    gmf_items: Floats,
    item_terms: Floats,
    lists: Indices,  # [T, C], or [1, C] where all users share one list
    out: Floats,
) -> None:
    widths, start = layout.widths, layout.output_at + layout.gmf
    space = np.empty(_SCORED_AT_ONCE * widths[1:].sum(), np.float32)
    top = network[start : start + widths[-1]]
    for case in range(len(out)):
        items, terms, gmf = lists[case % len(lists)], user_terms[case], gmf_users[case]
        for begin in range(0, len(items), _SCORED_AT_ONCE):
            size = min(_SCORED_AT_ONCE, len(items) - begin)
            values, at = matrix_at(space, 0, size, widths[1]), size * widths[1]
            for j in range(size):
                row = item_terms[items[begin + j]]
                for q in range(len(terms)):
                    values[j, q] = max(row[q] + terms[q], _ZERO)
            for layer in range(2, len(widths)):
                above = matrix_at(space, at, size, widths[layer])
                set_layer(layout, network, layer, values, layer_bias(layout, network, layer), above)
                values, at = above, at + above.size
            for j in range(size):
                row = gmf_items[items[begin + j]]
                out[case, begin + j] = network[layout.size - 1] + _dot(gmf, row) + _dot(top, values[j])


@jit
def _dot(left: Floats, right: Floats) -> np.float32:
    total = _ZERO
    for q in range(len(left)):
        total += left[q] * right[q]
    return total


NORM_EPSILON = 1e-8  # the authors' code
POSITIONS = "positions"
Weights = Mapping[str, NDArray[Any]]


def user_vector(weights: Weights, history: Indices) -> Floats:
    """The vector after the last item of a history, [d]; an empty one is the bias of the last norm."""
    items, positions = weights[ITEMS], weights[POSITIONS]
    latest = history[-len(positions) :]
    if not len(latest):
        empty: Floats = weights["norm.bias"]
        return empty
    width = items.shape[1]
    state = items[latest] * np.float32(math.sqrt(width)) + positions[-len(latest) :]  # [l, d]
    later = np.triu(np.full((len(latest), len(latest)), -np.inf, np.float32), 1)
    for number in range(blocks_of(weights)):
        state = _block(weights, f"blocks.{number}.", state, later)
    result: Floats = _norm(weights, "norm", state[-1:])[0]
    return result


def blocks_of(weights: Weights) -> int:
    """How many blocks these weights have."""
    return sum(name.startswith("blocks.") and name.endswith(".queries.weight") for name in weights)


def _block(weights: Weights, name: str, state: Floats, later: Floats) -> Floats:
    queries = _norm(weights, f"{name}attention_norm", state)
    q = _linear(weights, f"{name}queries", queries)
    scores = q @ _linear(weights, f"{name}keys", state).T * np.float32(1.0 / math.sqrt(state.shape[1])) + later
    scores = np.exp(scores - scores.max(axis=1, keepdims=True))
    attended = scores @ _linear(weights, f"{name}values", state) / scores.sum(axis=1, keepdims=True) + queries
    normed = _norm(weights, f"{name}forward_norm", attended)
    inner = np.maximum(_linear(weights, f"{name}inner", normed), np.float32(0.0))
    result: Floats = _linear(weights, f"{name}outer", inner) + normed
    return result


def _linear(weights: Weights, name: str, values: Floats) -> Floats:
    result: Floats = values @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]
    return result


def _norm(weights: Weights, name: str, values: Floats) -> Floats:
    centred = values - values.mean(axis=1, keepdims=True)
    spread = np.sqrt((centred * centred).mean(axis=1, keepdims=True) + np.float32(NORM_EPSILON))
    result: Floats = centred / spread * weights[f"{name}.weight"] + weights[f"{name}.bias"]
    return result


class SasRecScorer:
    """score(u, i) = the vector of u after the last item, times that of i; a user is a history in the order of time."""

    def __init__(self, weights: Weights, histories: Csr) -> None:
        self.weights, self.histories = weights, histories
        self.n_items = len(weights[ITEMS])

    def _scores(self, users: Offsets) -> FactorScores:
        vectors = np.empty((len(users), self.weights[ITEMS].shape[1]), np.float32)
        for place, user in enumerate(users):
            vectors[place] = user_vector(self.weights, self.histories.row(int(user)))
        return FactorScores(vectors, self.weights[ITEMS])

    def score_all(self, users: Offsets) -> Floats:
        """Scores of every item: [len(users), items]."""
        return self._scores(users).score_all(np.arange(len(users)))

    def score_some(self, users: Offsets, items: Indices) -> Floats:
        """Scores of the given items: [T, C] for T users with C items each."""
        return self._scores(users).score_some(np.arange(len(users)), items)

    def fold_in(self, histories: Csr) -> SasRecScorer:
        """New users: the same weights, their own histories."""
        return SasRecScorer(self.weights, histories)
