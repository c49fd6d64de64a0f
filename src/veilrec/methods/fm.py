"""FM: factorisation machine over words and categories."""

from __future__ import annotations

from veilrec.methods.news_common import centralised

# Table 2 of Qi et al. 2020 (FedNewsRec): (AUC, MRR, nDCG@5, nDCG@10) in per cent
PAPER = {"msn-news": (58.41, 27.19, 28.98, 34.57), "adressa": (61.94, 26.59, 22.69, 32.17)}

METHOD = centralised(
    "fm",
    paper="Rendle, Factorization Machines with libFM, TIST 2012",
    model="factorisation machine",
    summary="pairs of features of candidate and clicks",
    deviations=("Trained with the same softmax loss as the other models.",),
)
