"""Delimited files: what is written is read, and every fault is named by file, line and kind."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from veilrec.core.errors import BadInput
from veilrec.data.text_files import encode, find_file, find_optional, pack, read_bytes, read_table, read_text

NAMES = ("user", "item", "rating")


def write(folder: Path, content: bytes, name: str = "log.dat") -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


def fields() -> st.SearchStrategy[str]:
    plain = st.characters(exclude_categories=("Cs",), exclude_characters="\n\r:\x1f\ufeff")
    return st.text(plain, max_size=8)


@settings(max_examples=60, deadline=None)
@given(rows=st.lists(st.tuples(fields(), fields(), fields()), min_size=1, max_size=20), last=st.booleans())
def test_what_is_written_is_read(tmp_path_factory, rows, last):
    folder = tmp_path_factory.mktemp("table")
    content = "\n".join("::".join(row) for row in rows) + ("\n" if last else "")
    table = read_table(write(folder, content.encode()), NAMES, separator="::")
    assert table.frame.rows() == rows
    assert table.lines.tolist() == list(range(1, len(rows) + 1))


@settings(max_examples=60, deadline=None)
@given(rows=st.lists(st.tuples(st.text(st.sampled_from('ab",\n'), max_size=6), fields()), min_size=1, max_size=9))
def test_quoted_fields_hold_anything(tmp_path_factory, rows):
    folder = tmp_path_factory.mktemp("quoted")
    lines = [",".join('"' + field.replace('"', '""') + '"' for field in row) for row in rows]
    table = read_table(write(folder, "\n".join(lines).encode()), ("a", "b"), separator=",", quoted=True)
    assert table.frame.rows() == rows


@settings(max_examples=60, deadline=None)
@given(values=st.lists(fields(), min_size=1, max_size=30))
def test_codes_follow_first_appearance(values):
    import polars as pl

    codes, distinct = encode(pl.Series(values, dtype=pl.String))
    assert list(distinct) == list(dict.fromkeys(values))
    assert [distinct[code] for code in codes] == values
    assert list(pack(pl.Series(values, dtype=pl.String))) == values


def test_a_malformed_line_is_named(tmp_path) -> None:
    for content, line, fault in [
        (b"1::2::3\n4::5\n", 2, "expected 3 fields separated by '::', found 2"),
        (b"1::2::3\n4::5::6::7\n", 2, "expected 3 fields separated by '::', found 4"),
        (b"1::2::3\n\n4::5::6\n", 2, "expected 3 fields separated by '::', found a blank line"),
        (b"\n4::5::6\n", 1, "found a blank line"),
        (b"1::2::3\n4::\xff::6\n", 2, r"not valid UTF-8 \(byte 0xff, which"),
    ]:
        with pytest.raises(BadInput, match=rf"log\.dat, line {line}: .*{fault}"):
            read_table(write(tmp_path, content), NAMES, separator="::")


def test_integers_keep_their_bounds(tmp_path) -> None:
    for value, fault in [("1.5", "not a whole number"), ("0", "below 1"), ("9", "above 5")]:
        table = read_table(write(tmp_path, f"1::2::{value}\n".encode()), NAMES, separator="::")
        with pytest.raises(BadInput, match=f"line 1: rating '{value}' is {fault}"):
            table.integers("rating", low=1, high=5)


def test_lines_are_counted_through_quoted_line_breaks(tmp_path):
    path = write(tmp_path, b'a,b\n"x\ny",1\nz,oops,3\n')
    with pytest.raises(BadInput, match="line 4: expected 2 fields separated by ',', found 3"):
        read_table(path, separator=",", quoted=True)
    path = write(tmp_path, b'a,b\n"x,1\n')
    with pytest.raises(BadInput, match="line 2: the quotes do not match"):
        read_table(path, separator=",", quoted=True)


def test_duplicates_go_and_lines_stay(tmp_path):
    table = read_table(write(tmp_path, b"1::2::3\n1::2::3\n1::2::x\n"), NAMES, separator="::").without_duplicates()
    assert len(table) == 2
    with pytest.raises(BadInput, match="line 3"):
        table.integers("rating")


def test_windows_line_ends_and_byte_order_marks_are_taken(tmp_path):
    table = read_table(write(tmp_path, b"\xef\xbb\xbfa\tb\r\n1\t2\r\n\r\n"), separator="\t")
    assert table.frame.columns == ["a", "b"]
    assert table.integers("b").tolist() == [2]


def test_latin_1_is_read_on_request(tmp_path):
    table = read_table(write(tmp_path, b"1|Caf\xe9\n"), ("id", "title"), separator="|", encoding="latin-1")
    assert table.frame["title"][0] == "Café"


def test_an_empty_file_is_refused(tmp_path):
    for content in (b"", b"\n\n"):
        with pytest.raises(BadInput, match="no rows"):
            read_table(write(tmp_path, content), NAMES, separator="\t")
    with pytest.raises(BadInput, match="is empty"):
        read_table(write(tmp_path, b""), separator=",")
    with pytest.raises(BadInput, match="no rows"):
        read_table(write(tmp_path, b"a,b\n"), separator=",")
    with pytest.raises(BadInput, match="'a' occurs more than once"):
        read_table(write(tmp_path, b"a,a\n1,2\n"), separator=",")


def test_plain_or_gzip_by_the_official_name(tmp_path):
    packed = write(tmp_path, gzip.compress(b"1\t2\n"), "u.data.gz")
    assert find_file(tmp_path, "u.data") == packed
    assert read_text(packed) == "1\t2\n"
    plain = write(tmp_path, b"3\t4\n", "u.data")
    assert find_file(tmp_path, "u.data") == plain
    assert find_optional(tmp_path, "u.item") is None


def test_what_is_missing_or_broken_is_said(tmp_path):
    with pytest.raises(BadInput, match=r"no u\.data \(or u\.data\.gz\) in .*official files"):
        find_file(tmp_path, "u.data")
    with pytest.raises(BadInput, match=r"there is no folder .*nowhere"):
        find_file(tmp_path / "nowhere", "u.data")
    with pytest.raises(BadInput, match="is not there"):
        read_bytes(tmp_path / "nothing")
    with pytest.raises(BadInput, match="cannot be read"):
        read_bytes(tmp_path)
    whole = gzip.compress(np.random.default_rng(1).bytes(5000))
    with pytest.raises(BadInput, match="not a whole gzip file"):
        read_bytes(write(tmp_path, whole[:3000], "cut.gz"))
