"""The recommender client of a release: local history, on-device ranking, private queries to a server.

- `HistoryStore` keeps the history in SQLite with every row encrypted; without the key the file reveals the number of
  rows only, and a row that is deleted or changed is noticed. Forgetting leaves nothing behind. The history leaves only
  through a mechanism and the ledger.
- Key, ledger and history come together: one that is gone, or an older copy of the history, is noticed, and nothing is
  done. In particular no ledger is begun anew beside a key.
- `ServerLink` sends queries and nothing else: no cookies, redirects or environment proxies, bounded response size, and
  no plaintext connection off this machine unless requested.
- A query is drawn once per release and then repeated; its charge is on disk before it leaves.
- Read items are removed on the client, never by the server; so a client always requests the same number of extra items.
- If the budget is exhausted or the server unreachable, the client falls back to a non-personalised or local ranking.
"""

from __future__ import annotations

import gzip
import json
import sqlite3
import ssl
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection, InvalidURL
from math import isfinite
from pathlib import Path
from typing import Any, Literal, get_args
from urllib.parse import urlsplit

import numpy as np

from veilrec.client.queries import QueryClient, numbers_of
from veilrec.client.released import (
    SERVING_FILE,
    ReleasedCatalogue,
    ReleasedFactors,
    ReleasedModel,
    ReleasedNews,
    ReleasedRanker,
    asking_of,
    offers_of,
)
from veilrec.core.arrays import Floats, Indices
from veilrec.core.csr import Csr
from veilrec.core.errors import BadInput, VeilrecError, counted, said, shown, unknown_name
from veilrec.core.files import OWNER_ONLY, Seal, WrongSeal, key_in, sync, transaction
from veilrec.privacy.budget import Budget
from veilrec.privacy.events import NonPrivateEvent
from veilrec.privacy.guarantee import Guarantee, Unit
from veilrec.privacy.ledger import AccountReport, BudgetExhausted, Ledger
from veilrec.wire.messages import BadMessage
from veilrec.wire.queries import LARGEST, Pool, QueryShape, encode, read_pool
from veilrec.wire.releases import Newest, Release, refuse_older
from veilrec.wire.signing import Revocation, is_loopback, judged

_TIMEOUT = 10.0
_SOME = 1 << 22  # bytes of an answer that is no pool


class ServerAway(VeilrecError):
    """No usable answer: the request may have arrived, unless this is `NotConnected`."""


class NotConnected(ServerAway):
    """There was no connection to the server: nothing was sent."""


class ServerLink:
    """Connection to one server; it follows no redirect and uses no proxy."""

    def __init__(self, address: str, *, ca: Path | None = None, plaintext: bool = False) -> None:
        parts = urlsplit(address.rstrip("/"))
        try:
            self._where = parts.hostname or "", parts.port
        except ValueError:
            self._where = "", None
        if parts.scheme not in ("http", "https") or not self._where[0] or parts.query or parts.username:
            raise BadInput(f"{address!r} is no address of a server: give one such as https://news.example.org")
        if parts.scheme == "http" and not plaintext and not is_loopback(self._where[0]):
            raise BadInput(
                f"{address} is not encrypted, and not on this machine: a query would be read on its way; use https"
            )
        self.address = address.rstrip("/")
        self._path, self._is_plain, self._tls = parts.path, parts.scheme == "http", _context(ca)

    def best(self, query: bytes, k: int) -> list[dict[str, Any]]:
        """The k best items of a query."""
        content = self._send(f"/v1/recommend?k={k}", query, _SOME)
        try:
            items = json.loads(content)["items"]
            found: list[dict[str, Any]] = [
                {"id": str(item["id"]), "title": shown(str(item["title"])), "score": float(item["score"])}
                for item in items
            ]
            is_whole = all(isfinite(item["score"]) for item in found)
        except (ValueError, KeyError, TypeError, RecursionError):
            is_whole = False
        if not is_whole:
            raise ServerAway(f"{self.address} answers in a way that is not understood")
        return found

    def pool_for(self, query: bytes, k: int) -> Pool:
        """The k best items of a query with their vectors, for the client to rank."""
        return self._pool(self._send(f"/v1/recommend?k={k}&form=pool", query, LARGEST))

    def pool(self) -> Pool:
        """The non-personalised pool: all items that a query could return."""
        return self._pool(self._send("/v1/pool", None, LARGEST))

    def _pool(self, content: bytes) -> Pool:
        try:
            return read_pool(content)
        except BadMessage as error:
            raise ServerAway(f"{self.address} sends a pool that is not understood ({error})") from None

    def _send(self, path: str, body: bytes | None, largest: int) -> bytes:
        headers = {"User-Agent": "veilrec", "Accept-Encoding": "gzip", "Connection": "close"}
        if body is not None:
            headers["Content-Type"] = "application/octet-stream"
        with closing(self._connected()) as connection:
            try:
                connection.request("GET" if body is None else "POST", self._path + path, body, headers)
                answer = connection.getresponse()
                if not 200 <= answer.status < 300:
                    raise ServerAway(f"{self.address} refuses ({answer.status}): {_told(answer)}")
                content = answer.read(largest + 1)
            except InvalidURL as error:
                raise NotConnected(f"{self.address} cannot be reached ({error})") from None
            except (OSError, ValueError, HTTPException) as error:
                raise ServerAway(f"{self.address} gives no answer ({error})") from None
        if len(content) > largest:
            raise ServerAway(f"{self.address} sends more than {largest:,} bytes: they are not read")
        return (
            _unpacked(content, largest, self.address) if answer.headers.get("Content-Encoding") == "gzip" else content
        )

    def _connected(self) -> HTTPConnection:
        """Connect, TLS handshake included: no byte of a request leaves before that."""
        host, port = self._where
        connection = (
            HTTPConnection(host, port, timeout=_TIMEOUT)
            if self._is_plain
            else HTTPSConnection(host, port, timeout=_TIMEOUT, context=self._tls)
        )
        try:
            connection.connect()
        except (OSError, ValueError, HTTPException) as error:
            raise NotConnected(f"{self.address} cannot be reached ({error})") from None
        return connection


def _told(answer: HTTPResponse) -> str:
    try:
        return said(json.loads(answer.read(4096))["error"])
    except (ValueError, KeyError, TypeError, OSError, HTTPException, RecursionError):
        return said(answer.reason)


def _unpacked(content: bytes, largest: int, address: str) -> bytes:
    """What was compressed, up to a limit: a small answer must not become a large one."""
    opened = zlib.decompressobj(wbits=31)
    try:
        whole = opened.decompress(content, largest + 1)
    except (zlib.error, gzip.BadGzipFile):
        raise ServerAway(f"{address} answers in a way that is not understood") from None
    if len(whole) > largest or not opened.eof:
        raise ServerAway(f"{address} sends more than {largest:,} bytes: they are not read")
    return whole


def _context(ca: Path | None) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=None if ca is None else str(ca))
    except (OSError, ssl.SSLError):
        raise BadInput(f"{ca} is no certificate that a server can be known by: give a PEM file") from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


_APPLICATION = 0x76656868  # "vehh"
_SETTINGS = ("PRAGMA journal_mode=WAL", "PRAGMA synchronous=FULL", "PRAGMA secure_delete=ON")
_MOST = 100_000  # clicks that are kept; the oldest go first
_LONGEST_ID = 1024


class HistoryStore:
    """Encrypted history of a user: each item once, ordered by its latest use."""

    def __init__(self, path: Path, seal: Seal) -> None:
        self._path, self._seal = path, seal
        try:
            path.touch(mode=0o600)
            self._connection = sqlite3.connect(path, isolation_level=None)
            for line in _SETTINGS:
                self._connection.execute(line)
            self._check()
        except (sqlite3.Error, OSError) as error:
            raise VeilrecError(f"{path} cannot be used as a history ({error}): give another place for it") from None

    def _check(self) -> None:
        (application,) = self._connection.execute("PRAGMA application_id").fetchone()
        tables = self._connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if application != _APPLICATION and tables:
            raise VeilrecError(f"{self._path} is not a history of veilrec: give another place for it")
        if self._connection.execute("PRAGMA quick_check").fetchone()[0] != "ok":
            raise VeilrecError(f"{self._path} is damaged: bring back a whole one")
        if not tables:
            with transaction(self._connection):
                self._connection.execute(f"PRAGMA application_id={_APPLICATION}")
                self._connection.execute("CREATE TABLE clicks (number INTEGER PRIMARY KEY, item BLOB NOT NULL)")
                self._connection.execute("CREATE TABLE span (only INTEGER PRIMARY KEY CHECK (only = 1), sealed BLOB)")
                self._set_span(1, 0)
        self._span()

    def items(self) -> list[str]:
        """The ids, the latest last."""
        first, last = self._span()
        rows = self._connection.execute("SELECT number, item FROM clicks ORDER BY number").fetchall()
        if [number for number, _ in rows] != list(range(first, last + 1)):
            raise VeilrecError(f"{self._path} has lost a row, or has one too many: bring back a whole one")
        opened = [self._opened(item, f"click {number}").decode() for number, item in rows]
        return list(reversed(dict.fromkeys(reversed(opened))))

    @property
    def last(self) -> int:
        """The number of the latest row that was ever added."""
        return self._span()[1]

    def _span(self) -> tuple[int, int]:
        """First and last row, sealed: whoever has no key cannot take rows away unnoticed."""
        try:
            row = self._connection.execute("SELECT sealed FROM span").fetchone()
        except sqlite3.Error as error:
            raise VeilrecError(f"{self._path} is no whole history ({error}): bring back a whole one") from None
        first, last = self._opened(b"" if row is None else row[0], "span").split()
        return int(first), int(last)

    def _set_span(self, first: int, last: int) -> None:
        sealed = self._seal.close(f"{first} {last}".encode(), "span")
        self._connection.execute("INSERT OR REPLACE INTO span VALUES (1, ?)", (sealed,))

    def _opened(self, sealed: bytes, what: str) -> bytes:
        try:
            return self._seal.open(sealed, what)
        except WrongSeal:
            raise VeilrecError(f"{self._path} does not open with this device's key: nothing of it is used") from None

    def add(self, *items: str) -> None:
        """Read these, in this order; on disk when this returns."""
        for item in items:
            if not item or len(item.encode()) > _LONGEST_ID:
                raise BadInput(f"an item has an id of 1 to {_LONGEST_ID} bytes, not {item[:40]!r}")
        with self._changing():
            first, last = self._span()
            for number, item in enumerate(items, last + 1):
                sealed = self._seal.close(item.encode(), f"click {number}")
                self._connection.execute("INSERT INTO clicks VALUES (?, ?)", (number, sealed))
            last += len(items)
            first = max(first, last - _MOST + 1)
            self._connection.execute("DELETE FROM clicks WHERE number < ?", (first,))
            self._set_span(first, last)

    def forget(self) -> None:
        """Everything, also what the file would keep of deleted rows."""
        with self._changing():
            _, last = self._span()
            self._connection.execute("DELETE FROM clicks")
            self._set_span(last + 1, last)
        self._connection.execute("VACUUM")
        self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def close(self) -> None:
        """Whatever was added is on disk already."""
        self._connection.close()

    @contextmanager
    def _changing(self) -> Iterator[None]:
        try:
            with transaction(self._connection):
                yield
        except sqlite3.Error as error:
            raise VeilrecError(f"{self._path} cannot be written ({error}): nothing was changed") from None


Mode = Literal["none-sent", "interest", "attention", "pooled", "vector", "plain", "nobody"]
MODES: tuple[Mode, ...] = get_args(Mode)  # nobody: not personal
_SPARE = 100  # asked for beside what is needed, whatever was read
_PERIOD_SECONDS = 3600.0
_NEWEST, _KEY, _READ, _REVOKED = "newest", "key", "read", "revoked"
_CLIENT_KEY, _LEDGER, _HISTORY, _MAKING = "client.key", "ledger.sqlite", "history.sqlite", "making"  # files


@dataclass(frozen=True)
class RankedItem:
    """Something to read."""

    id: str
    title: str
    score: float


@dataclass(frozen=True)
class Recommendations:
    """A list, how it came about, and all that left the device for it."""

    items: list[RankedItem]
    mode: Mode  # that was used, which is another than the one asked for where that was not to be had
    ranked_by: Literal["client", "server"]
    sent: bytes | None = None  # the query, also where it got no usable answer; None: nothing of this user left
    guarantee: Guarantee | None = None  # of the query that was drawn and charged, whether or not it could be sent
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class ItemTexts:
    """Ids and titles of the items of a release, and where an id is."""

    ids: Sequence[str]
    titles: Sequence[str]
    find: Callable[[str], int | None]


@dataclass(frozen=True)
class QueryBudget:
    """What a client may spend, per release and ever, of whole histories and of one click (replace-one)."""

    history: float = 5.0
    click: float = 10.0
    releases: float = 4.0  # how many times that in a lifetime
    delta: float = 1e-6

    def budgets(self) -> list[Budget]:
        """One account each."""
        return [self._budget("history", self.history), self._budget("click", self.click)]

    def _budget(self, unit: Unit, epsilon: float) -> Budget:
        ever = epsilon * self.releases
        return Budget(unit=unit, adjacency="replace-one", epsilon=epsilon, delta=self.delta, lifetime_epsilon=ever)


@dataclass
class RecommenderClient:
    """One user's device."""

    release: Release
    model: ReleasedModel
    texts: ItemTexts
    history: HistoryStore
    ledger: Ledger
    server: ServerLink | None = None

    def recommend(self, k: int = 10, mode: Mode = "none-sent") -> Recommendations:
        """The best unread items, in a way of asking; another list where that way is not to be had."""
        now = time.time()
        self.release.refuse_expired(now)
        found, warning = self._recommended(k, mode), self.release.warning(now)
        return replace(found, notes=(*found.notes, f"{warning}.")) if warning else found

    def _recommended(self, k: int, mode: Mode) -> Recommendations:
        if mode not in MODES:
            raise unknown_name("way of asking", mode, MODES)
        if k < 1:
            raise BadInput(f"k is {k}: ask for at least one item")
        if mode == "none-sent":
            return self._by_itself(k)
        if mode == "nobody":
            return self._for_nobody(k, ())
        if self.server is None:
            raise BadInput(f"{mode} asks a server: give its address (--server), or rank here with none-sent")
        try:
            return self._asked(k, mode, self.server)
        except BudgetExhausted as gone:
            return self._for_nobody(k, (str(gone),))

    def read(self, *items: str) -> None:
        """Note that items were read; the ledger notes how many, so that an older copy of the history is noticed."""
        if items:
            self.history.add(*items)
            with self.ledger.transaction() as change:
                change.keep(_READ, str(self.history.last).encode())

    def forget(self) -> None:
        """The history; what was spent stays spent."""
        self.history.forget()

    def spent(self) -> tuple[AccountReport, ...]:
        """What has been spent of each budget."""
        return self.ledger.report()

    def close(self) -> None:
        """Everything is on disk already."""
        self.history.close()
        self.ledger.close()

    def __enter__(self) -> RecommenderClient:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def known(self) -> Indices:
        """The read items that the release knows, by their numbers, the latest last."""
        found = (self.texts.find(item) for item in self.history.items())
        return np.array([number for number in found if number is not None], np.int32)

    def _by_itself(self, k: int, notes: tuple[str, ...] = ()) -> Recommendations:
        history = self.known()
        scores = self.model.scores(history)
        return Recommendations(
            self._best(scores, history, k), "none-sent", "client", notes=notes + self._rests_on(history)
        )

    def _for_nobody(self, k: int, notes: tuple[str, ...]) -> Recommendations:
        """Non-personalised list, ranked locally, so that the server does not learn of an exhausted budget."""
        nothing = np.zeros(0, np.int32)
        scores = self.model.scores(nothing)
        notes += self._rests_on(nothing)
        return Recommendations(self._best(scores, self.known(), k), "nobody", "client", notes=notes)

    def _rests_on(self, history: Indices) -> tuple[str, ...]:
        """What a list rests on, by a model that the client runs whole; others are not asked for it."""
        found = self.model.rests_on(history) if isinstance(self.model, ReleasedCatalogue | ReleasedRanker) else None
        return () if found is None else (found.said,)

    def _best(self, scores: Floats, read: Indices, k: int) -> list[RankedItem]:
        worse = -np.nan_to_num(scores.astype(np.float64), nan=-np.inf)
        worse[read] = np.inf
        order = np.argsort(worse, kind="stable")[: min(k, len(scores) - len(np.unique(read)))]
        return [RankedItem(self.texts.ids[row], self.texts.titles[row], float(scores[row])) for row in order.tolist()]

    def _asked(self, k: int, mode: Mode, server: ServerLink) -> Recommendations:
        model = self.model
        if not isinstance(model, ReleasedNews | ReleasedFactors):
            raise BadInput(f"release {self.release.name} is ranked on clients only: use none-sent")
        offers = offers_of(self.release)
        if mode not in offers:
            raise BadInput(
                f"release {self.release.name} does not offer {mode}: it offers {', '.join([*offers, 'none-sent'])}"
            )
        if mode == "plain":
            query, guarantee = self._plain(model), Guarantee("none")
            try:
                return self._filtered(server.best(query, k + _SPARE), k, mode, query, guarantee)
            except ServerAway as away:
                return self._unanswered(k, mode, query, guarantee, away)
        offer = offers[mode]
        asking = asking_of(offer, model, self.release.arrays(SERVING_FILE))
        client = QueryClient(asking, self.ledger, model_version=self.release.digest, history=self.known())
        query = client.ask()
        guarantee = Guarantee.from_json(offer.fields["guarantee"])
        try:
            if offer.pool is not None:
                ranked = self._ranked(server.pool_for(query, offer.pool), k, model)
                return Recommendations(ranked, mode, "client", query, guarantee)
            return self._filtered(server.best(query, k + _SPARE), k, mode, query, guarantee)
        except ServerAway as away:
            return self._unanswered(k, mode, query, guarantee, away)

    def _unanswered(self, k: int, mode: Mode, query: bytes, guarantee: Guarantee, away: ServerAway) -> Recommendations:
        """Rank on the device after a charged query that could not be sent, or that got no usable answer."""
        own = self._by_itself(k)
        left = ", ".join(f"{100 * each.remaining:.0f} % of the {each.budget.unit} budget" for each in self.spent())
        cost = f"charged: {guarantee.line()}; left for this release: {left}"
        if isinstance(away, NotConnected):
            note = f"{away}: nothing was sent; ranked here instead. The query is drawn and {cost}."
            return replace(own, guarantee=guarantee, notes=(note, *own.notes))
        sent = f"a query of {counted(len(query), 'byte')} was sent and got no usable answer"
        note = f"{away}: {sent}; ranked here instead. The query is {cost}."
        return replace(own, mode=mode, sent=query, guarantee=guarantee, notes=(note, *own.notes))

    def _plain(self, model: ReleasedNews | ReleasedFactors) -> bytes:
        vector = self._vector(model)
        with self.ledger.transaction() as change:  # from now on no account of this device promises anything
            change.charge(NonPrivateEvent(), unit="history", adjacency="replace-one", unprotected=True)
        return encode(vector, QueryShape("vector", len(vector)))

    def _vector(self, model: ReleasedNews | ReleasedFactors) -> Floats:
        """Vector of this user; zero where the model overflows."""
        known = self.known()
        vector: Floats = numbers_of(model.users(Csr(np.array([0, len(known)], np.int64), known)))[0].astype(np.float32)
        return vector

    def _filtered(
        self, found: list[dict[str, Any]], k: int, mode: Mode, sent: bytes, guarantee: Guarantee
    ) -> Recommendations:
        read = set(self.history.items())
        items = [RankedItem(**item) for item in found if item["id"] not in read][:k]
        return Recommendations(items, mode, "server", sent, guarantee)

    def _ranked(self, pool: Pool, k: int, model: ReleasedNews | ReleasedFactors) -> list[RankedItem]:
        """A pool by the exact vector of this user, which stays here."""
        read, scores = set(self.history.items()), pool.vectors @ self._vector(model)
        order = np.argsort(-scores.astype(np.float64), kind="stable").tolist()
        unread = [row for row in order if pool.ids[row] not in read][:k]
        return [RankedItem(pool.ids[row], pool.titles[row], float(scores[row])) for row in unread]


def build_client(
    state: Path,
    release: Release,
    model: ReleasedModel,
    texts: ItemTexts,
    *,
    server: ServerLink | None = None,
    allowance: QueryBudget | None = None,
) -> RecommenderClient:
    """Open the client whose state is in a folder; create it with this allowance if there is none.

    It trusts the key of the first release that it saw, or those that this key has handed over to, and never takes an
    older release than the newest that it used. Each later release is a new period of its budgets.
    """
    if allowance is not None:
        allowance.budgets()  # refuses what no ledger could keep, before anything is written
    if _is_new(state):
        (state / _MAKING).touch(mode=OWNER_ONLY)  # until all is there: a crash on the way has spent nothing
        seal = Seal(key_in(state / _CLIENT_KEY))
        Ledger.create(
            state / _LEDGER,
            (allowance or QueryBudget()).budgets(),
            minimum_period_seconds=_PERIOD_SECONDS,
            first_period=release.version,
            seal=seal,
        ).close()
        HistoryStore(state / _HISTORY, seal).close()
        (state / _MAKING).unlink()
        sync(state)
    elif allowance is not None:
        raise BadInput(f"{state} has its budget already: a client never raises it; leave the budget out")
    for name in (_CLIENT_KEY, _LEDGER, _HISTORY):
        if not (state / name).is_file():
            raise BadInput(
                f"{state / name} is gone: bring it back; nothing is begun anew beside what is left of a client"
            )
    seal = Seal(key_in(state / _CLIENT_KEY))
    ledger = Ledger.open(state / _LEDGER, seal=seal)
    try:
        _accept(ledger, release)
        history = _history(state / _HISTORY, ledger, seal)
    except BaseException:
        ledger.close()
        raise
    return RecommenderClient(release, model, texts, history, ledger, server)


def _is_new(state: Path) -> bool:
    """Whether a client has to be made; one whose making was cut off is made again, other things are left alone."""
    state.mkdir(mode=0o700, parents=True, exist_ok=True)
    there = {path.name for path in state.iterdir()}
    if _MAKING in there:
        for path in (path for name in (_CLIENT_KEY, _LEDGER, _HISTORY) for path in state.glob(f"{name}*")):
            path.unlink()
        return True
    if there and not there & {_CLIENT_KEY, _LEDGER, _HISTORY}:
        raise BadInput(f"{state} holds other things and no client: give a folder of its own, or an empty one")
    return not there


def _history(path: Path, ledger: Ledger, seal: Seal) -> HistoryStore:
    """The history of a client; an older copy than the ledger knows of is refused."""
    history = HistoryStore(path, seal)
    with ledger.transaction() as change:
        read = int(change.kept(_READ) or b"0")
    if history.last < read:
        history.close()
        raise BadInput(
            f"{path} is an older copy: it has {counted(history.last, 'row')} of {read:,}; bring the newest back"
        )
    return history


def _accept(ledger: Ledger, release: Release) -> None:
    """Refuse a release of a stranger, or an older one; remember this one."""
    with ledger.transaction() as change:
        trusted, known = change.kept(_KEY), change.kept(f"{_NEWEST} {release.name}")
        before = [Revocation.from_json(each) for each in json.loads(change.kept(_REVOKED) or b"[]")]
        accepted, revoked = judged(trusted or release.key, release.keys, before)
        if release.key not in accepted:
            raise BadInput(
                f"release {release.name} is signed by {release.key.hex()[:16]}, and this device trusts"
                f" {(trusted or b'').hex()[:16]}, which has not handed over to it, or the key was revoked: nothing of"
                " it is used"
            )
        if known is not None:
            version, digest = known.decode().split()
            refuse_older(release, Newest(release.name, int(version), digest))
        change.keep(_KEY, release.key)
        if len(revoked) > len(before):
            change.keep(_REVOKED, json.dumps([each.to_json() for each in revoked]).encode())
        change.keep(f"{_NEWEST} {release.name}", f"{release.version} {release.digest}".encode())
    if release.version > ledger.period:
        ledger.advance_period(release.version, release.signature, lambda number, _: number == release.version)
