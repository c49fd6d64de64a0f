"""Bugs that leave every single number as it should be: what depends on others, on the round, or on half of a secret.

All seeds are fixed. Each audit fails a sound plan by chance with probability at most 2e-4; the sound ones are in
`test_whole_run` and `test_bounded_mutations`.
"""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from tests.audit import planted_bugs, test_bounded_mutations, test_feature_mutations, test_plan_mutations
from tests.audit.planted_bugs import (
    HEAD,
    LONG_FIXED,
    LONG_MF,
    LONG_POISSON,
    LONG_ROWS,
    NEWS,
    PAST,
    SIZES,
    SUB,
    VOTES,
    Bug,
    noisy,
    setting,
    wrapped,
)
from tests.audit.test_bounded_mutations import ACCOUNTED, IN_A_TREE
from tests.audit.test_bounded_mutations import failed as failed_of_trees
from tests.audit.test_mutations import failed as failed_of_rounds
from tests.audit.test_whole_run import failed
from veilrec.audit import whole_run
from veilrec.audit.plan import AGAIN, NOT_ONCE, PUBLISHED
from veilrec.audit.plan_sums import OFF_LATTICE
from veilrec.client import mf
from veilrec.core.schema import from_vectors, to_vectors
from veilrec.privacy.mechanisms.sums import CohortSum, GainSum
from veilrec.privacy.randomness import KeyedSource, noise_of_client
from veilrec.server.aggregation import Aggregator
from veilrec.server.round_specs import CohortSampler
from veilrec.server.server import Server
from veilrec.simulation import pieces
from veilrec.simulation.pieces import CohortWorker
from veilrec.simulation.simulation import Simulation

ALONE = "how far a sum moves where its clients train one by one, in clip norms"
REAL = "largest norm of an update of a client"
HOSTILE = "largest norm of an update that is made to be large"
OUTCOMES = "outcomes of a comparison that one validation client more changes past the noise"
GAINS = "standard deviation of the noise on the validation clients' sum"


def flat(other):
    """Another noise, made of the numbers of the sound one as a vector."""
    return noisy(lambda self, total, noise: other(noise.reshape(-1).copy()).reshape(noise.shape))


def pairs_alike(noise):
    noise[1::2] = noise[::2][: len(noise[1::2])]
    return noise


def mirrored(noise):
    half = len(noise) // 2
    noise[len(noise) - half :] = -noise[:half][::-1]
    return noise


def rows_alike(noise):
    return np.repeat(noise[::4], 4)[: len(noise)]


def cut_off(noise):
    most = 3.0 * noise.std()
    return np.clip(noise, -most, most)


def clipped_otherwise(change):
    """Another way of bounding a cohort: made of the sound outcome, of what came, and of the bound."""

    def bound(sound, self, updates, spec):
        view, limit = spec.view(self.schema), self._clip_norm(spec)
        vectors = change(to_vectors(sound(self, updates, spec), view), to_vectors(updates, view), limit)
        return replace(from_vectors(vectors.astype(np.float32), view), examples=updates.examples)

    return wrapped(CohortSum, "bound", bound)


def only_the_first_five(bounded, came, limit):
    return np.concatenate([bounded[:5], came[5:]])


def not_a_lone_one(bounded, came, limit):
    return came if len(came) == 1 else bounded


def by_the_largest_of_the_cohort(bounded, came, limit):
    largest = np.linalg.norm(came.astype(np.float64), axis=1).max(initial=0.0)
    return came * min(1.0, limit / max(largest, 1e-300)) if np.isfinite(largest) else bounded


def exact_sums(share, when):
    """A share of the sum before its noise reaches the model in some rounds."""

    def plant(patch):
        protect, change = Server.protect, Server._change

        def kept(self, source):
            self.bare = {name: total.copy() for name, total in self._aggregator.sums.items()}
            protect(self, source)

        def changed(self):
            found = change(self)
            if not when(self.spec.number):
                return found
            return {
                name: value + np.float32(share) * self.bare[name].astype(np.float32) for name, value in found.items()
            }

        patch.setattr(Server, "protect", kept)
        patch.setattr(Server, "_change", changed)

    return plant


@partial(wrapped, Server, "protect")
def noise_by_who_came(sound, self, source):
    before = {name: total.copy() for name, total in self._aggregator.sums.items()}
    sound(self, source)
    for name, total in self._aggregator.sums.items():
        total[...] = before[name] + (total - before[name]) * max(self._aggregator.clients, 1) / 20


@partial(wrapped, mf.MfLocalTrainer, "learn")
def a_little_of_the_others(sound, self, cohort, model, spec):
    done = sound(self, cohort, model, spec)
    rows = done.updates.tables["items"]
    rows.values[...] += rows.values.mean(axis=0)
    return done


@partial(wrapped, Simulation, "__init__")
def the_busier_half(sound, self, plan, data, *of, **how):
    """Who used less than others never takes part."""
    sound(self, plan, data, *of, **how)
    lengths = data.rows.lengths()[self.sampler.eligible]
    self.sampler.eligible = self.sampler.eligible[lengths >= np.median(lengths)]


def secretly(other):
    return wrapped(CohortSampler, "_secretly", other)


@partial(wrapped, KeyedSource, "__init__")
def half_of_the_key(sound, self, key, *of):
    sound(self, key[:16] + bytes(len(key) - 16), *of)


@partial(wrapped, Simulation, "compare")
def by_how_many_validated(sound, self):
    asked = self.plan.model_selection
    self.plan = replace(
        self.plan, model_selection=asked and replace(asked, people=len(asked.validator.clients(self.data)))
    )
    return sound(self)


@partial(wrapped, mf.MfLocalTrainer, "learn")
def others_from_round_1(sound, self, cohort, model, spec):
    done = sound(self, cohort, model, spec)
    if spec.number:
        rows = done.updates.tables["items"]
        rows.values[...] += rows.values.mean(axis=0)
    return done


@partial(wrapped, CohortSum, "protect")
def uncut(sound, self, sums, spec, source):
    """Noise of the lattice on sums that keep all their digits."""
    noise = {name: np.zeros_like(total) for name, total in sums.items()}
    sound(self, noise, spec, source)
    for name, drawn in noise.items():
        sums[name][...] += drawn


@partial(wrapped, CohortWorker, "_bounded")
def a_client_again(sound, self, piece, opened):
    """The first client of a piece learns and is bounded once more, and its message goes nowhere."""
    first = {name: getattr(piece, name)[:1] for name in ("clients", "numbers", "arrives")}
    sound(self, replace(piece, **first, private={name: kept[:1] for name, kept in piece.private.items()}), opened)
    return sound(self, piece, opened)


@partial(wrapped, Aggregator, "add")
def every_message_twice(sound, self, updates):
    before = self.vector.copy()
    sound(self, updates)
    self.vector += self.vector - before


@partial(wrapped, Server, "_change")
def shared_by_who_came(sound, self):
    """A mean of exactly those who came, where everybody is in every round."""
    return {name: change * np.float32(60.0 / max(self._aggregator.clients, 1)) for name, change in sound(self).items()}


@partial(wrapped, Simulation, "_mean_loss")
def a_rate_by_the_loss(sound, self, losses):
    loss, optimiser = sound(self, losses), self.server._optimiser
    optimiser.settings = replace(optimiser.settings, rate=optimiser.settings.rate * (1.0 + 1e-3 * (loss or 0.0)))
    return loss


def published(change):
    """Other parts of the model that is published: made of the simulation and of the sound ones."""
    return wrapped(Simulation, "parts", lambda sound, self: change(self, sound(self)))


def with_peoples_vectors(run, parts):
    return replace(parts, weights={**parts.weights, **run.private})


def as_often_used(run, parts):
    return replace(parts, sent=np.bincount(run.data.rows.items, minlength=60) > 8)


BUGS = (
    Bug(
        "a client comes twice",
        NEWS,
        whole_run.TWICE,
        wrapped(CohortSampler, "draw", lambda sound, *of: np.sort(np.append(sound(*of), sound(*of)[:1]))),
    ),
    Bug("messages count twice", VOTES, NOT_ONCE, every_message_twice),
    Bug("a client learns twice", VOTES, AGAIN, a_client_again),
    Bug("a client's update has the others' in it from round 1 on", LONG_MF, ALONE, others_from_round_1),
    Bug("sums that are not cut to the lattice", LONG_MF, OFF_LATTICE, uncut),
    Bug("noise off the lattice", LONG_MF, OFF_LATTICE, flat(lambda noise: noise * (1.0 + 1e-6))),
    Bug("divided by how many came, of everybody", LONG_MF, whole_run.PAST, shared_by_who_came),
    Bug(
        "the exact number of reports",
        SUB,
        whole_run.PAST,
        setting(Simulation, "_reported", lambda self, asked: len(asked)),
    ),
    Bug("a rate by the loss", LONG_MF, PAST, a_rate_by_the_loss),
    Bug("people's vectors are published", LONG_MF, PUBLISHED, published(with_peoples_vectors)),
    Bug("which items are used often is published", SUB, PUBLISHED, published(as_often_used)),
    Bug("pairs of numbers have the same noise", LONG_MF, whole_run.WITHIN, flat(pairs_alike)),
    Bug("the second half of the noise is the first, turned round", LONG_MF, whole_run.WITHIN, flat(mirrored)),
    Bug("four numbers in a row have the same noise", LONG_MF, whole_run.WITHIN, flat(rows_alike)),
    Bug("noise is cut off at three standard deviations", LONG_MF, whole_run.TAILS, flat(cut_off)),
    Bug("only the first five of a cohort are clipped", LONG_MF, REAL, clipped_otherwise(only_the_first_five)),
    Bug("who is alone is not clipped", LONG_MF, HOSTILE, clipped_otherwise(not_a_lone_one)),
    Bug("clipped by the largest", LONG_MF, whole_run.BESIDE, clipped_otherwise(by_the_largest_of_the_cohort)),
    Bug("a client's update has the others' in it", LONG_MF, ALONE, a_little_of_the_others),
    Bug("bare sums from round 8 on", LONG_MF, whole_run.PAST, exact_sums(1e-3, lambda number: number >= 8)),
    Bug("a bare sum in the last round", LONG_MF, whole_run.PAST, exact_sums(1e-6, lambda number: number == 19)),
    Bug("noise by how many came", LONG_POISSON, PAST, noise_by_who_came),
    Bug("the busier half takes part", LONG_POISSON, SIZES, the_busier_half),
    Bug("half of the secret", LONG_MF, whole_run.EVERY_BYTE, half_of_the_key),
    Bug(
        "cohorts by one byte of the secret",
        LONG_FIXED,
        whole_run.EVERY_BYTE,
        secretly(lambda sound, self, secret, number: sound(self, secret[:1] + bytes(31), number)),
    ),
    Bug(
        "cohorts from the public seed from round 8 on",
        LONG_POISSON,
        whole_run.PUBLIC_COHORTS,
        secretly(lambda sound, self, *of: sound(self, *of) if of[1] < 8 else self._chosen(of[1])),
    ),
    Bug(
        "clients 8 apart have the same noise",
        LONG_ROWS,
        whole_run.WORDS,
        setting(pieces, "noise_of_client", lambda secret, number, client: noise_of_client(secret, number, client % 8)),
    ),
    Bug("a verdict by how many validated", HEAD, OUTCOMES, by_how_many_validated),
    Bug(
        "half the noise on gains",
        HEAD,
        GAINS,
        wrapped(GainSum, "protect", lambda sound, self, total, of: total + (sound(self, total, of) - total) / 2),
    ),
)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name.replace(" ", "-"))
def test_a_planted_bug_is_found(bug, monkeypatch):
    bug.plant(monkeypatch)
    run = failed_of_rounds if bug.spec in (NEWS, SUB) else failed
    assert bug.seen_by in run(bug.spec)


def test_a_turn_that_comes_too_early_is_found(monkeypatch):
    sound = CohortSampler.draw
    monkeypatch.setattr(CohortSampler, "draw", lambda self, number: sound(self, 2 if number == 3 else number))
    assert {ACCOUNTED, IN_A_TREE} <= failed_of_trees("tree")


def test_there_are_as_many_bugs_as_the_docs_say():
    tables = (
        (bug.name for bug in (*planted_bugs.BUGS, *planted_bugs.OVER_TIME)),
        (bug.name for bug in test_bounded_mutations.BUGS),
        (bug.name for bug in test_feature_mutations.BUGS),
        (*test_plan_mutations.DATA_BUGS, *test_plan_mutations.ROLES, *test_plan_mutations.ROUND_BUGS),
        (bug.name for bug in BUGS),
    )
    assert sum(len(set(names)) for names in tables) > 190
