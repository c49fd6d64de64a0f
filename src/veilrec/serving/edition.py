"""One version of a release, ready to answer: its index, its texts, and how queries are decoded.

Items that were added to a release or taken out of it, on disk.

SQLite in WAL mode with `synchronous=FULL`: a commit returns when its bytes are synced. An append log with checksums of
our own would be as safe and a little faster, but needs compaction, its own recovery and its own tests; SQLite brings
them, and a newsroom adds a handful of items a second where some 200 would be possible. What was acknowledged is there
after a crash; of what was not, the one change that was under way may be there or not, whole in either case.

Ids, titles and categories of items by number; those of the release stay packed.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
from bisect import insort
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from math import inf
from operator import neg
from pathlib import Path
from threading import Lock
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load

from veilrec.core.arrays import Doubles, Floats, Indices, Offsets
from veilrec.core.errors import BadInput, VeilrecError
from veilrec.serving.answering import FromPooled
from veilrec.serving.index.blocks import LARGEST_CODE
from veilrec.serving.index.catalogue import Filter, ItemIndex, interest_values
from veilrec.serving.requests import MAX_K
from veilrec.wire.queries import PoolInfo, pool_file
from veilrec.wire.releases import Release, whole_numbers

_APPLICATION, _SCHEMA = 0x7665696D, 1
_SETTINGS = ("PRAGMA locking_mode=EXCLUSIVE", "PRAGMA journal_mode=WAL", "PRAGMA synchronous=FULL")
_TABLES = (
    "CREATE TABLE items (id TEXT PRIMARY KEY, title TEXT NOT NULL, abstract TEXT NOT NULL, category TEXT NOT NULL,"
    " subcategory TEXT NOT NULL, region TEXT NOT NULL, prior REAL NOT NULL, expires REAL, model TEXT NOT NULL,"
    " vector BLOB NOT NULL)",
    "CREATE TABLE gone (id TEXT PRIMARY KEY)",
    "CREATE INDEX by_expiry ON items (expires) WHERE expires IS NOT NULL",
    f"PRAGMA application_id={_APPLICATION}",
    f"PRAGMA user_version={_SCHEMA}",
)
_NO_SPACE = ("SQLITE_FULL", "SQLITE_IOERR_WRITE", "SQLITE_IOERR_FSYNC", "SQLITE_IOERR_TRUNCATE")


class StoreFull(VeilrecError):
    """The disk is full: the change was not kept."""


class StoreGone(VeilrecError):
    """The file of items was removed or cannot be written: nothing is acknowledged."""


@dataclass(frozen=True)
class StoredItem:
    """An item that was added, and its vector by the model of one release."""

    id: str
    title: str
    abstract: str
    category: str
    subcategory: str
    region: str
    prior: float
    expires: float  # seconds since 1970, or infinity
    model: str  # digest of the manifest whose encoder made the vector
    vector: Floats


class ItemStore:
    """One open file of items; one server at a time, one thread at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
            self._database = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=1.0)
            self._open()
        except OSError as error:
            raise BadInput(f"{path} cannot be used ({error.strerror}): give a file that can be written") from None
        except sqlite3.OperationalError as error:
            if "locked" in str(error):
                raise BadInput(f"{path} is in use by another server: stop it, or give another --items file") from None
            raise BadInput(f"{path} cannot be used ({error}): give a file that can be written") from None
        except sqlite3.DatabaseError:
            raise self._damaged() from None
        self._identity = self._files()

    def _open(self) -> None:
        for setting in _SETTINGS:
            self._database.execute(setting)
        self._database.execute("BEGIN IMMEDIATE")  # takes the lock, and keeps it
        (application,) = self._database.execute("PRAGMA application_id").fetchone()
        (schema,) = self._database.execute("PRAGMA user_version").fetchone()
        (tables,) = self._database.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if not tables:
            for statement in _TABLES:
                self._database.execute(statement)
        elif (application, schema) != (_APPLICATION, _SCHEMA):
            raise sqlite3.DatabaseError
        if self._database.execute("PRAGMA quick_check(1)").fetchone() != ("ok",):
            raise sqlite3.DatabaseError
        self._database.execute("COMMIT")

    def _damaged(self) -> BadInput:
        return BadInput(f"{self.path} is no file of items, or is damaged: give another --items file, or a copy of it")

    def close(self) -> None:
        """Close the file; what was acknowledged is in it already."""
        self._database.close()

    def items(self) -> Iterator[StoredItem]:
        """Yield the added items that are still there, oldest first."""
        for row in self._rows("SELECT * FROM items ORDER BY rowid"):
            expires = inf if row[7] is None else row[7]
            try:
                yield StoredItem(*(*row[:7], expires, row[8], np.frombuffer(row[9], "<f4")))
            except (ValueError, TypeError):
                raise self._damaged() from None

    def gone(self) -> set[str]:
        """Return the ids of removed items."""
        return {name for (name,) in self._rows("SELECT id FROM gone")}

    def put(self, item: StoredItem) -> None:
        """Add an item or put it in the place of its namesake; on disk when this returns."""
        *fields, expires, model, vector = astuple(item)
        row = (*fields, None if expires == inf else expires, model, np.asarray(vector, "<f4").tobytes())
        with self._change() as database:
            database.execute("INSERT OR REPLACE INTO items VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
            database.execute("DELETE FROM gone WHERE id = ?", (item.id,))

    def remove(self, name: str) -> None:
        """Take an item out for good; on disk when this returns."""
        with self._change() as database:
            database.execute("DELETE FROM items WHERE id = ?", (name,))
            database.execute("INSERT OR IGNORE INTO gone VALUES (?)", (name,))

    def expired(self, now: float) -> list[str]:
        """Return the ids of items that have expired."""
        return [name for (name,) in self._rows("SELECT id FROM items WHERE expires <= ?", (now,))]

    def _rows(self, query: str, values: tuple[Any, ...] = ()) -> list[Any]:
        try:
            return self._database.execute(query, values).fetchall()
        except sqlite3.OperationalError as error:
            raise StoreGone(
                f"the file of items cannot be read ({error.sqlite_errorname}): look at the disk, then start the server"
                " again"
            ) from None
        except sqlite3.DatabaseError:
            raise self._damaged() from None

    @contextmanager
    def _change(self) -> Iterator[sqlite3.Connection]:
        """A transaction that is synced to the file which others will open, or an error and nothing changed."""
        try:
            self._database.execute("BEGIN IMMEDIATE")
            yield self._database
            self._database.execute("COMMIT")
        except sqlite3.Error as error:
            self._roll_back()
            if error.sqlite_errorname in _NO_SPACE:
                raise StoreFull("the disk of the items is full: make room and try again; nothing was changed") from None
            raise StoreGone(
                f"the file of items cannot be written ({error.sqlite_errorname}): look at the disk, then start the"
                " server again; nothing was acknowledged"
            ) from None
        if self._files() != self._identity:
            raise StoreGone(
                "the file of items was removed or replaced while the server runs: put it back and start the server"
                " again; nothing was acknowledged"
            )

    def _roll_back(self) -> None:
        if self._database.in_transaction:
            try:
                self._database.execute("ROLLBACK")
            except sqlite3.Error:
                return

    def _files(self) -> list[tuple[int, int] | None]:
        """Which files lie under our names: SQLite goes on writing to one that was removed."""
        found: list[tuple[int, int] | None] = []
        for name in (self.path, Path(f"{self.path}-wal")):
            try:
                about = name.stat()
                found.append((about.st_dev, about.st_ino))
            except OSError:
                found.append(None)
        return found


_AROUND = len(b'{"id":"","title":"","category":"","score":-1.234567e-308},')
_MAX_KEPT = 1 << 16  # items whose JSON is kept
_MAX_GONE = 1 << 10  # items that were taken out, whose texts are kept: an answer may be on its way


class ReleaseTexts:
    """Ids, titles and categories of a release, of what was added to it, and the numbers behind the ids."""

    def __init__(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        self._ids, self._titles = _Packed(arrays, "ids"), _Packed(arrays, "titles")
        names = _Packed(arrays, "categories")
        self.categories = [names.text(code) for code in range(len(names))]
        self.category: Indices = arrays["category"].astype(np.int32)
        self.count = len(self._ids)
        if len(self._titles) != self.count or len(self.category) != self.count:
            raise BadInput("the items of the release have not as many titles and categories as ids: release it again")
        if self.count and not -1 <= self.category.min() <= self.category.max() < len(self.categories):
            raise BadInput("the items of the release have a category without a name: release it again")
        self._code = {name: code for code, name in enumerate(self.categories)}
        self._regions: dict[str, int] = {}
        self._added: dict[int, tuple[str, str, str]] = {}
        self._number: dict[str, int] = {}  # of what was added
        self._hidden: set[int] = set()  # of the release, and taken out
        self._kept: dict[int, bytes] = {}
        self._gone: deque[int] = deque()
        self._longest = np.sort(self._sizes())[::-1][:MAX_K].tolist()  # falling
        self._bounds = np.cumsum([0, *self._longest])

    def facts(self, number: int) -> tuple[str, str, str]:
        """Id, title and category of an item; KeyError where the number is not known (yet)."""
        if number >= self.count:
            return self._added[number]
        code = int(self.category[number])
        return self._ids.text(number), self._titles.text(number), self.categories[code] if code >= 0 else ""

    def _sizes(self) -> Offsets:
        """At most so many bytes has each item of the release as JSON."""
        sizes = np.array([*(len(msgspec.json.encode(name)) for name in self.categories), 0], np.int64)[self.category]
        found: Offsets = sizes + self._ids.escaped() + self._titles.escaped() + _AROUND
        return found

    def largest(self, k: int) -> int:
        """At most so many bytes have any k different items as JSON, with their scores."""
        known = len(self._longest)
        beyond = (k - known) * self._longest[-1] if k > known == MAX_K else 0
        return int(self._bounds[min(k, known)]) + beyond

    def json(self, number: int) -> bytes | None:
        """Encode an item as the start of a JSON object, which its score completes."""
        found = self._kept.get(number)
        if found is None:
            try:
                name, title, category = self.facts(number)
            except KeyError:  # it became visible this moment
                return None
            found = msgspec.json.encode({"id": name, "title": title, "category": category})[:-1] + b',"score":'
            if len(self._kept) >= _MAX_KEPT:
                self._kept.clear()
            self._kept[number] = found
        return found

    def find(self, name: str) -> int | None:
        """The number of an item that is there."""
        number = self._number.get(name)
        if number is None:
            number = self._ids.find(name)
            return None if number in self._hidden else number
        return number

    def add(self, number: int, name: str, title: str, category: str) -> None:
        """Add the texts of an item."""
        self._added[number] = (name, title, category)
        self._number[name] = number
        size = len(msgspec.json.encode((name, title, category))) + _AROUND
        if len(self._longest) < MAX_K or size > self._longest[-1]:
            insort(self._longest, size, key=neg)
            del self._longest[MAX_K:]
            self._bounds = np.cumsum([0, *self._longest])

    def hide(self, number: int) -> None:
        """Hide an item."""
        if number < self.count:
            self._hidden.add(number)
            return
        name, _, _ = self._added[number]
        if self._number.get(name) == number:
            del self._number[name]
        self._gone.append(number)
        if len(self._gone) > _MAX_GONE:
            old = self._gone.popleft()
            del self._added[old]
            self._kept.pop(old, None)

    def numbers(self) -> Offsets:
        """Return the numbers of all visible items."""
        there = np.ones(self.count, np.bool_)
        there[list(self._hidden)] = False
        added = np.array(sorted(self._number.values()), np.int64)
        return np.concatenate([np.flatnonzero(there).astype(np.int64), added])

    def category_code(self, name: str, *, new: bool = False) -> int | None:
        """The code of a category; -1 for none, a fresh one for a new name where that is allowed, else None."""
        if not name:
            return -1
        if new and name not in self._code:
            self.categories.append(name)
            self._code[name] = len(self.categories) - 1
        return self._code.get(name)

    def region_code(self, name: str, *, new: bool = False) -> int | None:
        """Return the code of a region: -1 for none, a fresh one for a new name where that is allowed, else None."""
        if not name:
            return -1
        if new:
            self._regions.setdefault(name, len(self._regions))
        return self._regions.get(name)


class _Packed:
    """Texts in one buffer, end to end."""

    def __init__(self, arrays: Mapping[str, NDArray[Any]], name: str) -> None:
        self._offsets: Offsets = arrays[f"{name}.offsets"].astype(np.int64)
        self._data = arrays[f"{name}.data"].tobytes()
        ends = self._offsets
        if not len(ends) or ends[0] != 0 or ends[-1] != len(self._data) or (np.diff(ends) < 0).any():
            raise BadInput(f"the {name} of the release do not lie end to end: release it again")

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def text(self, number: int) -> str:
        return self._data[self._offsets[number] : self._offsets[number + 1]].decode(errors="replace")

    def escaped(self) -> Offsets:
        """At most so many bytes has each of them in JSON."""
        data = np.frombuffer(self._data, np.uint8)
        # Quotes and backslashes get 1 byte more, control characters 5.
        more = (((data == 34) | (data == 92), 1), (data < 32, 5))
        found: Offsets = np.diff(self._offsets)
        for where, count in more:
            found = found + count * np.diff(np.searchsorted(np.flatnonzero(where), self._offsets))
        return found

    def find(self, text: str) -> int | None:
        """Which one it is: compared byte by byte, over all that are still possible; no table of ids is kept."""
        wanted = text.encode()
        data = np.frombuffer(self._data, np.uint8)
        left = np.flatnonzero(np.diff(self._offsets) == len(wanted))
        for place, byte in enumerate(wanted):
            if not len(left):
                return None
            left = left[data[self._offsets[left] + place] == byte]
        return int(left[0]) if len(left) else None


POOL_K = 10  # the pool of a release holds everybody's so many best
LARGEST_WHOLE = 700_000  # bytes of numbers of a pool that holds everything
LARGEST_FILLED = 800_000  # of one that is filled up: below a megabyte with its titles
_LISTED = 30  # items of a synthetic reader's list
_MAX_NUMBERS = 20_000_000  # of all vectors, for lists of synthetic readers
_SCORES_AT_ONCE = 1 << 22


def _arrays(release: Release, file: str) -> dict[str, NDArray[Any]]:
    """The arrays of a file as it was signed: what is checked are the very bytes that are used, in memory."""
    content = release.path(file).read_bytes()
    if hashlib.sha256(content).hexdigest() != release.manifest["files"][file]["sha256"]:
        raise BadInput(f"{file} of the release was changed since it was checked: put it back, or release it again")
    return load(content)


def _chances(given: NDArray[Any], count: int) -> Floats:
    chances: Doubles = whole_numbers(given, count, count)
    if (chances < 0).any() or abs(chances.sum(axis=1) - 1).max() > 1e-6:
        raise BadInput("the chances of the release do not add up to 1: release it again")
    return chances.astype(np.float32)


class Edition:
    """A release with its index; items come and go by one thread, while any number ask."""

    def __init__(self, release: Release) -> None:
        self.release = release
        self.ranks_here = release.family in ("news", "factors")
        self.head = b'{"release":%s,"items":[' % msgspec.json.encode({"name": release.name, "version": release.version})
        self.kinds = frozenset(str(offer["kind"]) for offer in release.manifest["offers"])  # of queries that it reads
        how = (str(offer["normalise"]) for offer in release.manifest["offers"] if offer.get("normalise"))
        self.normalisation: Any = next(how, "simplex")  # of noisy attention
        self.largest_pool = max((int(offer.get("pool") or 0) for offer in release.manifest["offers"]), default=0)
        self._lock = Lock()
        self._nobody: tuple[int, Offsets, Floats] | None = None  # and of which version of the catalogue
        if not self.ranks_here:
            return
        sizes = release.manifest["sizes"]
        count, self.dim, self.n_interests = int(sizes["items"]), int(sizes["dim"]), int(sizes["interests"])
        vectors = whole_numbers(_arrays(release, "vectors.safetensors")["items"], count, self.dim)
        serving: Mapping[str, NDArray[Any]] = (
            _arrays(release, "serving.safetensors") if release.has("serving.safetensors") else {}
        )
        self.texts = ReleaseTexts(_arrays(release, "items.safetensors"))
        if self.texts.count != count:
            raise BadInput(f"the release has {count} vectors and {self.texts.count} ids: release it again")
        self.interests: Floats | None = None
        self.chances: Floats | None = None
        if self.n_interests:
            self.interests = whole_numbers(serving["interests"], self.n_interests, self.dim)
            if "chances" in serving:  # where an interest may be told
                self.chances = _chances(serving["chances"], self.n_interests)
        self._readers: Floats | None = None
        if release.has("readers.safetensors"):
            readers = _arrays(release, "readers.safetensors")["vectors"]
            self._readers = whole_numbers(readers.astype(np.float32), len(readers), self.dim)
        self.pooled: FromPooled | None = None
        if "pooled.slope" in serving:
            names = ("pooled.slope", "pooled.mean", "pooled.told_mean")
            self.pooled = FromPooled(*(serving[name] for name in names))
        if "nobody" in serving:
            self.nobody: Floats = whole_numbers(serving["nobody"], self.dim)
        else:
            self.nobody = np.zeros(self.dim, np.float32) if self.interests is None else self.interests.mean(axis=0)
        self.catalogue = ItemIndex.of(
            vectors, self.interests, category=self.texts.category, categories=len(self.texts.categories)
        )
        self.best_for_nobody(POOL_K)  # compiles, too
        if self.interests is not None:
            self.catalogue.best(np.full(self.n_interests, 1 / self.n_interests, np.float32), POOL_K)

    def best_for_nobody(self, k: int) -> tuple[Offsets, Floats]:
        """Numbers and scores of the non-personalised list: one for every k, cached until an item changes."""
        version, kept = self.catalogue.version, self._nobody
        if kept is None or kept[0] != version:
            kept = self._nobody = (version, *self.catalogue.best_by_vector(self.nobody, MAX_K))
        return kept[1][:k], kept[2][:k]

    @property
    def knows_nobody(self) -> bool:
        """Whether the non-personalised list is at hand."""
        return self._nobody is not None and self._nobody[0] == self.catalogue.version

    def wanted(self, categories: list[str] | None, region: str | None) -> Filter | None:
        """A filter by names; BadInput for one that is not known."""
        if not categories and not region:
            return None
        codes = [self.texts.category_code(name) for name in categories or ()]
        where = self.texts.region_code(region or "")
        if where is None or None in codes:
            raise BadInput("no item has this category or region: take those that stand in /v1/pool")
        return Filter(tuple(code for code in codes if code is not None), where)

    def show(self, item: StoredItem) -> None:
        """Make an item visible, in the place of its namesake."""
        with self._lock:
            category = self.texts.category_code(item.category, new=True)
            region = self.texts.region_code(item.region, new=True)
            old = self.texts.find(item.id)
            number = self.catalogue.put(
                item.vector, category=_known(category), region=_known(region), prior=item.prior, instead=old
            )
            if old is not None:
                self.texts.hide(old)
            self.texts.add(number, item.id, item.title, item.category)

    def check(self, item: StoredItem) -> None:
        """Refuse an item that the index would not take, before it is on disk."""
        interest_values(item.vector[np.newaxis], self.interests, item.prior)
        codes = (self.texts.category_code(item.category, new=True), self.texts.region_code(item.region, new=True))
        if max(_known(code) for code in codes) > LARGEST_CODE:
            raise BadInput("there are too many categories or regions: take one that is known")

    def hide(self, name: str) -> bool:
        """Take an item out; whether it was there."""
        with self._lock:
            number = self.texts.find(name)
            if number is None:
                return False
            self.catalogue.remove(number)
            self.texts.hide(number)
            return True

    def pool(self) -> bytes:
        """The pool that is the same for everybody: all items where they fit, else those that some weights reach, those
        of the lists of synthetic readers, and the best of every category.
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
        """The items that synthetic readers with whole vectors would get most often: at most `room`."""
        with self._lock:
            numbers = self.texts.numbers()
        if self._readers is None or len(numbers) * self.dim > _MAX_NUMBERS:
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
        """The best of each category for each interest, as far as there is room.

        A client that ranks by its whole vector, or has read its best items, still has a choice.
        """
        wanted = [self.wanted([name], None) for name in self.texts.categories if name] or [None]
        share = room // (len(wanted) * self.n_interests)
        if share < 1:
            return np.zeros(0, np.int64)
        alone = np.eye(self.n_interests, dtype=np.float32)
        found = [self.catalogue.best(weights, share, wanted=kind)[0] for kind in wanted for weights in alone]
        return np.unique(np.concatenate(found))

    def pool_of(self, numbers: Offsets, k: int, *, whole: bool, exact: bool, even: bool = False) -> bytes:
        """Encode some items as a pool file; `even`: of one size for all pools of as many items."""
        facts = {}
        for number in numbers.tolist():
            try:
                facts[number] = self.texts.facts(number)
            except KeyError:  # it became visible this moment: the next pool has it
                continue
        ids, titles, categories = zip(*facts.values(), strict=True) if facts else ((), (), ())
        vectors, scores = self.catalogue.rows(np.array(list(facts), np.int64))
        about = PoolInfo(f"{self.release.name} {self.release.version}", k, whole, exact)
        size = 0
        if even:
            names = sum(len(name.encode()) + 4 for name in self.texts.categories)
            size = 2048 + names + self.texts.largest(k) + (k + 4) * (self.dim + 4 * self.n_interests + 16)
        shown = scores if self.interests is not None else None
        return pool_file(ids, titles, categories, shown, vectors, about, size=size)


def _known(code: int | None) -> int:
    return -1 if code is None else code
