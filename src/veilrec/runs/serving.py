"""A saved news model measured as served: only a private query leaves the client, or nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from veilrec.client.queries import MODES, PRIVATE, Serving
from veilrec.core.errors import BadInput
from veilrec.evaluation.evaluator import validator_impressions
from veilrec.evaluation.serving import PublicTexts, UnavailableMode, composed, every_way, guarantee_of, serve
from veilrec.runs.checkpoint import read_result, trained_padding
from veilrec.runs.evaluation import OpenedRun, TestMetrics, measure, open_for_evaluation

ALL = "all"  # every serving mode


def evaluate_serving(
    folder: Path, serving: Serving, protocol: str | None = None, data: str | None = None, *, method: str | None = None
) -> dict[str, Any]:
    """What users get of a run when it is served so: metrics beside the model's own, the promise, bytes, recall, skew.

    `guarantee` is that of one query and `composed` that of all that were asked about; `model_guarantee` is the run's.
    """
    asked = _Asked(folder, protocol, data, method)
    return asked.about | asked.served(serving)


def evaluate_servings(
    folder: Path,
    ways: Sequence[Serving | UnavailableMode],
    protocol: str | None = None,
    data: str | None = None,
    *,
    method: str | None = None,
) -> dict[str, Any]:
    """Measure several serving modes side by side: `ways`, and those that this model cannot be served by."""
    asked = _Asked(folder, protocol, data, method)
    found, left_out = [], [{"serving": way.mode, "why": way.why} for way in ways if isinstance(way, UnavailableMode)]
    for way in ways:
        if isinstance(way, UnavailableMode) or any(way.mode == other["serving"] for other in left_out):
            continue
        try:
            found.append({"epsilon": way.epsilon} | asked.served(way))
        except BadInput as reason:
            left_out.append({"serving": way.mode, "why": str(reason)})
    if not found:
        raise BadInput(left_out[0]["why"])
    return asked.about | {"ways": found, "left_out": left_out}


def ask_for(
    folder: Path,
    mode: str,
    epsilon: str | None,
    options: Mapping[str, Any],
    plot: Path | None,
    protocol: str | None = None,
    data: str | None = None,
    *,
    method: str | None = None,
) -> dict[str, Any]:
    """What `veilrec evaluate --serving` asks for: one way, or a table of several, as a picture needs."""
    epsilons = _numbers(epsilon)
    if mode != ALL and not epsilons[1:] and plot is None:
        how: Any = {"mode": mode, "epsilon": epsilons[0] if epsilons else None} | dict(options)
        return evaluate_serving(folder, Serving(**how), protocol, data, method=method)
    if plot is not None and plot.suffix not in (".svg", ".png"):
        raise BadInput(f"cannot draw to {plot}: give a name that ends in .svg or .png")
    if mode == ALL and not epsilons:
        raise BadInput("--serving all needs an epsilon: give --epsilon, of one query, or several, such as 1,5,10,20")
    chosen: Any = MODES if mode == ALL else (mode,)
    if mode != ALL:  # what is wrong with one mode is said, not left out
        for one in epsilons or (None,):
            Serving(mode=chosen[0], epsilon=one, **options)
    return evaluate_servings(folder, every_way(chosen, epsilons, dict(options)), protocol, data, method=method)


def _numbers(text: str | None) -> tuple[float, ...]:
    """Numbers with commas between, each once, in their order."""
    try:
        return tuple(dict.fromkeys(float(part) for part in (text or "").split(",") if text is not None))
    except ValueError:
        raise BadInput(f"epsilon is {text!r}: give a number, or several with commas between, such as 1,5,10") from None


class _Asked:
    """A run and its test cases, opened once for all serving modes."""

    def __init__(self, folder: Path, protocol: str | None, data: str | None, method: str | None) -> None:
        asked = open_for_evaluation(folder, protocol, data, method=method)
        _refuse_other_models(asked)
        impressions = asked.split.test.impressions
        if impressions is None:
            raise BadInput(
                f"the protocol {asked.split.protocol} has no lists that were shown, and serving is measured on those:"
                " use --protocol mind or last-day-20"
            )
        self._asked, self._impressions = asked, impressions
        self._padding = trained_padding(folder)
        ranks: Any = asked.ranks
        self._plain_scores = ranks.score_impressions(impressions)
        judged = validator_impressions(impressions, self._plain_scores)
        population, catalogue = asked.population, asked.population.catalogue
        self._texts = PublicTexts(population.items, None if catalogue is None else catalogue.titles)
        known = catalogue is not None and any(catalogue.categories)
        self._categories = list(catalogue.categories) if catalogue is not None and known else None
        plain = measure(asked.ranks, asked.split, asked.trained.seed, judged=judged)
        self._baselines = plain.baselines
        self.about = {
            "method": asked.trained.method,
            "dataset": population.name,
            "seed": asked.trained.seed,
            "data": asked.trained.data if data is None else data,
            "rounds": read_result(folder)["rounds"],
            "protocol": asked.split.protocol,
            "plain": plain.model.means(),
            "baselines": plain.to_json()["baselines"],
            "model_guarantee": asked.model.guarantee.to_json(),
        }

    def served(self, serving: Serving) -> dict[str, Any]:
        """Measure one serving mode: metrics, guarantee, bytes, recall, skew."""
        users = _users_of(self._asked, serving)
        serving.check_padding(self._padding)
        served = serve(serving, users, self._impressions, self._plain_scores, self._texts, self._categories)
        measured = TestMetrics(validator_impressions(self._impressions, served.scores), self._baselines).to_json()
        mechanism = None if served.plan is None else served.plan.asking.mechanism
        guarantee, together = guarantee_of(serving, mechanism), composed(serving, mechanism)
        return {
            "serving": serving.mode,
            "serving_seed": serving.seed,
            **{name: measured[name] for name in ("metrics", "groups")},
            "recall@100": served.recall,
            "recall_queries": served.recalled,
            "skew": served.skew,
            "bytes_up": served.bytes_up,
            "bytes_down": round(served.bytes_down),
            "warnings": [
                *_needless(serving, None if served.plan is None else served.plan.pool, len(users.news)),
                *_warnings(serving, measured["metrics"], measured["baselines"]),
            ],
            "guarantee": guarantee.to_json(),
            "composed": None if together is None else together.to_json(),
        }


def _needless(serving: Serving, pool: int | None, n_news: int) -> list[str]:
    """A client that gets all news has told its interest for nothing."""
    if serving.mode != "interest" or pool != n_news:
        return []
    return [
        f"The pool is all {n_news:,} news, so that the interest was told for nothing: none-sent gives the same and"
        " tells nothing, or take a smaller --pool."
    ]


def _warnings(
    serving: Serving, metrics: Mapping[str, float], baselines: Mapping[str, Mapping[str, float]]
) -> list[str]:
    """Warn of a serving mode that ranks no better than a non-personalised list."""
    for name in ("random", "popularity"):
        if metrics["auc"] <= baselines[name]["auc"]:
            better = "a larger epsilon, " if serving.mode in PRIVATE else ""
            return [
                f"Served by {serving.mode}, this run ranks no better than {name} (auc {metrics['auc']:.4f}, {name}"
                f" {baselines[name]['auc']:.4f}): take {better}another way of serving, or none-sent if the model itself"
                " ranks better."
            ]
    return []


def _refuse_other_models(asked: OpenedRun) -> None:
    from veilrec.methods.news.ranker import NewsScorer

    if not isinstance(asked.ranks, NewsScorer):
        raise BadInput(
            f"{asked.trained.method} knows items by their ids and makes no user vector of a history of news: --serving"
            " is for news models, such as nrms, naml, sentence-head, fednewsrec or privaterec"
        )


def _users_of(asked: OpenedRun, serving: Serving) -> Any:
    from veilrec.methods.news.ranker import NewsUsers

    ranks: Any = asked.ranks
    if serving.mode != "none-sent" and not ranks.model.is_dot_product:
        raise BadInput(
            f"{asked.trained.method} reads the history anew for every news and has no user vector to ask with: serve it"
            " by none-sent, or serve nrms, naml, plm-nr, sentence-head, fednewsrec or a model with basis vectors"
        )
    return NewsUsers(ranks)


def refuse_other_options(metrics: str, per_user: Path | None, *, personalisation: bool) -> None:
    """What is measured of a run as it is, and not of a served one."""
    asked = {
        "--metrics all": metrics != "main",
        "--per-user": per_user is not None,
        "--personalisation": personalisation,
    }
    for option, is_given in asked.items():
        if is_given:
            raise BadInput(f"{option} is not for --serving: leave one of them out")
