"""What `veilrec evaluate --serving` prints for people."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from veilrec.cli.output import metrics_table
from veilrec.privacy.guarantee import Guarantee

if TYPE_CHECKING:
    from rich.console import Console


def print_serving(result: Mapping[str, Any], console: Console) -> None:
    """Metrics beside those of the model itself and of what needs no history, then the promise and the bytes."""
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


def print_ways(result: Mapping[str, Any], console: Console) -> None:
    """A row for every way of serving at every epsilon, and the promise of each below."""
    from rich.table import Table

    console.print(
        f"{result['method']} on {result['dataset']}, {result['protocol']}, seed {result['seed']}", style="bold"
    )
    table = Table()
    for name in ("served by", "epsilon", "auc", "ndcg@10", "recall", "skew", "up", "down"):
        table.add_column(name, justify="left" if name == "served by" else "right", no_wrap=True)
    for way in result["ways"]:
        told = way["metrics"]
        epsilon = "" if way["epsilon"] is None else f"{way['epsilon']:g}"
        numbers = (f"{told['auc']:.4f}", f"{told['ndcg@10']:.4f}", f"{way['recall@100']:.3f}", f"{way['skew']:.3f}")
        table.add_row(way["serving"], epsilon, *numbers, f"{way['bytes_up']:,}", f"{way['bytes_down']:,}")
    for name, told in result["baselines"].items():
        table.add_row(name, "", f"{told['auc']:.4f}", f"{told['ndcg@10']:.4f}", "", "", "", "")
    console.print(table)
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
