"""The service behind the routes: the edition that answers, the items on disk, and the public pool.

Three threads: that of the event loop answers; one changes items, one after the other; one keeps the pool up to date and
lets items expire. A new version of the release takes the place of the old one in a single assignment.

The hot route: from a query to the best items, in as few steps as possible.
"""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from math import inf
from typing import Any
from urllib.parse import parse_qsl

import msgspec
import numpy as np

from veilrec.core.arrays import Floats, Offsets
from veilrec.core.errors import BadInput, VeilrecError
from veilrec.privacy.mechanisms.attention import normalise
from veilrec.serving.connections import network
from veilrec.serving.edition import Edition, ItemStore, StoredItem
from veilrec.serving.middleware import Log
from veilrec.serving.requests import (
    BUSY,
    LARGEST_NUMBER,
    MAX_K,
    NewItem,
    Receive,
    RecommendRequest,
    RequestRefused,
    Scope,
    StaticFile,
    decoded,
    header,
    read_body,
)
from veilrec.wire.messages import BadMessage
from veilrec.wire.queries import KINDS, QueryShape, decode
from veilrec.wire.releases import Release, open_release

_TICK_SECONDS = 0.5
_QUIET_SECONDS, _LONGEST_WAIT_SECONDS = 1.0, 10.0  # after a change, before a new pool is made
_MERGE_AFTER = 512  # changes
_SET_BACK_SECONDS = 2.0  # by which a clock has to be set back to be worth a line


Embed = Callable[[str, str, str, str], Floats]
"""The encoder of a release for what is new: title, abstract, category, subcategory -> [d]."""
EmbedderOf = Callable[[Release], Embed | None]


class NoEmbedder(VeilrecError):
    """Items cannot be added: no encoder is installed."""


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
        self.pool: StaticFile | None = None
        self.expired = False  # the release, by the clock as it stands
        self.failure: str | None = None  # why there will never be an edition
        self.on_failure: Callable[[], object] = lambda: None
        self._embedder_of, self._clock = embedder_of, clock
        self._trusted = trusted or release.key  # a later version has to be signed by this one, or its successor
        self._embedder: tuple[str, Embed | None] = ("", None)  # and of which release
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="items")
        self._counting = threading.Lock()
        self.waiting = 0  # changes that were asked for and are not done
        self._changed = self._changes = 0.0
        self._pooled: tuple[Edition, int] | None = None
        self._newest = -inf
        self._in_trouble = False
        self._warned: tuple[str, float] | None = None  # which release, and on which day
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
        except Exception as error:  # whatever it is, somebody has to hear of it
            self.failure = (
                f"the release cannot be served ({type(error).__name__}): check it with `veilrec release verify`"
            )
        if self.failure is not None:
            self.log.event(f"never ready: {self.failure}", level="error")
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
        """Load the encoder of a release when it is first needed: it may be large."""
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
            raise BadInput("items of this release cannot be changed: it ranks on clients only, or has no --items file")
        return self.edition, self.store

    def sweep(self) -> int:
        """Remove expired items; return how many. They never come back, whatever the clock says then."""
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
            release = self._next()
            edition = None if release is None else self._edition(release)
        except Exception as error:  # whatever it is, somebody has to hear of it
            why = str(error) if isinstance(error, VeilrecError) else type(error).__name__
            self.log.event(f"reload refused, the old version goes on: {why}", level="error")
            return False
        if release is None or edition is None:
            self.log.event("reload: the release has not changed")
            return False
        if edition.ranks_here:  # first: a page that has the new release asks for its pool at once
            self.make_pool(edition)
        self.release, self.edition, self._trusted, self.expired = release, edition, release.key, False
        self._touch()
        self.log.event(f"reload: version {release.version} answers now")
        return True

    def _next(self) -> Release | None:
        """The version that lies in the folder; None for the one that answers."""
        release = open_release(
            self.release.folder, trusted=self._trusted, newest=self.release.newest, clock=self._clock
        )
        if release.name != self.release.name:
            raise BadInput(f"the folder holds another release now, {release.name}: start another server for it")
        return None if release.digest == self.release.digest else release

    def _touch(self) -> None:
        self._changed = time.monotonic()
        self._changes += 1

    def _keep(self) -> None:
        """Sweep expired items and renew the pool until the service is closed."""
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

    def check_expiry(self) -> None:
        """Warn once a day of a release that is near its last day; answer with none that has expired.

        A clock that is put right again puts this right, too.
        """
        now = self._clock()
        warning, today = self.release.warning(now), (self.release.digest, now // 86_400)
        if warning and today != self._warned:
            self._warned = today
            self.log.event(warning, level="warning")
        try:
            self.release.refuse_expired(now)
            self.expired = False
        except BadInput:
            self.expired = True  # until a newer one is taken by SIGHUP

    def _swept(self) -> None:
        self.check_expiry()
        if self.expired:  # or the clock is wrong: what it says of items is not for good then
            return
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
            self.pool = StaticFile.of(edition.pool(), "application/octet-stream", level=6)
        except (VeilrecError, MemoryError) as error:
            self.log.event(f"no new pool ({type(error).__name__}): the old one stays", level="error")
        self._pooled = (edition, version)


JSON, BYTES = b"application/json", b"application/octet-stream"
_LIGHT = 2_000_000  # numbers that are looked at on the way: more are not the event loop's business
MAX_WAITING = 32
_EACH_WAITING = 8  # of these, for one address
_SUM = 1e-3  # by which weights may miss 1
_KIND_AT, _LEAST_BYTES = 4, 7  # of a query in bytes

_KIND_OF = {"alpha": "attention", "interest": "interest", "vector": "vector", "told": "pooled"}  # of fields in JSON

Best = tuple[Offsets, Floats]


class RecommendRoute:
    """POST /v1/recommend."""

    def __init__(self, service: RecommenderService, *, each: int = _EACH_WAITING) -> None:
        self._service, self._each = service, each
        self._decoder = msgspec.json.Decoder(RecommendRequest)
        self._heavy = ThreadPoolExecutor(1, thread_name_prefix="whole-scan")
        self._waiting = Counter[str]()  # slow work, by address

    async def __call__(self, scope: Scope, receive: Receive) -> tuple[bytes, bytes]:
        """The answer, and its type."""
        body = await read_body(scope, receive)
        edition = ready(self._service)
        as_pool, ask = False, None
        kind = header(scope, b"content-type")
        if kind is not None and kind != JSON:
            kind = kind.partition(b";")[0].strip().lower()
        if scope["query_string"]:
            as_pool, ask = _options(scope["query_string"], edition.largest_pool, is_json=kind != BYTES)
        if kind is None or kind == JSON:
            ask = decoded(self._decoder, body) if body else RecommendRequest()
            given = (ask.alpha is not None) + (ask.interest is not None) + (ask.vector is not None)
            if given + (ask.told is not None) > 1:
                raise RequestRefused(400, "the body tells several things: give one of alpha, interest, vector and told")
            weights, vector = _told_in_json(ask, edition)
        elif kind == BYTES:
            ask = ask or RecommendRequest()
            weights, vector = _told_in_bytes(body, edition)
        else:
            raise RequestRefused(
                415, "the body has a type that is not read: send application/json, or a query as bytes"
            )
        try:
            client = scope.get("client")
            address = network(client[0]) if client else ""
            numbers, scores = await self._best(edition, weights, vector, ask, address)
        except VeilrecError as error:
            raise RequestRefused(400, str(error)) from None
        if as_pool:
            return await self._aside(address, _pool, edition, numbers, ask.k), BYTES
        return _answer(edition, numbers, scores, ask.k), JSON

    async def _best(
        self, edition: Edition, weights: Floats | None, vector: Floats | None, ask: RecommendRequest, address: str
    ) -> Best:
        wanted = edition.wanted(ask.categories, ask.region)
        if weights is not None:
            return edition.catalogue.best(weights, ask.k, wanted=wanted)
        light = len(edition.catalogue) * edition.dim <= _LIGHT
        if vector is None and wanted is None:
            light |= edition.knows_nobody
            best: Callable[[], Best] = partial(edition.best_for_nobody, ask.k)
        else:
            vector = edition.nobody if vector is None else vector
            best = partial(edition.catalogue.best_by_vector, vector, ask.k, wanted=wanted)
        found: Best = best() if light else await self._aside(address, best)
        return found

    async def _aside(self, address: str, work: Callable[..., Any], *arguments: Any) -> Any:
        """Run slow work beside the event loop; refuse it where too much is waiting, in all or of one address."""
        if self._waiting.total() >= MAX_WAITING or self._waiting[address] >= self._each:
            raise RequestRefused(503, "too many ask for this at once: ask again in a moment", BUSY)
        self._waiting[address] += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._heavy, work, *arguments)
        finally:
            self._waiting[address] -= 1
            if not self._waiting[address]:
                del self._waiting[address]


def ready(service: RecommenderService) -> Edition:
    """The edition that answers now."""
    edition = service.edition
    if service.expired:
        raise RequestRefused(503, "this release has expired: a newer one is needed, or the clock here is wrong", BUSY)
    if edition is None and service.failure is not None:
        raise RequestRefused(503, "this server cannot serve its release or its items: its log says why")
    if edition is None:
        raise RequestRefused(503, "the index is not ready: ask again in a moment", BUSY)
    if not edition.ranks_here:
        raise RequestRefused(409, "this release ranks on clients only: get it from /v1/release and ask nobody")
    return edition


def _told_in_json(ask: RecommendRequest, edition: Edition) -> tuple[Floats | None, Floats | None]:
    """Return the weights of interests or the user vector of a JSON body, or neither."""
    for name, kind in _KIND_OF.items():
        if getattr(ask, name) is not None and kind not in edition.kinds:
            raise RequestRefused(400, f"{name}: {_not_offered(kind, edition)}")
    if ask.alpha is not None:
        alpha, size = ask.alpha, edition.n_interests
        total = sum(alpha)
        if len(alpha) != size or not abs(total - 1.0) <= _SUM:
            raise RequestRefused(
                400, f"alpha has {len(alpha)} numbers that add up to {total:.6g}: {_needed(size)} that add up to 1"
            )
        return np.array(alpha, np.float32), None
    if ask.interest is not None:
        return _of_interest(ask.interest, edition), None
    if ask.vector is not None:
        if len(ask.vector) != edition.dim:
            raise RequestRefused(400, f"the vector has {len(ask.vector)} numbers: {_needed(edition.dim)}")
        return None, np.array(ask.vector, np.float32)
    if ask.told is not None:
        return None, _of_pooled(np.array(ask.told, np.float32), edition)
    return None, None


def _told_in_bytes(body: bytes, edition: Edition) -> tuple[Floats | None, Floats | None]:
    """Decode a query of `veilrec.wire.queries`; noisy attention goes back on the simplex."""
    if not body:
        return None, None
    number = body[_KIND_AT] if len(body) >= _LEAST_BYTES else len(KINDS)
    kind = KINDS[number] if number < len(KINDS) else None
    pooled = 0 if edition.pooled is None else len(edition.pooled.told_mean)
    sizes = {"interest": edition.n_interests, "attention": edition.n_interests, "vector": edition.dim, "pooled": pooled}
    size = sizes.get(kind or "", 0)
    if kind is None or not size:
        raise RequestRefused(
            400, "the body is no query of a kind that this release reads: see the offers in its manifest"
        )
    if kind not in edition.kinds:
        raise RequestRefused(400, _not_offered(kind, edition))
    try:
        told = decode(body, QueryShape(kind, size))
    except BadMessage as error:
        raise RequestRefused(400, str(error)) from None
    if kind == "interest":
        return _of_interest(int(told[0]), edition), None
    if kind == "attention":
        return normalise(told.astype(np.float64), edition.normalisation).astype(np.float32), None
    if np.abs(told).max() > LARGEST_NUMBER:
        raise RequestRefused(400, f"the query has numbers beyond {LARGEST_NUMBER:.0e}: no model has such")
    return None, _of_pooled(told, edition) if kind == "pooled" else told


def _not_offered(kind: str, edition: Edition) -> str:
    """Why a query is refused that the operator did not offer: an unprotected one above all."""
    offered = ", ".join(sorted(edition.kinds)) or "none"
    return f"this release takes no queries of the kind {kind}: its operator offers {offered}, and ranking on the client"


def _of_interest(interest: int, edition: Edition) -> Floats:
    """How likely each interest is the true one after this one was told."""
    if edition.chances is None or interest >= edition.n_interests:
        raise RequestRefused(400, f"there is no interest {interest}: this release has {edition.n_interests}, from 0 on")
    row: Floats = edition.chances[interest]
    return row


def _of_pooled(told: Floats, edition: Edition) -> Floats:
    if edition.pooled is None:
        raise RequestRefused(400, "this release reads no pooled vectors: see the offers in its manifest")
    if len(told) != len(edition.pooled.told_mean):
        raise RequestRefused(
            400, f"the pooled vector has {len(told)} numbers: {_needed(len(edition.pooled.told_mean))}"
        )
    (user,) = edition.pooled.users(told[np.newaxis])
    return np.asarray(user, np.float32)


def _pool(edition: Edition, numbers: Offsets, k: int) -> bytes:
    try:
        return edition.pool_of(numbers, k, whole=False, exact=False, even=True)
    except VeilrecError:  # one of them was taken out this moment
        raise RequestRefused(503, "the items have changed: ask again", BUSY) from None


def _needed(size: int) -> str:
    return f"give {size}" if size else "this release takes none"


def _answer(edition: Edition, numbers: Offsets, scores: Floats, k: int) -> bytes:
    """Answer as JSON, filled up with spaces: all answers of one k have one length, whatever was asked."""
    items, json = [], edition.texts.json
    for number, score in zip(numbers.tolist(), scores.tolist(), strict=True):
        start = json(number)
        if start is not None:
            items.append(b"%s%.7g}" % (start, score))
    whole = edition.head + b",".join(items) + b"]}"
    return whole.ljust(len(edition.head) + 2 + edition.texts.largest(k))


def _options(query: bytes, largest_pool: int, *, is_json: bool) -> tuple[bool, RecommendRequest | None]:
    """Parse the query string: form, and for a query in bytes the other fields of a JSON body."""
    try:
        pairs = parse_qsl(
            query.decode("ascii"), keep_blank_values=True, strict_parsing=True, errors="strict", max_num_fields=110
        )
    except (ValueError, UnicodeDecodeError):
        raise RequestRefused(400, "the query string is not as it should be: see /docs") from None
    form, ask = "list", RecommendRequest()
    most = max(MAX_K, largest_pool) if ("form", "pool") in pairs else MAX_K
    for name, value in pairs:
        if name == "form" and value in ("list", "pool"):
            form = value
        elif name == "k" and not is_json and _is_count(value, most):
            ask.k = int(value)
        elif name == "categories" and not is_json and 0 < len(value) <= 200:
            ask.categories = [*(ask.categories or ()), value]
        elif name == "region" and not is_json and 0 < len(value) <= 200:
            ask.region = value
        else:
            line = "form=list or form=pool" + ("" if is_json else f", k=1 to {most}, categories=NAME, region=NAME")
            raise RequestRefused(400, f"the query string may have {line}: everything else is refused")
    return form == "pool", ask


def _is_count(value: str, most: int) -> bool:
    return value.isascii() and value.isdigit() and len(value) < 10 and 1 <= int(value) <= most
