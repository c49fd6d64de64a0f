"""`veilrec methods`: what can be trained, a line each; and everything about one."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from veilrec.cli.output import Json, data_names, method_names, print_json, say

if TYPE_CHECKING:
    from rich.console import Console


def methods(
    name: Annotated[
        str | None, typer.Argument(help="One method, by name or FILE.py: all about it.", autocompletion=method_names)
    ] = None,
    private: Annotated[bool, typer.Option("--private", help="Only those with a formal guarantee.")] = False,
    data: Annotated[
        str | None, typer.Option(help="Only those that learn from this data set.", autocompletion=data_names)
    ] = None,
    paper: Annotated[
        str | None, typer.Option(help="Only those of a paper: priv-fedmf-sub, fednewsrec, ... or words of its title.")
    ] = None,
    json_output: Json = False,
) -> None:
    """List the methods by paper, or describe one in full.

    Examples:

        veilrec methods --private --data ml-1m

        veilrec methods dp-fedmf
    """
    from veilrec.methods.registry import refused

    for line in refused():
        say(f"veilrec: {line}")
    if name is not None:
        _one(name, json_output, filtered=private or data is not None or paper is not None)
        return
    from veilrec.methods.registry import listed

    entries = listed(private=private, data=data, paper=paper)
    if json_output:
        print_json({"methods": entries})
        return
    _print_list(entries)


def _print_list(entries: list[dict[str, Any]]) -> None:
    from veilrec.methods.registry import PAPERS

    if not entries:
        typer.echo("No method is left: leave out --private, --data or --paper.")
        return
    width, columns = max(len(entry["name"]) for entry in entries), _columns()
    titles = {key: title for key, (title, _) in PAPERS.items()} | {"others": "of other packages"}
    for group, title in titles.items():
        mine = [entry for entry in entries if entry["group"] == group]
        if mine:
            typer.echo(_cut(f"{group}: {title}", columns))
            for entry in mine:
                typer.echo(_cut(_line(entry, width), columns))
    typer.echo("P: promises differential privacy with a proof. More of one: veilrec methods NAME")


def _line(entry: Mapping[str, Any], width: int) -> str:
    mark = "P" if entry.get("private") else " "
    told = entry.get("summary") or f"of the package {entry['package']}, which is imported when it is asked for"
    return f"  {entry['name']:{width}} {mark} {told}"


def _columns() -> int | None:
    """The width of the terminal; None where the list goes elsewhere."""
    if sys.stdout.isatty() or "COLUMNS" in os.environ:
        return shutil.get_terminal_size().columns
    return None


def _cut(line: str, columns: int | None) -> str:
    """What is too long for the terminal ends after a whole word; `veilrec methods NAME` has the rest."""
    if columns is None or len(line) <= columns:
        return line
    return line[: max(columns - 3, 1)].rpartition(" ")[0].rstrip(" ,;:") + " .."


def _one(name: str, json_output: bool, *, filtered: bool) -> None:
    from veilrec.core.errors import BadInput
    from veilrec.methods.registry import everything

    if filtered:
        raise BadInput(f"--private, --data and --paper choose among all methods: leave them out, or leave out {name}")
    about = everything(name)
    if json_output:
        print_json(about)
        return
    from rich.console import Console

    _print_all(about, Console())


def _print_all(about: Mapping[str, Any], console: Console) -> None:
    from rich.padding import Padding
    from rich.text import Text

    from veilrec.privacy.guarantee import Guarantee

    def say_lines(title: str, lines: Iterable[str]) -> None:
        if shown := list(lines):
            console.print(f"\n{title}", style="bold")
            for line in shown:
                console.print(Padding(Text(line), (0, 0, 0, 2)))

    guarantee = Guarantee.from_json(about["guarantee_in_full"])
    console.print(f"{about['name']}: {about['summary']}", style="bold", markup=False, highlight=False)
    facts = {
        "kind": f"{about['kind']}, {about['model']}",
        "paper": about["paper"],
        "from": about["source"],
        "data": ", ".join(about["datasets"]),
        "measured": ", ".join(about["measured"]) and f"{', '.join(about['measured'])} (docs/results.md)",
        "rounds": _rounds(about),
        "presets": ", ".join(about["presets"]),
        "private": about["private_relative"] and f"its private relative is {about['private_relative']}",
    }
    for key, value in facts.items():
        if value:
            console.print(Text(f"{key}: {value}"))
    say_lines("What a run with its defaults promises", (f"{guarantee.line()}.", *guarantee.remarks()))
    settings = about["settings"]
    width = min(max((len(f"{s['name']}={s['tuned']}") for s in settings), default=0), 36)
    told = (f"{s['name']}={s['tuned']}".ljust(width) + _about(s) for s in settings)
    say_lines("Settings of preset tuned, which `veilrec train` uses (--set NAME=VALUE)", told)
    say_lines("Presets", (f"{preset}: {_flat(values)}" for preset, values in about["preset_settings"].items()))
    say_lines("Where it differs from the paper", about["deviations"])
    say_lines("The paper's numbers", (f"{data}: {_flat(numbers)}" for data, numbers in about["published"].items()))
    say_lines("Left out of the contract", (f"{e['check']}: {e['reason']}" for e in about["exemptions"]))


def _rounds(about: Mapping[str, Any]) -> str:
    own = sorted(name.partition("@")[2] for name in about["preset_settings"] if name.startswith("tuned@"))
    bare = "" if about["tuned_rounds"] == about["rounds"] else f"; {about['rounds']} without a preset"
    return f"{about['tuned_rounds']}{bare}" + (f" ({', '.join(own)} have settings of their own: below)" if own else "")


def _about(setting: Mapping[str, Any]) -> str:
    """What it is, what it may be, and what it is where no preset says otherwise."""
    parts = [setting["about"]] if setting["about"] else []
    parts += [f"one of {', '.join(map(str, setting['choices']))}"] if setting["choices"] else []
    parts += [f"{setting['default']} without a preset"] if setting["default"] != setting["tuned"] else []
    return f"  {'; '.join(parts)}" if parts else ""


def _flat(values: Any, prefix: str = "") -> str:
    if not isinstance(values, Mapping):
        return ", ".join(map(str, values)) if isinstance(values, list | tuple) else str(values)
    parts = []
    for name, value in values.items():
        parts.append(_flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else f"{prefix}{name}={value}")
    return ", ".join(parts)
