"""Audit of all rounds of a plan: clipping, noise, cohorts and the streams that they come from, at every round number.

Clients do not train: every round has the same oversized updates, so that a whole run takes about as long as one round
of real training. What is random is compared in two ways. Streams are asked for their first words: no two uses of a
secret may share one, in any round, for any purpose, before or after a restart. And what came of them is correlated
with itself, every round with every other one, so that noise that ignores its stream is seen as well.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
from scipy.special import chdtr, gammaincinv

from veilrec.audit import observe
from veilrec.audit.observe import ALPHA, AuditCheck
from veilrec.audit.recorded_run import SLACK, WORDS_KEPT, SeenRun, run
from veilrec.audit.streams import LENGTHS, repeats, tails, within
from veilrec.client.local_training import LocalData
from veilrec.core.arrays import Doubles
from veilrec.core.csr import Csr
from veilrec.core.errors import VeilrecError
from veilrec.core.plan import Plan
from veilrec.core.schema import BOUND
from veilrec.privacy.mechanisms.schedules import TreeSum
from veilrec.simulation.pieces import Seeds
from veilrec.simulation.simulation import Simulation

ROUNDS = "rounds of the plan that were looked at"
NORMS = "largest norm of an oversized update, in any round, to its bound"
MESSAGES = "noise on a message, in any round, to that in the first one"
PASSED = "rounds in which a message beyond the bound is passed on"
STRAYED = "rounds, of all, whose bound is not from the protected count"
BARE = "numbers without noise in two rounds in a row"
SPREAD = "standard deviation of the noise, in any round"
COUNT = "standard deviation of the noise on the count, in any round"
REPEATS = "pairs of streams whose noise repeats, also shifted"
WORDS = "random words that two streams share"
RESTART = "streams that are others after a restart"
WARM_WORDS = "random words that a run and its warm start share"
WARM_NOISE = "pairs of streams of a run and of its warm start whose noise repeats"
COINS = "pairs of rounds whose cohorts depend on each other"
NOISE_COINS = "cohorts that are drawn from the words of another stream"
LIES = "pairs of reports whose lies depend on each other"
WITHIN = "rounds whose noise repeats itself"
TAILS = "share of the noise that lies far out"
PAST = "rounds after which data has reached the model past the noise"
TWICE = "clients that are twice in a cohort"
BESIDE = "clients whose bounded update depends on who is beside them"
PUBLIC_COHORTS = "how often two secrets draw the same cohort in a round"
EVERY_BYTE = "bytes of the secret that noise or cohorts do not depend on"

_ROUNDS_DRAWN = 8  # whose cohorts are compared for every byte of a secret


def checks(
    plan: Plan, data: LocalData, histories: Csr, needed: float, seed: int, secrets: Sequence[bytes]
) -> Iterator[AuditCheck]:
    """Check every round of a plan whose sums need noise of a standard deviation; with two secrets and without."""
    seeds = Seeds.all_from(seed, secrets[0])
    try:
        secret = run(plan, data, histories, seeds)
        runs = {
            "secret": secret,
            "another secret": run(plan, data, histories, Seeds.all_from(seed, secrets[1])),
            "seeded": run(plan, data, histories, Seeds(seed, seed, seed + 1)),
        }
        half = plan.rounds // 2
        again = run(plan, data, histories, seeds, resumed=(half, secret))
    except VeilrecError as error:
        yield observe.is_equal(ROUNDS, f"stopped: {error}", plan.rounds)
        return
    counted, streams = {len(seen.specs) for seen in runs.values()}, _streams(plan, runs)
    tensors = [
        (f"{name} in round {spec.number}, {way}", part)
        for way, seen in runs.items()
        for spec, noise in zip(seen.specs, _own_noise(plan, seen), strict=True)
        for name, part in noise.items()
    ]
    many = max(len(noise) for noise in secret.noise) > 1
    pairs = sum(math.comb(len(some), 2) for some in (streams, tensors if many else []))
    looked = f"{len(streams) + (len(tensors) if many else 0):,} streams of noise in {pairs:,} pairs"
    yield observe.is_equal(ROUNDS, min(counted), plan.rounds, looked)
    yield observe.at_most(NORMS, max(norm for seen in runs.values() for norm in seen.norms), 1.0)
    yield observe.is_equal(PASSED, len(set().union(*(seen.passed for seen in runs.values()))), 0)
    yield observe.is_equal(STRAYED, sum(seen.strayed for seen in runs.values()), 0)
    yield observe.is_equal(BARE, sum(seen.bare for seen in runs.values()), 0)
    twice = sum(len(clients) - len(np.unique(clients)) for seen in runs.values() for clients in seen.cohorts)
    yield observe.is_equal(TWICE, twice, 0)
    yield observe.is_equal(BESIDE, sum(seen.beside for seen in runs.values()), 0)
    yield _past(plan, data, histories, seed, secrets)
    yield _bytes_of_secret(plan, data, histories, seed, secrets[0])
    for way, seen in runs.items():
        yield from _spreads(plan, seen, needed, way)
    noises = [
        (f"round {spec.number}, {way}", np.concatenate([np.zeros(0), *(n for name, n in one.items() if name != BOUND)]))
        for way, seen in runs.items()
        for spec, one in zip(seen.specs, _own_noise(plan, seen), strict=True)
    ]
    yield within(WITHIN, noises)
    middle = [noise for way in runs for noise in [n for what, n in noises if what.endswith(f", {way}")][half:]]
    yield from tails(TAILS, np.concatenate([noise for _, noise in noises]), "all rounds")
    yield from tails(TAILS, np.concatenate([np.zeros(0), *middle]), f"from round {half} on")
    yield repeats(REPEATS, streams, shifts=True)
    if many:
        yield repeats(REPEATS, tensors, shifts=False)
    yield from _words(runs, again)
    yield from _cohorts(plan, runs)
    for way in ("secret", "seeded"):
        if runs[way].lies:
            names, lies = zip(*runs[way].lies, strict=True)
            yield observe.independent(LIES, np.array(lies), way, names)


def message_checks(
    plan: Plan, data: LocalData, histories: Csr, seed: int, secrets: Sequence[bytes]
) -> Iterator[AuditCheck]:
    """Check that noise on messages is of one size in all rounds of a plan, and never the same twice."""
    runs = {
        way: run(plan, data, histories, Seeds.all_from(seed, secret))
        for way, secret in zip(("secret", "another secret"), secrets, strict=True)
    }
    noises = [(f"{name}, {way}", noise) for way, seen in runs.items() for name, noise in seen.messages if len(noise)]
    looked = f"{len(noises):,} messages in {math.comb(len(noises), 2):,} pairs"
    yield observe.is_equal(ROUNDS, len(runs["secret"].cohorts), plan.rounds, looked)
    yield shared_words(runs)
    yield repeats(REPEATS, noises, shifts=True)
    first = [noise for name, noise in noises if "in round 0," in name]
    if first:
        size = max(float(np.std(np.concatenate(first))), 1e-300)
        enough = [(where, noise / size) for where, noise in noises if len(noise) >= WORDS_KEPT]
        sizes = [observe.spread_is_one(MESSAGES, noise, where, errors=7.0) for where, noise in enough]
        yield from [check for check in sizes if not check.holds][:1] or sizes[-1:]  # all of them share its ALPHA


def _past(plan: Plan, data: LocalData, histories: Csr, seed: int, secrets: Sequence[bytes]) -> AuditCheck:
    """Check that a model is made of protected numbers alone, in every round.

    With these given, it is the same whoever there is: in the other run people are exchanged, one is gone, and no
    message comes.
    """
    size = float(plan.mechanism.facts().get("sigma", 1.0))
    clients, everybody = np.arange(len(data.rows)), np.flatnonzero(data.rows.lengths() > 0)
    one = run(plan, data, histories, Seeds.all_from(seed, secrets[0]), script=size, people=len(everybody))
    clients[everybody] = everybody[::-1]
    others, seeds = data.take(clients), Seeds.all_from(seed + 17, secrets[1])
    if plan.mechanism.unit == "user":  # with clicks for units, it is known who has any
        others = observe.without(others, everybody[:1])
    other = run(plan, others, histories, seeds, script=size, times=-1e-6, people=len(everybody), nobody=True)
    differing = [number for number, pair in enumerate(zip(one.models, other.models, strict=True)) if len({*pair}) > 1]
    where = f"from round {differing[0]} on" if differing else ""
    return observe.is_equal(PAST, len(differing), 0, where)


def _bytes_of_secret(plan: Plan, data: LocalData, histories: Csr, seed: int, secret: bytes) -> AuditCheck:
    """Check that every byte of a secret changes the noise of a round, and the cohorts where chance draws them."""
    seen: set[bytes] = set()
    idle, drawn = 0, _ROUNDS_DRAWN if _by_chance(plan) else 0
    for place in range(-1, len(secret)):
        other = secret if place < 0 else secret[:place] + bytes([secret[place] ^ 1]) + secret[place + 1 :]
        simulation = Simulation(plan, data, histories, Seeds.all_from(seed, other))
        noise = simulation._source_of_sums(0).words(4).tobytes()
        cohorts = [simulation.sampler.draw(number) for number in range(drawn)]
        found = {noise, *([b"".join(clients.tobytes() + b";" for clients in cohorts)] if drawn else [])}
        idle += bool(found & seen)
        seen |= found
    return observe.is_equal(EVERY_BYTE, idle, 0, f"{len(secret)} bytes")


def _by_chance(plan: Plan) -> bool:
    """Whether chance draws who takes part."""
    return plan.cohort.sampling != "cyclic" and plan.cohort.size > 0


def _streams(plan: Plan, runs: Mapping[str, SeenRun]) -> list[tuple[str, Doubles]]:
    """The noise of every round in the order in which it was drawn, and that on reports and gains."""
    found = []
    for way, seen in runs.items():
        for spec, noise in zip(seen.specs, _own_noise(plan, seen), strict=True):
            found.append((f"round {spec.number}, {way}", np.concatenate([*noise.values()])[: LENGTHS[0]]))
        found += [(f"{name}, {way}", noise) for name, noise in seen.others.items()]
    return found


def _spreads(plan: Plan, seen: SeenRun, needed: float, way: str) -> Iterator[AuditCheck]:
    """Check the noise of every tensor and of all together: in every round, and from every round on."""
    squares = seen.squares
    if isinstance(plan.mechanism, TreeSum):
        nodes = _own_noise(plan, seen)
        squares = [{name: (node.size, float(node @ node)) for name, node in one.items()} for one in nodes]
    names = list(dict.fromkeys(name for one in squares for name in one))
    counts = np.array([[one.get(name, (0, 0.0))[0] for name in names] for one in squares], np.float64)
    sums = np.array([[one.get(name, (0, 0.0))[1] for name in names] for one in squares])
    if BOUND in names:
        place, stated = names.index(BOUND), getattr(plan.mechanism, "count_standard_deviation", math.inf)
        yield _worst(COUNT, counts[:, [place]], sums[:, [place]], stated * (1.0 - SLACK), [BOUND], way)
        counts, sums = np.delete(counts, place, axis=1), np.delete(sums, place, axis=1)
        names.remove(BOUND)
    counts, sums = (np.column_stack([part, part.sum(axis=1)]) for part in (counts, sums))
    yield _worst(SPREAD, counts, sums, needed, [*names, "all tensors"], way)


def _worst(name: str, counts: Doubles, sums: Doubles, needed: float, names: Sequence[str], way: str) -> AuditCheck:
    """The least likely of all rounds and tails of rounds (chi-square, one-sided); all share ALPHA."""
    n = np.concatenate([counts, np.cumsum(counts[::-1], axis=0)[::-1]])
    total = np.concatenate([sums, np.cumsum(sums[::-1], axis=0)[::-1]])
    n, total = n.ravel(), total.ravel()
    chances = np.where(n > 0, chdtr(np.maximum(n, 1.0), total / needed**2), 1.0)
    at, alpha = int(np.argmin(chances)), ALPHA / max(1, int(np.count_nonzero(n)))
    row, column = divmod(at, counts.shape[1])
    when = f"round {row}" if row < len(counts) else f"from round {row - len(counts)} on"
    lowest = needed * math.sqrt(2.0 * float(gammaincinv(n[at] / 2.0, alpha)) / n[at])
    measured = math.sqrt(total[at] / n[at])
    where = f"{names[column]}, {when}, {way}"
    return AuditCheck(name, measured, "at least", needed, bool(chances[at] > alpha), where, ALPHA, (lowest,))


def _own_noise(plan: Plan, seen: SeenRun) -> list[dict[str, Doubles]]:
    """The first numbers of the noise that every round has of its own: in a tree, that of the node that it ends."""
    if not isinstance(plan.mechanism, TreeSum):
        return seen.noise
    found = []
    for last, spec in enumerate(seen.specs):
        place = spec.number % plan.mechanism.steps + 1
        inside = seen.noise[last + 1 - (place & -place) : last + 1]
        found.append({name: np.sum([one[name] for one in inside], axis=0) for name in inside[0]})
    return found


def shared_words(runs: Mapping[str, SeenRun]) -> AuditCheck:
    """Check that no two streams of one secret, or of several, have a word in common."""
    streams = [words[:WORDS_KEPT] for seen in runs.values() for words in seen.streams.values()]
    everything = np.concatenate([np.zeros(0, np.uint64), *streams])
    shared = len(everything) - len(np.unique(everything))
    return observe.is_equal(WORDS, shared, 0, f"first words of {len(streams):,} streams: {', '.join(runs)}")


def warm_start_checks(simulations: Mapping[str, Simulation]) -> Iterator[AuditCheck]:
    """Check that runs, each of which starts from the model of the one before, have nothing random in common."""
    runs = {name: run(one.plan, one.data, one.histories, one.seeds) for name, one in simulations.items()}
    streams = [stream for name, one in simulations.items() for stream in _streams(one.plan, {name: runs[name]})]
    yield replace(shared_words(runs), name=WARM_WORDS)
    yield repeats(WARM_NOISE, streams, shifts=True)


def _words(runs: Mapping[str, SeenRun], again: SeenRun) -> Iterator[AuditCheck]:
    """Check the words of all streams of two secrets, and that a restart goes on with the same ones."""
    yield shared_words({way: runs[way] for way in ("secret", "another secret")})
    first, after = runs["secret"], {spec.number: noise for spec, noise in zip(again.specs, again.noise, strict=True)}
    words = sum(not np.array_equal(first.streams.get(name, ()), some) for name, some in again.streams.items())
    noise = sum(
        any(
            not np.allclose(part, seen[name], rtol=0.0, atol=1e-6 * np.std(part))
            for name, part in after[number].items()
        )
        for number, seen in enumerate(first.noise)
        if number in after
    )
    yield observe.is_equal(RESTART, words + noise, 0, f"restarted before round {min(after, default=0)}")


def _cohorts(plan: Plan, runs: Mapping[str, SeenRun]) -> Iterator[AuditCheck]:
    """Check cohorts that are drawn by chance: of every round with every other, and with the words of noise."""
    people = runs["secret"].people
    if not _by_chance(plan):
        return
    both = zip(runs["secret"].cohorts, runs["another secret"].cohorts, strict=True)
    alike, rate = sum(np.array_equal(*pair) for pair in both), min(plan.cohort.size / people, 1.0)
    chance = (rate**2 + (1.0 - rate) ** 2) ** people
    if plan.cohort.sampling == "fixed":
        chance = 1.0 / math.comb(people, min(plan.cohort.size, people))
    yield observe.rate_at_most(PUBLIC_COHORTS, alike, plan.rounds, chance, "")
    if plan.rounds < 2:
        return
    for way in ("secret", "seeded"):
        members = np.zeros((plan.rounds, people), np.bool_)
        for number, clients in enumerate(runs[way].cohorts):
            members[number, clients] = True
        names = [f"round {number}" for number in range(plan.rounds)]
        yield observe.independent(COINS, members, way, names)
        streams = [words[:people] for words in runs[way].streams.values() if len(words) >= people]
        if streams:
            level = np.uint64(min(plan.cohort.size / people, 1.0) * 2.0**63) * np.uint64(2)
            coins = np.array([words < level for words in streams])
            yield observe.independent(NOISE_COINS, members, way, names, coins)
