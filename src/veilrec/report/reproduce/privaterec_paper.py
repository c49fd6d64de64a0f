"""Tables and figures of Liu et al., PrivateRec (section 4), theirs beside ours.

Their NewsFeeds was never published: beside its numbers stand ours of made-up news; beside those of MIND, ours of the
MIND files that are there. What holds beside what is claimed is asked of every run, and of every mechanism.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from veilrec.device.ways import Serving
from veilrec.report.reproduce.experiment import BOTH_PRESETS, Calculated, Experiment, Grid, Panel, Printed, Quick, Row
from veilrec.report.reproduce.privaterec_budgets import EPSILONS, embedding_noise, padding_noise, training_claims
from veilrec.report.reproduce.privaterec_printed import (
    AT_FIVE,
    METRICS,
    MIND,
    MODELS,
    NEWSFEEDS,
    PAPER,
    SAYS,
    SERVING,
    TRAINING,
    numbers,
)
from veilrec.report.units import spelt

NEWS = "synthetic-news:users=5000,seed=1"
QUICK = Quick(None, "synthetic-news:users=200,seed=1", rounds=4, settings=("cohort.size=20",))
TUNED = ("tuned",)  # the paper's own settings are those of far larger models: only where --preset paper asks for them
_CURVE = ("auc", "ndcg@10")
_COLUMN = {NEWSFEEDS: 0, MIND: 1}
_EPSILON = 10.0  # epsilon_t and epsilon_s of both tables
_DELTA = 1e-6  # of our pooled queries
_METHOD = {"Centralized": "centralized", "FedRec": "fedrec", "DP-FedRec": "dp-fedrec", "PrivateRec": "privaterec"}
_FIGURES = "NRMS"  # the paper says of no figure which model it is of, but of Fig. 7 of v1 (NAML)

_SPREADS = (
    "Behind ±: in the paper the spread of five runs, whatever its measure; of ours the standard deviation over the "
    "seeds."
)
_CLAIMS = (
    "An epsilon_t or epsilon_s of the paper is a claim per click (replace-one), per message, trusting nobody; what is "
    "stated of each run, and what holds, is in the table of claims. Rows that are proven have terms of their own: their"
    " epsilons compare with none of another unit, scope or trust."
)
_START = "Untrained start: the model before its first round. What is trained and ranks worse has only been harmed."
_INFINITY = "What the paper calls DP-FedRec with an epsilon of infinity is FedRec here."
_MODEL = f"The paper does not say which model its figure is of; ours is {_FIGURES}."
_PRESET = "Preset tuned; --preset paper takes the paper's sizes and rates, which need far more time."


def _said(figure: str) -> tuple[str, ...]:
    """What the paper's text says of a figure that carries no numbers."""
    return tuple(f"The paper says: {sentence}." for sentence in SAYS[figure])


def _of(
    name: str,
    label: str,
    *settings: str,
    model: str = _FIGURES,
    printed: Mapping[str, Printed] | None = None,
    calibration: str = "as-published",
    at: float | None = None,
    serving: Serving | None = None,
    untrained: bool = False,
) -> Row:
    """One of the paper's methods with one of its models."""
    return Row(
        label,
        _METHOD[name],
        printed or {},
        (f"model={model.lower()}", *settings),
        presets=TUNED if calibration == "proven" else BOTH_PRESETS,
        calibrations=(calibration,),
        at=at,
        serving=serving,
        untrained=untrained,
    )


def _beside(model: str = _FIGURES) -> tuple[Row, ...]:
    """What stands beside every figure of ours."""
    return (
        _of("FedRec", "FedRec, untrained start", model=model, untrained=True),
        _of("PrivateRec", "PrivateRec, untrained start", model=model, calibration="none", untrained=True),
        _of("FedRec", "FedRec, not private", model=model),
    )


def _private_training(epsilon: float) -> str:
    return f"privacy.epsilon={epsilon:g}"


_by_vector = partial(Serving, mode="vector", calibration="as-published")
_by_attention = partial(Serving, mode="attention", calibration="as-published")


def _as_printed(title: str, table: Mapping[tuple[str, str], tuple[str, str]]) -> Grid:
    """All that the paper prints, for there may be no MIND here to put it beside."""
    head = ["method", *(f"{spelt(metric)}, {data}" for data in _COLUMN for metric in METRICS)]
    rows = [
        [", ".join(name), *(str(number) for line in lines for number in numbers(line).values())]
        for name, lines in table.items()
    ]
    return Grid(title, head, rows)


def _panels(source: str, rows: Mapping[str, tuple[Row, ...]]) -> tuple[Panel, ...]:
    return (
        Panel(f"{source}, {NEWSFEEDS}", NEWS, rows[NEWSFEEDS], NEWSFEEDS),
        Panel(f"{source}, {MIND}", "mind", rows[MIND], MIND, required=False),
    )


def _trained(data: str) -> tuple[Row, ...]:
    """Table 1 of v2, and our proven forms."""
    rows: list[Row] = []
    for model in MODELS:
        of_start = partial(_of, model=model, untrained=True)
        rows += [
            of_start("FedRec", f"{model}, FedRec, untrained start"),
            of_start("PrivateRec", f"{model}, PrivateRec, untrained start", calibration="none"),
        ]
        for name in _METHOD:
            private = name in ("DP-FedRec", "PrivateRec")
            label = f"{model}, {name}, epsilon_t {_EPSILON:g}" if private else f"{model}, {name}"
            settings = (_private_training(_EPSILON),) if private else ()
            printed = numbers(TRAINING[model, name][_COLUMN[data]])
            rows.append(_of(name, label, *settings, model=model, printed=printed))
    ways = {
        "public-encoder": ("cohort.size=0",),  # everybody, in every round
        "sums": ("cohort.size=0",),
        "reports": ("cohort.size=0", "cohort.sampling=turns", "round_share=0.05"),
    }
    for way, more in ways.items():
        of = partial(_of, "PrivateRec", calibration="proven")
        rows += [
            of(f"{_FIGURES}, PrivateRec, {way} (ours), untrained start", f"training={way}", *more, untrained=True),
            of(f"{_FIGURES}, PrivateRec, {way} (ours)", f"training={way}", *more),
        ]
    return tuple(rows)


def _training_calculated() -> Calculated:
    printed = _as_printed("Table 1 of v2 (Table 2 of v1) as printed, epsilon_t 10", TRAINING)
    return Calculated((printed, *training_claims().grids))


PRIVATEREC_TRAINING = Experiment(
    name="privaterec-training",
    title="PrivateRec's training beside centralised, federated and noisy training",
    paper=f"{PAPER}; Table 1 of v2, Table 2 of v1",
    protocol="mind",
    metrics=METRICS,
    picture="points",
    panels=_panels("Table 1 of v2", {data: _trained(data) for data in _COLUMN}),
    quick=QUICK,
    notes=(_INFINITY, _CLAIMS, _START, _SPREADS, _PRESET),
    calculated=_training_calculated,
    usual_presets=TUNED,
    minutes=100,
)


def _served(data: str) -> tuple[Row, ...]:
    """Table 2 of v2, and other ways to serve the same models."""
    private = _private_training(_EPSILON)
    query = f"epsilon_s {_EPSILON:g}"
    rows: list[Row] = []
    for model in MODELS:
        of = partial(_of, model=model)
        theirs = {name: numbers(SERVING[model, name][_COLUMN[data]]) for name in ("FedRec", "DP-FedRec", "PrivateRec")}
        vector, attention = _by_vector(epsilon=_EPSILON), _by_attention(epsilon=_EPSILON)
        rows += [
            of("FedRec", f"{model}, FedRec, untrained start", untrained=True),
            of("PrivateRec", f"{model}, PrivateRec, untrained start", calibration="none", untrained=True),
            of("FedRec", f"{model}, FedRec, not private"),
            of("PrivateRec", f"{model}, PrivateRec, epsilon_t 10, no noise in serving", private),
            of("FedRec", f"{model}, FedRec, {query}", printed=theirs["FedRec"], serving=vector),
            of("DP-FedRec", f"{model}, DP-FedRec, {query}", private, printed=theirs["DP-FedRec"], serving=vector),
            of("PrivateRec", f"{model}, PrivateRec, {query}", private, printed=theirs["PrivateRec"], serving=attention),
            of(
                "PrivateRec",
                f"{model}, PrivateRec, {query}, proven (ours)",
                private,
                serving=Serving(mode="attention", epsilon=_EPSILON),
            ),
            of(
                "FedRec",
                f"{model}, FedRec, {query}, pooled (ours)",
                serving=Serving(mode="pooled", epsilon=_EPSILON, delta=_DELTA),
            ),
            of("FedRec", f"{model}, FedRec, ranked on the device (ours)", serving=Serving(mode="none-sent")),
        ]
    return tuple(rows)


def _serving_calculated() -> Calculated:
    return Calculated((_as_printed("Table 2 of v2 (Table 3 of v1) as printed, epsilon_s 10", SERVING),))


PRIVATEREC_SERVING = Experiment(
    name="privaterec-serving",
    title="PrivateRec's models asked with noise",
    paper=f"{PAPER}; Table 2 of v2, Table 3 of v1",
    protocol="mind",
    metrics=(*METRICS, "skew"),
    picture="points",
    panels=_panels("Table 2 of v2", {data: _served(data) for data in _COLUMN}),
    quick=QUICK,
    notes=(
        "FedRec is trained without noise, DP-FedRec and PrivateRec at epsilon_t 10.",
        "Skew tau: the share of places in which the ranking with noise has another item than the one without (v1).",
        _CLAIMS,
        _START,
        _SPREADS,
        _PRESET,
    ),
    calculated=_serving_calculated,
    usual_presets=TUNED,
    minutes=75,
)

QUERIES = (0.001, 0.1, 1.0, 10.0)  # epsilon_s; the text of Fig. 4 speaks of 0.001 to 10


def _budgets_of_training() -> tuple[Row, ...]:
    printed = {5.0: {"auc": AT_FIVE}}
    return (
        *(
            _of("PrivateRec", f"PrivateRec, epsilon_t {e:g}", _private_training(e), printed=printed.get(e), at=e)
            for e in EPSILONS
        ),
        *(_of("DP-FedRec", f"DP-FedRec, epsilon_t {e:g}", _private_training(e), at=e) for e in EPSILONS),
        _of("PrivateRec", "PrivateRec, no noise", calibration="none"),
        *_beside(),
    )


def _budgets_of_serving() -> tuple[Row, ...]:
    ten = _private_training(_EPSILON)
    rows: list[Row] = []
    for e in QUERIES:
        of, at = partial(_of, at=e), f"epsilon_s {e:g}"
        rows += [
            of("PrivateRec", f"PrivateRec at epsilon_t 10, {at}", ten, serving=_by_attention(epsilon=e)),
            of(
                "PrivateRec",
                f"PrivateRec without training noise, {at}",
                calibration="none",
                serving=_by_attention(epsilon=e),
            ),
            of("FedRec", f"FedRec, user vector, {at}", serving=_by_vector(epsilon=e)),
            of(
                "PrivateRec",
                f"PrivateRec at epsilon_t 10, proven query, {at}",
                ten,
                serving=Serving(mode="attention", epsilon=e),
            ),
        ]
    return (*rows, _of("PrivateRec", "PrivateRec at epsilon_t 10, no noise in serving", ten), *_beside())


PRIVATEREC_BUDGET = Experiment(
    name="privaterec-budget",
    title="PrivateRec against the epsilons that it claims in training and in serving",
    paper=f"{PAPER}; Fig. 6 and 4 of v2, Fig. 4 and 5 of v1",
    protocol="mind",
    metrics=_CURVE,
    picture="along",
    panels=(
        Panel("Fig. 6 of v2", NEWS, _budgets_of_training(), NEWSFEEDS, x_label="claimed epsilon_t, per message"),
        Panel("Fig. 4 of v2", NEWS, _budgets_of_serving(), NEWSFEEDS, x_label="claimed epsilon_s, per message"),
    ),
    quick=QUICK,
    notes=(*_said("epsilon_t"), *_said("epsilon_s"), _MODEL, _CLAIMS, _START, _PRESET),
    calculated=training_claims,
    usual_presets=TUNED,
    minutes=65,
)

_PADDED = (0.0, 0.2, 0.5, 0.8)  # p, in training and in serving


def _padded(basis: int, padding: float, epsilon: float) -> Row:
    return _of(
        "PrivateRec",
        f"B {basis}, epsilon_s {epsilon:g}, p {padding:g}",
        _private_training(_EPSILON),
        f"size.basis={basis}",
        f"privacy.pad_probability={padding:g}",
        at=padding,
        serving=_by_attention(epsilon=epsilon, padding=padding),
    )


PRIVATEREC_PADDING = Experiment(
    name="privaterec-padding",
    title="The share p of padded clicks: the noise that it saves, and what is left to rank with",
    paper=f"{PAPER}; Fig. 5 of v2, Fig. 6 of v1",
    protocol="mind",
    metrics=_CURVE,
    picture="along",
    x_label="p, share of padded clicks",
    panels=(
        Panel(
            "Fig. 5 of v2",
            NEWS,
            (*(_padded(b, p, e) for b in (5, 3) for e in (1.0, _EPSILON) for p in _PADDED), *_beside()),
            NEWSFEEDS,
        ),
    ),
    quick=QUICK,
    notes=(
        *_said("padding"),
        "p is the same in training and in serving; epsilon_t is 10.",
        _MODEL,
        _CLAIMS,
        _START,
        _PRESET,
    ),
    calculated=padding_noise,
    usual_presets=TUNED,
    minutes=70,
)

_BASES = (2, 3, 5, 10, 20)  # B


def _with_basis(basis: int, calibration: str) -> Row:
    private = calibration == "as-published"
    return _of(
        "PrivateRec",
        f"PrivateRec, {'epsilon_t 10' if private else 'no noise'}, B {basis}",
        *((_private_training(_EPSILON),) if private else ()),
        f"size.basis={basis}",
        calibration=calibration,
        at=basis,
    )


PRIVATEREC_BASIS = Experiment(
    name="privaterec-basis",
    title="The number B of basis vectors, in training",
    paper=f"{PAPER}; Fig. 7 of v2, Fig. 8 of v1",
    protocol="mind",
    metrics=_CURVE,
    picture="along",
    x_label="B, number of basis vectors",
    panels=(
        Panel(
            "Fig. 7 of v2",
            NEWS,
            (*(_with_basis(basis, how) for how in ("as-published", "none") for basis in _BASES), *_beside()),
            NEWSFEEDS,
        ),
    ),
    quick=QUICK,
    notes=(*_said("basis"), _MODEL, _CLAIMS, _START, _PRESET),
    usual_presets=TUNED,
    minutes=20,
)

_LENGTHS = (16, 32, 64, 128)  # d, of 4 heads
_V1_MODEL = "NAML"


def _of_length(dimension: int) -> tuple[Row, ...]:
    size = ("size.heads=4", f"size.head_dim={dimension // 4}")
    of = partial(_of, "FedRec", model=_V1_MODEL, at=dimension)
    return (
        of(f"FedRec, not private, d {dimension}", *size),
        *(of(f"FedRec, epsilon_s {e:g}, d {dimension}", *size, serving=_by_vector(epsilon=e)) for e in (1.0, _EPSILON)),
    )


PRIVATEREC_DIMENSION = Experiment(
    name="privaterec-dimension",
    title="The length d of the user vector, and how far noise moves a ranking (skew tau)",
    paper=f"{PAPER}; Fig. 7 of v1",
    protocol="mind",
    metrics=("auc", "skew"),
    picture="along",
    x_label="d, length of the user vector",
    panels=(
        Panel(
            "Fig. 7 of v1",
            NEWS,
            (
                *(row for dimension in _LENGTHS for row in _of_length(dimension)),
                *(
                    _of(
                        "PrivateRec",
                        f"PrivateRec, B 5, epsilon_s {e:g}",
                        _private_training(_EPSILON),
                        model=_V1_MODEL,
                        serving=_by_attention(epsilon=e),
                    )
                    for e in (1.0, _EPSILON)
                ),
                *_beside(_V1_MODEL),
            ),
            NEWSFEEDS,
        ),
    ),
    quick=QUICK,
    notes=(
        *_said("dimension"),
        "Skew tau is 1 minus the share of places in which the ranking with noise has the same item as the one without.",
        "FedRec is trained without noise, PrivateRec at epsilon_t 10.",
        _CLAIMS,
        _START,
        _PRESET,
    ),
    calculated=embedding_noise,
    usual_presets=TUNED,
    minutes=30,
)
