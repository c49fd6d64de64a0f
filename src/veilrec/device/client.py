"""A device that has a release: it keeps a history, ranks, and asks a server without telling what was read.

- The history stays in an encrypted file here. Nothing of it leaves but through a mechanism and the ledger.
- A query is drawn once per release and then repeated; its charge is on disk before it leaves.
- What was read is taken out here, never by the server; so a device always asks for the same number more than it needs,
  whatever its history.
- Where the budget is gone, or the server is away, there is still a list: the same for everybody, or ranked here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from veilrec._arrays import Floats, Indices
from veilrec._csr import Csr
from veilrec._words import counted
from veilrec.device.asking import AskingDevice, numbers_of
from veilrec.device.history_store import HistoryStore
from veilrec.device.released import (
    SERVING_FILE,
    ReleasedFactors,
    ReleasedModel,
    ReleasedNews,
    ReleasedRanker,
    asking_of,
    offers_of,
)
from veilrec.device.server_link import NotConnected, ServerAway, ServerLink
from veilrec.device.veil_released import ReleasedCatalogue
from veilrec.errors import BadInput, unknown_name
from veilrec.privacy.budget import Budget
from veilrec.privacy.events import NonPrivateEvent
from veilrec.privacy.guarantee import Guarantee, Unit
from veilrec.privacy.ledger import AccountReport, BudgetExhausted, Ledger
from veilrec.privacy.seal import Seal, key_in
from veilrec.wire.pools import Pool
from veilrec.wire.queries import Question, encode
from veilrec.wire.releases import Newest, Release, refuse_older
from veilrec.wire.signing import follow

Mode = Literal["none-sent", "interest", "attention", "pooled", "plain", "nobody"]
MODES: tuple[Mode, ...] = get_args(Mode)  # nobody: not personal
_SPARE = 100  # asked for beside what is needed, whatever was read
_PERIOD_SECONDS = 3600.0
_NEWEST, _KEY = "newest", "key"


@dataclass(frozen=True)
class Item:
    """Something to read."""

    id: str
    title: str
    score: float


@dataclass(frozen=True)
class Answer:
    """A list, how it came about, and all that left the device for it."""

    items: list[Item]
    mode: Mode  # that was used, which is another than the one asked for where that was not to be had
    ranked_by: Literal["device", "server"]
    sent: bytes | None = None  # the query, also where it got no usable answer; None: nothing of this user left
    guarantee: Guarantee | None = None  # of the query that was drawn and charged, whether or not it could be sent
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Texts:
    """Ids and titles of the items of a release, and where an id is."""

    ids: Sequence[str]
    titles: Sequence[str]
    find: Callable[[str], int | None]


@dataclass(frozen=True)
class Allowance:
    """What a device may spend, per release and ever, of whole histories and of one click (replace-one)."""

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
class Client:
    """One user's device."""

    release: Release
    model: ReleasedModel
    texts: Texts
    history: HistoryStore
    ledger: Ledger
    server: ServerLink | None = None

    def recommend(self, k: int = 10, mode: Mode = "none-sent") -> Answer:
        """The best unread items, in a way of asking; another list where that way is not to be had."""
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
        """Note that items were read."""
        self.history.add(*items)

    def forget(self) -> None:
        """The history; what was spent stays spent."""
        self.history.forget()

    def spent(self) -> tuple[AccountReport, ...]:
        """Of the budgets."""
        return self.ledger.report()

    def close(self) -> None:
        """Everything is on disk already."""
        self.history.close()
        self.ledger.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def known(self) -> Indices:
        """The read items that the release knows, by their numbers, the latest last."""
        found = (self.texts.find(item) for item in self.history.items())
        return np.array([number for number in found if number is not None], np.int32)

    def _by_itself(self, k: int, notes: tuple[str, ...] = ()) -> Answer:
        history = self.known()
        scores = self.model.scores(history)
        return Answer(self._best(scores, history, k), "none-sent", "device", notes=notes + self._rests_on(history))

    def _for_nobody(self, k: int, notes: tuple[str, ...]) -> Answer:
        """What anybody gets; here, so that nobody learns that somebody has run out of budget."""
        nothing = np.zeros(0, np.int32)
        scores = self.model.scores(nothing)
        notes += self._rests_on(nothing)
        return Answer(self._best(scores, self.known(), k), "nobody", "device", notes=notes)

    def _rests_on(self, history: Indices) -> tuple[str, ...]:
        """What a list rests on, by a model that the device runs whole; others are not asked for it."""
        found = self.model.rests_on(history) if isinstance(self.model, ReleasedCatalogue | ReleasedRanker) else None
        return () if found is None else (found.said,)

    def _best(self, scores: Floats, read: Indices, k: int) -> list[Item]:
        worse = -np.nan_to_num(scores.astype(np.float64), nan=-np.inf)
        worse[read] = np.inf
        order = np.argsort(worse, kind="stable")[: min(k, len(scores) - len(np.unique(read)))]
        return [Item(self.texts.ids[row], self.texts.titles[row], float(scores[row])) for row in order.tolist()]

    def _asked(self, k: int, mode: Mode, server: ServerLink) -> Answer:
        model = self.model
        if not isinstance(model, ReleasedNews | ReleasedFactors):
            raise BadInput(f"release {self.release.name} is ranked on devices only: use none-sent")
        if mode == "plain":
            query, guarantee = self._plain(model), Guarantee("none")
            try:
                return self._filtered(server.best(query, k + _SPARE), k, mode, query, guarantee)
            except ServerAway as away:
                return self._unanswered(k, mode, query, guarantee, away)
        offers = offers_of(self.release)
        if mode not in offers:
            raise BadInput(
                f"release {self.release.name} does not offer {mode}: it offers {', '.join([*offers, 'none-sent'])}"
            )
        offer = offers[mode]
        asking = asking_of(offer, model, self.release.arrays(SERVING_FILE))
        device = AskingDevice(asking, self.ledger, model_version=self.release.digest, history=self.known())
        query = device.ask()
        guarantee = Guarantee.from_json(offer.fields["guarantee"])
        try:
            if offer.pool is not None:
                ranked = self._ranked(server.pool_for(query, offer.pool), k, model)
                return Answer(ranked, mode, "device", query, guarantee)
            return self._filtered(server.best(query, k + _SPARE), k, mode, query, guarantee)
        except ServerAway as away:
            return self._unanswered(k, mode, query, guarantee, away)

    def _unanswered(self, k: int, mode: Mode, query: bytes, guarantee: Guarantee, away: ServerAway) -> Answer:
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
        return encode(vector, Question("vector", len(vector)))

    def _vector(self, model: ReleasedNews | ReleasedFactors) -> Floats:
        """Of this user; zero where the model overflows."""
        known = self.known()
        vector: Floats = numbers_of(model.users(Csr(np.array([0, len(known)], np.int64), known)))[0].astype(np.float32)
        return vector

    def _filtered(self, found: list[dict[str, Any]], k: int, mode: Mode, sent: bytes, guarantee: Guarantee) -> Answer:
        read = set(self.history.items())
        items = [Item(**item) for item in found if item["id"] not in read][:k]
        return Answer(items, mode, "server", sent, guarantee)

    def _ranked(self, pool: Pool, k: int, model: ReleasedNews | ReleasedFactors) -> list[Item]:
        """A pool by the exact vector of this user, which stays here."""
        read, scores = set(self.history.items()), pool.vectors @ self._vector(model)
        order = np.argsort(-scores.astype(np.float64), kind="stable").tolist()
        unread = [row for row in order if pool.ids[row] not in read][:k]
        return [Item(pool.ids[row], pool.titles[row], float(scores[row])) for row in unread]


def open_client(
    state: Path,
    release: Release,
    model: ReleasedModel,
    texts: Texts,
    *,
    server: ServerLink | None = None,
    allowance: Allowance | None = None,
) -> Client:
    """The device whose state lies in a folder; made if it is not there, with what it may ever spend.

    It trusts the key of the first release that it saw, or those that this key has handed over to, and never takes an
    older release than the newest that it used. Each later release is a new period of its budgets.
    """
    if allowance is not None:
        allowance.budgets()  # refuses what no ledger could keep, before anything is written
    key = state / "device.key"
    if state.is_dir() and not key.exists() and any(state.iterdir()):
        raise BadInput(f"{state} holds other things and no device: give a folder of its own, or an empty one")
    state.mkdir(mode=0o700, parents=True, exist_ok=True)
    seal = Seal(key_in(key))
    ledger = _ledger(state / "ledger.sqlite", release, allowance, seal)
    try:
        _accept(ledger, release)
        history = HistoryStore(state / "history.sqlite", seal)
    except BaseException:
        ledger.close()
        raise
    return Client(release, model, texts, history, ledger, server)


def _ledger(path: Path, release: Release, allowance: Allowance | None, seal: Seal) -> Ledger:
    if path.exists():
        if allowance is not None:
            raise BadInput(f"{path.parent} has its budget already: a device never raises it; leave the budget out")
        return Ledger.open(path, seal=seal)
    return Ledger.create(
        path,
        (allowance or Allowance()).budgets(),
        minimum_period_seconds=_PERIOD_SECONDS,
        first_period=release.version,
        seal=seal,
    )


def _accept(ledger: Ledger, release: Release) -> None:
    """Refuse a release of a stranger, or an older one; remember this one."""
    with ledger.transaction() as change:
        trusted, known = change.kept(_KEY), change.kept(f"{_NEWEST} {release.name}")
        if trusted is not None and release.key not in follow(trusted, release.keys):
            raise BadInput(
                f"release {release.name} is signed by {release.key.hex()[:16]}, and this device trusts"
                f" {trusted.hex()[:16]}, which has not handed over to it: nothing of it is used"
            )
        if known is not None:
            version, digest = known.decode().split()
            refuse_older(release, Newest(release.name, int(version), digest))
        change.keep(_KEY, release.key)
        change.keep(f"{_NEWEST} {release.name}", f"{release.version} {release.digest}".encode())
    if release.version > ledger.period:
        ledger.advance_period(release.version, release.signature, lambda number, _: number == release.version)
