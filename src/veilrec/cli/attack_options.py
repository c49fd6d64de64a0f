"""What attacks on a training are all asked, said once: a command gets it as one `Asked`, beside options of its own."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import update_wrapper
from pathlib import Path
from typing import Annotated, Any

import typer

from veilrec.cli.output import Json, data_names, method_names

Runs = Annotated[
    list[Path] | None,
    typer.Argument(help="Runs of `veilrec train`, with their settings and data; or federations that are over."),
]
Methods = Annotated[
    list[str] | None, typer.Option("--method", help="A method. May be repeated.", autocompletion=method_names)
]
Data = Annotated[str, typer.Option(help="Data set of the methods: NAME or NAME:FOLDER.", autocompletion=data_names)]
Calibrations = Annotated[
    list[str] | None, typer.Option("--calibration", help="Of the methods: proven, as-published, none. May be repeated.")
]
Settings = Annotated[
    list[str] | None, typer.Option("--set", help="Change one setting of the methods, as in `veilrec train`.")
]
Quick = Annotated[bool, typer.Option("--quick", help="Less of everything: under a minute.")]
Seed = Annotated[int, typer.Option(help="Decides every draw of the attack.", min=0)]
Plot = Annotated[Path | None, typer.Option(help="Draw what was found: .svg or .png.")]
RATINGS = "synthetic-ratings"
_AFTER = ("quick", "seed", "plot", "json_output")  # what a command asks by itself stands before these


@dataclass(frozen=True)
class Asked:
    """What is attacked, and where the findings go."""

    runs: Runs = None
    methods: Methods = None
    data: Data = RATINGS
    calibrations: Calibrations = None
    settings: Settings = None
    quick: Quick = False
    seed: Seed = 0
    plot: Plot = None
    json_output: Json = False


def asks_what_all_do(command: Callable[..., None]) -> Callable[..., None]:
    """The command with the options of `Asked`, which it takes as its first argument, and its own."""
    common = inspect.signature(Asked, eval_str=True).parameters
    own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]
    before = [option for name, option in common.items() if name not in _AFTER]
    options = [*before, *own, *(common[name] for name in _AFTER)]

    def run(**given: Any) -> None:
        asked = Asked(**{name: given.pop(name) for name in common})
        command(asked, **given)

    update_wrapper(run, command)
    run.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
    run.__annotations__ = {option.name: option.annotation for option in options}
    return run


def run_folders(folders: Sequence[Path] | None) -> list[Path]:
    """Where the runs lie: the folder of a federation that is over holds one."""
    from veilrec.errors import BadInput
    from veilrec.federate.federation import FILE, RUN

    found = []
    for folder in folders or ():
        if (folder / FILE).exists():
            if not (folder / RUN).exists():
                raise BadInput(f"{folder} is a federation without a run: finish it with `veilrec federate up {folder}`")
            folder = folder / RUN  # noqa: PLW2901
        found.append(folder)
    return found
