"""CenNewsRec: the model of FedNewsRec with everybody's data in one place."""

from __future__ import annotations

from veilrec.methods.news_common import FEDNEWSREC, centralised

# Table 2: (AUC, MRR, nDCG@5, nDCG@10) in per cent
PAPER = {"msn-news": (66.45, 31.91, 34.62, 40.33), "adressa": (71.02, 36.31, 35.73, 43.98)}

METHOD = centralised(
    "cennewsrec",
    paper=FEDNEWSREC,
    model="CNN and self-attention over words; self-attention and GRU over clicks",
    summary="the model of FedNewsRec, learnt from everybody's impressions in one place",
    network="fednewsrec",
)
