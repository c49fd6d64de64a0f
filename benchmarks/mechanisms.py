"""How long the mechanisms take: python benchmarks/mechanisms.py [--json]."""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial

import numpy as np

from veilrec.privacy.mechanisms import instances
from veilrec.privacy.randomness import SecureSource
from veilrec.privacy.samplers import add_gaussian, add_laplace


def median_ms(action: Callable[[], object], repeats: int) -> float:
    """Median wall-clock time in milliseconds, after one call that compiles."""
    action()
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        action()
        times.append(1000.0 * (time.perf_counter() - started))
    return statistics.median(times)


def main() -> None:
    """Time model-sized noise and one release of every mechanism."""
    source = SecureSource()
    model = np.zeros(2_500_000)
    results = {
        "gaussian noise, 2.5 million coordinates": median_ms(lambda: add_gaussian(model, sigma=1.0, source=source), 5),
        "laplace noise, 2.5 million coordinates": median_ms(lambda: add_laplace(model, scale=1.0, source=source), 5),
    }
    for mechanism in instances():
        value = mechanism.worst_pair()[0]
        name = f"{mechanism.name} ({mechanism.calibration})"
        results[name] = median_ms(partial(mechanism.release, value, source), 50)
    if "--json" in sys.argv:
        sys.stdout.write(json.dumps({"milliseconds": results}, indent=2) + "\n")
    else:
        for name, milliseconds in results.items():
            sys.stdout.write(f"{milliseconds:10.3f} ms  {name}\n")


if __name__ == "__main__":
    main()
