"""One version of a release, ready to answer: its index, its texts, and how what a device tells is to be read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from threading import Lock
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from veilrec._arrays import Doubles, Floats, Offsets
from veilrec.errors import BadInput
from veilrec.server.answering import FromPooled
from veilrec.server.http.item_store import Item
from veilrec.server.http.texts import Texts
from veilrec.server.index.catalogue import Catalogue, Filter, interest_values
from veilrec.server.index.filters import LARGEST_CODE
from veilrec.wire.pools import About, pool_file
from veilrec.wire.releases import Release, whole_numbers

POOL_K = 10  # the pool of a release holds everybody's so many best
LARGEST_WHOLE = 700_000  # bytes of numbers of a pool that holds everything
LARGEST_FILLED = 800_000  # of one that is filled up: below a megabyte with its titles
_LISTED = 30  # items of a made-up reader's list
_MOST_NUMBERS = 20_000_000  # of all vectors, for lists of made-up readers
_SCORES_AT_ONCE = 1 << 22
Builder = Callable[..., Catalogue]


class Edition:
    """A release with its index; items come and go by one thread, while any number ask."""

    def __init__(self, release: Release, *, catalogue_of: Builder = Catalogue.of) -> None:
        self.release = release
        self.ranks_here = release.family in ("news", "factors")
        self.head = b'{"release":%s,"items":[' % msgspec.json.encode({"name": release.name, "version": release.version})
        self.largest_pool = max((int(offer.get("pool") or 0) for offer in release.manifest["offers"]), default=0)
        self._lock = Lock()
        self._nobody: dict[int, tuple[int, Offsets, Floats]] = {}
        if not self.ranks_here:
            return
        sizes = release.manifest["sizes"]
        count, self.dim, self.n_interests = int(sizes["items"]), int(sizes["dim"]), int(sizes["interests"])
        vectors = whole_numbers(release.arrays("vectors.safetensors")["items"], count, self.dim)
        serving: Mapping[str, NDArray[Any]] = (
            release.arrays("serving.safetensors") if release.has("serving.safetensors") else {}
        )
        self.texts = Texts(release.arrays("items.safetensors"))
        if self.texts.count != count:
            raise BadInput(f"the release has {count} vectors and {self.texts.count} ids: release it again")
        self.interests: Floats | None = None
        self.chances: Floats | None = None
        if self.n_interests:
            self.interests = whole_numbers(serving["interests"], self.n_interests, self.dim)
            chances: Doubles = whole_numbers(serving["chances"], self.n_interests, self.n_interests)
            if (chances < 0).any() or abs(chances.sum(axis=1) - 1).max() > 1e-6:
                raise BadInput("the chances of the release do not add up to 1: release it again")
            self.chances = chances.astype(np.float32)
        self._readers: Floats | None = None
        if release.has("readers.safetensors"):
            readers = release.arrays("readers.safetensors")["vectors"]
            self._readers = whole_numbers(readers.astype(np.float32), len(readers), self.dim)
        self.pooled: FromPooled | None = None
        if "pooled.slope" in serving:
            names = ("pooled.slope", "pooled.mean", "pooled.told_mean")
            self.pooled = FromPooled(*(serving[name] for name in names))
        if "nobody" in serving:
            self.nobody: Floats = whole_numbers(serving["nobody"], self.dim)
        else:
            self.nobody = np.zeros(self.dim, np.float32) if self.interests is None else self.interests.mean(axis=0)
        self.catalogue = catalogue_of(
            vectors, self.interests, category=self.texts.category, categories=len(self.texts.categories)
        )
        self.best_for_nobody(POOL_K)  # compiles, too
        if self.interests is not None:
            self.catalogue.best(np.full(self.n_interests, 1 / self.n_interests, np.float32), POOL_K)

    def best_for_nobody(self, k: int) -> tuple[Offsets, Floats]:
        """The list of somebody of whom nothing is known; kept until an item comes or goes."""
        version = self.catalogue.version
        kept = self._nobody.get(k)
        if kept is None or kept[0] != version:
            kept = self._nobody[k] = (version, *self.catalogue.best_by_vector(self.nobody, k))
        return kept[1], kept[2]

    def wanted(self, categories: list[str] | None, region: str | None) -> Filter | None:
        """A filter by names; BadInput for one that is not known."""
        if not categories and not region:
            return None
        codes = [self.texts.category_code(name) for name in categories or ()]
        where = self.texts.region_code(region or "")
        if where is None or None in codes:
            raise BadInput("no item has this category or region: take those that stand in /v1/pool")
        return Filter(tuple(code for code in codes if code is not None), where)

    def show(self, item: Item) -> None:
        """Make an item visible, in the place of its namesake."""
        with self._lock:
            category = self.texts.category_code(item.category, new=True)
            region = self.texts.region_code(item.region, new=True)
            old = self.texts.find(item.id)
            put = self.catalogue.put if old is None else partial(self.catalogue.replace, old)
            number = put(item.vector, category=_known(category), region=_known(region), prior=item.prior)
            if old is not None:
                self.texts.hide(old)
            self.texts.add(number, item.id, item.title, item.category)

    def check(self, item: Item) -> None:
        """Refuse what the index would not take, before it is on disk."""
        interest_values(item.vector[np.newaxis], self.interests, item.prior)
        codes = (self.texts.category_code(item.category, new=True), self.texts.region_code(item.region, new=True))
        if max(_known(code) for code in codes) > LARGEST_CODE:
            raise BadInput("there are too many categories or regions: take one that is known")

    def hide(self, name: str) -> bool:
        """Take an item out; whether it was there."""
        with self._lock:
            return self._hide(name)

    def _hide(self, name: str) -> bool:
        number = self.texts.find(name)
        if number is None:
            return False
        self.catalogue.remove(number)
        self.texts.hide(number)
        return True

    def pool(self) -> bytes:
        """The pool that is the same for everybody: all items where they fit, else those that some weights reach, those
        of the lists of made-up readers, and the best of every category.
        """
        with self._lock:
            numbers = self.texts.numbers()
        room = LARGEST_WHOLE // (self.dim + 4 * self.n_interests)
        if len(numbers) <= room or self.interests is None:
            return self.pool_of(numbers, POOL_K, whole=True, exact=True)
        chosen = self.catalogue.reachable(POOL_K)
        room = LARGEST_FILLED // (self.dim + 4 * self.n_interests)
        chosen = np.union1d(chosen, self._further(room // 4))  # a way out of a taste
        chosen = np.union1d(chosen, self._listed(max(0, room - len(chosen))))
        return self.pool_of(chosen, POOL_K, whole=False, exact=True)

    def _listed(self, room: int) -> Offsets:
        """What made-up readers would get who rank by their whole vectors, the most frequent first: at most `room`."""
        with self._lock:
            numbers = self.texts.numbers()
        if self._readers is None or len(numbers) * self.dim > _MOST_NUMBERS:
            return np.zeros(0, np.int64)
        vectors, counts = self.catalogue.rows(numbers)[0].T, np.zeros(len(numbers), np.int64)
        at_once = max(1, _SCORES_AT_ONCE // len(numbers))
        for begin in range(0, len(self._readers), at_once):
            scores = self._readers[begin : begin + at_once] @ vectors
            best = np.argpartition(-scores, min(_LISTED, len(numbers) - 1), axis=1)[:, :_LISTED]
            counts += np.bincount(best.ravel(), minlength=len(numbers))
        often = np.argsort(-counts, kind="stable")[: min(room, int((counts > 0).sum()))]
        return np.sort(numbers[often])

    def _further(self, room: int) -> Offsets:
        """What there is room for beside: the best of each category for each interest.

        A device that ranks by its whole vector, or has read its best, has a choice then, also of what is new to it.
        """
        wanted = [self.wanted([name], None) for name in self.texts.categories if name] or [None]
        share = room // (len(wanted) * self.n_interests)
        if share < 1:
            return np.zeros(0, np.int64)
        alone = np.eye(self.n_interests, dtype=np.float32)
        found = [self.catalogue.best(weights, share, wanted=kind)[0] for kind in wanted for weights in alone]
        return np.unique(np.concatenate(found))

    def pool_of(self, numbers: Offsets, k: int, *, whole: bool, exact: bool) -> bytes:
        """The file of some items."""
        facts = {}
        for number in numbers.tolist():
            try:
                facts[number] = self.texts.facts(number)
            except KeyError:  # it became visible this moment: the next pool has it
                continue
        ids, titles, categories = zip(*facts.values(), strict=True) if facts else ((), (), ())
        vectors, scores = self.catalogue.rows(np.array(list(facts), np.int64))
        about = About(f"{self.release.name} {self.release.version}", k, whole, exact)
        return pool_file(ids, titles, categories, scores if self.interests is not None else None, vectors, about)


def _known(code: int | None) -> int:
    return -1 if code is None else code
