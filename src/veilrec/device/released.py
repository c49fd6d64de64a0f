"""A released model on a device: user vectors and scores from a history alone, without torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from veilrec._arrays import Bools, Doubles, Floats, Indices
from veilrec._csr import Csr
from veilrec.device.asking import Asking, Attention, Encoder, NearestInterest, PooledClicks, UserVectors
from veilrec.device.encoder import UserEncoder
from veilrec.device.rankers import FactorModel, FcfModel
from veilrec.device.ways import Serving, Sizes, make_mechanism
from veilrec.errors import BadInput
from veilrec.models.factors import FactorScores
from veilrec.models.scores import Model, RestsOn, SaysWhatItUses
from veilrec.privacy.mechanisms.attention import decompose
from veilrec.privacy.mechanisms.base import Mechanism
from veilrec.privacy.mechanisms.clipping import clip_flat
from veilrec.wire.queries import Question
from veilrec.wire.releases import BadRelease, Release, whole_numbers

ITEMS_FILE, VECTORS_FILE, SERVING_FILE = "items.safetensors", "vectors.safetensors", "serving.safetensors"
ENCODER_FILE = "encoder.safetensors"
_ONE: NDArray[np.int64] = np.zeros(1, np.int64)
_LONGEST = 50  # history of a made-up reader, where a model has no longest one


class ReleasedModel(Protocol):
    """What ranks on a device."""

    @property
    def n_items(self) -> int:
        """How many items it scores."""

    def scores(self, history: Indices) -> Floats:
        """Of every item, for somebody with this history, the latest last."""


class ReleasedNews:
    """A news model: the user vector comes from the encoder's program; the news have vectors."""

    pad: Doubles | None = None  # padded attention is not offered by releases

    def __init__(self, release: Release) -> None:
        program, sizes = release.manifest["encoder"], release.manifest["sizes"]
        if program is None:
            raise BadRelease(f"release {release.name} is of the family news and has no encoder: get it again")
        self._weights = release.arrays(ENCODER_FILE)
        self.encoder = UserEncoder(program, self._weights)
        self.longest = self.encoder.longest
        self._ranks_with = program["ranks_with"]
        self.n_items, dim = int(sizes["items"]), int(sizes["dim"])
        self.news: Floats = whole_numbers(release.arrays(VECTORS_FILE)["items"], self.n_items, dim)
        self._serving = release.arrays(SERVING_FILE)
        self._attention = bool(program["attention"])

    @cached_property
    def basis(self) -> Doubles | None:
        """The vectors that attention is over, [B, dim]; None where the model has none."""
        return np.asarray(self._weights["basis"], np.float64) if self._attention else None

    @cached_property
    def interests(self) -> Floats | None:
        """The user vector of each interest alone, [B, dim]."""
        return self._serving.get("interests")

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
        """Of clicks in places: [devices, slots, dim] -> [devices, dim]."""
        return np.stack([self.encoder.user(own[there]) for own, there in zip(clicks, taken, strict=True)])

    def scores(self, history: Indices) -> Floats:
        """Of every news."""
        found: Floats = self.news @ self.users(one_history(history))[0]
        return found


class ReleasedFactors:
    """Matrix factorisation: a device learns its own vector; the items have theirs."""

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
        """The vectors that devices learn from these histories."""
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
        """Of every item."""
        found: Floats = self.news @ self.users(one_history(history))[0]
        return found


class ReleasedRanker:
    """Any other way of ranking: the device does it all."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self.n_items = model.n_items

    def scores(self, history: Indices) -> Floats:
        """Of every item."""
        found: Floats = self._model.fold_in(one_history(history)).score_all(_ONE)[0]
        return found

    def rests_on(self, history: Indices) -> RestsOn | None:
        """What a list is made of, by a model that says so."""
        return self._model.rests_on(history) if isinstance(self._model, SaysWhatItUses) else None


def one_history(history: Indices) -> Csr:
    """Of one user."""
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
    def question(self) -> Question:
        """The form of its query."""
        return Question(self.fields["kind"], int(self.fields["size"]))

    @property
    def pool(self) -> int | None:
        """How many items come back for the device to rank; None where the server ranks."""
        pool = self.fields.get("pool")
        return None if pool is None else int(pool)

    def mechanism(self) -> Mechanism[Any, Any]:
        """What releases the query; its noise follows from the promise, not from what anybody writes beside it."""
        f, mode, size = self.fields, self.fields["mode"], int(self.fields["size"])
        clip = f.get("clip")
        how = Serving(
            mode=mode,
            epsilon=float(f["epsilon"]),
            delta=float(f["delta"]) or None,
            noise=f.get("noise"),
            clip=clip if mode in ("attention", "vector") else None,
        )
        sizes = Sizes(dim=size, basis=size, axes=size, slots=int(f.get("slots", 1)), pooled_clip=float(clip or 1.0))
        return make_mechanism(how, sizes)


def offers_of(release: Release) -> dict[str, Offer]:
    """What a release offers, by mode."""
    return {str(fields["mode"]): Offer(fields) for fields in release.manifest["offers"]}


def asking_of(offer: Offer, model: ReleasedNews | ReleasedFactors, serving: Mapping[str, NDArray[Any]]) -> Asking:
    """How this device asks in the way of an offer."""
    encoder: Encoder
    if offer.mode == "pooled":
        along = (model.news.astype(np.float64) - serving["pooled.centre"]) @ serving["pooled.axes"]
        encoder = PooledClicks(clip_flat(along, float(offer.fields["clip"])), int(offer.fields["slots"]))
    elif model.basis is not None and offer.mode in ("attention", "interest"):
        encoder = Attention(model, model.basis)
    elif offer.mode == "interest" and model.interests is not None:
        encoder = NearestInterest(model, model.interests.astype(np.float64))
    elif offer.mode == "vector":
        encoder = UserVectors(model)
    else:
        raise BadRelease(f"the release offers {offer.mode!r} without what that needs: get it again")
    return Asking(encoder, offer.mechanism(), offer.question, model.n_items)
