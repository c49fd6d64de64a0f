"""NRMS: multi-head self-attention over words and over clicks."""

from __future__ import annotations

from veilrec.methods.news_common import centralised

# Table 2 of Qi et al. 2020 (FedNewsRec): (AUC, MRR, nDCG@5, nDCG@10) in per cent
PAPER = {"msn-news": (65.72, 31.85, 34.59, 40.25), "adressa": (67.97, 33.16, 32.37, 40.41)}

METHOD = centralised(
    "nrms",
    paper="Wu et al., Neural News Recommendation with Multi-Head Self-Attention, EMNLP 2019",
    model="self-attention over words, self-attention over clicks",
    summary="titles by self-attention, users by self-attention over their clicks",
)
