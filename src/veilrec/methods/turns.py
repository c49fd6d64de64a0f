"""Noise on sums for when nobody can be trusted to draw cohorts: devices take turns, and the noise is a tree's."""

from __future__ import annotations

import math
from dataclasses import replace

from veilrec.errors import BadInput
from veilrec.methods.private import PrivacySettings
from veilrec.plan import Plan
from veilrec.privacy.accounting.accountant import noise_for
from veilrec.privacy.accounting.gaussian import mu_for
from veilrec.privacy.events import ComposedEvent, Event, TreeEvent
from veilrec.privacy.mechanisms.noise import left_by_sampler
from veilrec.privacy.mechanisms.tree import TreeSum
from veilrec.server.cohorts import CohortSettings
from veilrec.updates import Schema


def tree_sum(
    privacy: PrivacySettings,
    cohort: CohortSettings,
    schema: Schema,
    *,
    rounds: int,
    devices: int,
    before: Event | None = None,
    numbers_before: int = 0,
) -> TreeSum:
    """Noise of a tree, so that the whole run, and what was released `before` it, keeps the promise.

    In floor(devices / size) rounds one after another nobody has two turns: so many make a tree. Whether devices keep
    state does not matter: turns are public, so that what they keep follows from their own data and what was released.
    """
    if cohort.sampling != "turns":
        raise BadInput(f"cohort.sampling is {cohort.sampling}: a tree of noise needs --set cohort.sampling=turns")
    steps, turns = min(devices // cohort.among(devices), rounds), cohort.most_turns(rounds, devices)
    draws = sum(tensor.size for tensor in schema.tensors) * rounds + numbers_before
    epsilon, delta = left_by_sampler(privacy.epsilon, privacy.delta, draws)
    multiplier = math.sqrt(turns * steps.bit_length()) / mu_for(epsilon, delta)  # Gaussian releases: exact
    if before is not None:

        def together(noise_multiplier: float) -> Event:
            return ComposedEvent(((before, 1), (TreeEvent(noise_multiplier, steps), turns)))

        multiplier = noise_for(together, epsilon, delta, guess=multiplier)
    return TreeSum(
        schema=schema,
        clip_norm=privacy.clip_norm,
        noise_multiplier=multiplier,
        steps=steps,
        turns=turns,
        population=devices,
        delta=privacy.delta,
    )


def by_turns(plan: Plan, mechanism: TreeSum) -> Plan:
    """The same plan with this noise."""
    return replace(plan, mechanism=mechanism, most_turns=mechanism.taking_part.rounds)
