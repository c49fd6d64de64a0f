"""What is measured without a rival: a whole run, the communication paper's 400 rounds, a round among many people."""

from __future__ import annotations

import sys
import time

from _measure import Options, Result, Round, RoundTime, fresh_rounds
from veilrec.core.errors import BadInput
from veilrec.core.resources import peak_rss_mb
from veilrec.data.datasets import load
from veilrec.data.population import Population
from veilrec.data.synthetic_ratings import generate
from veilrec.evaluation.evaluator import evaluate
from veilrec.evaluation.protocols import make_split
from veilrec.methods.base import Problem, configure, make_trainer
from veilrec.methods.priv_fedmf_sub import fedmf
from veilrec.methods.registry import get
from veilrec.simulation.simulation import Trainer

_SEED = 1
_COHORT = 200
_EVALUATE_EVERY = 20
_ROUNDS, _ROUNDS_QUICK = 400, 40
_SMALL_COHORT = 100
_ITEMS, _MEAN_HISTORY = 2000, 30.0  # the same in both populations
# Histories differ by as much as their mean: only over many cohorts do two populations ask for the same work.
_FRESH_ROUNDS, _FRESH_ROUNDS_QUICK = 50, 5
_FEW, _MANY, _MANY_QUICK = 10_000, 1_000_000, 100_000


def fedmf_ml_1m(name: str, options: Options) -> Result:
    """FedMF as tuned for ML-1M, under loo-99; reading and compiling lie before the clock starts."""
    source, population = ml_1m()
    split = make_split(population, "loo-99", seed=_SEED)
    config, _ = configure(fedmf.FEDMF, preset="tuned", dataset="ml-1m", settings=[f"cohort.size={_COHORT}"])
    problem = Problem(split.train, split.n_items, _SEED)
    warm_up = make_trainer(fedmf.FEDMF, config, problem)
    warm_up.step(0)
    evaluate(split.test, split.train, warm_up.model())

    rounds = _ROUNDS_QUICK if options.quick else _ROUNDS
    trainer = make_trainer(fedmf.FEDMF, config, problem)
    metrics: dict[str, float] = {}
    evaluating = 0.0
    start, start_cpu = time.perf_counter(), time.process_time()
    for number in range(rounds):
        trainer.step(number)
        if (number + 1) % _EVALUATE_EVERY == 0:
            before = time.perf_counter()
            metrics = evaluate(split.test, split.train, trainer.model())
            evaluating += time.perf_counter() - before
            sys.stderr.write(f"{name}: round {number + 1} of {rounds}, hr@10 {metrics['hr@10']:.4f}\n")
    total, cpu = time.perf_counter() - start, time.process_time() - start_cpu
    figures = {
        "rounds": rounds,
        "total_seconds": round(total, 3),
        "cpu_seconds": round(cpu, 3),  # far less than the total: the machine was busy with something else
        "evaluation_seconds": round(evaluating, 3),
        "hr@10": round(metrics["hr@10"], 4),
        "ndcg@10": round(metrics["ndcg@10"], 4),
    }
    return Result(name, source, _COHORT, total / rounds, peak_rss_mb(), figures=figures)


def ml_1m() -> tuple[str, Population]:
    """ML-1M; without its files, synthetic ratings of the same shape."""
    try:
        return "ml-1m", load("ml-1m")
    except BadInput:
        made_up = generate(users=6040, items=3706, mean_history=165.6, seed=_SEED)
        return "synthetic in the shape of ml-1m", made_up


def priv_fedmf_sub(name: str, options: Options) -> Result:
    """The communication paper's matrix factorisation on a sub-model."""
    return _paper_run(name, "priv-fedmf-sub", 3 if options.quick else 40)


def priv_fedncf_sub_compress(name: str, options: Options) -> Result:
    """Its NeuMF on a sub-model, with sparse updates of its deep layers."""
    return _paper_run(name, "priv-fedncf-sub-compress", 1 if options.quick else 10)


def _paper_run(name: str, method_name: str, measured: int) -> Result:
    """Training alone, as published, on ML-1M: rounds are alike, so some of them tell what all of them take."""
    method = get(method_name)
    config, rounds = configure(method, preset="paper", dataset="ml-1m")
    source, population = ml_1m()
    split = make_split(population, "loo-99", seed=_SEED)
    trainer = make_trainer(method, config, Problem(split.train, split.n_items, _SEED, rounds))
    trainer.step(rounds)  # compiles
    taken = fresh_rounds({name: trainer.step}, measured)[name]
    figures = {
        "rounds": measured,
        "seconds_of_400_rounds": round(_ROUNDS * taken.seconds, 1),
        "cpu_seconds_of_400_rounds": round(_ROUNDS * taken.cpu_seconds, 1),
    }
    return Result(name, source, config.cohort.size, taken.seconds, peak_rss_mb(), figures=figures)


def among_10k(name: str, options: Options) -> Result:
    """A round among few people: the yardstick."""
    trainer = _among(_FEW)
    few = _fresh({"10k": trainer.step}, options)["10k"]
    return Result(name, _source(_FEW), _SMALL_COHORT, few.seconds, peak_rss_mb())


def among_1m(name: str, options: Options) -> Result:
    """Run the round among many clients, which must cost as much; both sizes alternate, with a few MB more memory."""
    users = _MANY_QUICK if options.quick else _MANY
    large = _among(users)
    measured = _fresh({"many": large.step, "10k": _among(_FEW).step}, options)
    many, few = measured["many"], measured["10k"]
    figures = {"users": users, "ratio_to_10k": round(many.cpu_seconds / few.cpu_seconds, 3)}
    return Result(name, _source(users), _SMALL_COHORT, many.seconds, peak_rss_mb(), figures=figures)


def _fresh(contenders: dict[str, Round], options: Options) -> dict[str, RoundTime]:
    rounds = options.repeats * (_FRESH_ROUNDS_QUICK if options.quick else _FRESH_ROUNDS)
    for one_round in contenders.values():
        one_round(rounds)  # compiles
    return fresh_rounds(contenders, rounds)


def _among(users: int) -> Trainer:
    population = generate(users=users, items=_ITEMS, mean_history=_MEAN_HISTORY, seed=_SEED)
    pairs, n_items = population.interactions.pairs(), population.n_items
    del population  # times and ratings are not needed any more
    config, _ = configure(
        fedmf.FEDMF, preset="tuned", dataset="synthetic-ratings", settings=[f"cohort.size={_SMALL_COHORT}"]
    )
    return make_trainer(fedmf.FEDMF, config, Problem(pairs, n_items, _SEED))


def _source(users: int) -> str:
    return f"synthetic-ratings:users={users},items={_ITEMS},mean_history={_MEAN_HISTORY:.0f},seed={_SEED}"
