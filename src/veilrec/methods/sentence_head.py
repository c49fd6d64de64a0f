"""The least that can be learnt over public sentence vectors; it starts as the cosine with the mean click."""

from __future__ import annotations

from veilrec.methods.news_common import PlmConfig, centralised

METHOD = centralised(
    "sentence-head",
    paper="ours; a baseline of what training adds to public sentence vectors",
    model="MiniLM sentence vectors (frozen), one linear map, attention over clicks",
    summary="starts as the cosine of sentence vectors, learns a map and which clicks matter",
    config=PlmConfig,
    rounds=5,
)
