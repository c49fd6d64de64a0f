"""The program as it is typed, run in this process from its entry point on."""

import io
import json
import sys
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from typing import NamedTuple

import pytest

from veilrec.cli import main

SIZES = ("word_dim=8", "heads=2", "head_dim=4", "attention=4")
SMALL = [part for size in SIZES for part in ("--set", f"size.{size}")]  # a news model that trains at once


class Done(NamedTuple):
    """Exit code and what was said on either channel."""

    code: int
    out: str
    err: str


def veilrec(*arguments):
    """Run a command; an error that the entry point does not catch fails the test."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    with redirect_stdout(out), redirect_stderr(err), pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["veilrec", *map(str, arguments)])
        try:
            main.run()
        except SystemExit as leaving:
            code = leaving.code if isinstance(leaving.code, int) else 0 if leaving.code is None else 1
    return Done(code, out.getvalue(), err.getvalue())


def shown(*arguments):
    """What a command that succeeds prints, with single blanks."""
    done = veilrec(*arguments)
    assert done.code == 0, done.err
    return " ".join(done.out.split())


def told(*arguments):
    """The JSON object of a command that succeeds; nothing else may stand on standard output."""
    done = veilrec(*arguments, "--json")
    assert done.code == 0, done.err
    return json.loads(done.out)


def says(text, *words):
    """All of these words stand in the text."""
    missing = [one for one in words if one not in text]
    assert not missing, (missing, text)


def refused(*arguments, code=2):
    """The one line that a command ends with that cannot be done; nothing may stand on standard output."""
    done = veilrec(*arguments)
    assert (done.code, done.out) == (code, ""), done
    assert "Traceback" not in done.err
    lines = done.err.strip().splitlines()
    assert lines[-1].startswith(("veilrec: ", "veilrec "))  # or the command that lacks a package
    assert sum(line.startswith("veilrec: ") for line in lines) <= 1
    return lines[-1]


def typed(*first):
    """The three above, of commands that begin with these words."""
    return [partial(one, *first) for one in (told, shown, refused)]
