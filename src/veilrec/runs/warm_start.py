"""A run that starts from the model of an earlier one: what is carried over, and what that costs.

Vectors of items go by the ids of the items, those of words by the words; what is new starts as in a new run. All other
shared weights are copied. What a simulated client keeps goes by the id of its user. Optimisers start afresh.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veilrec.client import fcf, mf
from veilrec.client.rankers import Ranker
from veilrec.core.arrays import Indices
from veilrec.core.errors import BadInput, VeilrecError, counted
from veilrec.data.population import Population, Strings
from veilrec.evaluation.split import Split, count_common, marks_of
from veilrec.privacy.guarantee import Guarantee, after
from veilrec.runs.checkpoint import CONFIG, PRIVATE, RESULT, digest, read_config
from veilrec.runs.model_files import Clients, ModelFiles, find_model, load_clients, load_model
from veilrec.runs.noise import READ_OFF, kept_secret
from veilrec.simulation.simulation import Trainer

_ITEM_TABLES = {mf.ITEMS, fcf.ITEMS}  # rows are items; news models have none, since they read them
_NAMED = ("words", "categories", "subcategories", "entities")  # tables of news models
_SENT = "sent"
_NEXT = 1_000_003  # between the seeds of a run and of one that starts from it


@dataclass(frozen=True)
class WarmStart:
    """The run that another one starts from."""

    folder: Path
    files: ModelFiles
    clients: Clients | None  # None: only its folder `model/` is there
    generation: int  # how many runs it started from, one after the other
    known: Mapping[str, Any] = field(default_factory=dict)  # what its result.json says, where it is there

    @property
    def name(self) -> str:
        """Name of the run in shared statements, without its path."""
        return self.folder.resolve().name

    def seed(self, seed: int) -> int:
        """Seed of all draws of the new run: those of the earlier one, its noise among them, must not come again."""
        return seed + _NEXT * (self.generation + 1)

    def together(self, now: Guarantee) -> Guarantee:
        """What the new run promises with what the earlier one has cost already."""
        return after(now, self.files.guarantee, run=self.name)

    @property
    def seeded(self) -> bool:
        """Whether noise in its model, its own or that of a run before it, can be drawn again."""
        stated = self.files.guarantee
        return stated.basis != "none" and bool(stated.obstacle) and READ_OFF not in stated.obstacle

    @property
    def read_off(self) -> tuple[str, ...]:
        """What keeps this run, and what starts from it, from being published beside noise."""
        if READ_OFF not in self.files.guarantee.obstacle:
            return ()
        return (f"the earlier run {self.name} is not to be published for the same reason: train it again",)

    @cached_property
    def sha256(self) -> str:
        """Digest of its weights."""
        return digest(self.files.weights)

    def description(self) -> dict[str, Any]:
        """What config.yaml says of it."""
        return {
            "run": str(self.folder.resolve()),
            "method": self.files.method,
            "weights_sha256": self.sha256,
            "generation": self.generation + 1,
        }

    def history(self) -> dict[str, Any]:
        """Its noise and the run that it started from itself, as far as is known: for a statement about all of them."""
        return {"noise": self.known.get("noise"), "start_from": self.known.get("start_from")}


@dataclass(frozen=True)
class CarriedOver:
    """What a new run has of an earlier one."""

    items: int  # of the new run that the earlier one knew
    new_items: int
    users: int  # whose clients go on with what they kept
    new_users: int
    test_seen: int | None  # test items or impressions that the earlier run was trained on; None: not known

    def notes(self) -> Iterator[str]:
        """For the user to read."""
        yield (
            f"starts with {counted(self.items, 'item')} and {counted(self.users, 'user')} of the earlier run;"
            f" {counted(self.new_items, 'item')} and {counted(self.new_users, 'user')} start afresh"
        )
        if self.test_seen is None:
            yield "the earlier run came without its private part: whether it was trained on test items is not known"
        elif self.test_seen:
            yield (
                f"the earlier run was trained on {self.test_seen:,} of what the test asks for, and the metrics flatter:"
                " with the protocol and seed of the earlier run this is left where somebody used an item again later;"
                " a run without --from has none of it"
            )


def read_earlier(folder: Path, secret: bytes | None = None) -> WarmStart:
    """Open the run to start from; also its folder `model/` alone. Its secret may not be that of the new run as well.

    The same noise on the sums of both would leave what their people differ by.
    """
    has_secret = secret is not None and (folder / CONFIG).exists() and (folder / PRIVATE).is_dir()
    if has_secret and secret == kept_secret(folder):
        raise BadInput(
            f"a run that starts from {folder} cannot draw its noise from the same secret: what they differ by would"
            " show; train into a new folder, which draws its own"
        )
    files = load_model(find_model(folder))
    clients = load_clients(folder) if (folder / PRIVATE).is_dir() else None
    started_from = read_config(folder).get("start_from") if (folder / CONFIG).exists() else None
    generation = started_from["generation"] if isinstance(started_from, dict) else 0
    return WarmStart(folder, files, clients, int(generation), _known(folder))


def _known(folder: Path) -> Mapping[str, Any]:
    try:
        result = json.loads((folder / RESULT).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}  # its model alone, handed on
    return result if isinstance(result, dict) else {}


def carry_over(earlier: WarmStart, method: str, trainer: Trainer, population: Population, split: Split) -> CarriedOver:
    """Put what the earlier run has learnt into a trainer that has not learnt yet."""
    try:
        parts, old = trainer.parts(), earlier.files
    except VeilrecError:  # nothing before its first step, which is its only one
        raise BadInput(
            f"{method} is computed from the data at once and starts from nothing: leave out --from"
        ) from None
    _refuse_other_kind(earlier, method, parts.ranker)
    if set(parts.weights) != set(old.weights):
        odd = sorted(set(parts.weights) ^ set(old.weights))
        raise _other_shape(earlier, method, f"only one of the two models has {odd[0]}")
    state = {name: np.array(values) for name, values in trainer.state().items()}
    known = _places(population.items, old.items)
    for name in parts.weights:
        start, learnt = np.array(parts.weights[name]), old.weights[name]
        if start.shape[1:] != learnt.shape[1:]:
            raise _other_shape(earlier, method, f"{name} has rows of {learnt.shape[1:]} there, {start.shape[1:]} here")
        if parts.ranker.kind == "news":
            rows = _rows_by_name(name, parts.ranker, old.ranker)
        else:
            rows = known if name in _ITEM_TABLES else None
        if rows is None and start.shape != learnt.shape:
            raise _other_shape(earlier, method, f"{name} has the shape {learnt.shape} there and {start.shape} here")
        merged = learnt
        if rows is not None:
            known_rows = (rows >= 0).reshape(-1, *([1] * (start.ndim - 1)))
            merged = np.where(known_rows, learnt[np.maximum(rows, 0)], start)
        for key in (name, f"server.weights.{name}", f"average.{name}"):
            if key in state:
                state[key] = merged.astype(state[key].dtype)
    if _SENT in state:
        was_sent = np.ones(len(old.items), np.bool_) if old.sent is None else old.sent
        state[_SENT] = np.where((known >= 0) & was_sent[np.maximum(known, 0)], 1, 0).astype(state[_SENT].dtype)
    users = _carry_clients(earlier, parts.private, state, population)
    trainer.load_state(state, 0)
    items = int((known >= 0).sum())
    seen = None if earlier.clients is None else _count_seen(earlier.clients, old.items, population, split)
    return CarriedOver(items, population.n_items - items, users, population.n_users - users, seen)


def _refuse_other_kind(earlier: WarmStart, method: str, ranker: Ranker) -> None:
    kind, old = ranker.kind, earlier.files.ranker.kind
    if kind != old:
        raise BadInput(
            f"{method} learns a model of the kind {kind}, and {earlier.folder} ({earlier.files.method}) holds one of"
            f" the kind {old}: start from a run of {method} or its like, or leave out --from"
        )
    if kind == "news":
        _refuse_other_sentences(earlier, ranker)


def _refuse_other_sentences(earlier: WarmStart, ranker: Any) -> None:
    old: Any = earlier.files.ranker
    if ranker.architecture.network != old.architecture.network or ranker.reader.sentences != old.reader.sentences:
        raise BadInput(
            f"{earlier.folder} holds the network {old.architecture.network} and this is {ranker.architecture.network}:"
            " start from a run of the same method, or leave out --from"
        )
    ours, theirs = ranker.reader.axes, old.reader.axes
    if (ours is None) != (theirs is None) or (ours is not None and not np.array_equal(ours.axes, theirs.axes)):
        raise BadInput(
            f"the sentence vectors of {earlier.folder} were cut to the axes of its own news, and these have others:"
            " train both with --set text.sentence_dim=384, or leave out --from"
        )


def _other_shape(earlier: WarmStart, method: str, problem: str) -> BadInput:
    return BadInput(
        f"{method} as configured does not fit the model of {earlier.folder} ({problem}): use the sizes in its"
        f" {CONFIG}, for instance --set local.dim=..., or leave out --from"
    )


def _places(names: Sequence[str], among: Strings) -> Indices:
    """Where each name stands in another list; -1: nowhere."""
    found = (among.find(name) for name in names)
    return np.fromiter((-1 if place is None else place for place in found), np.int32, len(names))


def _rows_by_name(weight: str, ranker: Any, old: Any) -> Indices | None:
    """Rows of a table of words or the like, by the words; None: a weight that belongs to no list of names."""
    table = weight.removesuffix(".weight").rpartition(".")[2]
    if table not in _NAMED or not weight.endswith(".weight"):
        return None
    now, then = getattr(ranker.reader.names, table), getattr(old.reader.names, table)
    reserved = len(now) - len(now.words)  # padding, and what is unknown
    places = _places(now.words, Strings.of(then.words))
    rows = np.concatenate([np.arange(reserved, dtype=np.int32), np.where(places < 0, -1, places + reserved)])
    if table != "words" or ranker.reader.pad_word is None:
        return rows
    return np.append(rows, -1 if old.reader.pad_word is None else old.reader.pad_word)  # behind all words


def _carry_clients(
    earlier: WarmStart, private: Mapping[str, NDArray[Any]], state: dict[str, NDArray[Any]], population: Population
) -> int:
    """The states of clients whose users the earlier run knew; how many there are."""
    clients = earlier.clients
    if clients is None or not private:
        return 0
    places = _places(population.users, clients.users)
    known = places >= 0
    for name in private:
        if name not in clients.states or clients.states[name].shape[1:] != private[name].shape[1:]:
            continue  # of another protection: the client begins without
        for key in (name, f"private.{name}"):
            if key in state:
                state[key][known] = clients.states[name][places[known]]
    return int(known.sum())


def _count_seen(clients: Clients, items: Strings, population: Population, split: Split) -> int:
    """Test items, or test impressions, that the earlier run has learnt from."""
    asked = split.test.impressions
    if asked is not None:
        if clients.learnt_from is None:
            return 0
        these = marks_of(asked).named(population.users, population.items)
        return count_common(these, clients.learnt_from.named(clients.users, items))
    user_of, item_of = _places(population.users, clients.users), _places(population.items, items)
    users = user_of[split.test.users[split.test.positives.row_numbers()]].astype(np.int64)
    tested = item_of[split.test.positives.items].astype(np.int64)
    both = (users >= 0) & (tested >= 0)
    learnt = clients.trained_on.row_numbers() * len(items) + clients.trained_on.items
    return int(np.isin(users[both] * len(items) + tested[both], learnt).sum())
