"""What was read stays in a file that says nothing without its key, and is gone when it is forgotten."""

import pytest

from veilrec.client.recommender import HistoryStore
from veilrec.core.errors import BadInput, VeilrecError
from veilrec.core.files import Seal

KEY, OTHER = bytes(32), bytes([1]) * 32


def everything(folder):
    return b"".join(path.read_bytes() for path in folder.iterdir())


def test_keeps_the_order_of_the_latest_uses_over_a_restart(tmp_path):
    store = HistoryStore(tmp_path / "history", Seal(KEY))
    store.add("a", "b")
    store.add("c", "a")
    store.close()
    again = HistoryStore(tmp_path / "history", Seal(KEY))
    assert (again.items(), (tmp_path / "history").stat().st_mode & 0o777) == (["b", "c", "a"], 0o600)


def test_no_id_is_in_the_file_and_none_is_left_after_forgetting(tmp_path):
    store = HistoryStore(tmp_path / "history", Seal(KEY))
    ids = [f"canary-{number}" for number in range(100)]
    store.add(*ids)
    sealed = everything(tmp_path)
    assert not any(item.encode() in sealed for item in ids)
    rows = store._connection.execute("SELECT item FROM clicks").fetchall()
    store.forget()
    assert store.items() == []
    left = everything(tmp_path)
    assert not any(item in left for (item,) in rows)
    store.add("new")
    assert store.items() == ["new"]


def test_another_key_another_file_and_rows_that_changed_places_are_refused(tmp_path):
    store = HistoryStore(tmp_path / "history", Seal(KEY))
    store.add("a", "b")
    with pytest.raises(VeilrecError, match="key"):
        HistoryStore(tmp_path / "history", Seal(OTHER)).items()
    store._connection.execute("UPDATE clicks SET item = (SELECT item FROM clicks WHERE number = 1) WHERE number = 2")
    with pytest.raises(VeilrecError, match="key"):
        store.items()
    (tmp_path / "text").write_text("no database, but long enough to be looked at as one" * 100)
    with pytest.raises(VeilrecError, match="history"):
        HistoryStore(tmp_path / "text", Seal(KEY))


@pytest.mark.parametrize(
    "change",
    [
        "DELETE FROM clicks WHERE number = 1",
        "DELETE FROM clicks WHERE number = 3",
        "DELETE FROM clicks",
        "DELETE FROM span",
        "DROP TABLE span",
        "INSERT INTO clicks SELECT 4, item FROM clicks WHERE number = 2",
    ],
)
def test_rows_that_are_taken_away_without_the_key_are_noticed(tmp_path, change):
    store = HistoryStore(tmp_path / "history", Seal(KEY))
    store.add("a", "b", "c")
    store._connection.execute(change)
    with pytest.raises(VeilrecError):
        store.items()
    store.close()
    with pytest.raises(VeilrecError):
        HistoryStore(tmp_path / "history", Seal(KEY)).items()


def test_refuses_ids_that_are_none(tmp_path):
    store = HistoryStore(tmp_path / "history", Seal(KEY))
    for item in ("", "x" * 2000):
        with pytest.raises(BadInput, match="id"):
            store.add("fine", item)
    assert store.items() == []
