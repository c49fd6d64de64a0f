"""FedNewsRec in practice: public sentence vectors stay frozen, and only a small head is learnt on devices.

Noise that protects a user grows with the square root of the number of parameters; here they are a few thousand.
"""

from __future__ import annotations

from functools import partial
from typing import Literal

from veilrec.methods.base import Method
from veilrec.methods.fednewsrec import FedNewsConfig, NewsPrivacy, build, guarantee, guarantee_of_run
from veilrec.methods.news_common import DATASETS, SizeConfig, TextConfig
from veilrec.server.optimise import ServerRate
from veilrec.simulate.cohort import CohortSettings


class HeadConfig(FedNewsConfig):
    """Settings of the head."""

    calibration: Literal["none", "as-published", "proven"] = "proven"
    network: Literal["fednewsrec", "fednewsrec-long", "fednewsrec-short", "sentence-head"] = "sentence-head"
    size: SizeConfig = SizeConfig(attention=8, dropout=0.0)
    text: TextConfig = TextConfig(sentences="minilm", sentence_dim=64)
    cohort: CohortSettings = CohortSettings(size=200, sampling="poisson")
    server: ServerRate = ServerRate(optimiser="adam", rate=0.005, momentum=0.9, caution=1e-3)
    privacy: NewsPrivacy = NewsPrivacy(clip_norm=0.2)


METHOD = Method(
    name="fednewsrec-head",
    kind="federated",
    paper="ours, after Qi et al. 2020 (FedNewsRec)",
    model="MiniLM sentence vectors (frozen), one linear map, attention over clicks",
    summary="public sentence vectors, and a small head learnt on devices under user-level differential privacy",
    datasets=DATASETS,
    config=HeadConfig,
    build=partial(build, method="fednewsrec-head"),
    guarantee=guarantee,
    guarantee_of_run=partial(guarantee_of_run, method="fednewsrec-head"),
    rounds=100,
    rounds_are_fixed=True,
    measured=("mind", "synthetic-news"),
)
