"""DAN: CNNs over title and entities, attention and recurrence over clicks."""

from __future__ import annotations

from veilrec.methods.news_common import centralised

# Table 2 of Qi et al. 2020 (FedNewsRec): (AUC, MRR, nDCG@5, nDCG@10) in per cent
PAPER = {"msn-news": (62.54, 29.44, 31.67, 37.31), "adressa": (64.03, 33.37, 31.61, 38.6)}

METHOD = centralised(
    "dan",
    paper="Zhu et al., DAN: Deep Attention Neural Network for News Recommendation, AAAI 2019",
    model="CNNs over title and entities, attention and GRU over clicks",
    summary="interests and their sequence, attended to by the candidate",
    deviations=("A GRU in place of the LSTM.", "A scaled dot product in place of the cosine, which hardly learns."),
)
