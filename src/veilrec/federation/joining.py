"""Places that are kept free, who is invited to them later, and the data that a new client brings.

A plan is made for a number of clients that is public and fixed: the chance to be drawn, the order of a tree, what a sum
is divided by. So nobody is ever added to a plan. `init --places N` makes it for N clients more than there are, and an
empty place is a client that never answers; whoever takes it later takes what was planned for. That is sound where a
proof has room for clients that do not answer, and refused elsewhere.

The data of a person comes from a data set, or from a file of their own. Items are known by their names; those that the
federation does not know are left out. Nothing is held back to measure a model by: all of it is used for training.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from veilrec.client.local_training import LocalData
from veilrec.core.arrays import Indices
from veilrec.core.csr import Csr, offsets_of
from veilrec.core.errors import BadInput, counted
from veilrec.core.features import Features, Side
from veilrec.core.files import Seal, key_in, new_folder
from veilrec.core.plan import Plan
from veilrec.data.population import Impressions, Population, chosen_impressions, ratings_out_of_one
from veilrec.federation import federation, helper
from veilrec.federation.client import folder as client_folder
from veilrec.federation.client.folder import arrays_of
from veilrec.federation.coordinator.registry import Registry, Role
from veilrec.federation.facts import FederationFacts
from veilrec.federation.federation import CLIENTS, COORDINATOR, HELPERS, SecAgg
from veilrec.federation.identity import Invitation, keep
from veilrec.methods.base import NewsData, Problem
from veilrec.privacy.ledger import Ledger
from veilrec.privacy.mechanisms.schedules import TreeSum

Places = tuple[tuple[int, Role], ...]
"""Free places: the number of the client, and what it will do."""


def check_places(plan: Plan, *, tells_shown: bool, secagg: SecAgg) -> None:
    """Refuse free places where rounds may not have gaps, or where facts would have to know who comes."""
    gaps = plan.cohort.sampling == "poisson" or isinstance(plan.mechanism, TreeSum)
    if plan.mechanism.noise_on == "sum" and not gaps:
        raise BadInput(
            "--places leaves gaps in cohorts, and this method's proof is about whole ones: add --set"
            " cohort.sampling=poisson, or leave out --places"
        )
    if plan.reports is not None and plan.reports.who == "cohort":
        raise BadInput(
            "--places may leave a whole cohort empty, and every round of this method begins with its cohort's reports:"
            " use another method, or leave out --places"
        )
    if tells_shown:
        raise BadInput(
            "--places is not for this method: which news its clients were shown is a public fact, and nobody knows it"
            " of those who come later"
        )
    if secagg == "pairs":
        raise BadInput("--places goes with --secagg helpers or none: pairs are drawn from those who are there")


def places_in(everybody: LocalData, first: int) -> Places:
    """Return the places from a number on; clients without training data become validation clients."""
    learns = everybody.rows.lengths() > 0
    return tuple((number, "trainer" if learns[number] else "validator") for number in range(first, len(learns)))


def number_of(client: str, everybody: LocalData) -> int:
    """The number that a client's name stands for."""
    digits = client[1:]
    if client[:1] != "d" or not digits.isdecimal() or int(digits) >= len(everybody.rows):
        raise BadInput(f"{client!r} is no client of this federation: a name looks like d00003")
    return int(np.int64(digits))


@dataclass(frozen=True)
class OwnData:
    """The data of one person, as a client holds it."""

    data: LocalData  # one row
    left_out: int  # items that the federation does not know


def own_data(known: FederationFacts, number: int, people: Population, user: str | None = None) -> OwnData:
    """The data of one of these people, for the client of a number; without a name, of the only one there is."""
    who = _found(people, user)
    found = [known.people.items.find(name) for name in people.items]
    names = np.array([-1 if place is None else place for place in found], np.int32)
    own = people.interactions.pairs().row(who)
    there = names[own] >= 0
    problem = _with_items(known.problem, number, people, who, own[there], names)
    if problem.news is not None:
        problem = replace(problem, news=_with_impressions(problem.news, number, people, who, names))
    if problem.features is not None and people.features is not None:
        problem = replace(problem, features=_with_features(problem.features, number, people.features.users, who))
    data = known.method.clients(known.config, problem).take(np.array([number], np.int64))
    if any(array.dtype.kind == "f" and not np.isfinite(array).all() for array in arrays_of(data).values()):
        raise BadInput("this federation learns from ratings of 1 to 5, and the data has none: give them in a column")
    comparison = known.plan.model_selection
    if not len(data.rows.items) and not (comparison is not None and len(comparison.validator.clients(data))):
        raise BadInput(
            f"{people.users[who]!r} has nothing that this federation can learn from: of"
            f" {counted(len(own), 'item')} it knows {int(there.sum())}; items are known by their names, as in facts/"
        )
    return OwnData(data, int((~there).sum()))


def _found(people: Population, user: str | None) -> int:
    if user is None:
        if people.n_users != 1:
            raise BadInput(f"the data has {counted(people.n_users, 'user')}, and a client has one: name it with --user")
        return 0
    found = people.users.find(user)
    if found is None:
        raise BadInput(f"--user {user}: the data has nobody of that name; it has {people.users[0]!r} and others")
    return found


def _with_items(problem: Problem, number: int, people: Population, who: int, own: Indices, names: Indices) -> Problem:
    """The problem of the facts with this person's items, and ratings where people rate."""
    before, after = problem.train.offsets[number], problem.train.offsets[number + 1]
    lengths = problem.train.lengths()
    lengths[number] = len(own)
    items = np.concatenate([problem.train.items[:before], names[own], problem.train.items[after:]])
    train = Csr(offsets_of(lengths), items.astype(np.int32))
    if problem.ratings is None:
        return replace(problem, train=train)
    rated = ratings_out_of_one(people, Csr(offsets_of(np.where(np.arange(people.n_users) == who, len(own), 0)), own))
    if rated is None:
        rated = np.full(len(own), np.nan, np.float32)  # of no harm where a method does not look at them
    ratings = np.concatenate([problem.ratings[:before], rated, problem.ratings[after:]])
    return replace(problem, train=train, ratings=ratings.astype(np.float32))


def _with_features(known: Features, number: int, side: Side, who: int) -> Features:
    """Features of the person's own file, in the vocabulary of the federation; empty ones otherwise."""
    users = known.users
    if side.features != users.features:
        return known
    width = max(side.codes.shape[1], users.codes.shape[1])
    codes = np.full((len(users), width), -1, np.int32)
    codes[:, : users.codes.shape[1]] = users.codes
    codes[number] = -1
    codes[number, : side.codes.shape[1]] = side.codes[who]
    numbers = users.numbers.copy()
    numbers[number] = side.numbers[who]
    return Features(Side(users.features, codes, numbers), known.items)


def _with_impressions(news: NewsData, number: int, people: Population, who: int, names: Indices) -> NewsData:
    """The lists of the facts but those of this device, and in their place what the person was shown."""
    parts = [chosen_impressions(news.impressions, news.impressions.users != number)]
    for split in people.impressions.values():
        own = chosen_impressions(split, split.users == who)
        parts.append(replace(_renamed(own, names), users=np.full(len(own), number, np.int32)))
    return NewsData(news.catalogue, _joined(parts))


def _renamed(split: Impressions, names: Indices) -> Impressions:
    """Renumber items to those of the federation, without items that it does not know."""
    kept = names[split.shown.items] >= 0
    return replace(
        split, shown=_only(split.shown, names), clicked=split.clicked[kept], histories=_only(split.histories, names)
    )


def _only(rows: Csr, names: Indices) -> Csr:
    kept = names[rows.items] >= 0
    lengths = np.bincount(rows.row_numbers()[kept], minlength=len(rows))
    return Csr(offsets_of(lengths), names[rows.items[kept]])


def _joined(parts: Sequence[Impressions]) -> Impressions:
    firsts = np.cumsum([0, *(len(part.histories) for part in parts)])
    return Impressions(
        np.concatenate([part.users for part in parts]),
        np.concatenate([part.times for part in parts]),
        _stacked([part.shown for part in parts]),
        np.concatenate([part.clicked for part in parts]),
        _stacked([part.histories for part in parts]),
        np.concatenate(
            [part.history_of + first for part, first in zip(parts, firsts[:-1], strict=True)], dtype=np.int32
        ),
    )


def _stacked(rows: Sequence[Csr]) -> Csr:
    lengths = np.concatenate([part.lengths() for part in rows])
    return Csr(offsets_of(lengths), np.concatenate([part.items for part in rows]))


@dataclass(frozen=True)
class InvitedClient:
    """A client that was invited, and its folder."""

    name: str
    role: Role
    folder: Path
    brought: OwnData | None  # None: the user brings it
    announcement: str  # for helpers: whoever has this place has that invitation
    told: tuple[str, ...]  # helpers of this machine, who have heard
    free: int  # places that are left


def invite(
    folder: Path, known: FederationFacts, people: Population | None = None, user: str | None = None
) -> InvitedClient:
    """Hand out the next free place, with a person's data in its folder, or none for the user to bring."""
    made = federation.read(folder)
    if made.rehearsal:
        raise BadInput(f"{folder} is a rehearsal, whose people are all there from the start: nobody is invited to it")
    with Registry(folder / COORDINATOR) as registry:
        return take_place(folder, known, registry, people, user)


def take_place(
    folder: Path,
    known: FederationFacts,
    registry: Registry,
    people: Population | None,
    user: str | None,
    shared: bytes | None = None,
) -> InvitedClient:
    """Hand out the next free place of an open registry; `shared` is the secret of a rehearsal."""
    free = sorted((entry for entry in registry.entries() if entry.free), key=lambda entry: entry.client)
    if not free:
        raise BadInput(
            f"{folder} has no free place: the noise of its plan was chosen for those that it has; make a federation"
            " with `federate init --places`"
        )
    place = free[0]
    name = place.client
    number = number_of(name, known.method.clients(known.config, known.problem))
    brought = None if people is None else own_data(known, number, people, user)
    invitation, target = Invitation.new(name, known.federation.digest), folder / CLIENTS / name
    if target.exists():
        raise BadInput(f"{target} is there, and nobody was invited to it (a crash?): remove it and invite again")
    target.parent.mkdir(mode=0o700, exist_ok=True)
    data = None if brought is None else brought.data
    with new_folder(target, private=True) as part:
        client_folder.write(part, data, invitation, number=number, place=place.number, shared=shared)
        announcement = helper.announcement(name, place.member, invitation.public)
        keep(part / helper.ANNOUNCEMENT, announcement + "\n")
    registry.hand_out(name, invitation.public)
    helpers = sorted((folder / HELPERS).glob("*"))
    for each in helpers:
        helper.admit(each, announcement)
    told = tuple(each.name for each in helpers)
    return InvitedClient(name, place.role, target, brought, announcement, told, len(free) - 1)


def bring(folder: Path, known: FederationFacts, people: Population, user: str | None = None) -> OwnData:
    """Put a user's own data into the folder of their client, before it first takes part."""
    about = client_folder.read_record(folder)
    if Ledger.was_made(folder / client_folder.LEDGER) or (folder / client_folder.DATA).exists():
        raise BadInput(f"{folder} has data already: what a client has learnt from stays what it learns from")
    brought = own_data(known, about.number, people, user)
    client_folder.write_data(folder, brought.data, Seal(key_in(folder / client_folder.KEY)))
    return brought
