"""One synthetic user: history, the list of each method, and how well lists match histories by category."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import comb
from typing import Any

import numpy as np

from veilrec.core.arrays import Bools, Doubles, Indices, Offsets
from veilrec.core.csr import Csr
from veilrec.core.errors import BadInput
from veilrec.data.population import ItemTable, Population, Strings
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
FITS_NOTE = (
    "Bold: of the categories that this person has most of. The person is the first with ten items or more, chosen by no"
    " result."
)


@dataclass(frozen=True)
class TitledItem:
    """An item with its title and category."""

    item: str
    title: str
    category: str

    def named(self, words: int | None = None) -> str:
        """Return the title, cut to so many words, with the category behind it once."""
        behind = f"({self.category})"
        known = self.title.removesuffix(behind).split()
        kept = known if words is None or len(known) <= words else [*known[:words], "..."]
        return " ".join([*kept, behind])


@dataclass(frozen=True)
class CategoryFit:
    """Category match of a list of ten with its owner's history, and its mean over many users."""

    main: float  # how many are of the category that the person has most of
    favourites: float  # how many are of any of the person's favourite categories
    overlap: float  # of the list's shares of categories with those of the person's own items, 0 to 1
    mean_overlap: float  # the same, on average over many who have items

    def to_json(self) -> dict[str, float]:
        """Return what `veilrec demo --json` prints."""
        return {name: round(value, 4) for name, value in vars(self).items()}


@dataclass(frozen=True)
class PersonalList:
    """What a method recommends to the person, and how well it fits."""

    method: str
    guarantee: Guarantee
    items: tuple[TitledItem, ...]  # best first
    fits: tuple[bool, ...]  # which of them are of the person's favourite categories
    fit: CategoryFit

    def to_json(self) -> dict[str, Any]:
        """Return what `veilrec demo --json` prints."""
        items = [
            {"item": item.item, "title": item.title, "category": item.category, "fits": fits}
            for item, fits in zip(self.items, self.fits, strict=True)
        ]
        return {"fit": self.fit.to_json(), "items": items}

    def fitting(self, main: str) -> str:
        """Say how many items are of the main category `main`, and how many of any favourite category."""
        count, fit = len(self.items), self.fit
        return f"{fit.main:.0f} of {count} of {main}, {sum(self.fits)} of {count} in bold; overlap {fit.overlap:.0%}"


@dataclass(frozen=True)
class Person:
    """A user of the synthetic population, chosen by no result: the first with enough items."""

    user: str
    used: int  # how many items the person has
    latest: tuple[TitledItem, ...]  # some of them, the latest first
    favourites: Mapping[str, int]  # the categories that the person has most of, the main one first -> how many
    chance: CategoryFit  # what to expect of a list drawn from all items
    lists: tuple[PersonalList, ...]
    compared: int | None = None  # of how many people overlaps are the mean; None: everybody

    @property
    def main_category(self) -> str:
        """The category that the person has most items of."""
        return next(iter(self.favourites))

    def fit_head(self) -> tuple[str, ...]:
        """Return the column headings of `fit_rows`."""
        main, top = self.main_category, len(self.favourites)
        many = "all" if self.compared is None else f"{self.compared:,}"
        return f"list of {K} by", f"of {main}", f"of top {top}", "overlap", f"overlap, {many} users"

    def fit_rows(self) -> list[tuple[str, ...]]:
        """Return a table row per list with its category match, and a row for lists drawn by chance."""
        rows = [
            (own.method, f"{own.fit.main:.0f}", f"{own.fit.favourites:.0f}", *_percent(own.fit)) for own in self.lists
        ]
        return [*rows, ("chance", f"{self.chance.main:.1f}", f"{self.chance.favourites:.1f}", *_percent(self.chance))]

    def to_json(self) -> dict[str, Any]:
        """Return what `veilrec demo --json` prints."""
        return {
            "user": self.user,
            "used": self.used,
            "favourites": dict(self.favourites),
            "chance": self.chance.to_json(),
            "compared": self.compared,
            "lists": {own.method: own.to_json() for own in self.lists},
        }


def example_person(models: Sequence[SavedModel], population: Population) -> Person:
    """Choose the person of a population, and recommend with every model and by popularity.

    All models were trained on this population.
    """
    known = population.catalogue
    if known is None:
        raise BadInput(f"{population.name} has no titles and categories: there is nothing to tell of a person")
    everybodys = models[0].clients.used
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
            PersonalList(
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


def _percent(fit: CategoryFit) -> tuple[str, str]:
    return f"{fit.overlap:.0%}", f"{fit.mean_overlap:.0%}"


def _fit(counts: Offsets, listed: Offsets, person: int, liked: Sequence[int]) -> CategoryFit:
    """Match histories `counts` with lists `listed`, both [users, categories] numbers of items."""
    overlap = np.minimum(_shares(counts), _shares(listed)).sum(axis=1)
    return CategoryFit(
        main=float(listed[person, liked[0]]),
        favourites=float(listed[person, liked].sum()),
        overlap=float(overlap[person]),
        mean_overlap=float(overlap[counts.any(axis=1)].mean()),
    )


def _by_chance(counts: Offsets, sizes: Offsets, person: int, liked: Sequence[int]) -> CategoryFit:
    """Expect the match of lists drawn without replacement from all items, `sizes` of them in each category."""
    total = int(sizes.sum())
    drawn = min(K, total)
    mine, overlap = _shares(counts), np.zeros(len(counts))
    for category, size in enumerate(sizes.tolist()):
        for hits in range(1, drawn + 1):
            chance = comb(size, hits) * comb(total - size, drawn - hits) / comb(total, drawn)
            overlap += chance * np.minimum(mine[:, category], hits / drawn)
    return CategoryFit(
        main=drawn * float(sizes[liked[0]]) / total,
        favourites=drawn * float(sizes[liked].sum()) / total,
        overlap=float(overlap[person]),
        mean_overlap=float(overlap[counts.any(axis=1)].mean()),
    )


def _shares(counts: Offsets) -> Doubles:
    """Divide every row by its sum; rows of zeros stay zero."""
    shares: Doubles = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    return shares


def _count(used: Csr, codes: Offsets, n_categories: int) -> Offsets:
    """Count every user's items by category."""
    users = np.repeat(np.arange(len(used)), used.lengths())
    counts = np.zeros((len(used), n_categories), np.int64)
    np.add.at(counts, (users, codes[used.items]), 1)
    return counts


def _favourites(counts: Offsets) -> Bools:
    """Mark the categories that each user has most items of; ties go to the first by name."""
    most = np.argsort(-counts, axis=1, kind="stable")[:, :_FAVOURITES]
    chosen = np.zeros(counts.shape, np.bool_)
    np.put_along_axis(chosen, most, True, axis=1)
    return chosen & (counts > 0)


def _lists(model: SavedModel, some: int) -> list[Indices]:
    return [best.items for best in model.recommend_everybody(K, first=some)]


def _popular(used: Csr, n_items: int, some: int | None = None) -> list[Indices]:
    """Rank items by popularity, without those in the user's history."""
    order = np.argsort(-np.bincount(used.items, minlength=n_items), kind="stable").astype(np.int32)
    longest = K + int(used.lengths().max())
    return [(head := order[:longest])[~np.isin(head, used.row(user))][:K] for user in range(len(used))[:some]]


def _item(ids: Strings, known: ItemTable, item: int) -> TitledItem:
    return TitledItem(ids[item], known.titles[item], known.categories[item])
