"""Compiled code gives the same bits in the process that compiles it and in those that read it from the cache."""

import os
import subprocess
import sys

_PROGRAM = """
from veilrec.runs.request import RunRequest, prepare
from veilrec.runs import checkpoint
data = "synthetic-ratings:users=60,items=120,mean_history=20,seed=1"
settings = ("cohort.size=20", "local.epochs=2")
trainer = prepare(RunRequest("fedncf", data, protocol="loo-full", rounds=1, settings=settings)).trainer
trainer.step(0)
print(checkpoint.digest(trainer.state()))
"""


def digest(cache):
    # threads: any number gives the same
    environment = os.environ | {"NUMBA_CACHE_DIR": str(cache), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", _PROGRAM], env=environment, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def test_who_compiles_gets_what_others_read_from_the_cache(tmp_path):
    compiled = digest(tmp_path)
    assert len(compiled) == 64
    assert digest(tmp_path) == compiled
