"""What the private methods of the communication paper share: calibration, noise, and honest statements."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from veilrec.errors import BadInput
from veilrec.methods.base import Problem
from veilrec.privacy.accounting import Rounds, noise_multiplier_for
from veilrec.privacy.accounting.accountant import epsilon_of
from veilrec.privacy.accounting.calibration import noise_for
from veilrec.privacy.checks import positive, probability
from veilrec.privacy.events import ComposedEvent, Event, repeated
from veilrec.privacy.guarantee import Adjacency, Guarantee
from veilrec.privacy.sensitivity import clipped_l2
from veilrec.simulate.cohort import CohortSettings

SIMULATED = "A simulated run protects nobody."
SERVER_SEES = (
    "The server sees every clipped update before it adds the noise; whoever gets the model sees only sums."
)
NOT_COVERED = "The vector of a user never leaves the device and is not covered."
PUBLIC = "How many users there are, and the settings, are taken as public."


@dataclass(frozen=True, kw_only=True)
class PrivacySettings:
    """What is promised, and what is cut off to keep the promise."""

    epsilon: float = (
        8.0  # proven: of a user, over the whole run; as published: of a message, as the paper counts
    )
    delta: float = 1e-6
    clip_norm: float = 0.5  # proven: of a user's whole update of a round; as published: of each row or part

    def __post_init__(self) -> None:
        positive(epsilon=self.epsilon, clip_norm=self.clip_norm)
        probability(delta=self.delta)


def merged(*presets: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Presets over presets: settings of the same name, the last one counts."""
    result: dict[str, dict[str, Any]] = {}
    for preset in presets:
        for name, settings in preset.items():
            result[name] = _over(result.get(name, {}), settings)
    return result


def _over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    both = dict(below)
    for key, value in above.items():
        nested = isinstance(value, Mapping) and isinstance(both.get(key), Mapping)
        both[key] = _over(both[key], value) if nested else value
    return both


def adjacency_of(cohort: CohortSettings) -> Adjacency:
    """The adjacency that goes with the way of sampling."""
    return "add-remove" if cohort.sampling == "poisson" else "replace-one"


def devices_with_data(problem: Problem) -> int:
    """How many devices can take part."""
    return int((problem.train.lengths() > 0).sum())


def rounds_of(cohort: CohortSettings, problem: Problem) -> Rounds:
    """How often a user's data is used."""
    return Rounds(
        rounds=problem.rounds,
        sampling=cohort.sampling,
        population=max(
            devices_with_data(problem), cohort.size
        ),  # a cohort that is too large is refused later
        cohort=cohort.size,
    )


def sigma_of_sum(
    privacy: PrivacySettings, cohort: CohortSettings, problem: Problem, *, besides: Event | None = None
) -> float:
    """Noise on the sum of every round, so that the whole run (and what else was released) keeps the promise."""
    if cohort.sampling == "fixed" and (cohort.available < 1.0 or cohort.drop_out > 0.0):
        raise BadInput(
            "devices that may be missing make a fixed cohort a random one, for which nothing is proven: "
            "use --set cohort.sampling=poisson, or no cohort.available and cohort.drop_out"
        )
    rounds = rounds_of(cohort, problem)
    sensitivity = clipped_l2(privacy.clip_norm, rounds.adjacency)
    alone = noise_multiplier_for(privacy.epsilon, privacy.delta, rounds)
    if besides is None:
        return sensitivity * alone

    def together(noise_multiplier: float) -> Event:
        return ComposedEvent(((besides, 1), (rounds.event(noise_multiplier), 1)))

    return sensitivity * noise_for(together, privacy.epsilon, privacy.delta, guess=alone)


def participations(cohort: CohortSettings, problem: Problem) -> int:
    """In how many rounds a device takes part, on average, rounded up."""
    return math.ceil(problem.rounds * cohort.size / max(devices_with_data(problem), 1))


def proven(privacy: PrivacySettings, cohort: CohortSettings, *caveats: str) -> Guarantee:
    """The statement of sums with noise: user-level, over the whole run, trusting the server."""
    return Guarantee(
        basis="proven", unit="user", adjacency=adjacency_of(cohort), epsilon=privacy.epsilon,
        delta=privacy.delta, scope="whole run", trust="server",
        caveats=(*caveats, SERVER_SEES, NOT_COVERED, PUBLIC, SIMULATED),
    )  # fmt: skip


def as_published(privacy: PrivacySettings, *caveats: str) -> Guarantee:
    """The paper's claim: epsilon a device, as if one message were all."""
    return Guarantee(
        basis="as published", unit="user", adjacency="replace-one", epsilon=privacy.epsilon, delta=0.0,
        scope="per message", trust="nobody", caveats=(*caveats, SIMULATED),
    )  # fmt: skip


def honest(
    claim: Guarantee, message: Event, times: int, delta: float, *, note: str, run: Event | None = None
) -> Guarantee:
    """The claim with what accounting says beside it: of one message, and of the run (`times` of it, or `run`)."""
    one = epsilon_of(message, delta)
    if math.isinf(one):
        return _with(claim, None, None, f"No epsilon is finite, per message or over the run: {note}")
    whole = epsilon_of(repeated(message, times) if run is None else run, delta)
    told = f"over a run in which a device takes part {times} times, epsilon {whole:.4g} at delta {delta:g}"
    return _with(claim, one, delta, f"{note}; {told}")


def _with(claim: Guarantee, epsilon: float | None, delta: float | None, note: str) -> Guarantee:
    fields = {name: getattr(claim, name) for name in claim.__dataclass_fields__}
    return Guarantee(**fields | {"honest_epsilon": epsilon, "honest_delta": delta, "honest_note": note})
