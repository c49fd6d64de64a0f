"""Bugs to plant in the objects that train, each with the plan that it breaks and the check that has to see it."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from veilrec.audit import whole_run
from veilrec.audit.plan import TOGETHER, audit_plan
from veilrec.core import rng
from veilrec.core.plan import Plan
from veilrec.core.schema import copied
from veilrec.methods import private
from veilrec.methods.priv_fedmf_sub import common
from veilrec.methods.references import item_item
from veilrec.privacy.accounting import Rounds, noise_multiplier_for
from veilrec.privacy.events import ComposedEvent, training_event
from veilrec.privacy.mechanisms import clipping, local, responses
from veilrec.privacy.mechanisms import sums as sums_module
from veilrec.privacy.mechanisms.reports import ItemHistogram, VoteReports
from veilrec.privacy.mechanisms.sums import CohortSum
from veilrec.privacy.randomness import FastSource, KeyedSource, noise_of_client, noise_of_report, noise_of_sum
from veilrec.server.round_specs import CohortSampler
from veilrec.server.server import Server
from veilrec.simulation import pieces, simulation
from veilrec.simulation.simulation import Simulation

Patch = pytest.MonkeyPatch
FREE = ComposedEvent(())
SAME = b"the same secret for everything.."

MF = "dp-fedmf"
POISSON = "dp-fedmf cohort.size=20"
FIXED = "dp-fedmf cohort.size=20 cohort.sampling=fixed"
FEW = "dp-fedmf cohort.size=2"
SVD = "dp-fedmf-svd"
NCF = "dp-fedncf"
PARTS = "dp-fedncf-dgc"
SUB_PARTS = "priv-fedncf-sub-compress"
SUB = "priv-fedmf-sub selection.max_items=8"
SUB_FIXED = "priv-fedmf-sub selection.max_items=8 cohort.sampling=fixed"
CLICK = "priv-fedmf-sub selection.unit=click"
NEWS = "fednewsrec cohort.size=20"
VOTES = "private-popularity"
GRAM = "private-gram"
ROWS_PUBLISHED = "dp-fedmf calibration=as-published"
UPDATE_PUBLISHED = "dp-fedncf calibration=as-published"
PRIVATE = (MF, POISSON, FIXED, FEW, SVD, NCF, PARTS, SUB_PARTS, SUB, SUB_FIXED, CLICK, NEWS, VOTES, GRAM)
SOUND = (*PRIVATE, ROWS_PUBLISHED, UPDATE_PUBLISHED)

SPREAD = "standard deviation of the noise on a sum"
BARE = "numbers of a round without noise"
OUTSIDE = "numbers outside of a round that carry anything"
REPEATS = "pairs of noises that repeat each other"
PAST = "numbers of the model that data reaches past the noise"
NORM = "largest norm of an update of a client"
HOSTILE = "largest norm of an update that is made to be large"
NAN = "norm of what is left of an update with NaN"
LONG = "a message that is twice as long as the bound"
RATE = "how often a client takes part"
ACCOUNTED_RATE = "the chance to take part that is accounted for"
MAX_DRAWN = "how often the most drawn client takes part"
SECRETS = "cohorts of two secrets"
SIZES = "variance of the size of a cohort"
SHAPE = "distance of the noise from a Gaussian"
TOLD = "standard deviation that the officer is told"
MOVED = "how far one unit moves a sum, as accounted for"
DELTA = "delta of the composed run at the claimed epsilon"
CHARGED = "epsilon that is charged, beside what the measured noise costs"
ADJACENCY = "adjacency of the mechanism"
ITEMS = "items of one client in the counts"
VOTED = "squared votes of one client in the counts"
COUNTS = "standard deviation of the noise on the counts"
REPORTS = "times that a client's report is charged for"
MADE_UP = "bits of a report that are made up"
MESSAGE = "epsilon of a message, from the noise that was measured"
UNSENT = "numbers that are sent without noise"
SHORTCUT = "noise of a simulation that draws it at once"


@dataclass(frozen=True)
class Bug:
    """What is wrong, where, and which check sees it."""

    name: str
    spec: str
    seen_by: str
    plant: Callable[[Patch], Any] = lambda patch: None
    change: Callable[[Plan], Plan] = lambda plan: plan


def wrapped(kind, name, other):
    """Another function or method, which gets the sound one first."""
    sound = getattr(kind, name)
    return lambda patch: patch.setattr(kind, name, lambda *of, **how: other(sound, *of, **how))


def no_noise_on(name):
    return protect(lambda sound, sums, *rest: sound({key: sums[key] for key in sums if key != name}, *rest))


# Forget that somebody's votes are one together.
a_vote_for_every_item = wrapped(
    VoteReports, "weigh", lambda sound, self, told: told * sound(self, told).max(initial=0) * 2
)


def failed_checks(plan, data, train, claimed, rounds):
    """The checks that an audit of a plan fails; of a sound one by chance with probability at most 2e-4."""
    checks = audit_plan(plan, data, train, claimed, rounds=rounds, drawn=400)
    assert sum(check.false_alarm_rate for check in checks) < 2e-4
    return {check.name for check in checks if not check.holds}


def noisy(factor):
    """Another noise: made of the mechanism, the sum and the sound one."""
    return wrapped(
        CohortSum,
        "_noisy",
        lambda sound, self, total, *of: total + factor(self, total, sound(self, total, *of) - total),
    )


def protect(other):
    """Another way of protecting sums, which gets the sound one first."""
    return wrapped(CohortSum, "protect", lambda sound, self, *of: other(partial(sound, self), *of))


def all_but_the_last(sound, sums, spec, source):
    sound({name: sums[name] for name in list(sums)[:-1]}, spec, source)


def elsewhere(sound, sums, spec, source):
    sound(sums, replace(spec, public_seed=spec.public_seed + 1), source)


def always_the_same(sound, sums, spec, source):
    sound(sums, spec, KeyedSource(SAME, 0))


def the_same_for_every_tensor(sound, sums, spec, source):
    for name in sums:
        sound({name: sums[name]}, spec, KeyedSource(SAME, spec.number + (1000 if source.protects else 0)))


def by_tensor(updates, clip_norm):
    kept = copied(updates)
    for rows in (*kept.tables.values(), *kept.entries.values()):
        clipping.clip_clients([(rows.offsets, rows.values)], [], clip_norm)
    for values in kept.dense.values():
        clipping.clip_clients([], [values], clip_norm)
    return kept


def one_by_one(updates, clip_norm):
    """Every number by itself, as if a vote were one item."""
    kept = copied(updates)
    for rows in kept.tables.values():
        np.clip(rows.values, -clip_norm, clip_norm, out=rows.values)
    return kept


def less(epsilon, delta, rounds):
    """Noise for half of what one person moves."""
    return noise_multiplier_for(epsilon, delta, rounds) / 2.0


def every_item(patch):
    """Forget how many items of a client may count."""
    for name in ("report", "count"):
        sound = getattr(ItemHistogram, name)

        def forgetful(self, *arguments, sound=sound, **options):
            most, self.max_items = self.max_items, self.length
            try:
                return sound(self, *arguments, **options)
            finally:
                self.max_items = most

        patch.setattr(ItemHistogram, name, forgetful)


def exact_votes(self, counts, source):
    return counts * self.step


def longer(plan):
    """Tastes that come three times as long as the bound."""
    return replace(plan, trainer=replace(plan.trainer, norm=3.0))


def accounted(**other):
    """Another way of taking part in the accounts than in the rounds."""
    return wrapped(private, "taking_part", lambda sound, *of, **how: replace(sound(*of, **how), **other))


@partial(wrapped, private, "noise_multiplier_for")
def half_the_rounds(sound, epsilon, delta, rounds):
    return sound(epsilon, delta, replace(rounds, rounds=rounds.rounds // 2))


@partial(wrapped, CohortSampler, "__init__")
def twice_as_many(sound, self, *arguments, **options):
    sound(self, *arguments, **options)
    self.size = min(2 * self.size, len(self.eligible))


def cohorts_from_the_seed(patch):
    patch.setattr(CohortSampler, "_secretly", lambda self, secret, number: self._chosen(number))


@partial(wrapped, Server, "_change")
def a_row_outside(sound, self):
    """Tell in a row that the round is not about what all changes add up to."""
    change = sound(self)
    for tensor in self.schema.tables:
        if self.spec.rows is not None:
            outside = np.setdiff1d(np.arange(tensor.shape[0]), self.spec.rows)[:1]
            change[tensor.name][outside] += np.float32(self._aggregator.vector.sum() / self.fixed_point.most)
    return change


def no_entry_left_out(patch):
    patch.setattr(sums_module, "in_entries", lambda updates, spec: updates)


def nan_is_nothing(patch):
    def planted(*arguments):
        with np.errstate(all="ignore"):
            squares = np.zeros(1)
            for offsets, values in arguments[0]:
                squares = np.add.reduceat(np.nan_to_num((values.astype(np.float64) ** 2).sum(axis=1)), offsets[:-1])
            return np.sqrt(squares)

    patch.setattr(clipping, "client_norms", planted)


@partial(wrapped, local.NoisyMessage, "perturb")
def noise_before_the_clip(sound, self, bounded, spec, source):
    return self.bound(sound(self, bounded, spec, source), spec)


@partial(wrapped, local, "noisy_messages")
def a_tensor_as_it_is(sound, updates, **options):
    sent, last = sound(updates, **options), list(updates.dense)[-1:]
    return replace(sent, dense={**sent.dense, **{name: updates.dense[name] for name in last}})


@partial(wrapped, local, "noisy_messages")
def rows_as_they_are(sound, updates, **options):
    sent = sound(updates, **options)
    for name, rows in sent.tables.items():
        rows.values[:5] = updates.tables[name].values[:5]
    return sent


def clipped_sums_with_noise_before(patch):
    """Every client adds noise, then clips; the sum gets none."""
    sound = CohortSum.bound

    def planted(self, updates, spec):
        loud = sums_module.noisy_messages(updates, law="gaussian", scale=self.sigma, source=FastSource(spec.number))
        return sound(self, loud, spec)

    patch.setattr(CohortSum, "bound", planted)
    patch.setattr(CohortSum, "protect", lambda self, sums, spec, source: None)


def charged_once(plan):
    """A new report every round, and the cost of one."""
    return _OneReport(**{**vars(plan), "reports": replace(plan.reports, fresh=True)})


class _OneReport(Plan):
    def event(self):
        return ComposedEvent(((self.reports.mechanism.event(), 1), (self.mechanism.event(), self.rounds)))


class _NoReport(Plan):
    def event(self):
        return ComposedEvent(((self.mechanism.event(), self.rounds),))


def own_account(patch):
    """The accounting of a plan that composes its own event."""

    def event(plan):
        return plan.event() if isinstance(plan, _OneReport | _NoReport) else training_event(plan)

    for module in ("plan", "plan_messages"):
        patch.setattr(f"veilrec.audit.{module}.training_event", event)


def not_accounted_for(patch):
    """Noise chosen as if the selection were free, beside a plan that does not charge it."""
    patch.setattr(common, "cost_of", lambda *_: FREE)
    own_account(patch)


def with_sigma(factor):
    def change(plan):
        plan.mechanism.sigma *= factor
        return plan

    return change


def free(sound, *of, **how):
    """Votes that the noise of the rounds leaves no room for."""
    return replace(sound(*of, **how), event=FREE)


def without_reports(plan):
    """The plan with an event that leaves its reports out."""
    return _NoReport(**vars(plan))


def other(**changed):
    """The plan with other parts."""
    return lambda plan: replace(plan, **changed)


def setting(target, name, value):
    return lambda patch: patch.setattr(target, name, value)


sound_bound = CohortSum._clip_norm
seeded_noise = setting(
    Simulation, "_source_of_sums", lambda self, number: FastSource(self.seeds.noise, number, one_generator=True)
)
always_the_first = wrapped(CohortSampler, "draw", lambda sound, self, number: sound(self, 0))
noise_of_one = wrapped(
    local, "noise_of_sum", lambda sound, schema, weights, *rest, **how: sound(schema, weights[:1], *rest, **how)
)
sound_flips = responses.flip_probability

BUGS = (
    Bug("half the noise on sums", MF, SPREAD, noisy(lambda _, total, noise: noise / 2)),
    Bug("a twentieth less noise on sums", MF, SPREAD, noisy(lambda _, total, noise: 0.95 * noise)),
    Bug("protect adds none", MF, BARE, setting(CohortSum, "protect", lambda *arguments: None)),
    Bug("the last tensor without noise", NCF, BARE, protect(all_but_the_last)),
    Bug("noise on other entries than are sent", PARTS, BARE, protect(elsewhere)),
    Bug("noise only where there is data", FEW, BARE, noisy(lambda _, total, noise: noise * (total != 0.0))),
    Bug("the same noise in every round", MF, REPEATS, protect(always_the_same)),
    Bug("the same noise for every tensor", NCF, REPEATS, protect(the_same_for_every_tensor)),
    Bug("noise that is rounded to its sign", MF, SHAPE, noisy(lambda *of: of[-1].std() * np.sign(of[-1]))),
    Bug("noise from the public seed although there is a secret", MF, REPEATS, seeded_noise),
    Bug(
        "a histogram without noise", SUB, COUNTS, setting(ItemHistogram, "protect", lambda _, sums, source: 1.0 * sums)
    ),
    Bug("counts of replaced as of added", SUB_FIXED, COUNTS, setting(common, "adjacency_of", lambda _: "add-remove")),
    Bug("a histogram of more items of a client than may count", SUB, ITEMS, every_item),
    Bug("the selection not accounted for", SUB, DELTA, setting(common, "cost_of", lambda *_: FREE)),
    Bug("the selection neither accounted for nor charged", SUB, TOLD, not_accounted_for, without_reports),
    Bug("the selection not charged", SUB, REPORTS, own_account, without_reports),
    Bug("reports drawn anew every round and charged once", CLICK, REPORTS, own_account, charged_once),
    Bug("lies half as often", CLICK, MADE_UP, setting(responses, "flip_probability", lambda e: sound_flips(e) / 2)),
    Bug("a click moves a sum as if its user came", CLICK, MOVED, setting(Rounds, "moved", lambda self, most: most)),
    Bug("clipped tensor by tensor", NEWS, HOSTILE, setting(sums_module, "clip_whole", by_tensor)),
    Bug("a tenth of sigma", NEWS, SPREAD, change=with_sigma(0.1)),
    Bug("the clip forgotten", MF, NORM, setting(CohortSum, "bound", lambda self, updates, spec: updates)),
    Bug("the clip doubled", MF, NORM, setting(CohortSum, "_clip_norm", lambda *of: 2.0 * sound_bound(*of))),
    Bug("noise before the clip", MF, BARE, clipped_sums_with_noise_before),
    Bug("half the noise on votes", VOTES, SPREAD, noisy(lambda _, total, noise: noise / 2)),
    Bug("votes that are not cut", VOTES, NORM, setting(sums_module, "clip_whole", lambda updates, clip_norm: updates)),
    Bug("votes that are cut one by one", VOTES, NORM, setting(sums_module, "clip_whole", one_by_one)),
    Bug("messages of votes that nobody checks", VOTES, LONG, setting(CohortSum, "check", lambda *arguments: None)),
    Bug("noise on votes for half of what one moves", VOTES, TOLD, setting(private, "noise_multiplier_for", less)),
    Bug("tastes that nobody clips", GRAM, NORM, setting(sums_module, "clip_whole", lambda sent, norm: sent), longer),
    Bug("no noise on tastes", GRAM, BARE, setting(CohortSum, "protect", lambda *arguments: None)),
    Bug("noise on half of the triangle", GRAM, BARE, noisy(lambda _, total, noise: np.triu(noise))),
    Bug("the same noise on both halves", GRAM, CHARGED, noisy(lambda _, total, noise: (noise + noise.T) / 2)),
    Bug("votes that the budget does not count", GRAM, DELTA, wrapped(item_item, "private_votes", free)),
    Bug("votes that are not charged", GRAM, REPORTS, own_account, without_reports),
    Bug("votes without noise", GRAM, COUNTS, setting(VoteReports, "protect", exact_votes)),
    Bug("more than one vote a person", GRAM, VOTED, a_vote_for_every_item),
    Bug("NaN passes the bound", MF, NAN, nan_is_nothing),
    Bug("the server takes messages of any length", MF, LONG, setting(CohortSum, "check", lambda *arguments: None)),
    Bug("entries that the round is not about are sent", SUB_PARTS, OUTSIDE, no_entry_left_out),
    Bug("a row outside of the round is released", SUB, PAST, a_row_outside),
    Bug("a sum weighted by the number of examples", MF, PAST, change=other(aggregation="weighted-mean")),
    Bug("rows divided by how many changed them", MF, PAST, change=other(aggregation="row-mean")),
    Bug("a sum divided by how many came", POISSON, PAST, change=other(aggregation="mean")),
    Bug("weights shrink by how many came", POISSON, PAST, change=other(decay_share=0.01)),
    Bug("noise for half of the rounds", MF, SPREAD, half_the_rounds),
    Bug("cohorts twice as large as accounted for", POISSON, RATE, twice_as_many),
    Bug("always the same cohort", POISSON, MAX_DRAWN, always_the_first),
    Bug("cohorts from the public seed although there is a secret", POISSON, SECRETS, cohorts_from_the_seed),
    Bug("independent coins accounted for as cohorts of one size", POISSON, ADJACENCY, accounted(sampling="fixed")),
    Bug("cohorts of one size accounted for as coins", FIXED, MOVED, accounted(sampling="poisson", cohort=20)),
    Bug("fixed cohorts amplified in spite of state", FIXED, ACCOUNTED_RATE, accounted(sampling="fixed", cohort=20)),
    Bug("a message with one tensor as it is", UPDATE_PUBLISHED, MESSAGE, a_tensor_as_it_is),
    Bug("a message with some rows as they are", ROWS_PUBLISHED, UNSENT, rows_as_they_are),
    Bug("a message with noise before the clip", UPDATE_PUBLISHED, MESSAGE, noise_before_the_clip),
    Bug("the noise of all messages at once is that of one", ROWS_PUBLISHED, SHORTCUT, noise_of_one),
)

# Bugs of rounds, streams, cohorts and time: most of them are in no round that real clients train in an audit.
ALL_NORMS, ALL_SPREAD, ALL_REPEATS = whole_run.NORMS, whole_run.SPREAD, whole_run.REPEATS
LONG_MF, LONG_NCF = "dp-fedmf rounds=20", "dp-fedncf rounds=12"
LONG_POISSON, LONG_FIXED = (f"dp-fedmf rounds=20 cohort.size=20 cohort.sampling={way}" for way in ("poisson", "fixed"))
LONG_ROWS = "dp-fedmf calibration=as-published rounds=12"
LONG_CLICK = "priv-fedmf-sub selection.unit=click rounds=12"
HEAD = "fednewsrec-head network=public-head text.sentences=titles text.sentence_dim=8 cohort.size=0 rounds=3"


def from_round(first, other):
    """Another way of protecting sums, from a round on; it gets the sound one first."""
    return protect(lambda sound, sums, spec, *of: (other if spec.number >= first else _sound)(sound, sums, spec, *of))


def _sound(sound, *of):
    sound(*of)


def loud(factor):
    """Noise of another size in some rounds: the factor is made of the round's number."""

    def planted(sound, sums, spec, source):
        before = {name: total.copy() for name, total in sums.items()}
        sound(sums, spec, source)
        for name, total in sums.items():
            total[...] = before[name] + factor(spec.number) * (total - before[name])

    return protect(planted)


def numbered(number):
    """Noise of another round."""
    return protect(lambda sound, sums, spec, source: sound(sums, spec, source.of(number(spec.number))))


def drawn(number):
    """The cohort of another round."""
    return wrapped(CohortSampler, "draw", lambda sound, self, of: sound(self, number(of)))


def unclipped(wrong):
    """No clipping in some rounds."""
    return wrapped(
        CohortSum, "bound", lambda sound, self, sent, spec: sent if wrong(spec.number) else sound(self, sent, spec)
    )


@protect
def turned_round(sound, sums, spec, source):
    """Every second round takes the noise of the one before it back."""
    turned = spec.number % 2 == 1
    before = {name: total.copy() for name, total in sums.items()}
    sound(sums, spec, source.of(spec.number - turned))
    for name, total in sums.items():
        total[...] = 2.0 * before[name] - total if turned else total


@partial(wrapped, CohortSampler, "draw")
def who_was_not_drawn_before(sound, self, number):
    """Every second cohort is of the people that the one before it left out."""
    if number % 2 == 0:
        return sound(self, number)
    left = np.setdiff1d(self.eligible, sound(self, number - 1))
    return np.sort(np.random.default_rng(number).choice(left, self.size, replace=False))


@partial(wrapped, CohortSampler, "draw")
def a_third_again(sound, self, number):
    """A part of the last cohort is drawn again."""
    now, before = sound(self, number), sound(self, max(number - 1, 0))
    chosen = np.random.default_rng(number).permutation(len(before))[: len(before) // 3]
    return np.union1d(now[len(chosen) :], before[chosen])


@partial(wrapped, CohortSampler, "draw")
def with_a_neighbour(sound, self, number):
    """People with even numbers bring the next one along: everybody is drawn as often as before."""
    return np.array([one for one in self.eligible if one - one % 2 in sound(self, number)], np.int64)


class _Shifted:
    """The words of one stream for all rounds, a few further on in each."""

    protects = True

    def __init__(self, number):
        self._source = KeyedSource(SAME, 0)
        self._source.words(30 * number)

    def words(self, count):
        return self._source.words(count)


@partial(wrapped, Simulation, "load_state")
def counted_from_the_restart(sound, self, state, done):
    sound(self, state, done)
    named = self._source_of_sums
    self._source_of_sums = lambda number: named(number - done)


@partial(wrapped, Simulation, "load_state")
def another_secret_after_a_restart(sound, self, state, done):
    sound(self, state, done)
    self.seeds = replace(self.seeds, secret=SAME)


@partial(wrapped, Simulation, "_source_of_sums")
def public_from_round_8(sound, self, number):
    return sound(self, number) if number < 8 else KeyedSource(SAME, number)


def any_length_from_round_8(patch):
    sound = CohortSum.check
    patch.setattr(CohortSum, "check", lambda self, sent, spec: sound(self, sent, spec) if spec.number < 8 else None)


@partial(wrapped, responses.RandomisedResponse, "release")
def lies_at_the_same_places(sound, self, own, source):
    return sound(self, own, KeyedSource(SAME, 0))


@partial(wrapped, local.NoisyMessage, "perturb")
def quiet_messages_from_round_8(sound, self, bounded, spec, source):
    whole, self.scale = self.scale, self.scale * (0.5 if spec.number >= 8 else 1.0)
    try:
        return sound(self, bounded, spec, source)
    finally:
        self.scale = whole


OVER_TIME = (
    Bug("noise repeats every 8 rounds", LONG_MF, ALL_REPEATS, numbered(lambda number: number % 8)),
    Bug("the last round has the noise of the first", LONG_MF, ALL_REPEATS, numbered(lambda n: n if n < 19 else 0)),
    Bug("every second round takes the noise of the last one back", LONG_MF, ALL_REPEATS, turned_round),
    Bug(
        "noise of a round is that of the last one, shifted",
        LONG_MF,
        ALL_REPEATS,
        protect(lambda sound, sums, spec, source: sound(sums, spec, _Shifted(spec.number))),
    ),
    Bug("the secret is forgotten from round 8 on", LONG_MF, ALL_REPEATS, public_from_round_8),
    Bug("half the noise from round 8 on", LONG_MF, ALL_SPREAD, loud(lambda number: 0.5 if number >= 8 else 1.0)),
    Bug("half the noise in the last round", LONG_MF, ALL_SPREAD, loud(lambda number: 0.5 if number == 19 else 1.0)),
    Bug("a tenth less noise in every third round", LONG_MF, ALL_SPREAD, loud(lambda n: 0.9 if n % 3 == 2 else 1.0)),
    Bug("noise fades by a hundredth a round", LONG_MF, ALL_SPREAD, loud(lambda number: 0.99**number)),
    Bug("a tensor without noise from round 8 on", LONG_NCF, whole_run.BARE, from_round(8, all_but_the_last)),
    Bug("no noise at all from round 8 on", LONG_MF, ALL_SPREAD, from_round(8, lambda *of: None)),
    Bug("no clipping from round 8 on", LONG_MF, ALL_NORMS, unclipped(lambda number: number >= 8)),
    Bug("no clipping in the last round", LONG_MF, ALL_NORMS, unclipped(lambda number: number == 19)),
    Bug("messages of any length are taken from round 8 on", LONG_MF, whole_run.PASSED, any_length_from_round_8),
    Bug("pairs of rounds have the same coins", LONG_POISSON, whole_run.COINS, drawn(lambda n: n - n % 2)),
    Bug("coins repeat every 8 rounds", LONG_FIXED, whole_run.COINS, drawn(lambda number: number % 8)),
    Bug("who was left out comes next", LONG_POISSON, whole_run.COINS, who_was_not_drawn_before),
    Bug("a third of a cohort comes again", LONG_POISSON, whole_run.COINS, a_third_again),
    Bug("two people are always drawn together", LONG_POISSON, TOGETHER, with_a_neighbour),
    Bug(
        "coins and noise of a round share a stream",
        LONG_POISSON,
        whole_run.NOISE_COINS,
        setting(rng, "COHORT", rng.NOISE),
    ),
    Bug("a restart counts rounds from 0", LONG_MF, whole_run.RESTART, counted_from_the_restart),
    Bug("a restart forgets the secret", LONG_MF, whole_run.RESTART, another_secret_after_a_restart),
    Bug(
        "votes and round 0 share a stream",
        GRAM,
        whole_run.WORDS,
        setting(simulation, "noise_of_histogram", noise_of_sum),
    ),
    Bug(
        "the verdict has the noise of round 0",
        HEAD,
        whole_run.WORDS,
        setting(simulation, "noise_of_comparison", lambda secret: noise_of_sum(secret, 0)),
    ),
    Bug(
        "all clients lie with the same stream",
        LONG_CLICK,
        whole_run.WORDS,
        setting(simulation, "noise_of_report", lambda secret, period, client: noise_of_report(secret, period, 0)),
    ),
    Bug("all reports lie at the same places", LONG_CLICK, whole_run.LIES, lies_at_the_same_places),
    Bug("half the noise on messages from round 8 on", LONG_ROWS, whole_run.MESSAGES, quiet_messages_from_round_8),
    Bug(
        "all messages of a client have the same noise",
        LONG_ROWS,
        ALL_REPEATS,
        setting(pieces, "noise_of_client", lambda secret, number, client: noise_of_client(secret, 0, client)),
    ),
)
