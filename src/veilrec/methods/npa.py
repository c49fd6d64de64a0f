"""NPA: attention with the user's own query."""

from __future__ import annotations

from veilrec.methods.news_common import centralised

# Table 2 of Qi et al. 2020 (FedNewsRec): (AUC, MRR, nDCG@5, nDCG@10) in per cent
PAPER = {"msn-news": (64.29, 30.63, 33.11, 38.89), "adressa": (66.7, 34.68, 33.72, 41.18)}

METHOD = centralised(
    "npa",
    paper="Wu et al., NPA: Neural News Recommendation with Personalized Attention, KDD 2019",
    model="CNN over words, personal attention over words and clicks",
    summary="which words and clicks matter differs from user to user",
    deviations=("No user ids: the query is made from the mean of the clicked news, not from a vector per user.",),
)
