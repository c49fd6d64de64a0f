"""`veilrec methods`, `new`, `check` and `doctor`: what can be trained, custom methods, and what is installed."""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from veilrec.cli.output import Json, data_names, method_names, print_json, print_wide, say, text_table
from veilrec.core.errors import BadInput, known_name

if TYPE_CHECKING:
    from veilrec.audit.contract import CheckOutcome


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
    trust: Annotated[
        bool,
        typer.Option("--trust", help="Whom each has to trust: which trust models it has, what proves it, or why not."),
    ] = False,
    json_output: Json = False,
) -> None:
    """List the methods by paper, or describe one in full.

    Examples:

        veilrec methods --private --data ml-1m

        veilrec methods --trust --private

        veilrec methods dp-fedmf
    """
    from veilrec.methods.registry import refused

    for line in refused():
        say(f"veilrec: {line}")
    if name is not None:
        _one(name, json_output, filtered=private or data is not None or paper is not None or trust)
        return
    from veilrec.methods.registry import listed

    entries = listed(private=private, data=data, paper=paper)
    if trust:
        _print_trust({entry["name"] for entry in entries}, json_output)
        return
    if json_output:
        print_json({"methods": entries})
        return
    _print_list(entries)


def _print_trust(names: set[str], json_output: bool) -> None:
    """Print the table of trust models, of built-in methods alone; Markdown, but in a terminal."""
    from veilrec.audit.trust import cells_of, read_trust_models, table

    rows = {name: row for name, row in read_trust_models().items() if name in names}
    if json_output:
        print_json({"trust": rows})
        return
    if not sys.stdout.isatty():
        typer.echo("\n".join(table(rows)))
        return
    (head, *lines), reasons = cells_of(rows)
    plain = [[re.sub(r"\]\(.*?\)|[\[`]", "", cell) for cell in line] for line in lines]
    print_wide(text_table(head, plain, left=range(len(head)), whole=(0,)))
    typer.echo("\n".join(reasons))


def _print_list(entries: list[dict[str, Any]]) -> None:
    from veilrec.methods.registry import PAPERS

    if not entries:
        typer.echo("No method is left: leave out --private, --data or --paper.")
        return
    width, columns = max(len(entry["name"]) for entry in entries), _columns()
    titles = PAPERS | {"others": "of other packages"}
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
    """Return the width of the terminal, or None where the list goes elsewhere."""
    if sys.stdout.isatty() or "COLUMNS" in os.environ:
        return shutil.get_terminal_size().columns
    return None


def _cut(line: str, columns: int | None) -> str:
    """Cut what is too long for the terminal after a whole word; `veilrec methods NAME` has the rest."""
    if columns is None or len(line) <= columns:
        return line
    return line[: max(columns - 3, 1)].rpartition(" ")[0].rstrip(" ,;:") + " .."


def _one(name: str, json_output: bool, *, filtered: bool) -> None:
    from veilrec.methods.registry import everything

    if filtered:
        raise BadInput(
            f"--private, --data, --paper and --trust are about all methods: leave them out, or leave out {name}"
        )
    from veilrec.audit.trust import of_method

    about = everything(name) | {"trust": of_method(name)}
    if json_output:
        print_json(about)
        return

    _print_all(about, Console())


def _print_all(about: Mapping[str, Any], console: Console) -> None:
    from rich.padding import Padding

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
    say_lines(
        "Trust models",
        (
            f"{model}{f' (on {data})' if data else ''}: {cell['words']}"
            for data, row in about["trust"].items()
            for model, cell in row.items()
        ),
    )
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
    """Describe a setting: its meaning, its choices, and its default where no preset changes it."""
    parts = [setting["about"]] if setting["about"] else []
    parts += [f"one of {', '.join(map(str, setting['choices']))}"] if setting["choices"] else []
    parts += [f"{setting['default']} without a preset"] if setting["default"] != setting["tuned"] else []
    return f"  {'; '.join(parts)}" if parts else ""


def _flat(values: Any) -> str:
    from veilrec.methods.base import leaves

    if isinstance(values, Mapping):
        return ", ".join(f"{name}={value}" for name, value in leaves(values))
    return ", ".join(map(str, values)) if isinstance(values, list | tuple) else str(values)


check_app = typer.Typer(no_args_is_help=True, help="Check a custom method against the contract of all methods.")


@check_app.callback()
def check() -> None:
    """Check a custom method against the contract of all methods."""


@check_app.command("method")
def check_method(
    name: Annotated[
        str, typer.Argument(help="A method: by name, FILE.py, or FILE.py:NAME.", autocompletion=method_names)
    ],
    only: Annotated[list[str] | None, typer.Option(help="Only this check; may be repeated.")] = None,
    json_output: Json = False,
) -> None:
    """Run the contract tests on a method; print a line for each check.

    Exit code 1 if anything is broken.

    Examples:

        veilrec check method dp-fedmf

        veilrec check method my-method/src/my_method.py --only cohort --only resume
    """
    from veilrec.audit.contract import CONTRACT, check_method
    from veilrec.core.resources import require
    from veilrec.methods.registry import get

    require("checking a method", "numba")
    known = [one.name for one in CONTRACT]
    names = [known_name("check", asked, known) for asked in only or ()]
    title = get(name).name
    outcomes = []
    for outcome in check_method(name, names):
        outcomes.append(outcome)
        if json_output:
            say(f"{title}: {outcome.name} {outcome.verdict}")
        else:
            typer.echo(_outcome_line(outcome))
    broken = [outcome for outcome in outcomes if outcome.verdict == "broken"]
    if json_output:
        print_json({"method": title, "checks": [o.to_json() for o in outcomes], "holds": not broken})
    else:
        typer.echo(_end(title, outcomes))
    if broken:
        raise typer.Exit(1)


def _outcome_line(outcome: CheckOutcome) -> str:
    line = f"{outcome.verdict:15} {outcome.name}: {outcome.check.means}"
    if not outcome.found:
        return line
    found = textwrap.shorten(outcome.found, 400, placeholder=" ..")
    return f"{line}: {found}" if outcome.verdict == "broken" else f"{line} ({found.rstrip('.')})"


def _end(title: str, outcomes: list[CheckOutcome]) -> str:
    broken = sum(outcome.verdict == "broken" for outcome in outcomes)
    missing = sum(outcome.verdict == "not checked" for outcome in outcomes)
    told = f"{title} breaks {broken} of {len(outcomes)}." if broken else f"{title} keeps the contract."
    return f"{told} {missing} could not be checked here." if missing else told


app = typer.Typer(no_args_is_help=True, help="Scaffold a custom method.")


@app.callback()
def new() -> None:
    """Scaffold a custom method."""


@app.command("method")
def method(
    name: Annotated[str, typer.Argument(help="Name of the new method: letters, digits and dashes.")],
    out: Annotated[Path | None, typer.Option(help="Folder to write; it must not be there yet. Default: NAME.")] = None,
    json_output: Json = False,
) -> None:
    """Write a package with a small working method and its test, as a start for a custom method.

    Example:

        veilrec new method my-method --out my-method
    """
    from veilrec.methods.plugins import write_template

    written = write_template(name, out)
    if json_output:
        print_json({"method": written.name, "folder": str(written.folder), "files": list(written.files)})
        return
    typer.echo(f"{written.name} is in {written.folder}: {', '.join(written.files)}")
    file = written.folder / written.module
    typer.echo(f"Check it:  veilrec check method {file}")
    typer.echo(f"Train it:  veilrec train {file} --data synthetic-ratings")
    typer.echo(f"Keep it:   pip install -e {written.folder}, then veilrec train {written.name}")


def doctor(json_output: Json = False) -> None:
    """Show versions, threads, data sets found, disk space, what is missing and how to get it."""
    findings = diagnose()
    if json_output:
        print_json(findings)
        return

    console = Console()
    machine = findings["machine"]
    console.print(
        f"veilrec {findings['veilrec']} on Python {machine['python']}, {machine['cores']} cores "
        f"(OMP_NUM_THREADS: {machine['threads']}), {machine['memory_gb']:.0f} GB of memory, "
        f"{machine['disk_free_gb']:.0f} GB free in the cache folder {machine['cache']}",
        markup=False,
    )
    parts = [(part["name"], part["version"] or f"missing: {part['get']}", part["extra"]) for part in findings["parts"]]
    console.print(text_table(("part", "version", "extra"), parts, "Parts", left=range(3)))
    data = [(entry["name"], entry["found"] or f"no; to get it: {entry['get']}") for entry in findings["data"]]
    console.print(text_table(("data set", "found"), data, "Data sets", left=range(2)))
    for problem in findings["problems"]:
        typer.echo(f"problem: {problem}")


def diagnose() -> dict[str, Any]:
    """Collect versions, machine, datasets and problems for `veilrec doctor`, ready for JSON."""
    from veilrec._version import __version__
    from veilrec.core.resources import CORE, PARTS
    from veilrec.data.datasets import DATASETS, whereabouts

    parts = [_part(name, "") for name in CORE] + [_part(*part) for part in dict.fromkeys(PARTS.values())]
    data = [
        {"name": d.name, "found": str(place) if (place := whereabouts(d)) is not None else None, "get": d.how_to_get}
        for d in DATASETS.values()
        if d.marks
    ]
    return {"veilrec": __version__, "machine": _machine(), "parts": parts, "data": data, "problems": _problems(parts)}


def _part(name: str, extra: str) -> dict[str, str | None]:
    from veilrec.report.labels import installed

    get = f"pip install 'veilrec[{extra}]'" if extra else f"pip install {name}"
    return {"name": name, "version": installed(name), "extra": extra, "get": get}


def _machine() -> dict[str, Any]:
    from veilrec.core.resources import cache_folder, machine_memory

    cache = cache_folder()
    while not cache.exists():
        cache = cache.parent
    return {
        "python": platform.python_version(),
        "system": platform.system(),
        "cores": os.cpu_count() or 1,
        "threads": os.environ.get("OMP_NUM_THREADS", "not limited"),
        "memory_gb": machine_memory() / 1e9,
        "disk_free_gb": shutil.disk_usage(cache).free / 1e9,
        "cache": str(cache_folder()),
        "cache_writable": os.access(cache, os.W_OK),
    }


def _problems(parts: list[dict[str, str | None]]) -> list[str]:
    machine = _machine()
    problems = [f"{p['name']} is missing: {p['get']}" for p in parts if not p["extra"] and p["version"] is None]
    if not machine["cache_writable"]:
        problems.append(f"the cache folder {machine['cache']} cannot be written: set VEILREC_CACHE to another one")
    if machine["disk_free_gb"] < 1.0:
        problems.append("less than 1 GB of disk is free in the cache folder")
    return problems
