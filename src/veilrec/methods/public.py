"""A plan is made of public facts: the facts, the neighbours that must not change a plan, and how two plans compare.

A plan depends on the catalogue, on the names of features, and on how many clients there are, never on what any of them
holds. Public facts are all of that with synthetic users in the place of the real ones: they have one click each, on the
first item; only whether a client has something to learn from is true, and that shows anyway: those without do not take
part. A plan of the facts has to be that of the data, and of neighbouring data with as many clients, its ranker's
settings and tables included: `data_in_plan` says where it is not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import islice
from types import FunctionType, MethodType
from typing import Any

import numpy as np

from veilrec.client.news_data import pack_logs
from veilrec.core.arrays import Bools, Bytes, Indices, Offsets
from veilrec.core.csr import Csr, offsets_of
from veilrec.core.features import Features, without_rows
from veilrec.core.plan import Plan
from veilrec.data.news_text import occurring
from veilrec.data.population import Impressions, Interactions, Population, Strings, take_impressions
from veilrec.methods.base import Method, NewsData, Problem

_RATINGS = "ratings"  # whether people rate: 1 or 0


def public_people(problem: Problem, items: Strings, *, tells_shown: bool, places: int = 0) -> Population:
    """Public facts of a problem, as a population of synthetic users; `tells_shown` adds which news were shown at all.

    Behind the people of the problem come so many `places` for people who are not there yet: to a plan, they are.
    """
    count = len(problem.train) + places
    later = np.ones(places, np.bool_)
    has_items = np.append(problem.train.lengths() > 0, later)
    impressions = {}
    if problem.news is not None:
        has_log = np.append(pack_logs(problem.news.impressions, len(problem.train), 1).lengths() > 0, later)
        told = occurring(problem.news.impressions, problem.n_items) if tells_shown else np.zeros(0, np.bool_)
        impressions["train"] = _shown_to(has_log, np.flatnonzero(told).astype(np.int32))
    features = problem.features
    return Population(
        "facts",
        Strings.of(str(number) for number in range(count)),
        items,
        Interactions(offsets_of(has_items), np.zeros(int(has_items.sum()), np.int32)),
        impressions,
        problem.catalogue if problem.news is None else problem.news.catalogue,
        {_RATINGS: int(problem.ratings is not None)},
        None if features is None else Features(without_rows(features.users.features, count), features.items),
    )


def _shown_to(people: Bools, told: Indices) -> Impressions:
    """Two items, and a click on the first, for each of these people; and one list of what was told, without a click."""
    users = np.append(np.flatnonzero(people), 0).astype(np.int32)
    count = len(users)
    shown = np.concatenate([np.tile(np.array([0, 1], np.int32), count - 1), told])
    clicked = np.concatenate([np.tile(np.array([1, 0], np.uint8), count - 1), np.zeros(len(told), np.uint8)])
    rows = Csr(offsets_of([*[2] * (count - 1), len(told)]), shown)
    nothing = Csr(np.zeros(2, np.int64), np.zeros(0, np.int32))
    return Impressions(users, np.zeros(count, np.int64), rows, clicked, nothing, np.zeros(count, np.int32))


def public_problem(people: Population, *, seed: int, rounds: int) -> Problem:
    """Make the problem that a method plans with from the public facts."""
    log = people.interactions
    news = None
    if "train" in people.impressions and people.catalogue is not None:
        news = NewsData(people.catalogue, people.impressions["train"])
    return Problem(
        Csr(log.offsets, log.items),
        people.n_items,
        seed,
        rounds,
        news,
        people.features,
        np.ones(len(log.items), np.float32) if people.facts[_RATINGS] else None,
        people.catalogue,
    )


def data_in_plan(method: Method[Any], config: Any, problem: Problem, *, neighbours: bool = True) -> str | None:
    """Where the plan of a problem depends on somebody's data, as the first difference that is found; None: nowhere."""
    make = method.plan
    if make is None:
        raise ValueError(f"{method.name} has no plan")

    def compared(one: Problem, other: Problem) -> str | None:
        plan = make(config, one)
        try:
            return different(plan, make(config, other))
        except Exception as error:  # whatever a method raises
            return f"plan: made of one of two neighbours alone ({_short(error)})"

    proven = method.guarantee(config).basis == "proven"
    names = Strings(np.zeros(problem.n_items + 1, np.int64), np.zeros(0, np.uint8))
    people = public_people(problem, names, tells_shown=not proven)
    public = public_problem(people, seed=problem.public_seed, rounds=problem.rounds)
    found = compared(problem, replace(public, people=problem.people))
    if found is not None or not neighbours:
        return found
    first, *others = neighbouring(problem, lambda one: method.clients(config, one).rows)
    return next((found for other in others if (found := compared(first.problem, other.problem)) is not None), None)


def different(first: Plan, second: Plan) -> str | None:
    """The first difference of two plans with its path, rankers' settings and tables included; None where there is none.

    Both have to be as they were made: parts that have worked may hold what they have seen.
    """
    one, other = ((plan.ranker.settings(), plan.ranker.tables(plan.start)) for plan in (first, second))
    return difference(first, second, "plan") or difference(one, other, "plan.ranker")


def difference(first: Any, second: Any, path: str, seen: set[tuple[int, int]] | None = None) -> str | None:
    """The path of the first difference of two objects, whatever they are made of, with both values where short."""
    seen = set() if seen is None else seen
    if first is second or (id(first), id(second)) in seen:
        return None
    seen.add((id(first), id(second)))
    if type(first) is not type(second):
        return f"{path}: {type(first).__name__} and {type(second).__name__}"
    if hasattr(first, "detach"):  # a tensor of torch, which this module does not import
        first, second = first.detach().numpy(), second.detach().numpy()
    if isinstance(first, np.ndarray | np.generic):
        alike = first.dtype == second.dtype and first.shape == second.shape and first.tobytes() == second.tobytes()
        return None if alike else f"{path}: {_short(first)} and {_short(second)}"
    parts, others = _parts(first), _parts(second)
    if parts is None or others is None:
        return (
            None if first == second or repr(first) == repr(second) else f"{path}: {_short(first)} and {_short(second)}"
        )
    if list(parts) != list(others):
        return f"{path}: {_short(list(parts))} and {_short(list(others))}"
    found = (difference(part, others[name], f"{path}.{name}", seen) for name, part in parts.items())
    return next((one for one in found if one is not None), None)


def _parts(value: Any) -> Mapping[str, Any] | None:
    """What an object is made of, by name; None of one that is compared as a whole."""
    if isinstance(value, Mapping):
        return {str(key): part for key, part in value.items()}
    if isinstance(value, list | tuple):
        return {str(place): part for place, part in enumerate(value)}
    if isinstance(value, partial):
        return {"func": value.func, "args": value.args, "keywords": value.keywords}
    if isinstance(value, MethodType):
        return {"function": value.__func__, "of": value.__self__}
    if isinstance(value, FunctionType):
        cells = dict(
            zip(value.__code__.co_freevars, (cell.cell_contents for cell in value.__closure__ or ()), strict=True)
        )
        return {"code": value.__code__, "defaults": value.__defaults__, "more": value.__kwdefaults__, **cells}
    if isinstance(value, type) or not hasattr(value, "__dict__"):
        return None
    lazy = {name for kind in type(value).__mro__ for name, of in vars(kind).items() if isinstance(of, cached_property)}
    return {name: part for name, part in vars(value).items() if name not in lazy}


def _short(value: Any) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= 40 else f"{text[:37]}..."


_NOTHING: Indices = np.zeros(0, np.int32)
_MANY = 16  # impressions of somebody who has every item
_PLACES = 16  # for somebody who comes; the last stays empty


@dataclass(frozen=True)
class Neighbour:
    """A problem beside another, and the people whose data differ: one who is somebody else, or who changes places."""

    problem: Problem
    people: tuple[int, ...]


def neighbouring(problem: Problem, clients: Callable[[Problem], Csr]) -> Iterator[Neighbour]:
    """A problem with some empty places, then its neighbours with as many clients: one person is another, or elsewhere.

    The first client has every item; the one with most data has a single one, or it leaves and comes to another place;
    and somebody who is in the data and does not train has every item, or a single one.
    """
    base = _with_places(problem)
    yield Neighbour(base, ())
    lengths = clients(base).lengths()
    one, most = int(np.flatnonzero(lengths)[0]), int(lengths.argmax())
    everything, single = np.arange(problem.n_items, dtype=np.int32)[::-1], np.array([problem.n_items - 1], np.int32)
    yield Neighbour(_changed(base, one, everything), (one,))
    yield Neighbour(_changed(base, most, single), (most,))
    places = range(len(problem.train), len(base.train) - 1)
    known = np.unique(problem.train.row_numbers())
    moved = (Neighbour(_moved(base, most, place), (most, place)) for place in places)
    idle = known[lengths[known] == 0].tolist()
    changed = ((Neighbour(_changed(base, who, items), (who,)) for who in idle) for items in (everything, single))
    count = int((lengths > 0).sum())
    for others in (moved, *changed):
        yield from islice((one for one in others if int((clients(one.problem).lengths() > 0).sum()) == count), 1)


def _with_places(problem: Problem) -> Problem:
    """The problem with empty places behind its people; whatever news occurs is shown to the last of them, unclicked."""
    count, features, news = len(problem.train), problem.features, problem.news
    ends = np.full(_PLACES, problem.train.offsets[-1], np.int64)
    if features is not None:
        users, strangers = features.users, features.users.strangers(_PLACES)
        codes = np.concatenate([users.codes, strangers.codes])
        numbers = np.concatenate([users.numbers, strangers.numbers])
        features = Features(replace(users, codes=codes, numbers=numbers), features.items)
    if news is not None:
        told = np.flatnonzero(occurring(news.impressions, problem.n_items)).astype(np.int32)
        news = replace(
            news, impressions=_shown(news.impressions, count + _PLACES - 1, told, np.zeros(len(told), np.uint8))
        )
    train = Csr(np.concatenate([problem.train.offsets, ends]), problem.train.items)
    return replace(problem, train=train, features=features, news=news, numbers=None)


def _changed(problem: Problem, person: int, items: Indices) -> Problem:
    """The problem with somebody else in a place: these items, the features of another person, and the least ratings."""
    start, end = problem.train.offsets[person : person + 2].tolist()
    train, ratings, features, news = problem.train, problem.ratings, problem.features, problem.news
    lengths = train.lengths()
    lengths[person] = len(items)
    if ratings is not None:
        ratings = np.concatenate([ratings[:start], np.full(len(items), 0.2, np.float32), ratings[end:]])
    if features is not None:
        rows: Offsets = np.arange(len(train))
        rows[person] = (person + 1) % len(train)
        features = Features(features.users.take(rows), features.items)
    if news is not None:
        kept = take_impressions(news.impressions, news.impressions.users != person)
        known = np.flatnonzero(occurring(news.impressions, problem.n_items)).astype(np.int32)
        shown = known if len(items) > 1 else known[-2:]
        clicked = (np.arange(len(shown)) >= len(shown) // 2).astype(np.uint8)
        for _ in range(_MANY if len(items) > 1 else 1):
            kept = _shown(kept, person, shown, clicked, history=known[: len(items) - 1])
        news = replace(news, impressions=kept)
    packed = Csr(offsets_of(lengths), np.concatenate([train.items[:start], items, train.items[end:]]))
    return replace(problem, train=packed, ratings=ratings, features=features, news=news)


def _moved(problem: Problem, person: int, place: int) -> Problem:
    """The problem whose person has gone, and is in another place that was empty."""
    rows: Offsets = np.arange(len(problem.train))
    rows[[person, place]] = place, person
    train, ratings, features, news = problem.train, problem.ratings, problem.features, problem.news
    if ratings is not None:
        ratings = ratings[Csr(train.offsets, np.arange(len(train.items), dtype=np.int32)).take(rows).items]
    if features is not None:
        features = Features(features.users.take(rows), features.items)
    if news is not None:
        users = np.where(news.impressions.users == person, np.int32(place), news.impressions.users)
        news = replace(news, impressions=replace(news.impressions, users=users))
    return replace(problem, train=train.take(rows), ratings=ratings, features=features, news=news)


def _shown(
    impressions: Impressions, person: int, items: Indices, clicked: Bytes, history: Indices = _NOTHING
) -> Impressions:
    """The impressions, and one more."""
    shown, past = impressions.shown, impressions.histories
    return replace(
        impressions,
        users=np.append(impressions.users, np.int32(person)),
        times=np.append(impressions.times, impressions.times.max(initial=0)),
        shown=Csr(np.append(shown.offsets, shown.offsets[-1] + len(items)), np.append(shown.items, items)),
        clicked=np.append(impressions.clicked, clicked),
        histories=Csr(np.append(past.offsets, past.offsets[-1] + len(history)), np.append(past.items, history)),
        history_of=np.append(impressions.history_of, np.int32(len(past))),
        oracle=None,
    )
