"""What a client loses that ranks the pool of the server, with vectors of 8 bits, instead of all news as they are.

    python -m benchmarks.pool    # 2,828 and 65,000 synthetic news

Of the ten best by the whole release, how many are among the ten best of the pool; mean over 500 readers.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np

from veilrec.client.released import ReleasedNews
from veilrec.core.csr import Csr
from veilrec.runs.release import ReleaseOptions, make_release
from veilrec.runs.request import RunRequest, prepare
from veilrec.runs.saved import open_model
from veilrec.runs.training import train
from veilrec.serving.edition import Edition
from veilrec.wire.queries import read_pool
from veilrec.wire.signing import new_key

_READERS, _K = 500, 10


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--news", type=int, nargs="*", default=[2828, 65_000])
    for count in parser.parse_args().news:
        with tempfile.TemporaryDirectory() as folder:
            print(_measured(Path(folder), count), flush=True)


def _measured(folder: Path, news: int) -> str:
    data = f"synthetic-news:users=1000,news={news},seed=0"
    train(prepare(RunRequest("privaterec", data, seed=0, noise="secure", rounds=10)), folder / "run")
    release = make_release(folder / "run", folder / "release", new_key(folder / "key"), ReleaseOptions())
    pool = read_pool(Edition(release).pool())
    model, histories = ReleasedNews(release), open_model(folder / "run").clients.used
    ids = {item: row for row, item in enumerate(open_model(folder / "run").items)}
    rows = np.array([ids[item] for item in pool.ids])
    kept = []
    for reader in range(min(_READERS, len(histories))):
        own = histories.row(reader)
        user = model.users(Csr(np.array([0, len(own)], np.int64), own))[0]
        whole = model.news @ user
        whole[own] = -np.inf
        small = np.where(np.isin(rows, own), -np.inf, pool.vectors @ user)
        best = set(np.argsort(-whole, kind="stable")[:_K].tolist())
        kept.append(len(best & set(rows[np.argsort(-small, kind="stable")[:_K]].tolist())) / _K)
    part = "all" if pool.about.whole else "some"
    return (
        f"{news:,} news, {len(pool):,} in the pool ({part}): {np.mean(kept):.3f} of the ten best are kept, mean of"
        f" {len(kept)} readers"
    )


if __name__ == "__main__":
    main()
