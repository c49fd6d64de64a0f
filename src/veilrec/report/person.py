"""One made-up person: what the person had, what each method recommends, and how much of it fits, measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import comb
from typing import Any

import numpy as np

from veilrec._arrays import Bools, Doubles, Indices, Offsets
from veilrec._csr import Csr
from veilrec.data.population import ItemTable, Population, Strings
from veilrec.errors import BadInput
from veilrec.privacy.guarantee import Guarantee, no_guarantee
from veilrec.runs.saved import SavedModel

K = 10  # items in a list
POPULARITY = "popularity"
_FAVOURITES = 3  # categories of a person
_SHOWN_HISTORY, _FEWEST_ITEMS = 10, 10
_COMPARED = 1000  # people whose lists are compared with what they have; more take long and say the same
OVERLAP_NOTE = (
    "Overlap compares the categories of a list with those of what its owner has: 100% if every category has the same"
    " share in both, 0% if they have none in common. That of many users is the mean."
)


@dataclass(frozen=True)
class Item:
    """An item as people see it."""

    item: str
    title: str
    category: str

    def named(self, words: int | None = None) -> str:
        """The title with the category behind it, once; of a longer title so many words."""
        behind = f"({self.category})"
        known = self.title.removesuffix(behind).split()
        kept = known if words is None or len(known) <= words else [*known[:words], "..."]
        return " ".join([*kept, behind])


@dataclass(frozen=True)
class Fit:
    """How well a list of ten fits the person, and how well such lists fit many: one person is an anecdote."""

    main: float  # how many are of the category that the person has most of
    favourites: float  # how many are of any of the person's favourite categories
    overlap: float  # of the list's shares of categories with those of the person's own items, 0 to 1
    mean_overlap: float  # the same, on average over many who have items

    def to_json(self) -> dict[str, float]:
        """For `veilrec demo --json`."""
        return {name: round(value, 4) for name, value in vars(self).items()}


@dataclass(frozen=True)
class Listed:
    """What a method recommends to the person, and how well it fits."""

    method: str
    guarantee: Guarantee
    items: tuple[Item, ...]  # best first
    fits: tuple[bool, ...]  # which of them are of the person's favourite categories
    fit: Fit

    def to_json(self) -> dict[str, Any]:
        """For `veilrec demo --json`."""
        items = [
            {"item": item.item, "title": item.title, "category": item.category, "fits": fits}
            for item, fits in zip(self.items, self.fits, strict=True)
        ]
        return {"fit": self.fit.to_json(), "items": items}


@dataclass(frozen=True)
class Person:
    """Somebody of the made-up population, chosen by no result: the first with enough items."""

    user: str
    used: int  # how many items the person has
    latest: tuple[Item, ...]  # some of them, the latest first
    favourites: Mapping[str, int]  # the categories that the person has most of, the main one first -> how many
    chance: Fit  # what to expect of a list drawn from all items
    lists: tuple[Listed, ...]
    compared: int | None = None  # of how many people overlaps are the mean; None: everybody

    def fit_head(self) -> tuple[str, ...]:
        """The headings of `fit_rows`."""
        main, top = next(iter(self.favourites)), len(self.favourites)
        many = "all" if self.compared is None else f"{self.compared:,}"
        return f"list of {K} by", f"of {main}", f"of top {top}", "overlap", f"overlap, {many} users"

    def fit_rows(self) -> list[tuple[str, ...]]:
        """How well each list fits, and what to expect by chance, as a table."""
        rows = [
            (own.method, f"{own.fit.main:.0f}", f"{own.fit.favourites:.0f}", *_percent(own.fit)) for own in self.lists
        ]
        return [*rows, ("chance", f"{self.chance.main:.1f}", f"{self.chance.favourites:.1f}", *_percent(self.chance))]

    def to_json(self) -> dict[str, Any]:
        """For `veilrec demo --json`."""
        return {
            "user": self.user,
            "used": self.used,
            "favourites": dict(self.favourites),
            "chance": self.chance.to_json(),
            "compared": self.compared,
            "lists": {own.method: own.to_json() for own in self.lists},
        }


def meet(models: Sequence[SavedModel], population: Population) -> Person:
    """The person, with the lists of these models and of popularity; all were trained on this population."""
    known = population.catalogue
    if known is None:
        raise BadInput(f"{population.name} has no titles and categories: there is nothing to tell of a person")
    everybodys = models[0].devices.used
    person = int(np.argmax(np.minimum(everybodys.lengths(), _FEWEST_ITEMS)))  # of fewer, the one with most
    some = max(_COMPARED, person + 1)
    used = everybodys.take(np.arange(min(some, len(everybodys)), dtype=np.int64))
    names, codes = np.unique(list(known.categories), return_inverse=True)
    counts = _count(used, codes, len(names))  # [users, categories]
    own = used.row(person)
    favourite = _favourites(counts)[person]
    liked = sorted(np.flatnonzero(favourite).tolist(), key=lambda category: -counts[person, category])
    everybody = [(model.method, model.guarantee, _lists(model, some)) for model in models]
    everybody.append((POPULARITY, no_guarantee(), _popular(everybodys, len(codes), some)))
    return Person(
        user=population.users[person],
        used=len(own),
        latest=tuple(_item(population.items, known, item) for item in own[::-1][:_SHOWN_HISTORY].tolist()),
        favourites={str(names[category]): int(counts[person, category]) for category in liked},
        chance=_by_chance(counts, np.bincount(codes, minlength=len(names)), person, liked),
        lists=tuple(
            Listed(
                method,
                guarantee,
                tuple(_item(population.items, known, item) for item in lists[person].tolist()),
                tuple(favourite[codes[lists[person]]].tolist()),
                _fit(
                    counts, np.stack([np.bincount(codes[best], minlength=len(names)) for best in lists]), person, liked
                ),
            )
            for method, guarantee, lists in everybody
        ),
        compared=len(used) if len(used) < len(everybodys) else None,
    )


def _percent(fit: Fit) -> tuple[str, str]:
    return f"{fit.overlap:.0%}", f"{fit.mean_overlap:.0%}"


def _fit(counts: Offsets, listed: Offsets, person: int, liked: Sequence[int]) -> Fit:
    """Of lists that hold so many items of each category; both [users, categories]."""
    overlap = np.minimum(_shares(counts), _shares(listed)).sum(axis=1)
    return Fit(
        main=float(listed[person, liked[0]]),
        favourites=float(listed[person, liked].sum()),
        overlap=float(overlap[person]),
        mean_overlap=float(overlap[counts.any(axis=1)].mean()),
    )


def _by_chance(counts: Offsets, sizes: Offsets, person: int, liked: Sequence[int]) -> Fit:
    """What to expect of a list drawn without repetition from all items; a category has `sizes` of them."""
    total = int(sizes.sum())
    drawn = min(K, total)
    mine, overlap = _shares(counts), np.zeros(len(counts))
    for category, size in enumerate(sizes.tolist()):
        for hits in range(1, drawn + 1):
            chance = comb(size, hits) * comb(total - size, drawn - hits) / comb(total, drawn)
            overlap += chance * np.minimum(mine[:, category], hits / drawn)
    return Fit(
        main=drawn * float(sizes[liked[0]]) / total,
        favourites=drawn * float(sizes[liked].sum()) / total,
        overlap=float(overlap[person]),
        mean_overlap=float(overlap[counts.any(axis=1)].mean()),
    )


def _shares(counts: Offsets) -> Doubles:
    """Every row divided by its sum; a row of nothing stays so."""
    shares: Doubles = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    return shares


def _count(used: Csr, codes: Offsets, n_categories: int) -> Offsets:
    """How many items of each category every user has."""
    users = np.repeat(np.arange(len(used)), used.lengths())
    counts = np.zeros((len(used), n_categories), np.int64)
    np.add.at(counts, (users, codes[used.items]), 1)
    return counts


def _favourites(counts: Offsets) -> Bools:
    """Which categories each user has most of; of equally many the first by name, and none that the user has not."""
    most = np.argsort(-counts, axis=1, kind="stable")[:, :_FAVOURITES]
    chosen = np.zeros(counts.shape, np.bool_)
    np.put_along_axis(chosen, most, True, axis=1)
    return chosen & (counts > 0)


def _lists(model: SavedModel, some: int) -> list[Indices]:
    return [best.items for best in model.recommend_everybody(K, first=some)]


def _popular(used: Csr, n_items: int, some: int | None = None) -> list[Indices]:
    """What most users have, without what the user has already."""
    order = np.argsort(-np.bincount(used.items, minlength=n_items), kind="stable").astype(np.int32)
    longest = K + int(used.lengths().max())
    return [(head := order[:longest])[~np.isin(head, used.row(user))][:K] for user in range(len(used))[:some]]


def _item(ids: Strings, known: ItemTable, item: int) -> Item:
    return Item(ids[item], known.titles[item], known.categories[item])
