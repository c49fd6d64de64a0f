"""A whole run with its evaluations: what a researcher waits for."""

from __future__ import annotations

import sys
import time

from veilrec.bench.options import Options
from veilrec.bench.results import Result
from veilrec.data.population import Population
from veilrec.data.spec import load
from veilrec.data.synthetic_ratings import generate
from veilrec.errors import BadInput
from veilrec.evaluate.evaluator import evaluate
from veilrec.evaluate.protocols import make_split
from veilrec.methods import fedmf
from veilrec.methods.base import Problem, configure
from veilrec.runs.training import peak_rss_mb

_SEED = 1
_COHORT = 200
_EVALUATE_EVERY = 20
_ROUNDS, _ROUNDS_QUICK = 400, 40


def fedmf_ml_1m(name: str, options: Options) -> Result:
    """FedMF as tuned for ML-1M, under loo-99; reading and compiling lie before the clock starts."""
    source, population = ml_1m()
    split = make_split(population, "loo-99", seed=_SEED)
    config, _ = configure(fedmf.METHOD, preset="tuned", dataset="ml-1m", settings=[f"cohort.size={_COHORT}"])
    problem = Problem(split.train, split.n_items, _SEED)
    warm_up = fedmf.METHOD.build(config, problem)
    warm_up.step(0)
    evaluate(split.test, split.train, warm_up.model())

    rounds = _ROUNDS_QUICK if options.quick else _ROUNDS
    trainer = fedmf.METHOD.build(config, problem)
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
    extra = {
        "rounds": rounds,
        "total_seconds": round(total, 3),
        "cpu_seconds": round(cpu, 3),  # far less than the total: the machine was busy with something else
        "evaluation_seconds": round(evaluating, 3),
        "hr@10": round(metrics["hr@10"], 4),
        "ndcg@10": round(metrics["ndcg@10"], 4),
    }
    return Result(name, source, _COHORT, total / rounds, peak_rss_mb(), extra=extra)


def ml_1m() -> tuple[str, Population]:
    """ML-1M; without its files, made-up ratings of the same shape."""
    try:
        return "ml-1m", load("ml-1m")
    except BadInput:
        made_up = generate(users=6040, items=3706, mean_history=165.6, seed=_SEED)
        return "synthetic in the shape of ml-1m", made_up
