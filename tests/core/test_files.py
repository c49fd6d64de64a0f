import hashlib
import sqlite3

import pytest

from veilrec.core.errors import BadInput, VeilrecError
from veilrec.core.files import Seal, WrongSeal, key_in, new_folder, replacing, sha256, transaction


def test_an_error_leaves_the_old_file_and_nothing_else(tmp_path):
    target = tmp_path / "result.json"
    target.write_text("old")
    with pytest.raises(RuntimeError), replacing(target) as part:
        part.write_text("half of the n")
        raise RuntimeError
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_the_new_content_appears_only_at_the_end(tmp_path):
    target = tmp_path / "model"
    target.write_bytes(b"old")
    with replacing(target) as part:
        part.write_bytes(b"new")
        assert part.parent == tmp_path  # a rename is atomic within one file system only
        assert target.read_bytes() == b"old"
    assert target.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [target]
    assert target.stat().st_mode & 0o777 == 0o644


def test_a_target_that_cannot_be_replaced_leaves_no_part(tmp_path):
    (tmp_path / "taken").mkdir()
    with pytest.raises(OSError), replacing(tmp_path / "taken") as part:
        part.write_text("content")
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


def test_a_folder_appears_whole_or_not_at_all_and_replaces_an_empty_one_alone(tmp_path):
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
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(BadInput, match="exists already"), new_folder(tmp_path):
        pass
    assert (tmp_path / "thesis.txt").read_text() == "years of work"
    (tmp_path / "empty").mkdir()
    with new_folder(tmp_path / "empty") as part:
        (part / "one").touch()
    assert (tmp_path / "empty" / "one").exists()


def test_sha256_is_the_digest_of_digests(tmp_path):
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


@pytest.fixture
def database():
    made = sqlite3.connect(":memory:", isolation_level=None)
    made.execute("PRAGMA foreign_keys = ON")
    made.execute("CREATE TABLE parent (n INTEGER PRIMARY KEY)")
    made.execute("CREATE TABLE child (n INTEGER REFERENCES parent (n) DEFERRABLE INITIALLY DEFERRED)")
    return made


def rows(database):
    parents, children = (database.execute(q).fetchall() for q in ("SELECT n FROM parent", "SELECT n FROM child"))
    return [n for (n,) in parents], [n for (n,) in children]


def test_all_of_a_transaction_or_nothing(database):
    with transaction(database):
        database.execute("INSERT INTO parent VALUES (1)")
    with pytest.raises(KeyError), transaction(database):
        database.execute("INSERT INTO parent VALUES (2)")
        raise KeyError
    assert rows(database) == ([1], [])
    with pytest.raises(sqlite3.IntegrityError), transaction(database):  # the constraint is looked at by COMMIT
        database.execute("INSERT INTO child VALUES (7)")
    assert not database.in_transaction
    with transaction(database):
        database.execute("INSERT INTO parent VALUES (7)")
    assert rows(database) == ([1, 7], [])


KEY = bytes(range(32))


def test_what_is_sealed_opens_as_what_it_is_and_as_nothing_else():
    seal = Seal(KEY)
    sealed = seal.close(b"content", "outbox")
    assert seal.open(sealed, "outbox") == b"content"
    assert b"content" not in sealed
    changed = sealed[:-1] + bytes([sealed[-1] ^ 1])
    for key, content, what in ((KEY, sealed, "private"), (bytes(32), sealed, "outbox"), (KEY, changed, "outbox")):
        with pytest.raises(WrongSeal, match="does not open with this key"):
            Seal(key).open(content, what)
    for short in (b"", sealed[:11], sealed[:20]):
        with pytest.raises(WrongSeal):
            seal.open(short, "outbox")
    seal = Seal(KEY)
    assert len({seal.close(b"content", "outbox") for _ in range(100)}) == 100


def test_a_key_file_is_made_once_for_its_owner_alone_and_refused_otherwise(tmp_path):
    path = tmp_path / "key"
    key = key_in(path)
    assert key_in(path) == key
    assert len(key) == 32
    assert key != key_in(tmp_path / "other")
    assert oct(path.stat().st_mode & 0o777) == "0o600"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["key", "other"]
    path = tmp_path / "key"
    key_in(path)
    path.chmod(0o644)
    with pytest.raises(VeilrecError, match="others can read this key"):
        key_in(path)
    path.chmod(0o600)
    path.write_bytes(b"x")
    with pytest.raises(VeilrecError, match="it has 1 bytes, a key has 32"):
        key_in(path)
