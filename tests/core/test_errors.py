from pathlib import Path

import pytest

from veilrec.core.errors import BadInput, VeilrecError, bad_line, counted, known_name, times, unknown_name, written_name


def test_an_unknown_name_comes_with_the_nearest_ones_first_and_some_that_are_known():
    message = str(unknown_name("dataset", "ml100k", ["mind", "ml-1m", "ml-100k"]))
    assert message.startswith("unknown dataset 'ml100k': did you mean ml-100k")
    assert message.endswith("known are mind, ml-100k, ml-1m")
    message = str(unknown_name("method", "zzzzzzzz", iter(["fedmf", "ease"])))
    assert "did you mean" not in message
    assert message.endswith("known are ease, fedmf")
    names = [f"name-{number}" for number in range(40)]
    message = str(unknown_name("thing", "qqqq", names, all_by="veilrec things"))
    assert message.endswith(" and 30 more: see `veilrec things`")
    assert message.count("name-") == 10
    assert str(unknown_name("thing", "qqqq", names)).count("name-") == 40
    assert "did you mean name-33" in str(unknown_name("thing", "name33", names, all_by="veilrec things"))
    names = ["fedmf", "dp-fedmf", "ml-1m"]
    assert [known_name("thing", typed, names) for typed in ("FedMF", "DP_fedmf", " ML-1M ")] == names
    assert written_name("fedmff", names) is None
    with pytest.raises(BadInput, match=r"unknown thing 'FEDMFF': did you mean fedmf or dp-fedmf\? known are"):
        known_name("thing", "FEDMFF", iter(names))


def test_a_bad_line_names_file_line_and_problem():
    error = bad_line(Path("u.data"), 12, "expected 4 columns, found 3")
    assert str(error) == "u.data, line 12: expected 4 columns, found 3"
    assert isinstance(error, BadInput)
    assert isinstance(error, VeilrecError)


def test_one_is_not_many():
    assert [counted(n, "user") for n in (0, 1, 2, 12_000)] == ["0 users", "1 user", "2 users", "12,000 users"]
    assert [counted(n, "entry", "entries") for n in (1, 2)] == ["1 entry", "2 entries"]
    assert [times(n) for n in (1, 2, 1500)] == ["once", "2 times", "1,500 times"]
