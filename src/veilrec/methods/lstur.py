"""LSTUR: long- and short-term interests."""

from __future__ import annotations

from veilrec.methods.news_common import centralised

METHOD = centralised(
    "lstur",
    paper="An et al., Neural News Recommendation with Long- and Short-term User Representations, ACL 2019",
    model="CNN over words, categories; attention and GRU over clicks",
    summary="long-term interests start a GRU over recent clicks",
    network="lstur-ini",
    deviations=("No user ids: the long-term vector is attention over the whole history, not a vector per user.",),
)
