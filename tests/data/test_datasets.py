"""From a specification to a population: names, paths, options, and where files are looked for."""

import re
from importlib import import_module
from pathlib import Path

import pytest

from veilrec.core.errors import BadInput
from veilrec.data import own_csv, packed
from veilrec.data.datasets import DATASETS, find_dataset, load, locate, parse, whereabouts


@pytest.fixture(autouse=True)
def no_data(monkeypatch):
    monkeypatch.delenv("VEILREC_DATA", raising=False)


def write_100k(folder):
    folder.mkdir(parents=True)
    (folder / "u.data").write_text("1\t1\t5\t1\n1\t2\t5\t2\n2\t1\t5\t1\n")
    return folder


def test_every_data_set_has_a_reader():
    for dataset in DATASETS.values():
        module, function = dataset.reader.split(":")
        assert callable(getattr(import_module(f"veilrec.data.{module}"), function)), dataset.name
        assert dataset.title and dataset.licence and dataset.how_to_get, dataset.name


def test_only_the_first_colon_counts_and_options_are_for_synthetic_data():
    assert parse(r"csv:C:\logs\clicks.csv").path == Path(r"C:\logs\clicks.csv")
    assert (parse("csv:a:b.csv").path, parse("ml-1m:~/films").path) == (Path("a:b.csv"), Path.home() / "films")
    assert parse("ml-1m").path is None
    assert parse("synthetic-ratings:users=5000, seed=1").options == {"users": "5000", "seed": "1"}
    population = load("synthetic-ratings:users=60,items=80", options={"seed": "3", "users": "50"})
    assert (population.n_users, population.n_items) == (50, 80)
    with pytest.raises(BadInput, match="ml-1m takes no options, got seed"):
        load("ml-1m", options={"seed": "3"})


def test_what_cannot_be_meant_is_refused(tmp_path, monkeypatch):
    for spec, fault in (
        ("ml-1n", "unknown data set 'ml-1n': did you mean ml-1m"),
        ("movielens:somewhere", "unknown data set 'movielens'"),
        ("", "unknown data set ''"),
        ("ml-1m:", "nothing follows the colon in 'ml-1m:': write ml-1m or ml-1m:PATH"),
        ("synthetic-ratings:users=-4", "cannot generate ratings of -4 users"),
        (f"synthetic-ratings:seed={2**64}", "option seed=.* is too large"),
        ("csv:", "nothing follows the colon in 'csv:': write csv:PATH"),
        ("csv", "csv needs a path: write csv:PATH"),
        ("csv:nowhere.csv", r"nowhere\.csv is not there"),
        ("here.csv", r"a path without a data set's name: .* csv:"),
        ("synthetic-ratings:users", "'users' in .* is no option: write key=value"),
        ("synthetic-ratings:users=5,users=6", "option 'users' stands twice"),
        ("synthetic-ratings:userz=5", "unknown option 'userz': did you mean users"),
        ("synthetic-ratings:users=many", "option users=many is not a whole number"),
        ("synthetic-ratings:mean_history=x", "option mean_history=x is not a number"),
    ):
        monkeypatch.chdir(tmp_path)
        Path("here.csv").write_text("user,item\nu,a\n")
        with pytest.raises(BadInput, match=fault) as caught:
            load(spec)
        assert "\n" not in str(caught.value)


def test_a_folder_is_found_where_it_should_be_and_inside_the_one_that_is_given(tmp_path, cache, monkeypatch):
    dataset = find_dataset("ml-100k")
    assert whereabouts(dataset) is None
    fetched = write_100k(cache / "datasets" / "ml-100k")
    assert locate(parse("ml-100k")) == fetched
    own = write_100k(tmp_path / "data" / "ml-100k")
    monkeypatch.setenv("VEILREC_DATA", str(tmp_path / "data"))
    assert locate(parse("ml-100k")) == whereabouts(dataset) == own
    assert whereabouts(find_dataset("csv")) is None
    inside = write_100k(tmp_path / "downloads" / "ml-100k")
    assert locate(parse(f"ml-100k:{tmp_path / 'downloads'}")) == inside
    assert load(f"ml-100k:{tmp_path / 'downloads'}").n_users == 2
    write_100k(tmp_path / "downloads" / "copy")
    with pytest.raises(BadInput, match=r"several folders with u\.data \(copy, ml-100k\)"):
        load(f"ml-100k:{tmp_path / 'downloads'}")


def test_missing_files_say_where_they_belong_and_how_to_get_them(tmp_path, cache):
    (tmp_path / "file").write_text("")
    expected = rf"folder with u\.data .*ml-100k:PATH .*\$VEILREC_DATA/ml-100k.*{re.escape(str(cache))}.*fetch ml-100k"
    for spec, problem in (
        ("ml-100k", ""),
        (f"ml-100k:{tmp_path / 'nowhere'}", "nowhere is not there: .*"),
        (f"ml-100k:{tmp_path / 'file'}", "file is a file, not a folder: .*"),
        (f"ml-100k:{tmp_path}", r"no u\.data \(or u\.data\.gz\) in .*"),
    ):
        with pytest.raises(BadInput, match=problem + expected):
            load(spec)


def test_a_packed_folder_is_an_own_data_set(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("user,item\nu,a\nv,b\n")
    packed.save(own_csv.read_csv(path), tmp_path / "packed")
    for spec in (f"csv:{tmp_path / 'packed'}", f"csv:{path}"):
        assert list(load(spec).users) == ["u", "v"]
    with pytest.raises(BadInput, match="no packed population"):
        load(f"csv:{tmp_path}")
