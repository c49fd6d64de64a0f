"""Items on disk, and in a server that is killed: what was acknowledged is there, whatever happens."""

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from http.client import HTTPException
from math import inf
from pathlib import Path

import numpy as np
import pytest

from tests.serving.item_crash import item
from tests.serving.processes import running
from tests.serving.toys import TOKEN, packed, write_release
from veilrec.core.errors import BadInput
from veilrec.serving.edition import ItemStore, ReleaseTexts, StoreFull, StoreGone

ROOT = Path(__file__).parents[2]
KILLS = 6
BEARER = {"Authorization": f"Bearer {TOKEN}"}


def _ids(store):
    return [each.id for each in store.items()]


def test_what_is_put_is_there_after_opening_again(tmp_path):
    store = ItemStore(tmp_path / "items")
    for number in range(3):
        store.put(item(number))
    store.put(item(0))
    store.remove("item 1")
    store.close()
    again = ItemStore(tmp_path / "items")
    assert _ids(again) == ["item 2", "item 0"]
    assert again.gone() == {"item 1"}
    found = next(iter(again.items()))
    assert (found.prior, found.expires, found.category) == (0.25, inf, "news")
    np.testing.assert_array_equal(found.vector, np.full(4, 2, np.float32))
    again.put(item(1))
    assert again.gone() == set()
    again.close()
    assert (tmp_path / "items").stat().st_mode & 0o777 == 0o600


def test_a_commit_is_synced_and_a_removed_file_noticed_before_anything_is_acknowledged(tmp_path):
    """A killed process cannot show this: the system keeps what was written. Power that fails does not."""
    store = ItemStore(tmp_path / "items")
    settings = [store._database.execute(f"PRAGMA {name}").fetchone()[0] for name in ("journal_mode", "synchronous")]
    assert settings == ["wal", 2]
    store.put(item(1))
    (tmp_path / "items").unlink()
    with pytest.raises(StoreGone, match="removed or replaced"):
        store.put(item(2))
    store.close()


def test_other_files_and_those_of_another_server_are_refused(tmp_path):
    store = ItemStore(tmp_path / "items")
    (tmp_path / "text").write_text("not a database " * 100)
    with sqlite3.connect(tmp_path / "other") as other:
        other.execute("CREATE TABLE x (y)")
    other.close()
    for name, words in (
        ("items", "another server"),
        ("text", "no file of items"),
        ("other", "no file of items"),
        ("no folder/items", "cannot be used"),
    ):
        with pytest.raises(BadInput, match=words):
            ItemStore(tmp_path / name)
    store.close()
    ItemStore(tmp_path / "items").close()


def test_a_full_disk_changes_nothing(tmp_path):
    store = ItemStore(tmp_path / "items")
    store.put(item(1))
    (pages,) = store._database.execute("PRAGMA page_count").fetchone()
    store._database.execute(f"PRAGMA max_page_count={pages + 2}")  # what SQLite does on a disk without room
    large = item(2).__class__(**{**item(2).__dict__, "abstract": "x" * 100_000})
    for _ in range(3):
        with pytest.raises(StoreFull, match="disk of the items is full"):
            store.put(large)
    assert _ids(store) == ["item 1"]
    store.put(item(3))
    assert _ids(store) == ["item 1", "item 3"]
    store.close()


def test_a_write_that_the_system_refuses_changes_nothing(tmp_path):
    """RLIMIT_FSIZE stands in for a full disk: the write itself fails."""
    program = """
import resource, sys
from pathlib import Path
from tests.serving.item_crash import item
from veilrec.serving.edition import ItemStore, StoreFull
store = ItemStore(Path(sys.argv[1]))
store.put(item(1))
size = Path(sys.argv[1] + "-wal").stat().st_size
resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
try:
    store.put(item(2))
except StoreFull as error:
    print("refused")
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
store.put(item(3))
print([each.id for each in store.items()])
"""
    command = [sys.executable, "-c", program, str(tmp_path / "items")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.splitlines() == ["refused", "['item 1', 'item 3']"]


@pytest.mark.parametrize("kills", [10, pytest.param(100, marks=pytest.mark.processes)])
def test_killed_over_and_over(tmp_path, kills):
    """All acknowledged changes are there, and no others but for the one that was under way."""
    path, dice = tmp_path / "items", random.Random(14)  # noqa: S311 - it chooses when to kill
    there, acknowledged, number = set(), 0, 0
    for _ in range(kills):
        command = [sys.executable, "-m", "tests.serving.item_crash", str(path), str(number)]
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE)
        first = process.stdout.readline()
        time.sleep(dice.uniform(0.0, 0.03))
        os.kill(process.pid, signal.SIGKILL)
        told = (first + process.stdout.read()).decode().splitlines(keepends=True)
        process.wait()
        for sign, changed, step in (line.split() for line in told if line.endswith("\n")):
            (there.add if sign == "+" else there.discard)(int(changed))
            number = int(step) + 1
            acknowledged += 1
        under_way = there - {number - 2} if number % 5 == 4 else there | {number}
        store = ItemStore(path)
        found = list(store.items())
        store.close()
        names = {int(each.id.split()[1]) for each in found}
        assert names in (there, under_way)
        for each in found:
            assert (each.vector == int(each.id.split()[1])).all()
        there = names
    assert acknowledged >= kills


def _visible(server):
    body = json.loads(server.ask("POST", "/v1/recommend", {"k": 1000})[2])
    return {item["id"] for item in body["items"]} - {f"n{number}" for number in range(40)}


@pytest.mark.slow
def test_what_was_acknowledged_is_visible_after_kill_9(tmp_path, token_file):
    folder = write_release(tmp_path / "release")
    dice = random.Random(3)  # noqa: S311 - it chooses when to kill
    acknowledged, maybe, number = set(), set(), 0
    for _ in range(KILLS + 1):
        with running(folder, tmp_path / "log", "--admin-token-file", token_file, "--rate", "0") as server:
            found = _visible(server)
            assert acknowledged <= found <= acknowledged | maybe
            acknowledged, maybe = found, set()
            killer = threading.Timer(dice.uniform(0.1, 0.5), os.kill, (server.process.pid, signal.SIGKILL))
            killer.start()
            end = time.monotonic() + 30
            while time.monotonic() < end and len(acknowledged) < 900:
                name, number = f"item {number}", number + 1
                maybe = {name}
                try:
                    status, _, _ = server.ask("PUT", f"/v1/items/item%20{number - 1}", {"title": name}, BEARER)
                except (OSError, HTTPException):
                    break
                assert status == 201
                acknowledged.add(name)
            killer.join()
    assert len(acknowledged) > KILLS


def _texts(ids):
    titles, category = [f"title {name}" for name in ids], (np.arange(len(ids)) % 3 - 1).astype(np.int32)
    arrays = packed("ids", ids) | packed("titles", titles) | packed("categories", ["news", "sport"])
    return ReleaseTexts(arrays | {"category": category})


def test_texts_are_found_by_whole_ids_come_and_go_and_have_codes():
    ids = ["1", "11", "111", "é", "e", ""]
    texts = _texts(ids)
    assert [texts.find(name) for name in (*ids, "1111", "\xe9x")] == [0, 1, 2, 3, 4, 5, None, None]
    texts = _texts(["a", "b"])
    texts.add(7, "c", 'a "title"', "sport")
    assert texts.find("c") == 7
    assert json.loads(texts.json(7) + b"1}") == {"id": "c", "title": 'a "title"', "category": "sport", "score": 1}
    assert texts.json(8) is None
    texts.hide(0)
    assert texts.find("a") is None
    texts.add(8, "a", "new", "")
    assert texts.find("a") == 8
    assert texts.numbers().tolist() == [1, 7, 8]
    texts.hide(8)
    assert texts.find("a") is None
    assert texts.numbers().tolist() == [1, 7]
    texts = _texts(["a"])
    assert (texts.category_code("sport"), texts.category_code(""), texts.category_code("x")) == (1, -1, None)
    assert texts.category_code("x", new=True) == 2
    assert texts.category_code("x") == 2
    assert texts.region_code("north") is None
    assert texts.region_code("north", new=True) == 0


def test_odd_arrays_are_refused():
    arrays = {**packed("ids", ["a"]), **packed("titles", ["a"]), **packed("categories", [])}
    for odd, words in (
        ({"category": np.zeros(1, np.int32)}, "without a name"),
        ({"category": np.full(2, -1, np.int32)}, "as many"),
        ({"ids.offsets": np.array([0, 9]), "category": np.full(1, -1, np.int32)}, "end to end"),
    ):
        with pytest.raises(BadInput, match=words):
            ReleaseTexts(arrays | odd)
