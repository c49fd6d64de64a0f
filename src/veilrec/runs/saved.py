"""A saved model that recommends, from its folder alone: by a history, or to a user of the training.

Histories on the command line: item ids in a line of CSV, or one a line in a file, and notes about them.
"""

from __future__ import annotations

import csv
import difflib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path

import numpy as np

from veilrec.client.rankers import ModelParts
from veilrec.core.arrays import Floats, Indices, Offsets
from veilrec.core.csr import Csr
from veilrec.core.errors import BadInput, counted, without_blanks_behind
from veilrec.core.features import CODES, UNKNOWN, Side, is_number
from veilrec.data.population import Strings
from veilrec.models.scores import KnowsPeople, Model, RestsOn, SaysWhatItUses, best_first, joined
from veilrec.privacy.guarantee import Guarantee
from veilrec.runs.model_files import Clients, find_model, load_clients, load_model

_ONE: Offsets = np.zeros(1, np.int64)
_NOBODY = Csr(np.zeros(1, np.int64), np.zeros(0, np.int32))
_SCORES_AT_ONCE = 1 << 22  # 16 MB of float32
_LOOKED_THROUGH = 20_000  # users, for ids that are like one that does not exist
_LAST = np.finfo(np.float64).max  # a score that is no number ranks behind all others


@dataclass(frozen=True)
class Recommendation:
    """A recommended item with its score."""

    item: str
    title: str
    score: float


@dataclass(frozen=True)
class Best:
    """The best items of some users, all by their numbers."""

    user: int
    items: Indices  # best first
    scores: Floats


@dataclass(frozen=True)
class SavedModel:
    """A trained model with its vocabularies; its users are read when one of them is asked for."""

    folder: Path
    method: str
    parts: ModelParts  # without the states of clients
    items: Strings
    titles: Strings | None
    guarantee: Guarantee

    @cached_property
    def clients(self) -> Clients:
        """What the users of the training keep."""
        return load_clients(self.folder)

    @cached_property
    def for_anybody(self) -> Model:
        """The model without users; it takes in new ones."""
        return self.parts.model(_NOBODY)

    @cached_property
    def for_users(self) -> Model:
        """The model for the users of the training, by their numbers."""
        clients, p = self.clients, self.parts
        return ModelParts(p.ranker, p.weights, clients.states, p.sent).model(clients.trained_on)

    def recommend(
        self, history: Sequence[str], k: int = 10, about: Mapping[str, str | float] | None = None
    ) -> list[Recommendation]:
        """Recommend the best items by a history of external item ids, the latest last.

        Items that the model does not know are passed over (`split_history` says which); without any item that it does
        know, the list is what the method gives to somebody new. `about` has values by the names of features, for a
        model that reads them; one that is not given, or never seen, is unknown.
        """
        known, _ = self.split_history(history)
        used = self.indices(known)  # as given: the latest click comes last
        return self.named(self._joining(used, used, k, people=self.people.encoded([about]) if about else None))

    def rests_on(self, history: Sequence[str]) -> RestsOn | None:
        """Describe what the list of a history is made of; None for a method that does not say."""
        known, _ = self.split_history(history)
        return self._said(self.indices(known))

    def rests_on_user(self, user: str) -> RestsOn | None:
        """Describe what the list of a user of the training is made of."""
        index, clients = self._user(user), self.clients
        own = clients.trained_on.row(index)
        return self._said(own if len(own) else self._joins_with(index))

    def _said(self, own: Indices) -> RestsOn | None:
        model = self.for_anybody
        return model.rests_on(own) if isinstance(model, SaysWhatItUses) else None

    @property
    def people(self) -> Side:
        """The features of people that the model reads, without rows."""
        model = self.for_anybody
        if not isinstance(model, KnowsPeople):
            raise BadInput(
                f"{self.method} reads nothing of people but their items: leave out what is known about them (--about)"
            )
        return model.people

    def indices(self, known: Sequence[str]) -> Indices:
        """The numbers of items that the model knows."""
        return np.array([_find(self.items, item) for item in known], np.int32)

    def knows(self, item: str) -> bool:
        """Whether an item was in the training."""
        return _find(self.items, item) is not None

    def split_history(self, history: Sequence[str]) -> tuple[list[str], list[str]]:
        """The items of a history that the model knows, and those that it does not; each once."""
        known: list[str] = []
        unknown: list[str] = []
        seen: set[int] = set()
        for item in history:
            index = _find(self.items, item)
            if index is None:
                unknown += [item] if item not in unknown else []
            elif index not in seen:
                seen.add(index)
                known.append(item)
        return known, unknown

    def recommend_user(self, user: str, k: int = 10) -> list[Recommendation]:
        """The best unused items of a user of the training, by the external id."""
        return self.named(next(self._for_some(np.array([self._user(user)]), k)))

    def _user(self, user: str) -> int:
        index = _find(self.clients.users, user)
        if index is None:
            raise _unknown_user(user, self.clients.users)
        return index

    def recommend_everybody(self, k: int = 10, *, first: int | None = None) -> Iterator[Best]:
        """The best unused items of every user, or of the first so many, some users at a time."""
        users = np.arange(len(self.clients.users), dtype=np.int64)[:first]
        at_once = max(1, _SCORES_AT_ONCE // len(self.items))
        for start in range(0, len(users), at_once):
            yield from self._for_some(users[start : start + at_once], k)

    def named(self, best: Best) -> list[Recommendation]:
        """By external ids, with titles where there are any."""
        return [
            Recommendation(self.items[item], self.titles[item] if self.titles else "", float(score))
            for item, score in zip(best.items.tolist(), best.scores, strict=True)
        ]

    def _for_some(self, users: Offsets, k: int) -> Iterator[Best]:
        took_part = self.clients.trained_on.lengths()[users] > 0
        scores = iter(self.for_users.score_all(users[took_part]) if took_part.any() else ())
        for user, known in zip(users.tolist(), took_part.tolist(), strict=True):
            used = self.clients.used.row(user)
            if known:
                yield best_of(next(scores), used, k, user)
            else:  # who never took part joins with what the client may learn from
                yield self._joining(self._joins_with(user), used, k, user, self._features_of(user))

    def _joins_with(self, user: int) -> Indices:
        """Return the items that the client of a user without training may learn from."""
        liked = self.clients.liked
        return (self.clients.used if liked is None else liked).row(user)

    def _features_of(self, user: int) -> Side | None:
        """Return the features of a user without training, for a model that reads them."""
        model, states = self.for_anybody, self.clients.states
        if not isinstance(model, KnowsPeople) or CODES not in states:
            return None
        return model.people.of(states, len(self.clients.users)).take(np.array([user]))

    def _joining(self, own: Indices, used: Indices, k: int, user: int = -1, people: Side | None = None) -> Best:
        history = Csr(np.array([0, len(own)], np.int64), np.ascontiguousarray(own, dtype=np.int32))
        return best_of(joined(self.for_anybody, history, people).score_all(_ONE)[0], used, k, user)


def open_model(folder: Path, method: str | None = None) -> SavedModel:
    """Open the model of a finished run, or a `model/` folder by itself.

    `method` is the file of the method that trained it, where that is not installed and ranks in a way of its own.
    """
    place = find_model(folder)
    files = load_model(place, method)
    parts = ModelParts(files.ranker, files.weights, sent=files.sent)
    opened = SavedModel(folder, files.method, parts, files.items, files.titles, files.guarantee)
    known = opened.for_anybody.n_items
    if known != len(files.items):
        raise BadInput(f"{place} is no whole model ({known} items, and {len(files.items)} ids): train again")
    return opened


def best_of(scores: Floats, used: Indices, k: int, user: int = -1) -> Best:
    """The k items of the highest scores that are not used; of equal ones the first."""
    worse = np.nan_to_num(-scores.astype(np.float64), nan=_LAST, posinf=_LAST)
    worse[used] = np.inf
    count = min(k, len(scores) - len(used))
    if count <= 0:
        return Best(user, np.zeros(0, np.int32), np.zeros(0, np.float32))
    chosen = best_first(worse[np.newaxis], count)[0]
    return Best(user, chosen.astype(np.int32), scores[chosen])


def _find(names: Strings, name: str) -> int | None:
    """The place of an id; blanks around it count only if there is one with them."""
    index = names.find(name)
    return names.find(name.strip()) if index is None else index


def _unknown_user(user: str, users: Strings) -> BadInput:
    """Error for a user who was not in the training, with those whose ids are most like it."""
    wanted = user.strip().lower()
    near = [name for name in users if name.lower() == wanted] or difflib.get_close_matches(
        user, islice(users, _LOOKED_THROUGH), n=3, cutoff=0.6
    )
    hint = f"did you mean {' or '.join(near[:3])}? " if near else ""
    few = ", ".join(islice(users, 3))
    return BadInput(
        f"no user {user!r} in this run: {hint}its {len(users):,} users have ids such as {few}; for somebody who was not"
        " in the training give --history"
    )


_SHOWN = 5  # unknown items that are named one by one
_NAMED = 25  # values of a feature that are


def read_history(texts: Sequence[str], knows: Callable[[str], bool] = lambda _: False) -> list[str]:
    """Ids with commas between them; one that holds a comma or a double quote stands in double quotes, as in CSV.

    A text that cannot be split into items that the model knows, and that is one itself, is that item.
    """
    ids: list[str] = []
    for text in texts:
        try:
            rows = list(csv.reader([without_blanks_behind(text, ",")], strict=True, skipinitialspace=True))
        except csv.Error as error:
            if knows(text.strip()):
                ids.append(text.strip())
                continue
            raise BadInput(
                f'--history {text!r} cannot be split ({error}): write a,b,c, an id with a comma as "a,b", and a double'
                ' quote in it as ""; or give --history-file'
            ) from None
        parts = [part.strip() for row in rows for part in row if part.strip()]
        ids += [text.strip()] if knows(text.strip()) and not all(map(knows, parts)) else parts
    return ids


def read_history_file(path: Path) -> list[str]:
    """One id a line, the latest last; blank lines are passed over."""
    try:
        content = sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
        text = content.decode("utf-8-sig")
    except OSError as error:
        raise BadInput(f"--history-file {path} cannot be read ({error.strerror}): give a readable file") from None
    except UnicodeDecodeError:
        raise BadInput(f"--history-file {path} is not UTF-8: give a text file with one item id a line") from None
    lines = text.replace("\r\n", "\n").split("\n")
    return [line.strip() for line in lines if line.strip()]


def read_about(texts: Sequence[str]) -> dict[str, str]:
    """Parse features of a user given as NAME=VALUE."""
    said: dict[str, str] = {}
    for text in texts:
        name, equals, value = (part.strip() for part in text.partition("="))
        if not (name and equals and value):
            raise BadInput(f"--about {text!r} says nothing: write NAME=VALUE, such as --about age=25")
        if name in said:
            raise BadInput(f"--about {name} is given twice: give it once, several values with what separates them")
        said[name] = value
    return said


def about_people(people: Side, about: Mapping[str, str]) -> Iterator[str]:
    """Describe the given values that the model cannot use."""
    for feature in people.features:
        value = about.get(feature.name)
        if value is None:
            continue
        if feature.kind == "number":
            if not is_number(value):
                yield f"{feature.name} {value!r} is no finite number: taken as unknown"
        elif UNKNOWN in feature.codes_of(value):
            few = ", ".join(feature.values[:_NAMED]) + (", ..." if len(feature.values) > _NAMED else "")
            yield f"{feature.name} {value!r} is not among what the model knows ({few}): taken as unknown"


def about_history(
    known: Sequence[str], unknown: Sequence[str], found: Sequence[Recommendation], *, says_more: bool = False
) -> Iterator[str]:
    """Describe what a list rests on, for the user who gave a history; less where the model `says_more`."""
    if unknown:
        named = ", ".join(repr(item) for item in unknown[:_SHOWN]) + (", ..." if len(unknown) > _SHOWN else "")
        rest = "none is left, as in an empty history"
        if known:
            rest = "the other one is used" if len(known) == 1 else f"the other {len(known):,} are used"
        yield f"{counted(len(unknown), 'item')} that the model does not know: {named}; {rest}"
    if not known:
        if len({best.score for best in found}) == 1 and len(found) > 1:
            yield "without a history this method has nothing to rank by: all items have the same score"
        elif not says_more:
            yield "without a history the list is what the method gives to somebody new"
