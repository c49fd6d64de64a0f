"""NAML: attention over title, abstract, category and subcategory."""

from __future__ import annotations

from veilrec.methods.news_common import centralised

# Table 2 of Qi et al. 2020 (FedNewsRec): (AUC, MRR, nDCG@5, nDCG@10) in per cent
PAPER = {"msn-news": (64.52, 30.93, 33.39, 39.07), "adressa": (69.2, 35.18, 34.78, 42.34)}

METHOD = centralised(
    "naml",
    paper="Wu et al., Neural News Recommendation with Attentive Multi-View Learning, IJCAI 2019",
    model="CNN over title and abstract, categories, attention over views",
    summary="title, abstract and categories as views that attention joins",
    abstracts=True,
)
