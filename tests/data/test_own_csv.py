"""Own files of uses: what may stand in them, and what is refused."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from veilrec.data.own_csv import read
from veilrec.errors import BadInput


def write(folder: Path, content: str | bytes, name: str = "log.csv") -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


ID = st.text(st.characters(categories=("L", "N")), min_size=1, max_size=4)


@settings(max_examples=50, deadline=None)
@given(
    rows=st.lists(st.tuples(ID, ID, st.integers(0, 2**40)), min_size=2, max_size=30, unique=True),
    separator=st.sampled_from(",\t;"),
)
def test_every_row_is_found_again_in_time_order(tmp_path_factory, rows, separator):
    path = tmp_path_factory.mktemp("csv") / "log.csv"
    lines = [separator.join(map(str, row)) for row in [("user", "item", "time"), *rows]]
    path.write_text("\n".join(lines), encoding="utf-8")
    if len({item for _, item, _ in rows}) < 2:
        with pytest.raises(BadInput, match="at least 2 items"):
            read(path)
        return
    population = read(path)
    log = population.interactions
    assert log.times is not None
    for index, user in enumerate(population.users):
        span = slice(log.offsets[index], log.offsets[index + 1])
        found = [(population.items[item], when) for item, when in zip(log.items[span], log.times[span], strict=True)]
        own = [(item, when) for owner, item, when in rows if owner == user]
        assert found == sorted(own, key=lambda use: use[1])  # sorted() keeps ties in file order


def test_columns_in_any_order_and_case_and_others_ignored(tmp_path):
    text = 'Time;RATING;comment;"item";user\n2024-05-01T18:30:00Z;4;"a;b";x;u\n1714588201;5;;y;u\n'
    population = read(write(tmp_path, text))
    log = population.interactions
    assert list(population.items) == ["x", "y"]
    assert log.ratings is not None
    assert log.times is not None
    assert log.ratings.tolist() == [4, 5]
    assert log.times.tolist() == [1714588200, 1714588201]
    assert population.facts["columns_ignored"] == "comment"


@pytest.mark.parametrize(
    "moment", ["1714588200", "2024-05-01T18:30:00Z", "2024-05-01 18:30:00", "2024-05-01T20:30+02:00", "20240501T183000"]
)
def test_times_in_seconds_or_iso_8601(tmp_path, moment):
    population = read(write(tmp_path, f"user,item,time\nu,a,{moment}\nu,b,2024-05-02\n"))
    assert population.interactions.times is not None
    assert population.interactions.times.tolist() == [1714588200, 1714608000]


def test_exact_duplicates_are_merged_and_repeated_uses_kept(tmp_path):
    population = read(write(tmp_path, "user,item,time\nu,a,1\nu,a,1\nu,a,2\nu,b,3\n"))
    assert population.interactions.items.tolist() == [0, 0, 1]
    assert population.facts == {"rows": 4, "duplicates_merged": 1}


def test_several_files_are_one_log(tmp_path):
    one = write(tmp_path, "user,item\nu,a\n", "1.csv")
    two = write(tmp_path, gzip.compress(b"item,user\nb,v\na,u\n"), "2.csv.gz")
    population = read(one, two)
    assert list(population.users) == ["u", "v"]
    assert population.facts == {"rows": 3, "duplicates_merged": 1}
    three = write(tmp_path, "user,item,rating\nu,a,1\n", "3.csv")
    with pytest.raises(BadInput, match=r"3\.csv has the columns user, item, rating"):
        read(one, three)


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ("", r"is empty.*header such as user,item,rating,time"),
        ("user,item\n", "has no rows"),
        ("u,a,5\nu,b,4\n", "line 1: no column user and no column item"),
        ("user,thing\nu,a\n", "line 1: no column item"),
        ("user,item,User\nu,a,v\n", "line 1: column 'user' occurs more than once"),
        ("user,item\nu,a\nv,a\n", "every row has the item 'a', and at least 2 items are needed"),
        (b"user,item\nu,a\nv,\xff\n", r"line 3: not valid UTF-8 \(byte 0xff\)"),
        (b"user,item,\xe9\nu,a,1\n", r"line 1: not valid UTF-8 \(byte 0xe9\)"),
        ("user,item\nu,a\n".encode("utf-16"), r"line 1: not valid UTF-8 \(looks like UTF-16\)"),
        (b"user,item\ru,a\rv,b\r", "line 1: lines end in bare carriage returns"),
        (b"user,item," + b"x" * 70_000 + b"\n", "line 1: longer than 65,536 bytes"),
        (b"user|item\nu|a\n", "separated by commas, tabs or semicolons"),
        ("user,item\nu,a\nv,b,c\n", "line 3: expected 2 fields separated by ',', found 3"),
        ("user,item\nu,a\n\nv,b\n", "line 3: .*blank line"),
        ("user,item,rating\nu,a,4\nu,b,nan\n", "line 3: rating 'nan' is not a finite number"),
        ("user,item,rating\nu,a,4\nu,b,good\n", "line 3: rating 'good' is not a number"),
        ("user,item,rating\nu,a,4\nu,b,\n", "line 3: rating is empty"),
        ("user,item,rating\nu,a,4\nu,b,inf\n", "line 3: rating 'inf' is not a finite number"),
        ("user,item,rating\nu,a,4\nu,b,1e99\n", "line 3: rating '1e99' is not a finite number"),
        (f"user,item,time\nu,a,1\nu,b,{2**70}\n", f"line 3: time '{2**70}' is neither"),
        ("user,item\nu,a\n ,b\n", "line 3: user is empty"),
        ("user,item,time\nu,a,1\nu,b,yesterday\n", "line 3: time 'yesterday' is neither whole seconds"),
        ("user,item,time\nu,a,1\nu,b,\n", "line 3: time is empty"),
        ('user,item\nu,"a\n', "line 2: the quotes do not match"),
    ],
)
def test_bad_files_are_refused_with_a_clear_line(tmp_path, content, fault):
    with pytest.raises(BadInput, match=rf"log\.csv.*{fault}") as caught:
        read(write(tmp_path, content))
    assert "\n" not in str(caught.value)
