"""What travels inside a Flower message: a record of a few fields, the same for every way in which Flower runs.

Flower carries letters and is believed in nothing: a device answers with its own signature (`identity`), and what it
signs names federation, round and content. Questions go from the coordinator to a node, answers come back.

| letter | fields |
|---|---|
| who are you | `ask` = "hello", `nonce` |
| its answer | `device`, `federation`, `plan`, `key`, `endorsement`, `signature` over the nonce |
| a task | `ask` = "task", `task` (JSON), `content` |
| its answer | `device`, `answer`, `signature` over kind, round and answer |
| either, not answered | `declined`: nothing of why leaves the device |
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TypeAlias

from veilrec.errors import VeilrecError
from veilrec.federate.tasks import Task

Value: TypeAlias = str | bytes | int
Letter: TypeAlias = Mapping[str, Value]
RECORD = "veilrec"  # the name of the record that holds a letter
HELLO, TASK = "hello", "task"
DECLINED: Letter = {"declined": 1}


class BadLetter(VeilrecError):
    """What came is no letter."""


def text(letter: Letter, name: str) -> str:
    """A field of words."""
    value = letter.get(name)
    if not isinstance(value, str) or len(value) > 1000:
        raise BadLetter(f"a letter without {name}")
    return value


def raw(letter: Letter, name: str, most: int) -> bytes:
    """A field of at most so many bytes."""
    value = letter.get(name)
    if not isinstance(value, bytes) or len(value) > most:
        raise BadLetter(f"a letter without {name}, or with more than {most:,} bytes of it")
    return value


def task_letter(task: Task, content: bytes) -> Letter:
    """What asks a device for something."""
    return {"ask": TASK, "task": json.dumps(task.to_json()), "content": content}
