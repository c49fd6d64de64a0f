"""A number of rounds that is found on held-out items, and then a training on everything for as many.

Early stopping holds items back, so that the model which it chooses has learnt from less than others. A refit puts all
methods on the same footing: the search is a run of its own, beside the run that was asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from veilrec.errors import BadInput
from veilrec.methods.registry import get
from veilrec.runs.folder import CONFIG, RESULT, read_result
from veilrec.runs.request import Request, as_meant

Train = Callable[[Request, Path, bool], dict[str, Any]]  # of a request, into a folder, whether it goes on there


def search_folder(out: Path) -> Path:
    """Where the search for the rounds of a run lies."""
    return out.with_name(f"{out.name}-search")


def with_found_rounds(request: Request, out: Path, train: Train, *, resume: bool) -> Request:
    """Search as the request says, unless that is done already, and ask for the rounds that were best."""
    if request.patience is None:
        raise BadInput("--refit trains again for the rounds that --early-stop finds: give --early-stop N with it")
    if get(as_meant(request).method).rounds == 1:
        raise BadInput(f"{request.method} learns in one go, so there are no rounds to search: leave out --refit")
    folder = search_folder(out)
    if resume and (folder / RESULT).exists():
        result = read_result(folder)
    else:
        result = train(request, folder, resume and (folder / CONFIG).exists())
    return replace(request, patience=None, rounds=int(result["best_round"]), rounds_from=folder)
