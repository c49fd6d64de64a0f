"""Delimited files: what is written is read, and every fault is named by file, line and kind."""

import gzip
import re

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from veilrec.core.errors import BadInput
from veilrec.data.text_files import encode, find_file, find_optional, pack, read_bytes, read_table, read_text

NAMES = ("user", "item", "rating")
FIELD = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\n\r:\x1f\ufeff"), max_size=8)


def write(folder, content, name="log.dat"):
    (folder / name).write_bytes(content)
    return folder / name


def ratings(folder, content):
    return read_table(write(folder, content), NAMES, separator="::")


@settings(max_examples=60)
@given(rows=st.lists(st.tuples(FIELD, FIELD, FIELD), min_size=1, max_size=20), last=st.booleans())
def test_what_is_written_is_read(tmp_path_factory, rows, last):
    content = "\n".join("::".join(row) for row in rows) + ("\n" if last else "")
    table = ratings(tmp_path_factory.mktemp("table"), content.encode())
    assert (table.frame.rows(), table.lines.tolist()) == (rows, list(range(1, len(rows) + 1)))


@settings(max_examples=60)
@given(rows=st.lists(st.tuples(st.text(st.sampled_from('ab",\n'), max_size=6), FIELD), min_size=1, max_size=9))
def test_quoted_fields_hold_anything(tmp_path_factory, rows):
    folder = tmp_path_factory.mktemp("quoted")
    lines = [",".join('"' + field.replace('"', '""') + '"' for field in row) for row in rows]
    table = read_table(write(folder, "\n".join(lines).encode()), ("a", "b"), separator=",", quoted=True)
    assert table.frame.rows() == rows


@settings(max_examples=60)
@given(values=st.lists(FIELD | st.from_regex(r"0{0,2}[0-9]{1,20}", fullmatch=True), min_size=1, max_size=30))
def test_codes_follow_the_ids_whole_numbers_first(values):
    codes, distinct = encode(pl.Series(values, dtype=pl.String))
    numbers = {value for value in values if re.fullmatch("[0-9]+", value)}
    others = sorted(set(values) - numbers, key=str.encode)
    assert list(distinct) == [*sorted(numbers, key=lambda value: (int(value), value)), *others]
    assert [distinct[code] for code in codes] == values
    assert list(pack(pl.Series(values, dtype=pl.String))) == values


RATINGS, HEADED, QUOTED = {"names": NAMES, "separator": "::"}, {"separator": ","}, {"separator": ",", "quoted": True}


def test_a_fault_is_named_by_file_and_line(tmp_path):
    for content, how, fault in (
        (b"1::2::3\n4::5\n", RATINGS, "line 2: expected 3 fields separated by '::', found 2"),
        (b"1::2::3\n4::5::6::7\n", RATINGS, "line 2: expected 3 fields separated by '::', found 4"),
        (b"1::2::3\n\n4::5::6\n", RATINGS, "line 2: expected 3 fields separated by '::', found a blank line"),
        (b"\n4::5::6\n", RATINGS, "line 1: .*found a blank line"),
        (b"1::2::3\n4::\xff::6\n", RATINGS, r"line 2: not valid UTF-8 \(byte 0xff, which"),
        (b'a,b\n"x\ny",1\nz,oops,3\n', QUOTED, "line 4: expected 2 fields separated by ',', found 3"),
        (b'a,b\n"x,1\n', QUOTED, "line 2: the quotes do not match"),
        (b"", RATINGS, "no rows"),
        (b"\n\n", RATINGS, "no rows"),
        (b"", HEADED, "is empty"),
        (b"a,b\n", HEADED, "no rows"),
        (b"a,a\n1,2\n", HEADED, "'a' occurs more than once"),
    ):
        with pytest.raises(BadInput, match=rf"log\.dat.*{fault}"):
            read_table(write(tmp_path, content), **how)


def test_integers_keep_their_bounds_and_duplicates_go_and_lines_stay(tmp_path):
    for value, fault in [("1.5", "not a whole number"), ("0", "below 1"), ("9", "above 5")]:
        with pytest.raises(BadInput, match=f"line 1: rating '{value}' is {fault}"):
            ratings(tmp_path, f"1::2::{value}\n".encode()).integers("rating", low=1, high=5)
    table = ratings(tmp_path, b"1::2::3\n1::2::3\n1::2::x\n").without_duplicates()
    assert len(table) == 2
    with pytest.raises(BadInput, match="line 3"):
        table.integers("rating")


def test_windows_line_ends_byte_order_marks_and_latin_1_are_taken(tmp_path):
    table = read_table(write(tmp_path, b"\xef\xbb\xbfa\tb\r\n1\t2\r\n\r\n"), separator="\t")
    assert table.frame.columns == ["a", "b"]
    assert table.integers("b").tolist() == [2]
    table = read_table(write(tmp_path, b"1|Caf\xe9\n"), ("id", "title"), separator="|", encoding="latin-1")
    assert table.frame["title"][0] == "Café"


def test_plain_or_gzip_by_the_official_name_and_what_is_missing_or_broken_is_said(tmp_path):
    packed = write(tmp_path, gzip.compress(b"1\t2\n"), "u.data.gz")
    assert find_file(tmp_path, "u.data") == packed
    assert read_text(packed) == "1\t2\n"
    plain = write(tmp_path, b"3\t4\n", "u.data")
    assert find_file(tmp_path, "u.data") == plain
    assert find_optional(tmp_path, "u.item") is None
    with pytest.raises(BadInput, match=r"no u\.item \(or u\.item\.gz\) in .*official files"):
        find_file(tmp_path, "u.item")
    with pytest.raises(BadInput, match=r"there is no folder .*nowhere"):
        find_file(tmp_path / "nowhere", "u.data")
    cut = write(tmp_path, gzip.compress(np.random.default_rng(1).bytes(5000))[:3000], "cut.gz")
    for path, fault in ((tmp_path / "no", "is not there"), (tmp_path, "cannot be read"), (cut, "not a whole gzip")):
        with pytest.raises(BadInput, match=fault):
            read_bytes(path)
