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


def test_blanks_quotes_and_commas():
    for texts, ids in (
        ([""], []),
        ([" , "], []),
        ([], []),
        ([" a , b", "c"], ["a", "b", "c"]),
        (['"Bügel;Eisen 8" ,Straße Nr 10'], ["Bügel;Eisen 8", "Straße Nr 10"]),
        (['a, "b,""c"" ,d" , e'], ["a", 'b,"c" ,d', "e"]),
    ):
        assert read_history(texts) == ids
    known = {"Tee, Milch", "a", "b", "a,b", '8" a,b'}
    for text, ids in (("Tee, Milch", ["Tee, Milch"]), ("a,b", ["a", "b"]), ("Tee, Milch,a", ["Tee", "Milch", "a"])):
        assert read_history([text], known.__contains__) == ids


def test_what_cannot_be_split_or_read_is_said(tmp_path):
    (tmp_path / "binary").write_bytes(b"\xff")
    for read, given_text, words in (
        (read_history, ['"a'], "cannot be split .* give --history-file"),
        (read_history_file, tmp_path / "nothing", "cannot be read"),
        (read_history_file, tmp_path / "binary", "is not UTF-8"),
    ):
        with pytest.raises(BadInput, match=words):
            read(given_text)
