"""What a way of serving promises: of one query, and of all that a device asks."""

from __future__ import annotations

from typing import Any

from veilrec.device.ways import Serving
from veilrec.errors import BadInput
from veilrec.privacy.accounting.accountant import epsilon_of
from veilrec.privacy.audit.flawed import FLAWS
from veilrec.privacy.events import repeated
from veilrec.privacy.guarantee import Guarantee, no_guarantee
from veilrec.privacy.mechanisms.base import Mechanism
from veilrec.privacy.mechanisms.interests import EmbeddingNoise

SIMULATED = "Measured with seeded noise on a log that lies in one place: the measurement protects nobody."
ONLY_THE_QUERY = "Only the query is covered: not what the model gives away of those it learnt from."
CLICKS_FOLLOW = "Clicks that follow, and that a device asks at all, are another matter."
_CLICK_ONLY = "One click is covered, not a habit: all clicks on one subject together move the message further."


def guarantee_of(serving: Serving, mechanism: Mechanism[Any, Any] | None) -> Guarantee:
    """Of one query."""
    if serving.mode == "plain":
        return no_guarantee("The server gets the user vector as it is.")
    if serving.mode == "none-sent":
        nothing = "Nothing is sent: the device downloads the same news as every other one and ranks them itself."
        return Guarantee(
            "proven", "history", "replace-one", 0.0, 0.0, "lifetime", "nobody", (nothing, ONLY_THE_QUERY, CLICKS_FOLLOW)
        )
    if mechanism is None:
        raise BadInput(f"serving by {serving.mode} has no mechanism, and so no guarantee")
    caveats = [*_scope(serving, mechanism), ONLY_THE_QUERY, CLICKS_FOLLOW, SIMULATED]
    honest: dict[str, Any] = {}
    published = mechanism.calibration == "as-published"
    if published:
        # A paper's delta of 0 is asked of pure noise only, which has an honest epsilon at 0.
        delta = mechanism.claimed_delta
        why = _why(mechanism) if mechanism.delta(mechanism.claimed_epsilon) > delta * (1.0 + 1e-6) else ""
        honest = {"honest_epsilon": epsilon_of(mechanism.event(), delta), "honest_delta": delta, "honest_note": why}
    return Guarantee(
        "as published" if published else "proven",
        mechanism.unit,
        mechanism.adjacency,
        mechanism.claimed_epsilon,
        mechanism.claimed_delta,
        mechanism.scope,
        mechanism.trust,
        tuple(caveats),
        event=mechanism.event(),
        **honest,
    )


def _why(mechanism: Mechanism[Any, Any]) -> str:
    if isinstance(mechanism, EmbeddingNoise) and mechanism.noise == "gaussian":
        return "the textbook formula for sigma is proved for epsilon below 1 only"
    return FLAWS[mechanism.name]


def _scope(serving: Serving, mechanism: Mechanism[Any, Any]) -> list[str]:
    told = []
    if serving.sensitive is not None:
        names = ", ".join(serving.sensitive)
        told.append(
            f"Only clicks on {names} are covered, and only being there, not there, or another one of these. All other"
            " clicks are told exactly, and what they let guess of the covered ones is not covered. The list of"
            " categories is visible itself, so it has to be the same for many people."
        )
    if mechanism.unit == "click":
        told.append(_CLICK_ONLY)
    if serving.padding and mechanism.calibration == "as-published":
        told.append("How many clicks there are is not covered: only clicks are padded, not the places without one.")
    return told


def composed(serving: Serving, mechanism: Mechanism[Any, Any] | None) -> Guarantee | None:
    """Of all queries that a device asks, honestly, whatever was claimed of one; None where one was asked about."""
    if serving.queries is None and not serving.memoised:
        return None
    if mechanism is None:
        raise BadInput(f"{serving.mode} sends no private query: leave --queries and --memoised out")
    count = serving.queries or 1
    drawn = 1 if serving.memoised else count
    delta = serving.delta or mechanism.claimed_delta
    event = repeated(mechanism.event(), drawn)
    asked = "1 query" if count == 1 else f"{count:,} queries"
    how = (
        f"{asked} of one public period and one version of the model, drawn once and then repeated: every further period"
        " and every new version costs as much again."
        if serving.memoised
        else f"{asked}, each with noise of its own; a device that asks more has spent more."
    )
    return Guarantee(
        "proven",
        mechanism.unit,
        mechanism.adjacency,
        epsilon_of(event, delta),
        delta,
        "per message" if serving.memoised else "lifetime",  # the next period's is another message
        mechanism.trust,
        (how, *_scope(serving, mechanism), ONLY_THE_QUERY, CLICKS_FOLLOW, SIMULATED),
        event=event,
    )
