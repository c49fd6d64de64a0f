"""Every number that Liu et al. print of PrivateRec, digit by digit, in per cent, each with its spread.

Tables 1 and 2 of its second version (v2) are Tables 2 and 3 of the first (v1), with the same 168 numbers. Its figures
carry no numbers; what the text says of them is here in words, and nothing is read off a picture.
"""

from __future__ import annotations

from veilrec.report.reproduce.experiment import Printed, percent

PAPER = (
    "Liu et al. 2022, PrivateRec: Differentially Private Model Training and Online Serving for Federated News "
    "Recommendation"
)
METRICS = ("auc", "mrr", "ndcg@5", "ndcg@10")
MODELS = ("NAML", "NRMS", "PLM-NR")
NEWSFEEDS, MIND = "NewsFeeds", "MIND"

# AUC, MRR, nDCG@5, nDCG@10, each with its spread; NewsFeeds, then MIND. What the paper calls DP-FedRec with an epsilon
# of infinity is FedRec; DP-FedRec and PrivateRec have epsilon_t 10.
TRAINING = {
    ("NAML", "Centralized"): (
        "64.01 0.14 31.08 0.13 33.31 0.14 41.15 0.14",
        "65.35 0.16 31.36 0.07 33.82 0.09 39.55 0.08",
    ),
    ("NAML", "FedRec"): ("63.22 0.08 30.29 0.08 32.34 0.09 40.27 0.08", "63.04 0.10 29.93 0.08 32.08 0.10 37.75 0.10"),
    ("NAML", "DP-FedRec"): (
        "54.84 0.55 25.08 0.34 25.67 0.43 33.47 0.44",
        "55.31 0.31 24.88 0.16 25.91 0.16 31.52 0.17",
    ),
    ("NAML", "PrivateRec"): (
        "61.05 0.37 28.46 0.32 30.03 0.38 38.12 0.37",
        "57.51 0.42 26.27 0.26 27.76 0.31 33.34 0.26",
    ),
    ("NRMS", "Centralized"): (
        "64.48 0.13 31.57 0.12 33.94 0.14 41.72 0.14",
        "65.82 0.11 31.68 0.08 34.29 0.06 39.99 0.07",
    ),
    ("NRMS", "FedRec"): ("63.32 0.19 30.46 0.18 32.56 0.21 40.44 0.21", "62.80 0.47 29.59 0.34 31.66 0.37 37.32 0.34"),
    ("NRMS", "DP-FedRec"): (
        "55.48 0.74 25.22 0.40 25.91 0.54 33.82 0.58",
        "54.59 0.54 24.75 0.27 25.64 0.32 31.28 0.30",
    ),
    ("NRMS", "PrivateRec"): (
        "61.69 0.16 29.04 0.15 30.70 0.23 38.77 0.20",
        "58.32 0.20 26.56 0.28 27.93 0.69 33.67 0.49",
    ),
    ("PLM-NR", "Centralized"): (
        "64.69 0.21 31.42 0.19 33.71 0.24 41.67 0.21",
        "67.08 0.15 32.49 0.10 35.21 0.14 40.94 0.13",
    ),
    ("PLM-NR", "FedRec"): (
        "63.48 0.35 30.35 0.26 32.46 0.33 40.46 0.33",
        "66.05 0.25 31.72 0.21 34.28 0.30 40.05 0.28",
    ),
    ("PLM-NR", "DP-FedRec"): (
        "57.74 0.11 26.05 1.17 27.01 1.48 35.19 1.41",
        "54.87 0.21 24.45 0.25 25.51 0.33 31.18 0.25",
    ),
    ("PLM-NR", "PrivateRec"): (
        "62.52 0.17 29.60 0.18 31.50 0.21 39.52 0.22",
        "58.75 0.14 26.70 0.28 28.22 0.32 33.90 0.25",
    ),
}

# The same with epsilon_s 10 in serving: FedRec with noise on the user vector, DP-FedRec likewise, PrivateRec.
SERVING = {
    ("NAML", "FedRec"): ("50.59 0.08 22.44 0.06 22.28 0.04 30.19 0.03", "50.32 0.03 22.75 0.05 23.41 0.04 28.94 0.03"),
    ("NAML", "DP-FedRec"): (
        "50.25 0.05 22.21 0.06 21.96 0.07 29.92 0.03",
        "50.11 0.09 22.69 0.07 23.31 0.09 28.83 0.08",
    ),
    ("NAML", "PrivateRec"): (
        "61.63 0.19 29.10 0.21 30.81 0.26 38.81 0.22",
        "57.52 0.13 26.39 0.22 27.88 0.26 33.45 0.22",
    ),
    ("NRMS", "FedRec"): ("50.32 0.14 22.37 0.11 22.18 0.13 30.07 0.13", "50.23 0.06 22.79 0.05 23.44 0.06 28.98 0.05"),
    ("NRMS", "DP-FedRec"): (
        "50.18 0.11 22.11 0.06 21.86 0.10 29.74 0.06",
        "50.19 0.10 22.71 0.06 23.34 0.07 28.87 0.07",
    ),
    ("NRMS", "PrivateRec"): (
        "61.37 0.22 28.77 0.16 30.42 0.21 38.47 0.20",
        "57.00 0.04 26.15 0.14 27.49 0.18 32.74 0.11",
    ),
    ("PLM-NR", "FedRec"): (
        "50.44 0.03 21.75 0.06 21.40 0.06 29.45 0.03",
        "50.59 0.01 22.61 0.06 23.18 0.05 28.78 0.06",
    ),
    ("PLM-NR", "DP-FedRec"): (
        "50.16 0.09 21.85 0.07 21.57 0.09 29.48 0.08",
        "50.03 0.04 22.17 0.06 22.70 0.11 28.26 0.10",
    ),
    ("PLM-NR", "PrivateRec"): (
        "62.62 0.14 29.74 0.10 31.57 0.11 39.66 0.11",
        "58.69 0.29 26.37 0.11 27.75 0.18 33.57 0.08",
    ),
}


AT_FIVE = Printed("0.6135")  # AUC of PrivateRec at epsilon_t 5 on NewsFeeds: the one number of its figures, section 4.1

# What the text says of figures without printed numbers.
SAYS = {
    "epsilon_t": (
        "PrivateRec is better than DP-FedRec at every epsilon_t of 1, 5, 10, 20 and infinity (NewsFeeds)",
        "at epsilon_t 5, PrivateRec has an AUC of 61.35 per cent (NewsFeeds)",
        "without noise, PrivateRec with B = 5 is comparable to FedRec",
    ),
    "epsilon_s": (
        "PrivateRec is better than DP-FedRec at every epsilon_s",
        "trained without noise, PrivateRec serves no better than trained privately, for epsilon_s from 0.001 to 10",
        "without noise in serving, FedRec is better than PrivateRec",
    ),
    "padding": (
        "the noise that is needed falls as p grows, the more the smaller epsilon_s",
        "the best p is 0.5 for B = 5, and 0.2 for B = 3",
    ),
    "basis": ("the best B is 3, on NewsFeeds and on MIND",),
    "dimension": (
        "DP-FedRec serves better the smaller d is, and never as well as PrivateRec",
        "without noise, a larger d usually has a higher AUC",
        "the skew tau of DP-FedRec is higher than that of PrivateRec at every epsilon_s",
    ),
}


def numbers(line: str) -> dict[str, Printed]:
    """A line of a table by metric, as shares."""
    values = line.split()
    pairs = zip(values[::2], values[1::2], strict=True)
    return {metric: percent(*pair) for metric, pair in zip(METRICS, pairs, strict=True)}
