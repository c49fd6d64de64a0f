"""Do no harm: what every news method with a proof adds to its plan, so that it ends no worse than it began.

A fixed part of the devices never learns. In the end each of them tells, clipped and under noise, whether the trained
model ranks its own impressions better than the start; without a clear gain the start is kept. A person's data is used
for learning or for judging, never for both, and who does which is public: so each of the two may spend the whole
epsilon (parallel composition).
"""

from __future__ import annotations

from veilrec._csr import Csr
from veilrec.device.judging import NewsJudge, parted
from veilrec.device.news_log import OwnImpressions
from veilrec.device.rankers import Ranker
from veilrec.methods.news.common import JudgeConfig
from veilrec.plan import Comparison
from veilrec.privacy.guarantee import Adjacency
from veilrec.privacy.mechanisms.gains import GainSum


def comparison(
    judges: JudgeConfig, ranker: Ranker, *, epsilon: float, delta: float, adjacency: Adjacency
) -> Comparison | None:
    """The last comparison of a plan; None where nobody judges."""
    if judges.share == 0.0:
        return None
    mechanism = GainSum(clip=judges.clip, epsilon=epsilon, delta=delta, adjacency=adjacency)
    return Comparison(judge=NewsJudge(ranker), mechanism=mechanism)


def learners_and_judges(logs: Csr, judges: JudgeConfig, public_seed: int) -> OwnImpressions:
    """What devices learn from, and what others judge by."""
    return OwnImpressions(logs) if judges.share == 0.0 else parted(logs, judges.share, public_seed)


def told(judges: JudgeConfig) -> tuple[str, ...]:
    """What a guarantee says of the comparison."""
    if judges.share == 0.0:
        return ()
    return (
        f"A public {judges.share:.0%} of the devices never learn: in the end they judge, under noise for the same"
        " epsilon and delta, whether the trained model is kept or the start. Nobody does both, so each person meets one"
        " of the two, and which is public.",
    )
