"""DKN: words and entities in one CNN."""

from __future__ import annotations

from veilrec.methods.news_common import centralised

# Table 2 of Qi et al. 2020 (FedNewsRec): (AUC, MRR, nDCG@5, nDCG@10) in per cent
PAPER = {"msn-news": (62.38, 29.4, 31.59, 37.27), "adressa": (67.53, 32.33, 31.84, 39.96)}

METHOD = centralised(
    "dkn",
    paper="Wang et al., DKN: Deep Knowledge-Aware Network for News Recommendation, WWW 2018",
    model="CNN over words and entities, candidate-aware attention",
    summary="words with their entities, attention over clicks by the candidate",
    deviations=(
        "Entity vectors are learnt where the data set brings none; vectors of their neighbours are not used.",
        "The last network also sees the product of user and candidate, without which it hardly learns likeness.",
    ),
)
