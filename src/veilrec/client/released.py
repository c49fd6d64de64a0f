"""User encoder of a release in numpy: a small program of layers that turns a history into a user vector.

A program is a tree of layers over the matrix of the latest clicks, oldest first. Python and browser clients interpret
the same program.

Released models on a client: user vectors and scores from a history alone, without torch.

Also the packed format of a `veil` catalogue in a signed release: similarities, text vectors, the basis and the items'
places have 16 bits a number, codes as many as they need, other learnt tensors 32. Python and browser clients read the
same numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from operator import index
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError

from veilrec.client.queries import (
    AttentionInput,
    Encoder,
    NearestInterest,
    Padding,
    PlacedInput,
    PooledInput,
    QueryMethod,
    Serving,
    Sizes,
    UserVectors,
    make_mechanism,
)
from veilrec.client.rankers import FactorModel, FcfModel
from veilrec.client.veil import Reading, ReleasedSums, Steps
from veilrec.client.veil_ranker import Learnt, VeilModel, VeilRanker
from veilrec.core.arrays import Bools, Doubles, Floats, Indices
from veilrec.core.csr import Csr
from veilrec.core.errors import BadInput
from veilrec.models.scores import FactorScores, Model, RestsOn, SaysWhatItUses
from veilrec.models.veil import ALONE, Content, ItemPlaces
from veilrec.privacy.mechanisms.attention import PaddedAttention, decompose
from veilrec.privacy.mechanisms.base import Mechanism
from veilrec.privacy.mechanisms.clipping import clip_flat
from veilrec.wire.queries import QueryShape
from veilrec.wire.releases import BadRelease, Release, whole_numbers

Program = Mapping[str, Any]
Arrays = Mapping[str, NDArray[Any]]
_SMALLEST = 1e-12
_DEEPEST = 16  # layers inside of each other


class UserEncoder:
    """A program with its weights; a user vector of any history, also of an empty one."""

    def __init__(self, program: Program, weights: Arrays) -> None:
        self.dim, self.longest = index(program["dim"]), index(program["longest"])
        self._user, self._empty = program["user"], program["empty"]
        self._weights = {name: np.asarray(values, np.float64) for name, values in weights.items()}
        _check_layer(self._user, 0)
        if self.longest < 1:
            raise BadRelease(f"the encoder of the release reads {self.longest} clicks: at least 1 is needed")
        if self._empty is not None and self._empty not in self._weights:
            raise BadRelease(f"the encoder of the release names a tensor {self._empty!r}, and there is none")

    def user(self, clicks: Doubles) -> Doubles:
        """[clicks, dim], oldest first -> [dim]; only the latest ones count."""
        recent = np.asarray(clicks, np.float64)[-self.longest :].reshape(-1, self.dim)
        if self._empty is not None and not len(recent):
            vector = self._weights[self._empty]
        else:
            vector = self._of(self._user, recent)
        if vector.shape != (self.dim,):
            raise BadRelease(f"the encoder of the release gives {vector.shape} and not {self.dim} numbers")
        return vector

    def _of(self, layer: Program, history: Doubles) -> Doubles:
        return _LAYERS[layer["op"]](self, layer, history)

    def _weight(self, name: str) -> Doubles:
        if name not in self._weights:
            raise BadRelease(f"the encoder of the release names a tensor {name!r}, and there is none")
        return self._weights[name]

    def _history(self, layer: Program, history: Doubles) -> Doubles:
        return history

    def _latest(self, layer: Program, history: Doubles) -> Doubles:
        return self._of(layer["of"], history)[-int(layer["count"]) :]

    def _self_attention(self, layer: Program, history: Doubles) -> Doubles:
        values = self._of(layer["of"], history)
        heads, projections = index(layer["heads"]), self._weight(f"{layer['weights']}.projections.weight")
        width = len(projections) // (3 * heads)
        projected = (values @ projections.T).reshape(len(values), 3, heads, width).transpose(1, 2, 0, 3)
        queries, keys, content = projected  # [heads, clicks, width] each
        mixed = _softmax(queries @ keys.transpose(0, 2, 1) / np.sqrt(width)) @ content
        return np.asarray(mixed.transpose(1, 0, 2).reshape(len(values), heads * width))

    def _attend(self, layer: Program, history: Doubles) -> Doubles:
        values, name = self._of(layer["of"], history), layer["weights"]
        hidden = np.tanh(values @ self._weight(f"{name}.hidden.weight").T + self._weight(f"{name}.hidden.bias"))
        weights = _softmax(hidden @ self._weight(f"{name}.query.weight")[0])
        return np.asarray(weights @ values)

    def _gru(self, layer: Program, history: Doubles) -> Doubles:
        values, name = self._of(layer["of"], history), layer["weights"]
        steps = values @ self._weight(f"{name}.inputs.weight").T + self._weight(f"{name}.inputs.bias")
        recurrent, bias = self._weight(f"{name}.recurrent.weight"), self._weight(f"{name}.recurrent.bias")
        size = recurrent.shape[1]
        state = self._of(layer["start"], history) if layer.get("start") else np.zeros(size)
        for step in steps:
            old = recurrent @ state + bias
            reset, update = _sigmoid(step[: 2 * size] + old[: 2 * size]).reshape(2, size)
            new = np.tanh(step[2 * size :] + reset * old[2 * size :])
            state = new + update * (state - new)
        return state

    def _linear(self, layer: Program, history: Doubles) -> Doubles:
        value, name = self._of(layer["of"], history), layer["weights"]
        return np.asarray(self._weight(f"{name}.weight") @ value + self._weight(f"{name}.bias"))

    def _concat(self, layer: Program, history: Doubles) -> Doubles:
        return np.concatenate([self._of(part, history) for part in layer["of"]])

    def _stack(self, layer: Program, history: Doubles) -> Doubles:
        return np.stack([self._of(part, history) for part in layer["of"]])

    def _scale(self, layer: Program, history: Doubles) -> Doubles:
        return np.asarray(self._of(layer["of"], history) * self._weight(layer["weights"])[0])

    def _public_head(self, layer: Program, history: Doubles) -> Doubles:
        parts = [int(part) for part in layer["parts"]]
        mean = history[:, : sum(parts)].sum(axis=0) / max(1, len(history))
        sentence = mean[: parts[0]]
        direction = sentence / max(float(np.linalg.norm(sentence)), _SMALLEST)
        personal = np.concatenate((direction, mean[parts[0] :])) * np.repeat(self._weight("scales"), parts)
        return np.concatenate((personal, self._weight("taste")))


_Layer = Callable[[UserEncoder, Program, Doubles], Doubles]
_LAYERS: dict[str, _Layer] = {
    "history": UserEncoder._history,
    "latest": UserEncoder._latest,
    "self-attention": UserEncoder._self_attention,
    "attend": UserEncoder._attend,
    "gru": UserEncoder._gru,
    "linear": UserEncoder._linear,
    "concat": UserEncoder._concat,
    "stack": UserEncoder._stack,
    "scale": UserEncoder._scale,
    "public-head": UserEncoder._public_head,
}


def _check_layer(layer: Any, depth: int) -> None:
    """Refuse a program that this client does not understand, before anything is encoded with it."""
    if depth > _DEEPEST or not isinstance(layer, Mapping) or layer.get("op") not in _LAYERS:
        raise BadRelease("the encoder of the release has a layer that this veilrec does not know: update it")
    inner = layer.get("of", ())
    for part in (*(inner if isinstance(inner, list | tuple) else [inner]), *filter(None, [layer.get("start")])):
        _check_layer(part, depth + 1)


def _softmax(scores: Doubles) -> Doubles:
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True))


def _sigmoid(values: Doubles) -> Doubles:
    return np.asarray(0.5 * (1.0 + np.tanh(0.5 * values)))


ITEMS_FILE, VECTORS_FILE, SERVING_FILE = "items.safetensors", "vectors.safetensors", "serving.safetensors"
ENCODER_FILE = "encoder.safetensors"
_ONE: NDArray[np.int64] = np.zeros(1, np.int64)
_LONGEST = 50  # history of a synthetic reader, where a model has no longest one


class ReleasedModel(Protocol):
    """What ranks on a client."""

    @property
    def n_items(self) -> int:
        """How many items it scores."""

    def scores(self, history: Indices) -> Floats:
        """Score every item for a user with this history, the latest last."""


class ReleasedNews:
    """A news model: the user vector comes from the encoder's program; the news have vectors."""

    def __init__(self, release: Release) -> None:
        program, sizes = release.manifest["encoder"], release.manifest["sizes"]
        if program is None:
            raise BadRelease(f"release {release.name} is of the family news and has no encoder: get it again")
        self.n_items, dim = int(sizes["items"]), int(sizes["dim"])
        try:
            self._weights = release.arrays(ENCODER_FILE)
            self.encoder = UserEncoder(program, self._weights)
            self.longest, self._ranks_with = self.encoder.longest, program["ranks_with"]
            self._attention = bool(program["attention"])
            self.news: Floats = whole_numbers(release.arrays(VECTORS_FILE)["items"], self.n_items, dim)
            for clicks in (self.news[:0], self.news[:2]):  # what does not run on these does not run at all
                self.encoder.user(clicks.astype(np.float64))
        except (KeyError, IndexError, TypeError, ValueError, AttributeError, ArithmeticError, MemoryError) as error:
            raise BadRelease(
                f"the encoder of release {release.name} is not whole ({type(error).__name__}): get it again"
            ) from None
        self._serving = release.arrays(SERVING_FILE)

    @cached_property
    def basis(self) -> Doubles | None:
        """The vectors that attention is over, [B, dim]; None where the model has none."""
        return np.asarray(self._weights["basis"], np.float64) if self._attention else None

    @cached_property
    def interests(self) -> Floats | None:
        """The user vector of each interest alone, [B, dim]."""
        return self._serving.get("interests")

    @cached_property
    def pad(self) -> Doubles | None:
        """What a padded click looks like, [dim]; None where no offer pads."""
        return None if "pad" not in self._serving else np.asarray(self._serving["pad"], np.float64)

    def users(self, histories: Csr) -> Floats:
        """The user vectors that news are ranked with."""
        whole = self.users_before_basis(histories)
        if self._ranks_with == "whole" or self.basis is None or self.interests is None:
            return whole
        return (decompose(whole.astype(np.float64), self.basis) @ self.interests).astype(np.float32)

    def users_before_basis(self, histories: Csr) -> Floats:
        """Those that are decomposed."""
        rows = [self.encoder.user(self.news[histories.row(row)].astype(np.float64)) for row in range(len(histories))]
        return np.stack(rows).astype(np.float32) if rows else np.zeros((0, self.encoder.dim), np.float32)

    def users_in_slots(self, clicks: Doubles, taken: Bools) -> Doubles:
        """User vectors before the basis, of clicks in places: [clients, slots, dim] -> [clients, dim]."""
        return np.stack([self.encoder.user(own[there]) for own, there in zip(clicks, taken, strict=True)])

    def scores(self, history: Indices) -> Floats:
        """Score every news."""
        found: Floats = self.news @ self.users(one_history(history))[0]
        return found


class ReleasedFactors:
    """Matrix factorisation: a client learns its own vector; the items have theirs."""

    basis: Doubles | None = None
    pad: Doubles | None = None

    def __init__(self, model: FactorModel | FcfModel, serving: Mapping[str, NDArray[Any]] | None = None) -> None:
        self._model, self._serving = model, serving or {}
        self.news: Floats = model.items
        self.n_items = model.n_items
        self.longest = min(_LONGEST, self.n_items)

    @cached_property
    def interests(self) -> Floats | None:
        """Typical user vectors, [B, dim]."""
        return self._serving.get("interests")

    def users(self, histories: Csr) -> Floats:
        """The vectors that clients learn from these histories."""
        joined = self._model.fold_in(histories)
        if isinstance(joined, FactorScores):
            return joined.users
        if isinstance(joined, FcfModel):
            return joined.vectors(np.arange(len(histories), dtype=np.int64))
        raise BadInput("this way of ranking has no user vectors")

    def users_before_basis(self, histories: Csr) -> Floats:
        """There is no basis: the same."""
        return self.users(histories)

    def users_in_slots(self, clicks: Doubles, taken: Bools) -> Doubles:
        """There are no places."""
        raise BadInput("matrix factorisation knows items by their numbers, not by clicks in places")

    def scores(self, history: Indices) -> Floats:
        """Score every item."""
        found: Floats = self.news @ self.users(one_history(history))[0]
        return found


class ReleasedRanker:
    """Any other way of ranking: the client does it all."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self.n_items = model.n_items

    def scores(self, history: Indices) -> Floats:
        """Score every item."""
        found: Floats = self._model.fold_in(one_history(history)).score_all(_ONE)[0]
        return found

    def rests_on(self, history: Indices) -> RestsOn | None:
        """What a list is made of, by a model that says so."""
        return self._model.rests_on(history) if isinstance(self._model, SaysWhatItUses) else None


def one_history(history: Indices) -> Csr:
    """Pack the history of one user."""
    return Csr(np.array([0, len(history)], np.int64), np.ascontiguousarray(history, dtype=np.int32))


@dataclass(frozen=True)
class Offer:
    """One way of asking that a release offers, as its manifest writes it down."""

    fields: Mapping[str, Any]

    @property
    def mode(self) -> str:
        """Its name."""
        return str(self.fields["mode"])

    @property
    def question(self) -> QueryShape:
        """The form of its query."""
        return QueryShape(self.fields["kind"], int(self.fields["size"]))

    @property
    def pool(self) -> int | None:
        """How many items come back for the client to rank; None where the server ranks."""
        pool = self.fields.get("pool")
        return None if pool is None else int(pool)

    def mechanism(self, padding: Padding | None = None) -> Mechanism[Any, Any]:
        """Mechanism that releases the query; its noise follows from the guarantee alone.

        One that pads releases something only with the model's part in it.
        """
        f, mode, size = self.fields, self.fields["mode"], int(self.fields["size"])
        clip = f.get("clip")
        padding = padding or Padding(_no_encoder, np.eye(size), np.zeros(size))
        how = Serving(
            mode=mode,
            epsilon=float(f["epsilon"]),
            delta=float(f["delta"]) or None,
            noise=f.get("noise"),
            clip=clip if mode in ("attention", "vector") else None,
            padding=f.get("padding"),
            calibration=f.get("calibration"),
        )
        slots = int(f.get("slots", 1))
        sizes = Sizes(dim=size, basis=size, axes=size, slots=slots, pooled_clip=float(clip or 1.0), padding=padding)
        return make_mechanism(how, sizes)


def _no_encoder(clicks: Doubles, taken: Bools) -> Doubles:
    raise TypeError("this mechanism was made to be charged for, without a model to encode with")


def offers_of(release: Release) -> dict[str, Offer]:
    """What a release offers, by mode."""
    return {str(fields["mode"]): Offer(fields) for fields in release.manifest["offers"]}


def asking_of(offer: Offer, model: ReleasedNews | ReleasedFactors, serving: Mapping[str, NDArray[Any]]) -> QueryMethod:
    """How this device asks in the way of an offer."""
    encoder: Encoder
    mechanism = offer.mechanism()
    if offer.mode == "attention" and isinstance(mechanism, PaddedAttention):
        if model.basis is None or model.pad is None or mechanism.slots != model.longest:
            raise BadRelease("the release offers padded attention without a pad, or for other places: get it again")
        mechanism = offer.mechanism(Padding(model.users_in_slots, model.basis, model.pad))
        encoder = PlacedInput(model.news, model.pad, model.longest, fill=mechanism.calibration == "proven")
    elif offer.mode == "pooled":
        along = (model.news.astype(np.float64) - serving["pooled.centre"]) @ serving["pooled.axes"]
        encoder = PooledInput(clip_flat(along, float(offer.fields["clip"])), int(offer.fields["slots"]))
    elif model.basis is not None and offer.mode in ("attention", "interest"):
        encoder = AttentionInput(model, model.basis)
    elif offer.mode == "interest" and model.interests is not None:
        encoder = NearestInterest(model, model.interests.astype(np.float64))
    elif offer.mode == "vector":
        encoder = UserVectors(model)
    else:
        raise BadRelease(f"the release offers {offer.mode!r} without what that needs: get it again")
    return QueryMethod(encoder, mechanism, offer.question, model.n_items)


RANKING_FILE = "ranking.safetensors"
RANKS = "veil"
FORMULAS = (1, 2)  # by which scores are made, 2: with two passes of places; a client that does not know them refuses
_CONTENT, _PLACES, _WHITENING = "content.", "places.", "whitening"
_POPULARITY, _WEIGHTS, _MAP = "learnt.popularity", "learnt.weights", "learnt.map"
_HALF = {f"{_CONTENT}{name}" for name in ("tables", "texts", "basis")}
_HALF |= {f"{_PLACES}{field.name}" for field in fields(ItemPlaces)}
_LONG = {f"{_CONTENT}{name}" for name in ("starts", "widths")}
_LARGEST_HALF = 65_000.0  # that 16 bits hold
_WHOLE = (np.uint8, np.int8, np.uint16, np.int16, np.int32)  # the narrowest that holds all is taken
_NOBODY = Csr(np.zeros(1, np.int64), np.zeros(0, np.int32))


def program_of(ranker: VeilRanker) -> dict[str, Any]:
    """What a manifest says of the way of ranking."""
    return {
        "ranks": RANKS,
        "formulas": FORMULAS[ranker.reading.place_passes - 1],
        "reading": asdict(ranker.reading),
        "caution": ranker.caution,
        "draws_seed": ranker.draws_seed,
    }


def packed(ranker: VeilRanker, learnt: Learnt) -> dict[str, NDArray[Any]]:
    """The arrays that go with it."""
    told = learnt.told
    wide = {**ranker.content.arrays(_CONTENT), _WHITENING: ranker.whitening}
    wide |= {_POPULARITY: told.popularity, _WEIGHTS: learnt.weights, _MAP: learnt.map}
    wide |= {_PLACES + field.name: getattr(told.places, field.name) for field in fields(ItemPlaces)}
    return {name: _narrow(name, values) for name, values in wide.items()}


def _narrow(name: str, values: NDArray[Any]) -> NDArray[Any]:
    if values.dtype.kind in "iu":
        low, high = int(values.min(initial=0)), int(values.max(initial=0))
        fits = (kind for kind in _WHOLE if np.iinfo(kind).min <= low and high <= np.iinfo(kind).max)
        return values.astype(next(fits))
    if name in _HALF:
        return np.asarray(np.clip(values, -_LARGEST_HALF, _LARGEST_HALF), np.float16)
    return values.astype(np.float32)


def unpacked(program: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]], n_items: int) -> VeilModel:
    """What ranks, with the numbers as they were released; BadRelease for anything that does not fit together."""
    if program.get("ranks") != RANKS or program.get("formulas") not in FORMULAS:
        raise BadRelease(f"the release ranks in the way {program.get('ranks')!r}, which is not known: update veilrec")
    try:
        wide = {name: _wide(name, arrays[name]) for name in arrays}
        content = Content.from_arrays(wide, _CONTENT)
        places = ItemPlaces(**{field.name: wide[_PLACES + field.name] for field in fields(ItemPlaces)})
        reading = TypeAdapter(Reading).validate_python(program["reading"])
        if (
            FORMULAS.index(program["formulas"]) + 1 != reading.place_passes
            or len(places.values.T) % reading.place_passes
        ):
            raise BadRelease("the release has passes of places that are not alike: get it again")
        told = ReleasedSums.of(wide[_POPULARITY], places, content, reading.place_passes)
        learnt = Learnt(told, wide[_WEIGHTS], wide[_MAP])
        caution, seed = float(program["caution"]), int(program["draws_seed"])
        ranker = VeilRanker(content, reading, wide[_WHITENING], Steps(units={}, shares={}), caution, seed)
        _check(ranker, learnt, n_items)
    except (KeyError, TypeError, ValueError, ValidationError) as error:
        if isinstance(error, BadRelease):
            raise
        raise BadRelease(f"the ranking of the release is not whole ({type(error).__name__}): get it again") from None
    return VeilModel(ranker, learnt, _NOBODY)


def _wide(name: str, values: NDArray[Any]) -> NDArray[Any]:
    if values.dtype.kind == "f":
        return values.astype(np.float32)
    return values.astype(np.int64 if name in _LONG else np.int32)


def _check(ranker: VeilRanker, learnt: Learnt, n_items: int) -> None:
    """Shapes that belong together, finite numbers, and no number that leads out of a table."""
    content, reading = ranker.content, ranker.reading
    n_tables, n_kernels, places = len(content.widths), len(content.kernels), learnt.told.places
    n_features, directions = reading.features(content), places.values.shape[1]
    width = content.basis.shape[1] + directions
    for values, shape in (
        (content.codes, (n_tables, n_items)),
        (content.starts, (n_tables,)),
        (content.tables, (int((content.widths**2).sum()),)),
        (content.texts, (n_items, content.texts.shape[1])),
        (content.kernels, (n_kernels, 2)),
        (content.scales, (n_kernels,)),
        (content.basis, (n_items, content.basis.shape[1])),
        (ranker.whitening, (n_features, n_features)),
        (learnt.told.popularity, (n_items, 2)),
        (learnt.weights, (n_features,)),
        (learnt.map, (reading.tastes(width), width)),
        *((getattr(places, field.name), (n_items, directions)) for field in fields(places)),
    ):
        whole_numbers(values, *shape)
    similarities = n_tables + (2 if content.texts.shape[1] else 0)
    inside = (
        (content.codes >= 0).all()
        and (content.codes < content.widths[:, np.newaxis]).all()
        and np.array_equal(content.starts, np.cumsum(content.widths**2) - content.widths**2)
        and (content.kernels[:, 0] >= 0).all()
        and (content.kernels >= ALONE).all()
        and (content.kernels < similarities).all()
    )
    if not inside:
        raise BadRelease("the ranking of the release leads out of its tables: get it again")


class ReleasedCatalogue:
    """`veil` on a client: the history is read in its order, and nothing is asked."""

    def __init__(self, release: Release) -> None:
        program = release.manifest["encoder"]
        if program is None:
            raise BadRelease(f"release {release.name} is a catalogue and does not say how it ranks: get it again")
        self.n_items = int(release.manifest["sizes"]["items"])
        self._model = unpacked(program, release.arrays(RANKING_FILE), self.n_items)

    def scores(self, history: Indices) -> Floats:
        """Score every item."""
        found: Floats = self._model.fold_in(one_history(history)).score_all(_ONE)[0]
        return found

    def rests_on(self, history: Indices) -> RestsOn:
        """What a list is made of."""
        return self._model.rests_on(history)
