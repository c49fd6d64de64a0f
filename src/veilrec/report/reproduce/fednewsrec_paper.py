"""Tables and figures of Qi et al., Privacy-Preserving News Recommendation Model Learning (section 4), and what its
noise is worth: the epsilon that the paper claims, that of an upload, that of the training.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from veilrec.privacy.accounting import epsilon_renyi
from veilrec.privacy.checks import positive
from veilrec.privacy.events import LaplaceEvent, repeated
from veilrec.report.plots import Curve
from veilrec.report.reproduce.experiment import (
    BOTH_PRESETS,
    CALIBRATIONS,
    Calculated,
    Experiment,
    Grid,
    Panel,
    Printed,
    Quick,
    Row,
    percent,
)

PAPER = "Qi et al. 2020, Privacy-Preserving News Recommendation Model Learning (FedNewsRec)"
METRICS = ("auc", "mrr", "ndcg@5", "ndcg@10")
QUICK = Quick(None, "synthetic-news:users=500,seed=1", rounds=10, settings=("cohort.size=30",))
_PAPERS_DATA = (
    "The paper's MSN-News was never published: its numbers stand beside ours for orientation, on other news and other "
    "users. Absolute values cannot be compared; the order of the methods and their distances can."
)
_PROTOCOLS = {"adressa": "last-day-20"}  # section 4.1: its log does not say what was shown
_SPREADS = "Behind ±: in the paper the standard error over five runs, of ours the standard deviation over the seeds."
_HALF = (
    "Preset paper: half of the users learn and all are asked, as in section 4.1; FCF, which needs everybody, and "
    "preset tuned learn from all."
)
_PUBLISHED_OR_BARE = ("as-published", "none")
_NO_NUMBERS = "The paper prints no number of this figure; where ours begins and ends on its axis is our choice."

PARAMETERS = 2_522_803  # trained by the authors' public code: its word vectors are frozen
ROUNDS, SHARE = 1500, 0.02  # sections 4.5 and 4.1: until it converges, and r, the users in a round
UPLOADS = round(ROUNDS * SHARE)  # of one user, on average
DELTA = 1e-6
CLIPS = (0.0025, 0.005, 0.01)  # delta of eq. 4; the paper chose 0.005
SCALES = (0.005, 0.01, 0.015, 0.02, 0.025)  # lambda of eq. 5; the paper chose 0.015


@dataclass(frozen=True)
class Budget:
    """Epsilons of one pair of clip and noise; pure ones hold with delta 0."""

    claimed: float  # of one coordinate, which the paper takes for all
    upload_pure: float
    upload: float  # with DELTA
    training_pure: float
    training: float  # with DELTA


def budget(clip: float, scale: float, *, parameters: int = PARAMETERS, uploads: int = UPLOADS) -> Budget:
    """Every coordinate is clipped to +-clip and gets Laplace(scale): each is a release of its own."""
    positive(clip=clip, scale=scale, parameters=parameters, uploads=uploads)
    claimed = 2.0 * clip / scale
    coordinate = LaplaceEvent(claimed)
    return Budget(
        claimed=claimed,
        upload_pure=parameters * claimed,
        upload=_with_delta(coordinate, parameters),
        training_pure=uploads * parameters * claimed,
        training=_with_delta(coordinate, uploads * parameters),
    )


def _with_delta(coordinate: LaplaceEvent, count: int) -> float:
    return min(count * coordinate.epsilon, epsilon_renyi(repeated(coordinate, count), DELTA))


def laplace_budgets() -> Calculated:
    """Fig. 5(b) with what the paper leaves out beside it."""
    budgets = {(clip, scale): budget(clip, scale) for clip in CLIPS for scale in SCALES}
    head = (
        "delta (clip)",
        "lambda (noise)",
        "claimed: one coordinate",
        "one upload, pure",
        f"one upload, at {DELTA:g}",
        f"{UPLOADS} uploads, pure",
        f"{UPLOADS} uploads, at {DELTA:g}",
    )
    rows = [
        (
            f"{clip:g}",
            f"{scale:g}",
            f"{b.claimed:.4g}",
            *(f"{value:,.0f}" for value in (b.upload_pure, b.upload, b.training_pure, b.training)),
        )
        for (clip, scale), b in budgets.items()
    ]
    title = (
        f"Epsilon of a user's whole upload (replace-one), trusting nobody, {PARAMETERS:,} parameters; "
        f"{ROUNDS} rounds x {100 * SHARE:g} % of users = {UPLOADS} uploads of a user"
    )
    chosen = {scale: budgets[0.005, scale] for scale in SCALES}
    curves = [
        Curve("claimed (one coordinate)", SCALES, [b.claimed for b in chosen.values()]),
        Curve(f"one upload, at {DELTA:g}", SCALES, [b.upload for b in chosen.values()]),
        Curve(f"{UPLOADS} uploads, at {DELTA:g}", SCALES, [b.training for b in chosen.values()]),
    ]
    return Calculated(
        (Grid(title, head, rows, words=frozenset()),),
        curves,
        "lambda, with delta = 0.005",
        "epsilon of a user,\nreplace-one, trusting nobody",
    )


# AUC, MRR, nDCG@5, nDCG@10 in per cent, each with its standard error; MSN-News, then Adressa
_TABLE_2 = {
    "FM": ("58.41 0.04 27.19 0.05 28.98 0.04 34.57 0.06", "61.94 0.80 26.59 0.33 22.69 0.54 32.17 0.46"),
    "DFM": ("61.25 0.26 28.68 0.10 30.62 0.21 36.38 0.23", "65.14 0.69 34.74 0.89 33.17 1.46 39.79 1.08"),
    "EBNR": ("63.64 0.15 29.50 0.14 31.57 0.13 37.38 0.20", "65.70 0.72 30.23 0.49 29.37 0.53 36.38 0.44"),
    "DKN": ("62.38 0.19 29.40 0.15 31.59 0.11 37.27 0.21", "67.53 1.90 32.33 2.79 31.84 2.78 39.96 2.52"),
    "DAN": ("62.54 0.23 29.44 0.18 31.67 0.14 37.31 0.25", "64.03 3.10 33.37 2.63 31.61 3.03 38.60 3.02"),
    "NAML": ("64.52 0.24 30.93 0.17 33.39 0.16 39.07 0.19", "69.20 2.07 35.18 1.49 34.78 1.85 42.34 1.97"),
    "NPA": ("64.29 0.20 30.63 0.15 33.11 0.17 38.89 0.23", "66.70 2.42 34.68 1.77 33.72 2.09 41.18 1.99"),
    "NRMS": ("65.72 0.16 31.85 0.20 34.59 0.18 40.25 0.17", "67.97 2.23 33.16 2.54 32.37 3.59 40.41 2.82"),
    "FCF": ("51.03 0.27 22.24 0.14 22.97 0.21 28.44 0.23", "53.33 1.28 23.04 2.68 20.24 2.77 27.09 2.61"),
    "FedNewsRec": ("64.65 0.15 30.60 0.09 33.03 0.11 38.77 0.10", "69.91 2.53 35.55 1.85 33.74 2.45 41.47 2.78"),
    "CenNewsRec": ("66.45 0.17 31.91 0.22 34.62 0.18 40.33 0.24", "71.02 2.09 36.31 2.52 35.73 3.71 43.98 2.52"),
}


def _numbers(line: str) -> dict[str, Printed]:
    values = line.split()
    pairs = zip(values[::2], values[1::2], strict=True)
    return {metric: percent(*pair) for metric, pair in zip(METRICS, pairs, strict=True)}


def _table_2(column: int) -> tuple[Row, ...]:
    theirs = (
        Row(
            name,
            name.lower(),
            _numbers(lines[column]),
            presets=("tuned",) if name == "FCF" else BOTH_PRESETS,  # the paper prints no setting of it
            calibrations=CALIBRATIONS,
        )
        for name, lines in _TABLE_2.items()
    )
    ours = Row(
        "on frozen sentence vectors (ours)", "fednewsrec-head", presets=("tuned",), calibrations=("proven", "none")
    )
    return (*theirs, ours)


FEDNEWSREC_TABLE2 = Experiment(
    name="fednewsrec-table2",
    title="News recommendation, centralised and federated",
    paper=PAPER,
    protocol="mind",
    protocols=_PROTOCOLS,
    metrics=METRICS,
    picture="points",
    panels=(
        Panel("Table 2, left", "mind", _table_2(0), "MSN-News"),
        Panel("Table 2, right", "adressa", _table_2(1), "Adressa", required=False),
    ),
    quick=QUICK,
    notes=(_PAPERS_DATA, _SPREADS, _HALF),
)

_USERS = (100, 300, 1000, 3000, 10000)


def _only(users: int) -> Row:
    # the same cohort for all, so that only the number of users differs
    return Row(
        f"{users:,} users",
        "fednewsrec",
        settings=(f"train_users={users}", "cohort.size=50"),
        presets=("tuned",),
        calibrations=_PUBLISHED_OR_BARE,
        at=users,
    )


FEDNEWSREC_FIG4 = Experiment(
    name="fednewsrec-fig4",
    title="FedNewsRec by the number of users who take part",
    paper=PAPER,
    protocol="mind",
    protocols=_PROTOCOLS,
    metrics=METRICS,
    picture="along",
    x_label="Users who take part in training",
    panels=(Panel("Fig. 4", "mind", tuple(_only(users) for users in _USERS), "MSN-News"),),
    quick=replace(QUICK, furthest=_USERS[1]),
    notes=(_NO_NUMBERS, "50 devices a round, however many take part; all users are tested."),
)


def _noisy(clip: float, scale: float) -> Row:
    return Row(
        f"delta {clip:g}, lambda {scale:g}",
        "fednewsrec",
        settings=(f"privacy.clip_value={clip:g}", f"privacy.scale={scale:g}"),
        presets=("tuned",),
        calibrations=("as-published",),
        at=scale,
    )


FEDNEWSREC_FIG5 = Experiment(
    name="fednewsrec-fig5",
    title="FedNewsRec by its clip (delta) and its noise (lambda)",
    paper=PAPER,
    protocol="mind",
    protocols=_PROTOCOLS,
    metrics=METRICS,
    picture="along",
    x_label="lambda",
    panels=(
        Panel(
            "Fig. 5",
            "mind",
            tuple(_noisy(clip, scale) for clip in (0.0025, 0.005, 0.01) for scale in (0.005, 0.015, 0.025)),
            "MSN-News",
        ),
    ),
    quick=QUICK,
    notes=(
        "The paper's claim is 2 delta / lambda. It is the epsilon of one coordinate: an upload has millions of them, "
        "and a user uploads more than once.",
        _NO_NUMBERS,
    ),
    calculated=laplace_budgets,
)

_SHARES = (0.01, 0.02, 0.05, 0.1)  # r; the paper chose 0.02

FEDNEWSREC_FIG6 = Experiment(
    name="fednewsrec-fig6",
    title="FedNewsRec over rounds, by the share r of users in a round",
    paper=PAPER,
    protocol="mind",
    protocols=_PROTOCOLS,
    metrics=("auc", "ndcg@10"),
    picture="rounds",
    panels=(
        Panel(
            "Fig. 6",
            "mind",
            tuple(
                Row(
                    f"r = {share:g}",
                    "fednewsrec",
                    settings=("cohort.size=0", f"round_share={share:g}"),
                    presets=("tuned",),
                    calibrations=_PUBLISHED_OR_BARE,
                )
                for share in _SHARES
            ),
            "MSN-News",
        ),
    ),
    quick=QUICK,
    notes=(_NO_NUMBERS, "The text says that training converges in about 1,500 rounds for every r."),
)


def _user_model(label: str, network: str) -> Row:
    return Row(
        label, "fednewsrec", settings=(f"network={network}",), presets=("tuned",), calibrations=_PUBLISHED_OR_BARE
    )


FEDNEWSREC_FIG7 = Experiment(
    name="fednewsrec-fig7",
    title="Parts of FedNewsRec's user model left out",
    paper=PAPER,
    protocol="mind",
    protocols=_PROTOCOLS,
    metrics=METRICS,
    picture="points",
    panels=(
        Panel(
            "Fig. 7",
            "mind",
            (
                _user_model("FedNewsRec", "fednewsrec"),
                _user_model("without short-term interests", "fednewsrec-long"),
                _user_model("without long-term interests", "fednewsrec-short"),
            ),
            "MSN-News",
        ),
    ),
    quick=QUICK,
    notes=(_NO_NUMBERS,),
)
