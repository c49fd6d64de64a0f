"""A round must cost what its cohort costs, however many people there are."""

from __future__ import annotations

from veilrec.bench.options import Options
from veilrec.bench.results import Result
from veilrec.bench.timing import Fresh, Round, fresh_rounds
from veilrec.data.synthetic_ratings import generate
from veilrec.methods import fedmf
from veilrec.methods.base import Problem, configure
from veilrec.runs.training import peak_rss_mb
from veilrec.simulate.trainer import Trainer

_SEED = 1
_COHORT = 100
_ITEMS, _MEAN_HISTORY = 2000, 30.0  # the same in both populations
# Histories differ by as much as their mean: only over many cohorts do two populations ask for the same work.
_ROUNDS, _ROUNDS_QUICK = 50, 5
_FEW, _MANY, _MANY_QUICK = 10_000, 1_000_000, 100_000


def of_10k(name: str, options: Options) -> Result:
    """The yardstick."""
    trainer = _among(_FEW)
    few = _measure({"10k": trainer.step}, options)["10k"]
    return Result(name, _source(_FEW), _COHORT, few.seconds, peak_rss_mb())


def of_1m(name: str, options: Options) -> Result:
    """The large population; the small one takes turns with it, and adds a few MB to its memory."""
    users = _MANY_QUICK if options.quick else _MANY
    large = _among(users)
    measured = _measure({"many": large.step, "10k": _among(_FEW).step}, options)
    many, few = measured["many"], measured["10k"]
    extra = {"users": users, "ratio_to_10k": round(many.cpu_seconds / few.cpu_seconds, 3)}
    return Result(name, _source(users), _COHORT, many.seconds, peak_rss_mb(), extra=extra)


def _measure(contenders: dict[str, Round], options: Options) -> dict[str, Fresh]:
    rounds = options.repeats * (_ROUNDS_QUICK if options.quick else _ROUNDS)
    for one_round in contenders.values():
        one_round(rounds)  # compiles
    return fresh_rounds(contenders, rounds)


def _among(users: int) -> Trainer:
    population = generate(users=users, items=_ITEMS, mean_history=_MEAN_HISTORY, seed=_SEED)
    pairs, n_items = population.interactions.pairs(), population.n_items
    del population  # times and ratings are not needed any more
    config, _ = configure(
        fedmf.METHOD, preset="tuned", dataset="synthetic-ratings", settings=[f"cohort.size={_COHORT}"]
    )
    return fedmf.METHOD.build(config, Problem(pairs, n_items, _SEED))


def _source(users: int) -> str:
    return f"synthetic-ratings:users={users},items={_ITEMS},mean_history={_MEAN_HISTORY:.0f},seed={_SEED}"
