"""What two runs promise together, where the second starts from the model of the first: the plainest sum that holds.

Basic composition: a run that keeps (e1, d1) and another, chosen after seeing its outcome, that keeps (e2, d2) keep
(e1 + e2, d1 + d2) together, for whoever was in both. Whoever was in one of them has that one's promise, which is less.
"""

from __future__ import annotations

import math
from dataclasses import replace

from veilrec.privacy.events import ComposedEvent, Event
from veilrec.privacy.guarantee import TRUSTS, Adjacency, Guarantee, no_guarantee


def after(now: Guarantee, earlier: Guarantee, *, run: str) -> Guarantee:
    """The statement of a run that started from the model of an earlier one, called `run`."""
    if now.basis == "none":
        return replace(now, caveats=(f"It started from the run {run}: {earlier.line()}.", *now.caveats))
    both = f"This run alone: {now.line()}. The earlier run {run} that it started from: {earlier.line()}."
    if now.basis == "as published":
        on_top = f"{both} What the earlier run costs comes on top for whoever was in both."
        return replace(now, caveats=(on_top, *now.caveats))
    if earlier.basis != "proven":
        reason = "no proven noise covers what its model has learnt, so that nothing is promised of this one."
        return no_guarantee(f"{both} The model of the earlier run is in this one, and {reason}", *now.caveats)
    if (now.unit, now.scope) != (earlier.unit, earlier.scope):
        reason = "promises about different units or scopes do not add up: nothing is promised of the two together."
        return no_guarantee(f"{both} Two {reason}", *now.caveats)
    adjacency, (epsilon, delta) = _sum(now, earlier)
    if delta >= 1.0:
        reason = "their deltas add up to 1 or more, so that nothing is promised of the two together."
        return no_guarantee(f"{both} Brought to one adjacency, {reason}", *now.caveats)
    trust = max(TRUSTS.index(g.trust) for g in (now, earlier) if g.trust is not None)
    caveat = f"{both} The two together, for whoever was in both, by basic composition: epsilons and deltas add up."
    return replace(
        now,
        adjacency=adjacency,
        epsilon=epsilon,
        delta=delta,
        trust=TRUSTS[trust],
        caveats=(caveat, *now.caveats),
        event=_events(now, earlier),
    )


def _events(now: Guarantee, earlier: Guarantee) -> Event | None:
    """What was done in both; not known where one does not say, or was accounted for another adjacency."""
    if now.event is None or earlier.event is None or now.adjacency != earlier.adjacency:
        return None
    return ComposedEvent(((now.event, 1), (earlier.event, 1)))


def _sum(now: Guarantee, earlier: Guarantee) -> tuple[Adjacency, tuple[float, float]]:
    parts = [(g.adjacency, g.epsilon or 0.0, g.delta or 0.0) for g in (now, earlier)]
    if now.adjacency == earlier.adjacency == "add-remove":
        adjacency: Adjacency = "add-remove"
    else:
        # Replacing somebody is removing and adding somebody: group privacy for two.
        adjacency = "replace-one"
        parts = [(adjacency, *((2 * e, (1 + math.exp(e)) * d) if a == "add-remove" else (e, d))) for a, e, d in parts]
    return adjacency, (sum(e for _, e, _ in parts), sum(d for _, _, d in parts))
