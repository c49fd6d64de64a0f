"""Rounds of the communication paper's own methods with its own settings: how long its 400 rounds take."""

from __future__ import annotations

from veilrec.bench.options import Options
from veilrec.bench.results import Result
from veilrec.bench.timing import fresh_rounds
from veilrec.bench.whole_run import ml_1m
from veilrec.evaluate.protocols import make_split
from veilrec.methods.base import Problem, configure
from veilrec.methods.registry import get
from veilrec.runs.training import peak_rss_mb

_SEED = 1
_ROUNDS = 400


def priv_fedmf_sub(name: str, options: Options) -> Result:
    """Matrix factorisation on a sub-model."""
    return _paper_run(name, "priv-fedmf-sub", 3 if options.quick else 40)


def priv_fedncf_sub_compress(name: str, options: Options) -> Result:
    """NeuMF on a sub-model, with sparse updates of its deep layers."""
    return _paper_run(name, "priv-fedncf-sub-compress", 1 if options.quick else 10)


def _paper_run(name: str, method_name: str, measured: int) -> Result:
    """Training alone, as published, on ML-1M: rounds are alike, so some of them tell what all of them take."""
    method = get(method_name)
    config, rounds = configure(method, preset="paper", dataset="ml-1m")
    source, population = ml_1m()
    split = make_split(population, "loo-99", seed=_SEED)
    trainer = method.build(config, Problem(split.train, split.n_items, _SEED, rounds))
    trainer.step(rounds)  # compiles
    taken = fresh_rounds({name: trainer.step}, measured)[name]
    extra = {
        "rounds": measured,
        "seconds_of_400_rounds": round(_ROUNDS * taken.seconds, 1),
        "cpu_seconds_of_400_rounds": round(_ROUNDS * taken.cpu_seconds, 1),
    }
    return Result(name, source, config.cohort.size, taken.seconds, peak_rss_mb(), extra=extra)
