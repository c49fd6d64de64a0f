"""Histories given by hand: whatever an id holds, it can be given."""

import csv
import io

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from veilrec.core.errors import BadInput
from veilrec.runs.saved import read_history, read_history_file

ID = st.text(st.sampled_from("ab,\"';| é"), max_size=6).map(lambda text: f"x{text}x")


@given(ids=st.lists(ID, max_size=5))
def test_what_a_csv_writer_writes_is_read(ids):
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(ids)
    assert read_history([line.getvalue()]) == ids
    assert read_history([f'"{text.replace(chr(34), 2 * chr(34))}"' for text in ids]) == ids


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ids=st.lists(ID, max_size=5), end=st.sampled_from(["\n", "\r\n", "\n\n"]))
def test_a_line_of_a_file_is_an_id_as_it_is(tmp_path, ids, end):
    path = tmp_path / "ids.txt"
    path.write_bytes(("\ufeff" + end.join(ids)).encode())
    assert read_history_file(path) == ids


def test_nothing_is_a_history_and_blanks_go():
    assert read_history([""]) == read_history([" , "]) == read_history([]) == []
    assert read_history([" a , b", "c"]) == ["a", "b", "c"]


def test_what_cannot_be_split_or_read_is_said(tmp_path):
    with pytest.raises(BadInput, match="cannot be split .* give --history-file"):
        read_history(['"a'])
    with pytest.raises(BadInput, match="cannot be read"):
        read_history_file(tmp_path / "nothing")
    (tmp_path / "binary").write_bytes(b"\xff")
    with pytest.raises(BadInput, match="is not UTF-8"):
        read_history_file(tmp_path / "binary")


def test_blanks_behind_a_closing_quote_and_ids_with_commas():
    assert read_history(['"Bügel;Eisen 8" ,Straße Nr 10']) == ["Bügel;Eisen 8", "Straße Nr 10"]
    assert read_history(['a, "b,""c"" ,d" , e']) == ["a", 'b,"c" ,d', "e"]
    known = {"Tee, Milch", "a", "b", "a,b", '8" a,b'}
    assert read_history(["Tee, Milch"], known.__contains__) == ["Tee, Milch"]
    assert read_history(["a,b"], known.__contains__) == ["a", "b"]
    assert read_history(["Tee, Milch,a"], known.__contains__) == ["Tee", "Milch", "a"]
