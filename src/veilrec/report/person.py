"""One synthetic user: the latest items of a history, and the list of each method beside it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from veilrec.core.errors import BadInput
from veilrec.data.population import ItemTable, Population
from veilrec.privacy.guarantee import Guarantee, no_guarantee
from veilrec.runs.saved import SavedModel

K = 10  # items in a list
POPULARITY = "popularity"
_FAVOURITES = 3  # categories of a person
_SHOWN_HISTORY, _FEWEST_ITEMS = 10, 10
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
class PersonalList:
    """What a method recommends to the person, and which items are of the person's favourite categories."""

    method: str
    guarantee: Guarantee
    items: tuple[TitledItem, ...]  # best first
    fits: tuple[bool, ...]

    def to_json(self) -> dict[str, Any]:
        """Return what `veilrec demo --json` prints."""
        return {"items": [vars(item) | {"fits": fits} for item, fits in zip(self.items, self.fits, strict=True)]}

    def fitting(self) -> str:
        """Say how many items are of any favourite category."""
        return f"{sum(self.fits)} of {len(self.items)} in bold"


@dataclass(frozen=True)
class Person:
    """A user of the synthetic population, chosen by no result: the first with enough items."""

    user: str
    used: int  # how many items the person has
    latest: tuple[TitledItem, ...]  # some of them, the latest first
    favourites: Mapping[str, int]  # the categories that the person has most of, the main one first -> how many
    lists: tuple[PersonalList, ...]

    def to_json(self) -> dict[str, Any]:
        """Return what `veilrec demo --json` prints."""
        lists = {own.method: own.to_json() for own in self.lists}
        return {"user": self.user, "used": self.used, "favourites": dict(self.favourites), "lists": lists}


def example_person(models: Sequence[SavedModel], population: Population) -> Person:
    """Choose the person of a population, and recommend with every model and by popularity.

    All models were trained on this population.
    """
    known = population.catalogue
    if known is None:
        raise BadInput(f"{population.name} has no titles and categories: there is nothing to tell of a person")
    everybodys = models[0].clients.used
    person = int(np.argmax(np.minimum(everybodys.lengths(), _FEWEST_ITEMS)))  # of fewer, the one with most
    own, user = everybodys.row(person), population.users[person]
    counts = Counter(known.categories[item] for item in own.tolist())
    favourites = dict(sorted(counts.items(), key=lambda count: (-count[1], count[0]))[:_FAVOURITES])
    uses = np.bincount(everybodys.items, minlength=population.n_items).astype(np.float64)
    uses[own] = -1.0
    popular = [population.items[item] for item in np.argsort(-uses, kind="stable")[:K].tolist()]
    listed = [(m.method, m.guarantee, [best.item for best in m.recommend_user(user, K)]) for m in models]
    lists = []
    for method, guarantee, items in (*listed, (POPULARITY, no_guarantee(), popular)):
        titled = tuple(_titled(population, known, item) for item in items)
        lists.append(PersonalList(method, guarantee, titled, tuple(item.category in favourites for item in titled)))
    latest = (population.items[item] for item in own[::-1][:_SHOWN_HISTORY].tolist())
    shown = tuple(_titled(population, known, item) for item in latest)
    return Person(user, len(own), shown, favourites, tuple(lists))


def _titled(population: Population, known: ItemTable, item: str) -> TitledItem:
    place = population.items.find(item) or 0
    return TitledItem(item, known.titles[place], known.categories[place])
