"""Parts that commands share: output streams, tables, groups of options, shell completion, progress of a run."""

from __future__ import annotations

import codecs
import inspect
import io
import json
import os
import sys
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import is_dataclass
from functools import update_wrapper
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console, Group
from rich.text import Text

from veilrec.core.errors import shown
from veilrec.report.labels import human_bytes, human_seconds

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID
    from rich.text import Text

    from veilrec.runs.checkpoint import Progress
    from veilrec.runs.loop import Listener
    from veilrec.simulation.simulation import StepReport


Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output and nothing else there.")]
Run = Annotated[Path, typer.Argument(help="Folder of a run of `veilrec train`.")]
PluginMethod = Annotated[
    str | None,
    typer.Option(
        metavar="FILE.py", help="The file of the method that trained the run, if it ranks in its own way. It is run."
    ),
]
_COLUMNS = ("auc", "mrr", "ndcg@5", "hr@10", "ndcg@10")  # the rest stands in result.json
_WIDTH_OF_FILES = 180  # of tables that no terminal cuts
_SPELT = {"≥": ">=", "±": "+/-", "…": "...", "█": "#", "▏": "|"}  # the signs that we print ourselves


def print_json(value: Mapping[str, Any]) -> None:
    """Print one JSON object on standard output; an output that is not UTF-8 gets ASCII with escapes."""
    text = json.dumps(value, ensure_ascii=False, indent=2)
    is_utf8 = codecs.lookup(sys.stdout.encoding or "utf-8").name == "utf-8"
    if not is_utf8 or any("\ud800" <= sign <= "\udfff" for sign in text):  # a file name may hold bytes of no letter
        text = json.dumps(value, indent=2)
    sys.stdout.write(text + "\n")


def open_streams() -> None:
    """Make printing safe: characters that the terminal lacks are spelt out or become `?`; closed streams go nowhere."""
    codecs.register_error("veilrec", _spelt)
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), "r" if name == "stdin" else "w"))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="veilrec")


def _spelt(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(_SPELT.get(sign, "?") for sign in error.object[error.start : error.end]), error.end


def say(text: str) -> None:
    """Print one line on standard error, unbuffered."""
    sys.stderr.write(shown(text) + "\n")
    sys.stderr.flush()


def flat_options(command: Callable[..., None]) -> Callable[..., None]:
    """Replace every parameter of a command that is a dataclass by the fields of the dataclass."""
    own = inspect.signature(command, eval_str=True).parameters
    groups: dict[str, Any] = {name: one.annotation for name, one in own.items() if is_dataclass(one.annotation)}
    fields = {name: inspect.signature(group, eval_str=True).parameters for name, group in groups.items()}
    options = [option for name, one in own.items() for option in (fields[name].values() if name in fields else [one])]

    def run(**given: Any) -> None:
        made = {name: group(**{field: given.pop(field) for field in fields[name]}) for name, group in groups.items()}
        command(**made, **given)

    update_wrapper(run, command)
    named = [option.replace(kind=inspect.Parameter.KEYWORD_ONLY) for option in options]
    run.__signature__ = inspect.Signature(named)  # type: ignore[attr-defined]
    run.__annotations__ = {option.name: option.annotation for option in options}
    return run


def text_table(
    head: Sequence[str],
    rows: Iterable[Sequence[str | Text]],
    title: str = "",
    *,
    left: Container[int] = (0,),
    whole: Container[int] = (),
) -> Group:
    """Build a table of literal text with its title above, which may be wider than the table.

    Args:
        left: Columns that are aligned to the left; the others are numbers.
        whole: Columns that are never wrapped; what is too long for another is folded, never cut off.
    """
    from rich.table import Table

    table = Table()
    for column, name in enumerate(head):
        justify: Any = "left" if column in left else "right"
        table.add_column(Text(name), justify=justify, no_wrap=column in whole, overflow="fold")
    for row in rows:
        table.add_row(*(Text(shown(cell)) if isinstance(cell, str) else cell for cell in row))
    return Group(*([Text(title, style="bold")] if title else []), table)


def print_wide(table: Group) -> None:
    """Print a table as wide as the terminal, or 180 columns wide where there is none."""
    Console(width=None if sys.stdout.isatty() else _WIDTH_OF_FILES).print(table)


def metrics_table(title: str, rows: Mapping[str, Mapping[str, float]]) -> Group:
    """Build a table with a row per method and a column per metric; errors of predicted ratings stand below it."""
    own = next(iter(rows.values()))
    shown = [name for name in _COLUMNS if name in own]
    cells = ([name, *(f"{metrics[key]:.4f}" for key in shown)] for name, metrics in rows.items())
    table = text_table(["", *shown], cells, title)
    if "rmse" not in own:
        return table
    errors = "Predicted ratings: RMSE {rmse:.4f}, MAE {mae:.4f}; a user's mean: {rmse_of_mean:.4f}, {mae_of_mean:.4f}"
    return Group(table, Text(errors.format(**own)))


def items_table(title: str, items: Iterable[tuple[str, str, float]]) -> Group:
    """Build a ranked list of (item, title, score)."""
    rows = [(str(rank), item, name, f"{score:.3f}") for rank, (item, name, score) in enumerate(items, 1)]
    return text_table(("", "item", "title", "score"), rows, title, left=range(4))


def public_spec(data: str) -> str:
    """Replace the path of a dataset by PATH, for commands that are printed or published."""
    name, _, rest = data.partition(":")
    return data if "=" in rest or not rest else f"{name}:PATH"


def method_names(typed: str) -> list[str]:
    """Complete the name of a method."""
    from veilrec.methods.registry import names

    return [name for name in names() if name.startswith(typed.lower())]


def data_names(typed: str) -> list[str]:
    """Complete the name of a dataset."""
    from veilrec.data.datasets import DATASETS

    return [name for name in DATASETS if name.startswith(typed)]


def protocol_names(typed: str) -> list[str]:
    """Complete the name of an evaluation protocol."""
    from veilrec.evaluation.protocols import PROTOCOLS

    return [name for name in PROTOCOLS if name.startswith(typed)]


_FOLLOWED = ("hr@10", "ndcg@10", "auc", "mrr")  # as many as fit into a line
_TIMED = 3.0  # seconds of rounds after the first, before their mean says anything
_REMEMBERED = 3600.0  # seconds of rounds that the bar, which leaves out the first too, takes the mean of
_SHORT = 10.0  # seconds; of shorter rounds tenths are told
_LONG_WAIT = 60.0  # seconds; a shorter one needs no warning


def _metrics(metrics: Mapping[str, float]) -> str:
    return "  ".join(f"{name} {metrics[name]:.4f}" for name in _FOLLOWED if name in metrics)


def _traffic(progress: Progress) -> str:
    if not progress.clients:
        return ""
    speed = f"{progress.clients_per_second:,.0f} clients/s"
    return f"{speed}  down {human_bytes(progress.down_bytes)}  up {human_bytes(progress.up_bytes)}"


class PlainLines:
    """One line per evaluation, and early on how long the rest will take."""

    def __init__(self, title: str, rounds: int) -> None:
        self._title = title
        self._rounds = rounds
        self._first: tuple[int, float] | None = None  # rounds and seconds of learning when the first round ended
        self._has_told = False

    def on_round(self, progress: Progress, report: StepReport) -> None:
        """Print once how long the rest will take, if long; the first round, which may compile, does not count."""
        if self._has_told:
            return
        if self._first is None:
            self._first = progress.rounds_done, progress.learning_seconds
            return
        rounds, seconds = progress.rounds_done - self._first[0], progress.learning_seconds - self._first[1]
        if seconds < _TIMED:
            return
        self._has_told = True
        each = seconds / rounds
        left = each * (self._rounds - progress.rounds_done)
        if left >= _LONG_WAIT:
            time = f"{each:.1f} s" if each < _SHORT else human_seconds(each)
            self._say(progress, f"{time} each, about {human_seconds(left)} of learning left")

    def on_metrics(self, progress: Progress, metrics: Mapping[str, float]) -> None:
        """Print the metrics."""
        self._say(progress, f"{_metrics(metrics)}  {_traffic(progress)}")

    def _say(self, progress: Progress, words: str) -> None:
        say(f"{self._title} {progress.rounds_done}/{self._rounds}  {words}".rstrip())


class LiveBar:
    """A bar, and below it the latest metrics and what has crossed the network: both fit into 80 columns."""

    def __init__(self, bar: Bar, task: TaskID, words: Text) -> None:
        self._bar = bar
        self._task = task
        self._words = words
        self._latest = ""

    def on_round(self, progress: Progress, report: StepReport) -> None:
        """Move the bar."""
        self._bar.update(self._task, completed=progress.rounds_done)
        self._say(progress)

    def on_metrics(self, progress: Progress, metrics: Mapping[str, float]) -> None:
        """Show the metrics from now on."""
        self._latest = _metrics(metrics)
        self._say(progress)

    def _say(self, progress: Progress) -> None:
        self._words.plain = f"{self._latest}  {_traffic(progress)}".strip()


@contextmanager
def following(title: str, rounds: int, *, unit: str = "round") -> Iterator[Listener]:
    """A listener that shows a run on standard error."""
    if not sys.stderr.isatty():
        yield PlainLines(f"{title}: {unit}", rounds)
        return
    from rich.live import Live
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    bar = Bar(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(f"{unit}s"),
        TimeRemainingColumn(),
        speed_estimate_period=_REMEMBERED,
    )
    words = Text(no_wrap=True, overflow="ellipsis")
    with Live(Group(bar, words), console=Console(stderr=True)):
        yield LiveBar(bar, bar.add_task(title, total=rounds), words)
