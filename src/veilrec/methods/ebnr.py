"""EBNR: a GRU over clicks."""

from __future__ import annotations

from veilrec.methods.news_common import centralised

# Table 2 of Qi et al. 2020 (FedNewsRec): (AUC, MRR, nDCG@5, nDCG@10) in per cent
PAPER = {"msn-news": (63.64, 29.5, 31.57, 37.38), "adressa": (65.7, 30.23, 29.37, 36.38)}

METHOD = centralised(
    "ebnr",
    paper="Okura et al., Embedding-based News Recommendation for Millions of Users, KDD 2017",
    model="mean word vector, GRU over clicks",
    summary="titles as bags of words, users by a GRU",
    deviations=("The news part learns from clicks; it is not trained beforehand as a denoising autoencoder.",),
)
