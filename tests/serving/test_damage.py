"""Files that were damaged or exchanged while nobody looked: said in one line, and never served."""

import hashlib
import os
import sqlite3

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests.serving import toys
from tests.serving.item_crash import item
from tests.serving.processes import refused
from tests.serving.toys import TOKEN, letters, served, toy, write_release
from veilrec.core.errors import BadInput
from veilrec.serving.app import _PART
from veilrec.serving.edition import _MAX_GONE, Edition, ItemStore
from veilrec.serving.middleware import _PIECE
from veilrec.wire.signing import SigningKey


def _swap(path, at, content):
    """Alter a file in its place: its size and its times stay."""
    about = path.stat()
    with path.open("r+b") as opened:
        opened.seek(at)
        opened.write(content)
    os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))
    assert path.stat().st_size == about.st_size


def _store(path, rows=200):
    store = ItemStore(path)
    for number in range(rows):
        store.put(item(number))
    store.close()
    return path


def test_a_damaged_file_of_items_is_one_line_at_the_start(tmp_path, token_file):
    items, release = _store(tmp_path / "items"), write_release(tmp_path / "release")
    for at in (3 * 4096, 5 * 4096):
        _swap(items, at, b"\xff" * 4096)
    with pytest.raises(BadInput, match="damaged"):
        ItemStore(items)
    code, said = refused(str(release), "--port", "0", "--admin-token-file", token_file, "--items", str(items))
    assert (code, len(said.splitlines())) == (2, 1)
    assert "damaged" in said


@pytest.mark.parametrize("error", [sqlite3.DatabaseError("malformed"), RuntimeError("secret"), None])
def test_what_breaks_while_the_index_is_made_is_logged_and_readiness_says_so(tmp_path, monkeypatch, error):
    ask = served(toy(tmp_path / "release"), tmp_path, prepare=False)
    if error is None:  # vectors that are no whole numbers of 4 bytes
        ask.service.store._database.execute("INSERT INTO items VALUES ('a','','','','','',0,NULL,'',x'010203')")
    else:
        monkeypatch.setattr(ItemStore, "gone", lambda _: (_ for _ in ()).throw(error))
    ended = []
    ask.service.on_failure = lambda: ended.append(True)
    ask.service.submit(ask.service._prepare).result()
    lines = [line["event"] for line in ask.log() if line.get("level") == "error"]
    assert len(lines) == 1 and lines[0].startswith("never ready: ") and "secret" not in lines[0]
    answer = ask("GET", "/readyz")
    assert (answer.status, "its log says why" in answer.json["error"], ended) == (503, True, [True])
    ask.close()


def test_a_reload_believes_the_key_of_the_start_and_its_successors(tmp_path, monkeypatch):
    folder = tmp_path / "release"
    ask = served(toy(folder), tmp_path)
    monkeypatch.setattr(toys, "KEY", SigningKey(Ed25519PrivateKey.generate()))
    write_release(folder, version=2)
    assert not ask.service.reload()
    assert "trusted key" in ask.log()[-1]["event"]
    assert ask.service.release.version == 1
    monkeypatch.undo()
    write_release(folder, version=3)
    assert ask.service.reload()
    assert ask.service.release.version == 3
    ask.close()


def test_a_file_that_is_altered_at_equal_size_is_not_served_at_any_place_of_it(tmp_path, monkeypatch):
    monkeypatch.setattr("veilrec.serving.app._PART", 512)
    ask = served(toy(tmp_path / "release"), tmp_path)
    path, name = tmp_path / "release" / "vectors.safetensors", "/v1/release/files/vectors.safetensors"
    whole = path.read_bytes()
    assert len(whole) > 512 and _PART <= _PIECE  # a slow reader holds no more than of other answers
    _swap(path, 600, b"changed!")
    assert ask("GET", name).status == 503  # before it was ever read
    _swap(path, 600, whole[600:608])
    answer = ask("GET", name)
    assert (answer.status, answer.body) == (200, whole)
    assert hashlib.sha256(answer.body).hexdigest() in answer.headers["etag"]
    _swap(path, 0, b"changed!")
    assert ask("GET", name).status == 503
    _swap(path, 0, whole[:8])
    _swap(path, 600, b"changed!")
    broken = ask("GET", name)  # the answer has begun, and breaks off
    assert (broken.status, broken.body, broken.headers["content-length"]) == (200, whole[:512], str(len(whole)))
    assert sum("changed on disk" in line.get("event", "") for line in ask.log()) == 1  # once, however many ask
    path.unlink()
    assert ask("GET", name).status == 503
    assert ask("GET", "/v1/release/files/items.safetensors").status == 200
    ask.close()


def test_an_index_is_made_of_the_bytes_that_were_signed(tmp_path):
    release = toy(tmp_path / "release")
    expected = Edition(release).nobody
    for name in ("vectors", "items", "serving"):
        path = tmp_path / "release" / f"{name}.safetensors"
        whole = path.read_bytes()
        _swap(path, len(whole) - 1, bytes([whole[-1] ^ 1]))
        with pytest.raises(BadInput, match=f"{name}.safetensors of the release was changed"):
            Edition(release)
        path.write_bytes(whole)
    np.testing.assert_array_equal(Edition(release).nobody, expected)


def test_texts_of_items_that_have_gone_do_not_stay_for_ever(tmp_path):
    ask = served(toy(tmp_path / "release"), tmp_path, embedder=letters)
    edition, store = ask.service.edition, ask.service.store
    store.put = store.remove = lambda _: None  # the disk is another matter
    body = {"title": "Zebra"}
    for _ in range(_MAX_GONE + 50):
        assert ask("PUT", "/v1/items/new", body, token=TOKEN).status in (200, 201)
    assert len(edition.texts._added) <= _MAX_GONE + 1
    assert [each["title"] for each in ask("POST", "/v1/recommend", {"k": 1000}).json["items"]].count("Zebra") == 1
    ask.close()
