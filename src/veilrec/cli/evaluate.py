"""`veilrec evaluate`: evaluate a saved run, by its protocol, another one, or in a serving mode; and its tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console, Group

from veilrec.cli.output import Json, PluginMethod, Run, flat_options, metrics_table, print_json, text_table
from veilrec.core.errors import BadInput, counted
from veilrec.privacy.guarantee import Guarantee

_SERVING = "Serving"  # where the help lists what belongs to --serving


def _of_serving(text: str, **more: Any) -> Any:
    return typer.Option(help=text, rich_help_panel=_SERVING, **more)


@dataclass(frozen=True)
class ServingOptions:
    """Settings of a serving mode."""

    delta: Annotated[
        float | None,
        _of_serving(
            "Of one query; Gaussian noise and pooled need it. Where a query has delta 0 (interest, --noise laplace): of"
            " --queries together."
        ),
    ] = None
    calibration: Annotated[
        Literal["proven", "as-published"] | None,
        _of_serving("proven (usual), or as-published, for attention and vector.", case_sensitive=False),
    ] = None
    noise: Annotated[
        Literal["laplace", "gaussian"] | None,
        _of_serving("Of attention and vector: gaussian where a delta is given, else laplace.", case_sensitive=False),
    ] = None
    normalise: Annotated[
        Literal["softplus", "relu", "simplex"] | None,
        _of_serving("Noisy attention back on the simplex: softplus as published, else simplex.", case_sensitive=False),
    ] = None
    clip: Annotated[float | None, _of_serving("theta: longest attention (1), or longest user vector (.001).")] = None
    padding: Annotated[float | None, _of_serving("p: chance that a click of attention is replaced by the pad.")] = None
    axes: Annotated[int | None, _of_serving("Public axes that pooled adds clicks up along: 16.")] = None
    interests: Annotated[int | None, _of_serving("Public interests, of a model without basis vectors: 8.")] = None
    pool: Annotated[int | None, _of_serving("News that come back for an interest: 1000, or all there are.")] = None
    sensitive: Annotated[
        str | None,
        _of_serving(
            "pooled protects clicks on these categories alone, with commas between; the others go in plaintext."
        ),
    ] = None
    queries: Annotated[int | None, _of_serving("Also state what so many queries give away together.")] = None
    memoised: Annotated[bool, _of_serving("... if a query is drawn once per public period.")] = False
    seed: Annotated[int | None, _of_serving("Of the noise, which therefore protects nobody: 0.", min=0)] = None

    def given(self) -> dict[str, Any]:
        """Return the options that were given, by name."""
        given = {name: value for name, value in vars(self).items() if value is not None and value is not False}
        if self.sensitive is not None:
            given["sensitive"] = tuple(name.strip() for name in self.sensitive.split(",") if name.strip())
        return given


@flat_options
def evaluate(
    *,
    run: Run,
    protocol: Annotated[
        str | None, typer.Option(help="Another protocol than the run's; its test items must not have been trained on.")
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(help="Another data set, for methods that read titles: its dev part, or all of one part."),
    ] = None,
    metrics: Annotated[
        Literal["main", "all"],
        typer.Option(
            case_sensitive=False,
            help="all: also recall, precision, MRR, MAP; coverage, Gini, novelty, diversity of lists.",
        ),
    ] = "main",
    per_user: Annotated[
        Path | None, typer.Option(help="Write every metric of every test case to this file: .csv or .parquet.")
    ] = None,
    personalisation: Annotated[
        bool,
        typer.Option(
            "--personalisation",
            help="holdout-users: also by how many items of a new user the model is given: 0, 1, 2, 5, 10, 20, half.",
        ),
    ] = False,
    plot: Annotated[
        Path | None,
        typer.Option(help="Draw to this file, .svg or .png: --personalisation, or ways of --serving over epsilon."),
    ] = None,
    method: PluginMethod = None,
    serving: Annotated[
        Literal["plain", "none-sent", "attention", "pooled", "interest", "vector", "all"] | None,
        _of_serving(
            "Measure what users of a news model get when only this leaves the device; all: every way, in one table.",
            case_sensitive=False,
        ),
    ] = None,
    epsilon: Annotated[
        str | None, _of_serving("Of one query; several, with commas between, give a table: 1,5,10.")
    ] = None,
    options: ServingOptions,
    json_output: Json = False,
) -> None:
    """Evaluate a saved run beside popularity and chance, by any protocol or serving mode.

    Users of whom little is known are shown apart. With --serving, what users get when only a private query reaches the
    server: plain (no privacy), none-sent (the client ranks by itself), attention, pooled, interest, vector.

    Examples:

        veilrec evaluate runs/fedmf-ml-100k-seed1 --protocol loo-full

        veilrec evaluate runs/fedmf-ml-100k-seed1 --metrics all --per-user users.csv

        veilrec evaluate runs/fedmf-ml-1m-seed0 --personalisation --plot curve.svg

        veilrec evaluate runs/nrms-mind-seed0 --data mind:another-week

        veilrec evaluate runs/nrms-mind-seed0 --serving pooled --epsilon 5 --delta 1e-6

        veilrec evaluate runs/nrms-mind-seed0 --serving all --epsilon 1,5,10,20 --delta 1e-6 --plot serving.svg
    """
    given = options.given()
    if serving is None:
        from veilrec.runs.evaluation import evaluate_run

        alone = [*given, *([] if epsilon is None else ["epsilon"])]
        if alone:
            raise BadInput(f"--{alone[0]} belongs to --serving: say how the model is served, or leave it out")
        if plot is not None:
            _check_picture(plot, personalisation=personalisation)
        result = evaluate_run(
            run, protocol, data, metrics=metrics, per_user=per_user, personalisation=personalisation, method=method
        )
        if plot is not None:
            from veilrec.report.plots import personalisation_chart, save

            save(personalisation_chart([result]), plot)
    else:
        from veilrec.runs.serving import ask_for, refuse_other_options

        refuse_other_options(metrics, per_user, personalisation=personalisation)
        result = ask_for(run, serving, epsilon, given, plot, protocol, data, method=method)
        if plot is not None:
            from veilrec.report.plots import draw_serving, save_figure

            save_figure(draw_serving(result), plot)
    if json_output:
        print_json(result)
        return

    console = Console()
    if serving is None:
        _print_run(result, console, metrics, per_user)
    else:
        (_print_ways if "ways" in result else _print_serving)(result, console)
    if plot is not None:
        console.print(f"{'Curve' if serving is None else 'Picture'} in {plot}", soft_wrap=True)


def _check_picture(plot: Path, *, personalisation: bool) -> None:
    """Refuse before the evaluation what cannot be drawn after it."""
    from veilrec.core.resources import require

    if not personalisation:
        raise BadInput("--plot belongs to --personalisation or to --serving: give it as well, or leave --plot out")
    require("a picture", "matplotlib")
    from veilrec.report.plots import PLOT_ENDINGS

    if plot.suffix not in PLOT_ENDINGS:
        raise BadInput(f"cannot draw to {plot}: give a name that ends in .svg or .png")


def _print_run(result: dict[str, Any], console: Console, metrics: str, per_user: Path | None) -> None:
    rows = {result["method"]: result["metrics"]} | result["baselines"]
    title = f"{result['method']} on {result['dataset']}, {result['protocol']}"
    console.print((every_metric if metrics == "all" else metrics_table)(title, rows))
    console.print(_groups_table(result["method"], result["groups"]))
    if "personalisation" in result:
        console.print(_personalisation_table(result["method"], result["personalisation"]))
    for warning in result["warnings"]:
        console.print(warning)
    if per_user is not None:
        cases = counted(int(result["metrics"]["cases"]), "case")
        console.print(f"{cases} in {per_user}", soft_wrap=True)


_COUNTS = ("cases", "skipped")
_OF_GROUPS = ("auc", "hr@10", "ndcg@10")
_OF_NEW_PEOPLE = ("hr@10", "ndcg@10")


def every_metric(title: str, rows: Mapping[str, Mapping[str, float]]) -> Group:
    """Build a table with a row per metric and a column per method."""
    cells = [
        [metric, *(f"{values[metric]:,.{0 if metric in _COUNTS else 4}f}" for values in rows.values())]
        for metric in _by_family(next(iter(rows.values())))
    ]
    return text_table(["", *rows], cells, title)


def _by_family(names: Iterable[str]) -> list[str]:
    """Group the names of a metric at every k."""
    families: dict[str, list[str]] = {}
    for name in names:
        families.setdefault(name.partition("@")[0], []).append(name)
    return [name for family in families.values() for name in family]


def _groups_table(method: str, groups: Sequence[Mapping[str, Any]]) -> Group:
    """Build a row per group of users, with its size; the method's metrics beside those of popularity."""
    shown = [name for name in _OF_GROUPS if name in groups[0]["metrics"]]
    rows = [
        [group["known_items"], f"{group['users']:,}", f"{group['cases']:,}"]
        + [f"{group[of][name]:.4f}" for of in ("metrics", "popularity") for name in shown]
        for group in groups
    ]
    head = ["known items", "users", "cases", *shown, *(f"popularity's {name}" for name in shown)]
    return text_table(head, rows, f"{method} by how much is known of a user")


def _personalisation_table(method: str, points: Sequence[Mapping[str, Any]]) -> Group:
    """Build a row per number of given items; the method beside the baselines, which do not change."""
    whose = ("", *(f"{name}\n" for name in points[0]["baselines"]))  # a line of its own, or 80 columns are too few
    head = ["given", "mean", *(f"{of}{metric}" for of in whose for metric in _OF_NEW_PEOPLE)]
    rows = [
        [point["given"], f"{point['mean_items']:.1f}"]
        + [f"{of[name]:.4f}" for of in (point["metrics"], *point["baselines"].values()) for name in _OF_NEW_PEOPLE]
        for point in points
    ]
    return text_table(head, rows, f"{method} by how many items of a new user it is given")


def _print_serving(result: Mapping[str, Any], console: Console) -> None:
    """Print metrics beside those of the model and the baselines, then guarantees and bytes."""
    served = f"served by {result['serving']}"
    rows = {served: result["metrics"], "the model itself": result["plain"]} | result["baselines"]
    console.print(metrics_table(f"{result['method']} on {result['dataset']}, {result['protocol']}", rows))
    console.print(
        f"Of the 100 best news of the whole catalogue, {result['recall@100']:.1%} are found (mean of"
        f" {result['recall_queries']:,} queries). Skew (1 - accuracy of ranks): {result['skew']:.3f}."
    )
    console.print(f"A query: {result['bytes_up']:,} bytes up, {result['bytes_down']:,} bytes down.")
    one = Guarantee.from_json(result["guarantee"])
    _promise("One query", one, one.caveats, console)
    if result["composed"] is not None:
        together = Guarantee.from_json(result["composed"])
        _promise("All of them", together, [words for words in together.caveats if words not in one.caveats], console)
    _promise("The model", Guarantee.from_json(result["model_guarantee"]), (), console)
    for warning in result["warnings"]:
        console.print(warning)


def _print_ways(result: Mapping[str, Any], console: Console) -> None:
    """Print a row for every serving mode at every epsilon, and the guarantee of each below."""
    rows = []
    for way in result["ways"]:
        told = way["metrics"]
        epsilon = "" if way["epsilon"] is None else f"{way['epsilon']:g}"
        numbers = (f"{told['auc']:.4f}", f"{told['ndcg@10']:.4f}", f"{way['recall@100']:.3f}", f"{way['skew']:.3f}")
        rows.append((way["serving"], epsilon, *numbers, f"{way['bytes_up']:,}", f"{way['bytes_down']:,}"))
    for name, told in result["baselines"].items():
        rows.append((name, "", f"{told['auc']:.4f}", f"{told['ndcg@10']:.4f}", "", "", "", ""))
    head = ("served by", "epsilon", "auc", "ndcg@10", "recall", "skew", "up", "down")
    title = f"{result['method']} on {result['dataset']}, {result['protocol']}, seed {result['seed']}"
    console.print(text_table(head, rows, title, whole=range(8)))
    console.print("recall: of the 100 best news of the catalogue; up and down: bytes of a query and of its answer.")
    for way in result["ways"]:
        epsilon = "" if way["epsilon"] is None else f" at {way['epsilon']:g}"
        promise = Guarantee.from_json(way["guarantee"])
        console.print(f"{way['serving']}{epsilon}: {promise.line()}")
        if way["composed"] is not None:
            console.print(f"  all of them: {Guarantee.from_json(way['composed']).line()}")
    caveats = (words for way in result["ways"] for words in way["guarantee"]["caveats"])
    for caveat in dict.fromkeys(caveats):
        console.print(f"  {caveat}")
    _promise("The model", Guarantee.from_json(result["model_guarantee"]), (), console)
    for left in result["left_out"]:
        console.print(f"Left out: {left['serving']}: {left['why']}")
    for warning in dict.fromkeys(words for way in result["ways"] for words in way["warnings"]):
        console.print(warning)


def _promise(what: str, guarantee: Guarantee, caveats: Iterable[str], console: Console) -> None:
    console.print(f"{what}: {guarantee.line()}", style="bold")
    if guarantee.honest_note:
        console.print(f"  Why: {guarantee.honest_note.removesuffix('.')}.")
    for caveat in caveats:
        console.print(f"  {caveat}")
