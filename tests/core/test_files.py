from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from veilrec.core.errors import BadInput
from veilrec.core.files import new_folder, replacing, sha256, write_bytes, write_json, write_text
from veilrec.core.resources import cache_folder


def test_an_error_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "result.json"
    target.write_text("old")
    with pytest.raises(RuntimeError), replacing(target) as part:
        part.write_text("half of the n")
        raise RuntimeError
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_an_error_leaves_no_file_where_there_was_none(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), replacing(tmp_path / "new") as part:
        part.write_text("half")
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


def test_the_new_content_appears_only_at_the_end(tmp_path: Path) -> None:
    target = tmp_path / "model"
    target.write_bytes(b"old")
    with replacing(target) as part:
        part.write_bytes(b"new")
        assert part.parent == tmp_path  # a rename is atomic within one file system only
        assert target.read_bytes() == b"old"
    assert target.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [target]
    assert target.stat().st_mode & 0o777 == 0o644


def test_a_target_that_cannot_be_replaced_leaves_no_part(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    with pytest.raises(OSError), replacing(tmp_path / "taken") as part:
        part.write_text("content")
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


def test_a_folder_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), new_folder(tmp_path / "out") as part:
        (part / "one.npy").write_bytes(b"half")
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []
    with new_folder(tmp_path / "out") as part:
        (part / "inner").mkdir()
        (part / "inner" / "one.npy").write_bytes(b"whole")
        assert not (tmp_path / "out").exists()
    assert (tmp_path / "out" / "inner" / "one.npy").read_bytes() == b"whole"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_new_folder_takes_the_place_of_an_empty_one_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(BadInput, match="exists already"), new_folder(tmp_path):
        pass
    assert (tmp_path / "thesis.txt").read_text() == "years of work"
    (tmp_path / "empty").mkdir()
    with new_folder(tmp_path / "empty") as part:
        (part / "one").touch()
    assert (tmp_path / "empty" / "one").exists()


def test_missing_folders_are_made(tmp_path: Path) -> None:
    write_bytes(tmp_path / "a" / "b" / "c", b"1")
    assert (tmp_path / "a" / "b" / "c").read_bytes() == b"1"


def test_text_and_json_are_utf8_and_readable(tmp_path: Path) -> None:
    write_text(tmp_path / "t", "Zürich")
    assert (tmp_path / "t").read_bytes() == "Zürich".encode()
    write_json(tmp_path / "j", {"city": "Zürich", "n": [1, 2]})
    assert "Zürich" in (tmp_path / "j").read_text(encoding="utf-8")
    assert json.loads((tmp_path / "j").read_text(encoding="utf-8")) == {"city": "Zürich", "n": [1, 2]}


def test_sha256_is_the_digest_of_digests(tmp_path: Path) -> None:
    first, second = tmp_path / "1", tmp_path / "2"
    first.write_bytes(b"abc")
    second.write_bytes(b"d")
    inner = hashlib.sha256(b"abc").digest() + hashlib.sha256(b"d").digest()
    assert sha256([first, second]) == hashlib.sha256(inner).hexdigest()
    assert sha256([first, second]) != sha256([second, first])
    # Where one file ends and the next begins is part of the digest.
    first.write_bytes(b"ab")
    second.write_bytes(b"cd")
    assert sha256([first, second]) != hashlib.sha256(inner).hexdigest()


def test_the_cache_folder_can_be_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VEILREC_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path
    monkeypatch.delenv("VEILREC_CACHE")
    assert cache_folder() == Path.home() / ".cache" / "veilrec"
