from __future__ import annotations

from pathlib import Path

from veilrec.errors import BadInput, VeilrecError, bad_line, unknown_name


def test_an_unknown_name_comes_with_the_nearest_ones_first() -> None:
    message = str(unknown_name("dataset", "ml100k", ["mind", "ml-1m", "ml-100k"]))
    assert message.startswith("unknown dataset 'ml100k': did you mean ml-100k")
    assert message.endswith("known are mind, ml-100k, ml-1m")


def test_a_name_like_no_other_lists_what_is_known() -> None:
    message = str(unknown_name("method", "zzzzzzzz", iter(["fedmf", "ease"])))
    assert "did you mean" not in message
    assert message.endswith("known are ease, fedmf")


def test_a_bad_line_names_file_line_and_problem() -> None:
    error = bad_line(Path("u.data"), 12, "expected 4 columns, found 3")
    assert str(error) == "u.data, line 12: expected 4 columns, found 3"
    assert isinstance(error, BadInput)
    assert isinstance(error, VeilrecError)
