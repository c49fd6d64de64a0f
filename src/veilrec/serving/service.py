"""What runs behind the routes: the edition that answers, the items on disk, and the pool that everybody may have.

Three threads: that of the event loop asks; one changes items, one after the other; one keeps the pool up to date and
lets items expire. A new version of the release takes the place of the old one in a single assignment.
"""

from __future__ import annotations

import gc
import gzip
import hashlib
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from math import inf
from typing import Any

import numpy as np

from veilrec.core.arrays import Floats
from veilrec.core.errors import BadInput, VeilrecError
from veilrec.serving.edition import Edition, ItemStore, StoredItem
from veilrec.serving.middleware import Log
from veilrec.serving.requests import NewItem
from veilrec.wire.releases import Release, open_release

_TICK_SECONDS = 0.5
_QUIET_SECONDS, _LONGEST_WAIT_SECONDS = 1.0, 10.0  # after a change, before a new pool is made
_MERGE_AFTER = 512  # changes
_SET_BACK_SECONDS = 2.0  # by which a clock has to be set back to be worth a line


Embed = Callable[[str, str, str, str], Floats]
"""The encoder of a release for what is new: title, abstract, category, subcategory -> [d]."""
EmbedderOf = Callable[[Release], Embed | None]


class NoEmbedder(VeilrecError):
    """Items cannot be added: nothing here can make their vectors."""


@dataclass(frozen=True)
class PoolAnswer:
    """A pool as it is sent."""

    plain: bytes
    zipped: bytes
    tag: str

    @classmethod
    def of(cls, plain: bytes) -> PoolAnswer:
        """The same content has the same tag."""
        return cls(plain, gzip.compress(plain, 6, mtime=0), hashlib.sha256(plain).hexdigest()[:32])


class RecommenderService:
    """A release that is served."""

    def __init__(
        self,
        release: Release,
        *,
        store: ItemStore | None = None,
        embedder_of: EmbedderOf = lambda _: None,
        trusted: bytes | None = None,
        log: Log | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.release, self.store, self.log = release, store, log or Log()
        self.edition: Edition | None = None  # until the index is ready
        self.pool: PoolAnswer | None = None
        self.failure: str | None = None  # why there will never be an edition
        self.on_failure: Callable[[], object] = lambda: None
        self._embedder_of, self._trusted, self._clock = embedder_of, trusted, clock
        self._embedder: tuple[str, Embed | None] = ("", None)  # and of which release
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="items")
        self._counting = threading.Lock()
        self.waiting = 0  # changes that were asked for and are not done
        self._changed = self._changes = 0.0
        self._pooled: tuple[Edition, int] | None = None
        self._newest = -inf
        self._in_trouble = False
        self._over = threading.Event()
        self._keeper = threading.Thread(target=self._keep, name="keeper", daemon=True)

    def start(self) -> None:
        """Begin to build the index, in a thread of its own."""
        self._writer.submit(self._prepare)
        self._keeper.start()

    def close(self) -> None:
        """Finish the change that is under way, and stop."""
        self._over.set()
        if self._keeper.ident is not None:
            self._keeper.join(timeout=5.0)
        self._writer.shutdown(wait=True)
        if self.store is not None:
            self.store.close()
        self.log.flush()

    def submit(self, work: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Do something with the items, after what was asked for before."""
        with self._counting:
            self.waiting += 1
        future = self._writer.submit(work, *arguments)
        future.add_done_callback(self._done)
        return future

    def _done(self, _: Future[Any]) -> None:
        with self._counting:
            self.waiting -= 1

    def _prepare(self) -> None:
        try:
            self.edition = self._edition(self.release)
        except VeilrecError as error:
            self.failure = str(error)
        except (OSError, KeyError, ValueError) as error:
            self.failure = (
                f"the release cannot be served ({type(error).__name__}): check it with `veilrec release verify`"
            )
        if self.failure is not None:
            self.on_failure()
            return
        gc.collect()
        gc.freeze()  # what stays for good is not looked at again
        self._touch()
        self.log.event("ready")
        if self.store is not None and self.edition is not None and self.edition.ranks_here:
            self._encoder(self.release)

    def _edition(self, release: Release) -> Edition:
        """An edition with all that was added, and without what was taken out."""
        edition = Edition(release)
        if self.store is None or not edition.ranks_here:
            return edition
        for name in self.store.gone():
            edition.hide(name)
        left_out = 0
        for item in list(self.store.items()):
            current = self._current(item, edition)
            if current is None:
                left_out += 1
            else:
                edition.show(current)
        if left_out:
            self.log.event(f"{left_out} added items have vectors of another release and are not shown", level="warning")
        return edition

    def _current(self, item: StoredItem, edition: Edition) -> StoredItem | None:
        """An item with a vector of this release."""
        if item.model == edition.release.digest:
            return item if item.vector.shape == (edition.dim,) else None
        if self.store is None or self._encoder(edition.release) is None:
            return None
        vector = self._vector(edition, item.title, item.abstract, item.category, item.subcategory)
        item = replace(item, model=edition.release.digest, vector=vector)
        self.store.put(item)
        return item

    def _encoder(self, release: Release) -> Embed | None:
        """Loaded when it is needed for the first time: it may be large."""
        if self._embedder[0] != release.digest:
            self._embedder = (release.digest, self._embedder_of(release))
        return self._embedder[1]

    def _vector(self, edition: Edition, *texts: str) -> Floats:
        embed = self._encoder(edition.release)
        if embed is None:
            raise NoEmbedder("this server has no encoder for new items: start it where `veilrec[train]` is installed")
        title, abstract, category, subcategory = texts
        vector = np.array(embed(title, abstract, category, subcategory), np.float32)
        if vector.shape != (edition.dim,) or not np.isfinite(vector).all():
            raise BadInput("the encoder makes no vector of this item: give it another title or category")
        return vector

    def put(self, name: str, new: NewItem, expires: float) -> bool:
        """Add an item, or change it; whether it is new. When this returns it is on disk and in the index."""
        edition, store = self._changeable()
        vector = self._vector(edition, new.title, new.abstract, new.category, new.subcategory)
        is_new = edition.texts.find(name) is None
        digest, texts = edition.release.digest, (new.title, new.abstract, new.category, new.subcategory, new.region)
        item = StoredItem(name, *texts, new.prior, expires, digest, vector)
        edition.check(item)
        store.put(item)
        edition.show(item)
        self._touch()
        return is_new

    def remove(self, name: str) -> bool:
        """Take an item out for good; whether it was there."""
        edition, store = self._changeable()
        if edition.texts.find(name) is None:
            return False
        store.remove(name)
        edition.hide(name)
        self._touch()
        return True

    def _changeable(self) -> tuple[Edition, ItemStore]:
        if self.edition is None or self.store is None or not self.edition.ranks_here:
            raise BadInput("items of this release cannot be changed: it ranks on devices only, or has no --items file")
        return self.edition, self.store

    def sweep(self) -> int:
        """Let items expire whose time has come; how many. They never come back, whatever the clock says then."""
        now = self._clock()
        if now < self._newest - _SET_BACK_SECONDS:
            back = self._newest - now
            self.log.event(f"the clock was set back by {back:.0f} s: what has expired stays expired", level="warning")
            self._newest = now
        self._newest = max(self._newest, now)
        if self.edition is None or self.store is None or not self.edition.ranks_here:
            return 0
        over = self.store.expired(now)
        for name in over:
            if self.edition.hide(name):
                self._touch()
            self.store.remove(name)
        return len(over)

    def reload(self) -> bool:
        """Take the version that lies in the release's folder now, if it is newer; whether it was taken."""
        try:
            release = open_release(self.release.folder, trusted=self._trusted, newest=self.release.newest)
            if release.name != self.release.name:
                raise BadInput(f"the folder holds another release now, {release.name}: start another server for it")
            if release.digest == self.release.digest:
                self.log.event("reload: the release has not changed")
                return False
            edition = self._edition(release)
        except (VeilrecError, OSError, KeyError, ValueError) as error:
            why = str(error) if isinstance(error, VeilrecError) else type(error).__name__
            self.log.event(f"reload refused, the old version goes on: {why}", level="error")
            return False
        self.release, self.edition = release, edition
        self._touch()
        self.log.event(f"reload: version {release.version} answers now")
        return True

    def _touch(self) -> None:
        self._changed = time.monotonic()
        self._changes += 1

    def _keep(self) -> None:
        """The keeper's life."""
        stale_since = None
        while not self._over.wait(_TICK_SECONDS):
            if not self.waiting:
                self._writer.submit(self._swept)
            edition = self.edition
            if edition is None or not edition.ranks_here or self._pooled == (edition, edition.catalogue.version):
                continue
            now = time.monotonic()
            stale_since = stale_since or now
            if self.pool and now - self._changed < _QUIET_SECONDS and now - stale_since < _LONGEST_WAIT_SECONDS:
                continue
            stale_since = None
            self.make_pool(edition)

    def _swept(self) -> None:
        try:
            self.sweep()
            self._in_trouble = False
        except VeilrecError as error:
            if not self._in_trouble:  # it is said once, and tried again all the time
                self.log.event(f"expiry is not on disk yet: {error}", level="error")
            self._in_trouble = True

    def make_pool(self, edition: Edition) -> None:
        """A new pool; the old one is there until it is whole."""
        if self._changes >= _MERGE_AFTER:
            self._changes = 0
            edition.catalogue.merge()
        version = edition.catalogue.version
        try:
            self.pool = PoolAnswer.of(edition.pool())
        except (VeilrecError, MemoryError) as error:
            self.log.event(f"no new pool ({type(error).__name__}): the old one stays", level="error")
        self._pooled = (edition, version)
