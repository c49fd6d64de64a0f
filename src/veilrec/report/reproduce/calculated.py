"""Tables and curves that need no training: totals counted again, figures that no ranking has, epsilons that hold.

A YAML file names its tables by a key of `CALCULATIONS`. Every scale and epsilon of a mechanism is asked of the
mechanism itself, in the paper's calibration and in the proven one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from operator import itemgetter
from typing import Any

import numpy as np

from veilrec.data.datasets import find_dataset, load, whereabouts
from veilrec.evaluation.metrics import Impossible, impossible
from veilrec.methods.priv_fedmf_sub.common import CLIENTS, ROUNDS, ROWS, WIDTH, Counted, selected_items, totals
from veilrec.privacy.accounting import accountant, epsilon_of, epsilon_renyi
from veilrec.privacy.accounting.accountant import Rounds, epsilon_for
from veilrec.privacy.checks import positive
from veilrec.privacy.events import LaplaceEvent, repeated
from veilrec.privacy.mechanisms.attention import Noise, PaddedAttention, PrivateAttention
from veilrec.privacy.mechanisms.base import Calibration
from veilrec.privacy.mechanisms.interests import EmbeddingNoise
from veilrec.privacy.mechanisms.responses import LabelPermutation, label_only_epsilon
from veilrec.report.labels import spelt
from veilrec.report.plots import Curve
from veilrec.report.reproduce.experiment import Experiment, ExperimentRow, ResultTable, load_experiment

_CLOSE = 0.03  # of a printed total: as near as random bits can be asked to come
_MF_COUNTED = ("fedmf", "priv-fedmf-sub", "dp-fedmf-svd", "dp-fedmf-topk")
_NCF_COUNTED = ("fedncf", "priv-fedncf-sub-compress")

# FedNewsRec (Qi et al.)
PARAMETERS = 2_522_803  # trained by the authors' public code: its word vectors are frozen
NEWS_ROUNDS, NEWS_SHARE = 1500, 0.02  # sections 4.5 and 4.1: until it converges, and r, the users in a round
UPLOADS = round(NEWS_ROUNDS * NEWS_SHARE)  # of one user, on average
NEWS_DELTA = 1e-6
CLIPS = (0.0025, 0.005, 0.01)  # delta of eq. 4; the paper chose 0.005
SCALES = (0.005, 0.01, 0.015, 0.02, 0.025)  # lambda of eq. 5; the paper chose 0.015

# PrivateRec (Liu et al.)
THETA = 1.0  # clip norm of the attention, which the paper does not print; every attention vector is as short
BASIS = 5  # B of Fig. 4 and 6
SERVING_DELTA = 1e-3  # v1, section 4.1, of Gaussian noise in serving
EPSILONS = (1.0, 5.0, 10.0, 20.0)  # epsilon_t of Fig. 6, without infinity
PADDINGS = (0.0, 0.1, 0.2, 0.5, 0.8, 0.9)
DIMENSIONS = (16, 32, 64, 128, 256, 400)  # up to that of the paper's user vectors
EMBEDDING_CLIP = 0.001  # section 4: theta of DP-FedRec in serving
NEGATIVES = 4  # k, v1, section 4.1
IMPRESSION = 37  # C: items of a mean impression of MIND
_BOTH: tuple[Calibration, Calibration] = ("as-published", "proven")
_SERVED = "Table 2 of v2 (Table 3 of v1) as printed, epsilon_s 10"
_PER_CLICK = "per click (replace-one), per message, trusting nobody"
_PER_HISTORY = "per history (replace-one), per message, trusting nobody"

# PrivRec (Wang et al.)
CUTOFFS = (5, 10, 20, 30)
DIGITS = 3  # behind the point
_TABLES = ("privrec-table1", "privrec-table2")
_TOO_MUCH = "ndcg rises too much"
_DRAWN = accountant.DELTAS[1]


@dataclass(frozen=True)
class CalculatedTables:
    """What an experiment shows that needs no training."""

    grids: Sequence[ResultTable] = ()
    curves: Sequence[Curve] = ()
    x_label: str = ""
    y_label: str = ""


def calculate(experiment: Experiment) -> CalculatedTables:
    """Calculate the tables that an experiment names; none where it names none."""
    return CalculatedTables() if experiment.calculated is None else CALCULATIONS[experiment.calculated](experiment)


# ---- Communication paper (Xue et al.): totals counted one way, item vectors only, over the whole run


def communication_totals(methods: Sequence[str], width: int) -> CalculatedTables:
    """Count the totals of Table 2, Fig. 9 and Fig. 14 again, in millions of parameters."""
    every = totals({dataset: sub_model_size(dataset) for dataset in ROWS})
    rows = [_count_row(counted, width) for counted in every if counted.method in methods]
    head = ("method", "data", "printed, M", "counted, M", "off by", "numbers of a message", "in the printed total")
    title = "The paper's totals, counted again (no training)"
    return CalculatedTables((ResultTable(title, head, rows, frozenset({0, 1, 5, 6})),))


def sub_model_size(dataset: str) -> float:
    """Count the items that DP-SUB selects on a data set; not a number where the data is missing."""
    if whereabouts(find_dataset(dataset)) is None:
        return math.nan
    return selected_items(load(dataset).interactions.pairs(), seed=0)


def _count_row(counted: Counted, width: int) -> tuple[str, ...]:
    start = (counted.method, counted.dataset, f"{counted.printed:.2f}")
    # what a message must have held for the printed total to come out
    numbers = counted.printed * 1e6 / (CLIENTS[counted.dataset] * ROUNDS)
    share = 100 * numbers / width / ROWS[counted.dataset]
    needed = f"{numbers:,.0f} numbers, as of {numbers / width:.2f} rows of {width} ({share:.1f} % of the rows)"
    if math.isnan(counted.counted):
        return *start, "", "", f"not counted: {counted.dataset} was not found", needed
    error = counted.relative_error
    explained = "" if abs(error) <= _CLOSE else needed
    return *start, f"{counted.counted:.2f}", f"{100 * error:+.2f} %", counted.how, explained


# ---- FedNewsRec: Laplace noise on every coordinate of an upload


@dataclass(frozen=True)
class UploadBudget:
    """Epsilons of one pair of clip and noise; pure ones hold with delta 0."""

    claimed: float  # of one coordinate, which the paper takes for all
    upload_pure: float
    update: float  # with NEWS_DELTA
    training_pure: float
    training: float  # with NEWS_DELTA


def upload_budget(clip: float, scale: float, *, parameters: int = PARAMETERS, updates: int = UPLOADS) -> UploadBudget:
    """Compose the epsilons of coordinates that are clipped to +-clip and get Laplace(scale), each a release."""
    positive(clip=clip, scale=scale, parameters=parameters, updates=updates)
    claimed = 2.0 * clip / scale

    def with_delta(count: int) -> float:
        return min(count * claimed, epsilon_renyi(repeated(LaplaceEvent(claimed), count), NEWS_DELTA))

    return UploadBudget(
        claimed=claimed,
        upload_pure=parameters * claimed,
        update=with_delta(parameters),
        training_pure=updates * parameters * claimed,
        training=with_delta(updates * parameters),
    )


def laplace_budgets() -> CalculatedTables:
    """Tabulate Fig. 5(b) of FedNewsRec beside the epsilons of an upload and of the whole training."""
    budgets = {(clip, scale): upload_budget(clip, scale) for clip in CLIPS for scale in SCALES}
    head = (
        "delta (clip)",
        "lambda (noise)",
        "claimed: one coordinate",
        *(f"{what}, {how}" for what in ("one upload", f"{UPLOADS} uploads") for how in ("pure", f"at {NEWS_DELTA:g}")),
    )
    rows = [
        (
            f"{clip:g}",
            f"{scale:g}",
            f"{b.claimed:.4g}",
            *(f"{value:,.0f}" for value in (b.upload_pure, b.update, b.training_pure, b.training)),
        )
        for (clip, scale), b in budgets.items()
    ]
    title = (
        f"Epsilon of a user's whole upload (replace-one), trusting nobody, {PARAMETERS:,} parameters; "
        f"{NEWS_ROUNDS} rounds x {100 * NEWS_SHARE:g} % of users = {UPLOADS} uploads of a user"
    )
    chosen = [budgets[0.005, scale] for scale in SCALES]
    curves = [
        Curve("claimed (one coordinate)", SCALES, [b.claimed for b in chosen]),
        Curve(f"one upload, at {NEWS_DELTA:g}", SCALES, [b.update for b in chosen]),
        Curve(f"{UPLOADS} uploads, at {NEWS_DELTA:g}", SCALES, [b.training for b in chosen]),
    ]
    y_label = "epsilon of a user,\nreplace-one, trusting nobody"
    return CalculatedTables(
        (ResultTable(title, head, rows, frozenset()),), curves, "lambda, with delta = 0.005", y_label
    )


# ---- PrivateRec: noise on attention and user vectors


@dataclass(frozen=True)
class AttentionCalibration:
    """Noise on one attention vector that is claimed to be worth an epsilon, and what it would have to be."""

    claimed: float
    published: float  # scale
    holds: float  # epsilon of the published scale
    needed: float  # scale


def attention_noise(
    epsilon: float, padding: float, *, noise: Noise = "laplace", basis: int = BASIS
) -> AttentionCalibration:
    """Calibrate GetPrivAttn with behaviour padding (Algorithm 2), per click."""
    as_published = _attention(epsilon, padding, noise, basis, "as-published")
    proven = _attention(epsilon, padding, noise, basis, "proven")
    holds = epsilon_of(as_published.event(), as_published.claimed_delta)
    return AttentionCalibration(epsilon, as_published.noise.scale, holds, proven.noise.scale)


def _attention(
    epsilon: float, padding: float, noise: Noise, basis: int, calibration: Calibration
) -> PaddedAttention | PrivateAttention:
    delta = 0.0 if noise == "laplace" else SERVING_DELTA
    common: Any = {"clip_norm": THETA, "epsilon": epsilon, "delta": delta, "noise": noise, "calibration": calibration}
    if padding == 0.0:  # whose guarantee is of the whole history, and so of any click
        return PrivateAttention(basis=basis, **common)
    vectors, pad = np.eye(basis), np.zeros(basis)
    return PaddedAttention(
        encode=itemgetter(0), basis_vectors=vectors, pad=pad, slots=1, pad_probability=padding, **common
    )


def printed_table(experiment: Experiment, title: str) -> ResultTable:
    """Show all that a paper prints, for there may be no data here to put it beside."""
    head = [
        "method",
        *(f"{spelt(m)}, {p.published_on}" for p in experiment.panels for m in _printed(p.rows)[0].printed),
    ]
    rows = [
        [re.sub(r", epsilon_[ts] \S+$", "", same[0].label), *(str(n) for row in same for n in row.printed.values())]
        for same in zip(*(_printed(panel.rows) for panel in experiment.panels), strict=True)
    ]
    return ResultTable(title, head, rows)


def _printed(rows: Sequence[ExperimentRow]) -> list[ExperimentRow]:
    return [row for row in rows if row.printed]


def padding_noise() -> CalculatedTables:
    """Tabulate the noise that an epsilon needs by the share p of padded clicks (Fig. 5, left, exactly)."""
    chosen = EPSILONS[:3]
    laplace = {(e, p): attention_noise(e, p) for e in chosen for p in PADDINGS}
    gaussian = {(e, p): attention_noise(e, p, noise="gaussian") for e in chosen for p in PADDINGS}
    head = (
        *("claimed epsilon", "p", "Laplace scale, as published", "epsilon that holds", "scale needed"),
        *(f"Gaussian sigma (delta {SERVING_DELTA:g}), as published", "epsilon that holds", "sigma needed"),
    )
    rows = [(f"{e:g}", f"{p:g}", *_scales(laplace[e, p]), *_scales(gaussian[e, p])) for e, p in laplace]
    title = f"Noise on an attention vector, B = {BASIS}, theta = {THETA:g}: every epsilon is {_PER_CLICK}"
    curves = [
        Curve(f"epsilon {e:g}, {how}", PADDINGS, [getattr(laplace[e, p], field) for p in PADDINGS])
        for e in chosen
        for how, field in (("as published", "published"), ("proven", "needed"))
    ]
    table = ResultTable(title, head, rows, frozenset())
    return CalculatedTables((table,), curves, "p, share of padded clicks", "scale of the Laplace noise")


def _scales(found: AttentionCalibration) -> tuple[str, str, str]:
    return f"{found.published:.4g}", f"{found.holds:.4g}", f"{found.needed:.4g}"


def training_claims() -> CalculatedTables:
    """Tabulate what a message of PrivateRec's training reveals, part by part, beside epsilon_t."""
    found = [attention_noise(epsilon, 0.0) for epsilon in EPSILONS]
    head = (
        *("claimed epsilon_t", "attention alone", "label, if only it were seen"),
        *("label beside its candidates, least delta", "gradient, as it is sent"),
    )
    rows = [
        (
            f"{one.claimed:g}",
            f"{one.holds:.4g}",
            f"{label_only_epsilon(one.claimed, items=IMPRESSION, negatives=NEGATIVES):.4g}",
            f"{LabelPermutation(items=IMPRESSION, negatives=NEGATIVES, epsilon=one.claimed).delta(math.inf):.4g}",
            "no finite epsilon",
        )
        for one in found
    ]
    title = (
        f"What one message of training tells; Laplace noise, B = {BASIS}, theta = {THETA:g}, p = 0, k = {NEGATIVES} of "
        f"C = {IMPRESSION} shown news; every epsilon is {_PER_CLICK}, delta 0"
    )
    curves = [
        Curve("claimed", EPSILONS, EPSILONS),
        Curve("holds for the attention; for the gradient: none", EPSILONS, [one.holds for one in found]),
    ]
    table = ResultTable(title, head, rows, frozenset({4}))
    return CalculatedTables((table,), curves, "epsilon claimed", f"epsilon {_broken(_PER_CLICK)}")


def embedding_noise(epsilon: float = 10.0) -> CalculatedTables:
    """Tabulate DP-FedRec's noise on a user vector of d entries beside PrivateRec's on an attention vector."""
    theirs, ours = (
        [
            EmbeddingNoise(
                dimension=d, clip_norm=EMBEDDING_CLIP, epsilon=epsilon, delta=0.0, noise="laplace", calibration=how
            )
            for d in DIMENSIONS
        ]
        for how in _BOTH
    )
    holds = [epsilon_of(one.event(), 0.0) for one in theirs]
    own = attention_noise(epsilon, 0.0)
    relative = [  # what is sent, entries, published scale / clip norm, epsilon that holds, needed scale / clip norm
        *(
            (f"user vector, d = {d}", d, one.scale / one.clip_norm, honest, needed.scale / needed.clip_norm)
            for d, one, honest, needed in zip(DIMENSIONS, theirs, holds, ours, strict=True)
        ),
        (f"attention vector, B = {BASIS}", BASIS, own.published / THETA, own.holds, own.needed / THETA),
    ]
    rows = [
        (name, f"{scale:.4g}", f"{honest:.4g}", f"{needed:.4g}", f"{math.sqrt(2.0 * entries) * scale:.4g}")
        for name, entries, scale, honest, needed in relative
    ]
    head = (
        *("what is sent", "Laplace scale / clip norm, as published", "epsilon that holds"),
        *("scale / clip norm needed", "length of the published noise / clip norm"),
    )
    title = f"Noise in serving at a claimed epsilon of {epsilon:g}: every epsilon is {_PER_HISTORY}, delta 0"
    curves = [
        Curve("claimed", DIMENSIONS, [epsilon] * len(DIMENSIONS)),
        Curve("holds for the user vector", DIMENSIONS, holds),
        Curve(f"holds for the attention, B = {BASIS}", DIMENSIONS, [own.holds] * len(DIMENSIONS)),
    ]
    y_label = f"epsilon {_broken(_PER_HISTORY)}"
    return CalculatedTables((ResultTable(title, head, rows),), curves, "d, length of the user vector", y_label)


def _broken(words: str) -> str:
    """Break a phrase into lines for the side of a picture."""
    return words.replace(", ", ",\n")


# ---- PrivRec: figures that no ranking has, and the epsilons of its rounds


def impossible_figures(row: ExperimentRow) -> list[Impossible]:
    """List what no ranking has of a row of Table 1 or 2."""
    hits, ndcg = ({k: row.printed[f"{name}@{k}"].value for k in CUTOFFS} for name in ("hr", "ndcg"))
    return impossible(hits, ndcg, digits=DIGITS)


def impossible_steps(experiment: Experiment) -> CalculatedTables:
    """Tabulate the steps from one k to the next in which nDCG gains more than Hits allow."""
    steps = len(list(pairwise(CUTOFFS)))

    def count(row: ExperimentRow) -> int:
        return sum(found.rule == _TOO_MUCH for found in impossible_figures(row))

    def which(row: ExperimentRow) -> str:
        return "; ".join(str(found).removeprefix(f"{_TOO_MUCH}, ") for found in impossible_figures(row))

    rows = [(row.label, f"{count(row)} of {steps}", which(row)) for row in _printed(experiment.panels[0].rows)]
    both = [count(row) for name in _TABLES for row in _printed(load_experiment(name).panels[0].rows)]
    rows.append(("Tables 1 and 2", f"{sum(both)} of {steps * len(both)}", ""))
    title = (
        f"{experiment.sources()} as printed, against itself: with one positive in a list, nDCG@k2 - nDCG@k1 is at most"
        " (Hits@k2 - Hits@k1) / log2(k1 + 2), rounding allowed for"
    )
    head = ("method", "steps of nDCG that cannot be", "which")
    return CalculatedTables((ResultTable(title, head, rows, frozenset({0, 2})),))


def poisson_epsilon(population: int, cohort: int, delta: float) -> float:
    """Account for the same rounds under Poisson sampling of clients (add-remove)."""
    rounds = Rounds(rounds=accountant.ROUNDS, sampling="poisson", population=population, cohort=cohort)
    return epsilon_for(accountant.NOISE_MULTIPLIER, delta, rounds)


def privacy_losses() -> CalculatedTables:
    """Tabulate Tables 3 and 4 of DP-PrivRec: as printed, as they came about, and what holds."""
    tables = {"Movielens": accountant.MOVIELENS_TABLE, "Frappe": accountant.FRAPPE_TABLE}
    return CalculatedTables(
        [_losses(number, data, table) for number, (data, table) in enumerate(tables.items(), 3)],
        [curve for data, table in tables.items() for curve in _loss_curves(data, table)],
        "M, clients in a round",
        f"epsilon per user, whole run,\ntrusting the server, delta {_DRAWN:g}",
    )


def _losses(number: int, data: str, table: Mapping[tuple[int, int], object]) -> ResultTable:
    head = (
        *("q = M / N", "delta", "printed: replace-one, as published", "its count again: a release per client"),
        *("holds: replace-one, cohorts of M, proven", "printed / holds", "holds: add-remove, Poisson cohorts, proven"),
    )
    rows = []
    for population, cohort in table:
        for delta in accountant.DELTAS:
            found = accountant.compared(population, cohort, delta)
            epsilons = [f"{epsilon:.4f}" for epsilon in (found.paper, found.paper_convention, found.honest)]
            ratio, poisson = f"{found.paper / found.honest:.1f}", f"{poisson_epsilon(population, cohort, delta):.4f}"
            rows.append((f"{cohort} / {population}", f"{delta:g}", *epsilons, ratio, poisson))
    terms = f"per user, whole run of {accountant.ROUNDS} rounds, trusting the server"
    return ResultTable(
        f"Table {number}, {data}, z = {accountant.NOISE_MULTIPLIER:g}: every epsilon is {terms}", head, rows
    )


def _loss_curves(data: str, table: Mapping[tuple[int, int], object]) -> list[Curve]:
    entries = [accountant.compared(*key, _DRAWN) for key in table]
    curve = partial(Curve, x=[float(cohort) for _, cohort in table])
    return [
        curve(f"{data}, printed (replace-one)", y=[one.paper for one in entries]),
        curve(f"{data}, holds (replace-one)", y=[one.honest for one in entries]),
        curve(f"{data}, holds (add-remove, Poisson)", y=[poisson_epsilon(*key, _DRAWN) for key in table]),
    ]


def _privaterec_training(experiment: Experiment) -> CalculatedTables:
    table = printed_table(experiment, "Table 1 of v2 (Table 2 of v1) as printed, epsilon_t 10")
    return CalculatedTables((table, *training_claims().grids))


CALCULATIONS: Mapping[str, Callable[[Experiment], CalculatedTables]] = {
    "communication-mf": lambda _: communication_totals(_MF_COUNTED, WIDTH["matrix factorisation"]),
    "communication-ncf": lambda _: communication_totals(_NCF_COUNTED, WIDTH["NeuMF"]),
    "fednewsrec-budgets": lambda _: laplace_budgets(),
    "privaterec-training": _privaterec_training,
    "privaterec-serving": lambda one: CalculatedTables((printed_table(one, _SERVED),)),
    "privaterec-claims": lambda _: training_claims(),
    "privaterec-padding": lambda _: padding_noise(),
    "privaterec-dimension": lambda _: embedding_noise(),
    "privrec-consistency": impossible_steps,
    "privrec-losses": lambda _: privacy_losses(),
}
