"""What privacy costs: accuracy against epsilon, ours beside every rival in the same terms and beside no privacy."""

from __future__ import annotations

from dataclasses import replace

from veilrec.report.reproduce.experiment import Experiment, Panel, Quick, Row

EPSILONS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
NEWS_EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0)
SOME = (0.5, 2.0, 8.0)  # of news methods that take long
FEW = (1.0, 8.0)  # of methods that others here leave behind, or that take long: one seed of each
_TUNED = ("tuned",)
_TERMS = (
    "Every epsilon of a curve is per user, add-remove, over the whole run, trusting the server, proven, at delta 1e-6;"
    " what each run states stands in the table of claims. Grey lines have no privacy."
)


def curve(
    label: str,
    method: str,
    *settings: str,
    epsilons: tuple[float, ...] = EPSILONS,
    calibration: str = "proven",
    order: bool = False,
    seeds: int | None = None,
) -> tuple[Row, ...]:
    """A method at every epsilon."""
    return tuple(
        Row(
            f"{label}, epsilon {epsilon:g}",
            method,
            settings=(f"privacy.epsilon={epsilon:g}", *settings),
            presets=_TUNED,
            calibrations=(calibration,),
            at=epsilon,
            reads_order=order,
            seeds=seeds,
        )
        for epsilon in epsilons
    )


def reference(label: str, method: str, *, order: bool = False, seeds: int | None = None) -> Row:
    """A method without privacy: a level."""
    return Row(label, method, presets=_TUNED, reads_order=order, seeds=seeds)


_WITHOUT_ORDER = (
    *curve("veil, order off", "veil", "order=off"),
    *curve("DPALS, features", "dpals-features"),
    *curve("DPALS", "dpals"),
    *curve("private Gram", "private-gram"),
    *curve("DP-FedMF", "dp-fedmf"),
    *curve("private popularity", "private-popularity"),
    reference("EASE", "ease"),
    reference("FedMF", "fedmf"),
)
_AT_FEW = (
    *curve("popularity head", "popularity-head", epsilons=FEW, seeds=1),
    *curve("DP-PrivRec", "dp-privrec", epsilons=FEW, seeds=1),
    *curve("DP-FedNCF", "dp-fedncf", epsilons=FEW, seeds=1),
    *curve("Priv-FedMF-Sub", "priv-fedmf-sub", epsilons=FEW, seeds=1),
)
_IN_ORDER = (
    *curve("veil", "veil", order=True),
    *_WITHOUT_ORDER,
    *_AT_FEW,
    reference("SASRec", "sasrec", order=True),
    reference("Markov", "markov", order=True),
    reference("recency kNN", "recency-knn", order=True),
)
_LONG = ("sasrec",)  # on ML-1M: a quarter of an hour of one core


def _panels(data: str, title: str, *, required: bool = False) -> tuple[Panel, ...]:
    rows = _IN_ORDER
    if data == "ml-1m":
        rows = tuple(replace(row, seeds=1) if row.method in _LONG else row for row in rows)
    last = Panel(f"{title}, the last item among 99", data, rows, "", required, protocol="loo-99")
    return (
        last,
        replace(last, source=f"{title}, the last item among all", protocol="loo-full", trained_for="loo-99"),
        Panel(f"{title}, a random fifth among all", data, _WITHOUT_ORDER, "", required, protocol="ratio-8-2"),
    )


FRONTIER = Experiment(
    name="frontier",
    title="What privacy costs: accuracy against epsilon",
    paper="ours",
    protocol="loo-99",
    metrics=("hr@10", "ndcg@10"),
    picture="frontier",
    panels=(*_panels("ml-100k", "ML-100K", required=True), *_panels("ml-1m", "ML-1M"), *_panels("frappe", "Frappe")),
    quick=Quick(
        "ml-100k",
        "synthetic-ratings:users=600,items=500,seed=1",
        rounds=30,
        places=FEW,
        without=("dp-privrec", "popularity-head"),
    ),
    notes=(
        _TERMS,
        "Under ratio-8-2 items are held out at random, so that nothing that reads the order of a history stands there.",
        "Every method has its preset tuned at every epsilon; a preset may follow epsilon, and nothing was searched.",
    ),
    x_label="epsilon per user, whole run (delta 1e-6)",
    only_the_end=True,
    bold="veil",
    minutes=65,
)

_HEAD = "fednewsrec-head"
_NEWS_ROWS = (
    *curve("veil", "veil", epsilons=NEWS_EPSILONS, order=True),
    *curve("veil, sentences", "veil", "titles=sentences", epsilons=NEWS_EPSILONS, order=True),
    *(replace(row, presets=("public-encoder",)) for row in curve("public head", _HEAD, epsilons=NEWS_EPSILONS)),
    *curve("FedNewsRec-Head", _HEAD, epsilons=SOME),
    *curve("PrivateRec", "privaterec", epsilons=NEWS_EPSILONS),
    *curve("DP-FedRec", "dp-fedrec", epsilons=SOME),
    *curve("FedNewsRec", "fednewsrec", epsilons=SOME),
    *curve("private popularity", "private-popularity", epsilons=NEWS_EPSILONS),
    *curve("DP-FedRec, as published", "dp-fedrec", epsilons=FEW, calibration="as-published", seeds=1),
    reference("sentence-head", "sentence-head"),
    replace(reference("FedNewsRec, no noise", "fednewsrec"), calibrations=("none",)),
    replace(reference("FedNewsRec-Head, start", _HEAD), calibrations=("none",), untrained=True),
    replace(
        reference("public head, start", _HEAD), presets=("public-encoder",), calibrations=("none",), untrained=True
    ),
)

NEWS_FRONTIER = Experiment(
    name="news-frontier",
    title="What privacy costs, news: AUC against epsilon",
    paper="ours",
    protocol="mind",
    metrics=("auc", "ndcg@10"),
    picture="frontier",
    panels=(
        Panel("Made-up news", "synthetic-news:users=5000,seed=1", _NEWS_ROWS, ""),
        Panel("MIND", "mind", _NEWS_ROWS, "", required=False),
    ),
    quick=Quick(None, "synthetic-news:users=200,seed=1", rounds=4, settings=("cohort.size=20",), places=FEW),
    notes=(
        _TERMS,
        "DP-FedRec, as published: its epsilon is the paper's, of one message (see the table of claims), and compares"
        " with no other curve.",
        "A private run in which a fifth of the devices judges keeps the start where training does not pay for them.",
    ),
    x_label="epsilon per user, whole run (delta 1e-6)",
    usual_presets=("tuned", "public-encoder"),
    only_the_end=True,
    bold="veil",
)
