"""The page of `veilrec serve` in a real browser: seconds to the first list, and bytes that were transferred.

    python -m benchmarks.page    # 2,828 and 65,000 news; needs chromium, its driver, and the extra dev

Every line is a new profile with nothing in its cache, in the mode that sends nothing, on this machine.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from tests.web.browsing import browsing, missing
from tests.web.conftest import serving

from veilrec.report.labels import provenance
from veilrec.runs.release import ReleaseOptions, make_release
from veilrec.runs.request import RunRequest, prepare
from veilrec.runs.training import train
from veilrec.wire.signing import new_key

_TRANSFERRED = (
    "return [...performance.getEntriesByType('resource'), ...performance.getEntriesByType('navigation')]"
    ".reduce((sum, entry) => sum + entry.transferSize, 0)"
)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--news", type=int, nargs="*", default=[2828, 65_000])
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    if (reason := missing()) is not None:
        raise SystemExit(reason)
    for fact in provenance().items():
        print(*fact, sep=": ")
    for count in given.news:
        with tempfile.TemporaryDirectory() as folder:
            _measure(Path(folder), count, given.repeats)


def _measure(folder: Path, news: int, repeats: int) -> None:
    data = f"synthetic-news:users=1000,news={news},seed=0"
    train(prepare(RunRequest("privaterec", data, seed=0, noise="secure", rounds=10)), folder / "run")
    release = make_release(folder / "run", folder / "release", new_key(folder / "key"), ReleaseOptions())
    with serving(release.folder, folder / "log") as (address, _):
        for number in range(repeats):
            with browsing(address, folder / f"profile{number}") as browser:
                browser.open()
                seconds, size = float(browser.js("return performance.now()")) / 1000.0, int(browser.js(_TRANSFERRED))
                print(f"{news:,} news: first list after {seconds:.2f} s, {size:,} bytes transferred", flush=True)


if __name__ == "__main__":
    main()
