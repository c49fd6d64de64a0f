"""Read once, mapped ever after; a changed file or an unwritable cache never gives a wrong answer."""

from __future__ import annotations

import logging
import time
from pathlib import Path

import pytest

from veilrec.data import cache as cache_module
from veilrec.data import own_csv
from veilrec.data.cache import cache_folder, remembered
from veilrec.data.spec import load


class CountedReader:
    """Reads a csv file and counts how often."""

    def __init__(self, path: Path) -> None:
        self.path, self.times = path, 0

    def __call__(self):
        self.times += 1
        return own_csv.read(self.path)


@pytest.fixture
def log(tmp_path) -> Path:
    path = tmp_path / "log.csv"
    path.write_text("user,item\nu,a\nu,b\nv,a\n")
    return path


def test_the_second_read_comes_from_the_cache(log):
    reader = CountedReader(log)
    first, second = (remembered("csv", [log], reader) for _ in range(2))
    assert reader.times == 1
    assert list(first.items) == list(second.items) == ["a", "b"]


def test_a_changed_file_is_read_anew(log):
    reader = CountedReader(log)
    remembered("csv", [log], reader)
    log.write_text(log.read_text() + "v,c\n")
    assert list(remembered("csv", [log], reader).items) == ["a", "b", "c"]
    assert reader.times == 2


def test_a_changed_reader_replaces_its_old_entry(log, cache, monkeypatch):
    reader = CountedReader(log)
    remembered("csv", [log], reader)
    monkeypatch.setattr(cache_module, "_code", lambda: "0" * 64)
    remembered("csv", [log], reader)
    assert reader.times == 2
    assert len(list((cache / "populations").iterdir())) == 1


def test_a_damaged_entry_is_read_anew(log, cache):
    reader = CountedReader(log)
    remembered("csv", [log], reader)
    (entry,) = (cache / "populations").iterdir()
    (entry / "users.data.npy").write_bytes(b"")
    assert list(remembered("csv", [log], reader).users) == ["u", "v"]
    assert reader.times == 2


def test_two_processes_may_write_the_same_entry(log, caplog):
    reader = CountedReader(log)

    def read_while_another_finishes():
        remembered("csv", [log], reader)
        return reader()

    assert list(remembered("csv", [log], read_while_another_finishes).users) == ["u", "v"]
    assert reader.times == 2
    assert not caplog.records


def test_an_unwritable_cache_costs_one_line(log, tmp_path, monkeypatch, caplog):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("VEILREC_CACHE", str(tmp_path / "file" / "cache"))
    with caplog.at_level(logging.WARNING, logger="veilrec"):
        population = remembered("csv", [log], CountedReader(log))
    assert list(population.users) == ["u", "v"]
    (record,) = caplog.records
    assert "cannot be written" in record.getMessage()
    assert "\n" not in record.getMessage()


def test_the_folder_can_be_chosen(monkeypatch, cache):
    assert cache_folder() == cache
    monkeypatch.delenv("VEILREC_CACHE")
    assert cache_folder() == Path.home() / ".cache" / "veilrec"


def test_ml_1m_starts_in_a_fraction_of_a_second_the_second_time(real):
    folder = real("ml-1m")
    started = time.perf_counter()
    load(f"ml-1m:{folder}")
    between = time.perf_counter()
    load(f"ml-1m:{folder}")
    ended = time.perf_counter()
    assert between - started < 20
    assert ended - between < 0.5
