"""LSTUR, the other variant: long- and short-term vectors side by side."""

from __future__ import annotations

from veilrec.methods.news_common import centralised

METHOD = centralised(
    "lstur-con",
    paper="An et al., Neural News Recommendation with Long- and Short-term User Representations, ACL 2019",
    model="CNN over words, categories; attention beside a GRU over clicks",
    summary="long-term interests beside a GRU over recent clicks",
    deviations=("No user ids: the long-term vector is attention over the whole history, not a vector per user.",),
)
