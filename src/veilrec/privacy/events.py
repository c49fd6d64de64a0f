"""What was done to somebody's privacy, as data: accounting reads it, nothing else does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from veilrec.core.errors import BadInput

if TYPE_CHECKING:
    from veilrec.core.plan import Plan


@dataclass(frozen=True)
class GaussianEvent:
    """Gaussian noise; mu = sensitivity / standard deviation, for the adjacency that the mechanism states."""

    mu: float


@dataclass(frozen=True)
class LaplaceEvent:
    """Laplace noise in one coordinate (or the worst case over L1): epsilon = sensitivity / scale."""

    epsilon: float


@dataclass(frozen=True)
class PureEvent:
    """Any epsilon-DP mechanism; accounted as randomised response, which is the worst of them."""

    epsilon: float


@dataclass(frozen=True)
class ResponseEvent:
    """One k-ary randomised response: the true one of `candidates` answers e^epsilon times as likely as any other."""

    epsilon: float
    candidates: int


@dataclass(frozen=True)
class SampledEvent:
    """A Gaussian release of which a person is part only by chance.

    fixed: a cohort of a fixed size drawn without replacement, replace-one; padding: a click is replaced by a pad with
    probability 1 - rate, replace-one; poisson: every person tosses a coin, add-remove. mu is relative to the same
    adjacency as the sampling.
    """

    mu: float
    rate: float
    sampling: Literal["fixed", "poisson", "padding"]


@dataclass(frozen=True)
class TreeEvent:
    """Tree aggregation (DP-FTRL) over `steps` rounds in which each person takes part at most once."""

    noise_multiplier: float
    steps: int


@dataclass(frozen=True)
class ComposedEvent:
    """Several events, one after another, each possibly repeated; later ones may depend on earlier outputs."""

    parts: tuple[tuple[Event, int], ...]


@dataclass(frozen=True)
class ParallelEvent:
    """Several events, each on people of its own: nobody is part of two, and who is part of which is public."""

    groups: tuple[Event, ...]


@dataclass(frozen=True)
class NonPrivateEvent:
    """Something left in plaintext: no epsilon is finite."""


Event: TypeAlias = (
    GaussianEvent
    | LaplaceEvent
    | PureEvent
    | ResponseEvent
    | SampledEvent
    | TreeEvent
    | ComposedEvent
    | ParallelEvent
    | NonPrivateEvent
)


def repeated(event: Event, count: int) -> ComposedEvent:
    """Repeat an event `count` times."""
    return ComposedEvent(((event, count),))


_KINDS: Mapping[str, type[Any]] = {
    "gaussian": GaussianEvent,
    "laplace": LaplaceEvent,
    "pure": PureEvent,
    "response": ResponseEvent,
    "sampled": SampledEvent,
    "tree": TreeEvent,
    "in-the-clear": NonPrivateEvent,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}


def event_to_json(event: Event) -> dict[str, Any]:
    """An event for result files."""
    if isinstance(event, ComposedEvent):
        return {"kind": "composed", "parts": [[event_to_json(part), count] for part, count in event.parts]}
    if isinstance(event, ParallelEvent):
        return {"kind": "parallel", "groups": [event_to_json(group) for group in event.groups]}
    return {"kind": _NAMES[type(event)], **asdict(event)}


def event_from_json(fields: object) -> Event:
    """Read what `event_to_json` wrote; what cannot be read raises."""
    try:
        values: dict[str, Any] = dict(fields)  # type: ignore[call-overload]
        kind = values.pop("kind")
        if kind == "composed":
            return ComposedEvent(tuple((event_from_json(part), _count(count)) for part, count in values["parts"]))
        if kind == "parallel":
            return ParallelEvent(tuple(event_from_json(group) for group in values["groups"]))
        event: Event = _KINDS[kind](**values)
    except (TypeError, ValueError, KeyError, RecursionError):
        raise BadInput(f"not a privacy event of veilrec: {str(fields)[:80]}") from None
    numbers = [value for name, value in values.items() if name != "sampling"]
    if not all(isinstance(value, float | int) for value in numbers):
        raise BadInput(f"not a privacy event of veilrec: {str(fields)[:80]}")
    return event


def _count(value: object) -> int:
    if not isinstance(value, int):
        raise TypeError(f"{value!r} is no number of times")
    return value


def training_event(plan: Plan) -> Event:
    """Return the privacy event of a whole training run under a plan.

    It composes the item reports and all rounds that a client may take part in; held-out validation clients never train,
    so that model selection composes with training in parallel.
    """
    parts: tuple[tuple[Event, int], ...] = plan.mechanism.events(plan.participations)
    if plan.reports is not None:
        asked = plan.rounds if plan.reports.fresh else 1  # a client may be in every cohort
        parts = ((plan.reports.mechanism.event(), asked), *parts)
    learning = ComposedEvent(parts)
    return (
        learning if plan.model_selection is None else ParallelEvent((learning, plan.model_selection.mechanism.event()))
    )
