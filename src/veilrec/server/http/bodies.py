"""What comes in and what goes out, field by field: what is not written here is refused."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

MOST_K = 1000
LARGEST_NUMBER = 1e6  # of a vector or a prior: far beyond any model, and scores stay finite

Share = Annotated[float, Meta(ge=0.0, le=1.001)]
Number = Annotated[float, Meta(ge=-LARGEST_NUMBER, le=LARGEST_NUMBER)]
Shares = Annotated[
    list[Share], Meta(min_length=1, max_length=4096, description="Over the interests; they add up to 1.")
]
Numbers = Annotated[list[Number], Meta(min_length=1, max_length=4096)]
Count = Annotated[int, Meta(ge=1, le=MOST_K, description="How many items come back.")]
Word = Annotated[str, Meta(min_length=1, max_length=200)]
Text = Annotated[str, Meta(max_length=2000)]
Moment = Annotated[str, Meta(max_length=40, description="RFC 3339, as in 2026-11-17T06:40:00Z.")]


class Ask(msgspec.Struct, forbid_unknown_fields=True):
    """A question: one of alpha, interest, vector and told, or none of them for the list that is the same for all.

    Categories and region are told in the clear: a device that does not want to tell them filters by itself.
    """

    alpha: Shares | None = None
    interest: Annotated[int, Meta(ge=0, le=65535)] | None = None
    vector: Numbers | None = None
    told: Numbers | None = None
    k: Count = 10
    categories: Annotated[list[Word], Meta(max_length=100)] | None = None
    region: Word | None = None


class NewItem(msgspec.Struct, forbid_unknown_fields=True):
    """An item to be recommended from now on."""

    title: Annotated[str, Meta(min_length=1, max_length=2000)]
    abstract: Text = ""
    category: Annotated[str, Meta(max_length=200)] = ""
    subcategory: Annotated[str, Meta(max_length=200)] = ""
    region: Annotated[str, Meta(max_length=200)] = ""
    expires: Moment | None = None
    prior: Annotated[Number, Meta(description="Added to the score of everybody.")] = 0.0


class ReleaseName(msgspec.Struct):
    """Which release answered."""

    name: str
    version: int


class Ranked(msgspec.Struct):
    """One item of an answer."""

    id: str
    title: str
    category: str
    score: float


class Answer(msgspec.Struct):
    """The best items, best first."""

    release: ReleaseName
    items: list[Ranked]


class Visible(msgspec.Struct):
    """What became of an item, once that is on disk and in the index."""

    id: str
    visible: bool


class Signed(msgspec.Struct):
    """The release: its manifest, as the text that is signed, its signature, and the keys that were handed over."""

    manifest: str
    signature: dict[str, str | int]
    keys: list[dict[str, str]]


class Problem(msgspec.Struct):
    """What was wrong, what is allowed, what to do."""

    error: str
