"""DFM: networks of different depth, fused by attention."""

from __future__ import annotations

from veilrec.methods.news_common import centralised

# Table 2 of Qi et al. 2020 (FedNewsRec): (AUC, MRR, nDCG@5, nDCG@10) in per cent
PAPER = {"msn-news": (61.25, 28.68, 30.62, 36.38), "adressa": (65.14, 34.74, 33.17, 39.79)}

METHOD = centralised(
    "dfm",
    paper="Lian et al., Towards Better Representation Learning for Personalized News Recommendation, IJCAI 2018",
    model="towers of three depths over words and categories",
    summary="networks of different depth over the same features",
    deviations=("Features are words and categories; ids, URLs and entities are left out.",),
)
