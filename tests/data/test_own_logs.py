"""Own logs of uses and of impressions: what may stand in them, and what is refused."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from veilrec.data.own_logs import LONGEST_HISTORY, read_csv, read_impressions
from veilrec.data.population import Impressions, Population
from veilrec.errors import BadInput


def write_csv(folder: Path, content: str | bytes, name: str = "log.csv") -> Path:
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
            read_csv(path)
        return
    population = read_csv(path)
    log = population.interactions
    assert log.times is not None
    for index, user in enumerate(population.users):
        span = slice(log.offsets[index], log.offsets[index + 1])
        found = [(population.items[item], when) for item, when in zip(log.items[span], log.times[span], strict=True)]
        own = [(item, when) for owner, item, when in rows if owner == user]
        assert found == sorted(own, key=lambda use: use[1])  # sorted() keeps ties in file order


def test_columns_in_any_order_and_case_and_others_ignored(tmp_path):
    text = 'Time;RATING;comment;"item";user\n2024-05-01T18:30:00Z;4;"a;b";x;u\n1714588201;5;;y;u\n'
    population = read_csv(write_csv(tmp_path, text))
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
    population = read_csv(write_csv(tmp_path, f"user,item,time\nu,a,{moment}\nu,b,2024-05-02\n"))
    assert population.interactions.times is not None
    assert population.interactions.times.tolist() == [1714588200, 1714608000]


def test_exact_duplicates_are_merged_and_repeated_uses_kept(tmp_path):
    population = read_csv(write_csv(tmp_path, "user,item,time\nu,a,1\nu,a,1\nu,a,2\nu,b,3\n"))
    assert population.interactions.items.tolist() == [0, 0, 1]
    assert population.facts == {"rows": 4, "duplicates_merged": 1}


def test_several_files_are_one_log(tmp_path):
    one = write_csv(tmp_path, "user,item\nu,a\n", "1.csv")
    two = write_csv(tmp_path, gzip.compress(b"item,user\nb,v\na,u\n"), "2.csv.gz")
    population = read_csv(one, two)
    assert list(population.users) == ["u", "v"]
    assert population.facts == {"rows": 3, "duplicates_merged": 1}
    three = write_csv(tmp_path, "user,item,rating\nu,a,1\n", "3.csv")
    with pytest.raises(BadInput, match=r"3\.csv has the columns user, item, rating"):
        read_csv(one, three)


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ("", r"is empty.*header such as user,item,rating,time"),
        ("u,a,5\nu,b,4\n", "line 1: no column user and no column item"),
        ("user,thing\nu,a\n", "line 1: no column item"),
        ("user,item,User\nu,a,v\n", "line 1: column 'user' occurs more than once"),
        ("user,item\nu,a\nv,a\n", "every row has the item 'a', and at least 2 items are needed"),
        (b"user,item,\xe9\nu,a,1\n", r"line 1: not valid UTF-8 \(byte 0xe9\)"),
        ("user,item\nu,a\n".encode("utf-16"), r"line 1: not valid UTF-8 \(looks like UTF-16\)"),
        (b"user,item\ru,a\rv,b\r", "line 1: lines end in bare carriage returns"),
        (b"user,item," + b"x" * 70_000 + b"\n", "line 1: longer than 65,536 bytes"),
        (b"user|item\nu|a\n", "separated by commas, tabs or semicolons"),
        ("user,item\nu,a\nv,b,c\n", "line 3: expected 2 fields separated by ',', found 3"),
        ("user,item,rating\nu,a,4\nu,b,good\n", "line 3: rating 'good' is not a number"),
        (f"user,item,time\nu,a,1\nu,b,{2**70}\n", f"line 3: time '{2**70}' is neither"),
        ("user,item\nu,a\n ,b\n", "line 3: user is empty"),
        ("user,item,time\nu,a,1\nu,b,yesterday\n", "line 3: time 'yesterday' is neither whole seconds"),
        ("user,item,time\nu,a,1\nu,b,\n", "line 3: time is empty"),
        ('user,item\nu,"a\n', "line 2: the quotes do not match"),
    ],
)
def test_bad_files_are_refused_with_a_clear_line(tmp_path, content, fault):
    with pytest.raises(BadInput, match=rf"log\.csv.*{fault}") as caught:
        read_csv(write_csv(tmp_path, content))
    assert "\n" not in str(caught.value)


DAY = 86_400


def shows(user: str, time: object, shown: list[str], clicked: list[str], **more: object) -> dict[str, Any]:
    return {"user": user, "time": time, "shown": shown, "clicked": clicked, **more}


IMPRESSIONS = [
    {"item": "b", "title": "Title of b", "category": "news"},
    shows("u1", 0, ["a", "b"], ["b"]),
    shows("u1", DAY, ["a", "c"], ["a"]),
    shows("u2", DAY, ["a", "c"], [], history=["d", "b"]),
    shows("u1", 2 * DAY + 5, ["c", "d"], ["c"]),
    shows("u1", 2 * DAY, ["b", "d"], ["d"]),
    shows("u3", "1970-01-03T10:00:00Z", ["b", "d"], ["b"]),
]


def write_jsonl(folder: Path, rows: list[dict[str, Any]]) -> Path:
    path = folder / "log.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def histories(population: Population, part: Impressions) -> list[list[str]]:
    ids = list(population.items)
    return [[ids[item] for item in part.histories.row(int(row))] for row in part.history_of]


def test_reads_impressions_items_and_histories(tmp_path: Path) -> None:
    population = read_impressions(write_jsonl(tmp_path, IMPRESSIONS))
    assert list(population.users) == ["u1", "u2", "u3"]
    assert sorted(population.items) == ["a", "b", "c", "d"]
    train, dev = population.impressions["train"], population.impressions["dev"]
    assert train.times.tolist() == [0, DAY, DAY]
    assert train.clicked.tolist() == [0, 1, 1, 0, 0, 0]
    assert histories(population, train) == [[], ["b"], ["d", "b"]]
    assert dev.times.tolist() == [2 * DAY + 5, 2 * DAY, 2 * DAY + 36_000]
    assert histories(population, dev) == [["b", "a", "d"], ["b", "a"], []]
    assert population.catalogue is not None
    assert population.catalogue.titles[0] == "Title of b"
    assert population.catalogue.titles[1] == ""
    log, ids = population.interactions, list(population.items)
    used = [[ids[item] for item in log.items[log.offsets[u] : log.offsets[u + 1]]] for u in range(3)]
    assert used == [["b", "a"], ["d", "b"], []]
    assert population.facts["items_described"] == 1


def test_a_click_in_the_same_second_is_not_history(tmp_path: Path) -> None:
    rows = [shows("u", 5, ["a", "b"], ["a"]), shows("u", 5, ["b", "c"], ["b"]), shows("u", 6, ["a", "c"], ["c"])]
    population = read_impressions(write_jsonl(tmp_path, rows))
    assert histories(population, population.impressions["train"]) == [[], [], ["a", "b"]]


def test_histories_keep_the_latest_clicks(tmp_path: Path) -> None:
    clicks = LONGEST_HISTORY + 10
    rows = [shows("u", t, [f"i{t}", "x"], [f"i{t}"]) for t in range(clicks)]
    population = read_impressions(write_jsonl(tmp_path, rows))
    dev = population.impressions["dev"]
    assert histories(population, dev)[-1] == [f"i{t}" for t in range(9, clicks - 1)]


def test_without_three_days_the_last_fifth_is_dev(tmp_path: Path) -> None:
    rows = [shows(f"u{t}", 100 - t, ["a", "b"], ["a"]) for t in range(10)]
    population = read_impressions(write_jsonl(tmp_path, rows))
    assert population.impressions["dev"].times.tolist() == [100, 99]
    assert len(population.impressions["train"]) == 8


def test_a_single_impression_is_train(tmp_path: Path) -> None:
    population = read_impressions(write_jsonl(tmp_path, [shows("u", 1, ["a", "b"], ["a"])]))
    assert list(population.impressions) == ["train"]


def test_duplicates_are_merged_and_blank_lines_and_gzip_are_fine(tmp_path: Path) -> None:
    text = "\n\n".join(json.dumps(row) for row in [*IMPRESSIONS, IMPRESSIONS[1], IMPRESSIONS[0]])
    path = tmp_path / "log.jsonl.gz"
    path.write_bytes(gzip.compress(text.encode()))
    facts = read_impressions(path).facts
    assert (facts["rows"], facts["duplicates_merged"], facts["item_lines_merged"]) == (6, 1, 1)


def test_ids_that_look_like_json_and_long_numbers_stay_as_they_are(tmp_path: Path) -> None:
    rows = [{"user": 123456789012345678901234, "time": 1, "shown": ["[a]", "true", "b"], "clicked": ["b"]}]
    population = read_impressions(write_jsonl(tmp_path, rows))
    assert list(population.users) == ["123456789012345678901234"]
    assert list(population.items) == ["[a]", "true", "b"]


def test_numbers_serve_as_ids_and_extra_keys_are_passed_over(tmp_path: Path) -> None:
    rows = [{"user": 7, "time": 1.5, "shown": [1, 2], "clicked": [2], "device": {"kind": "phone"}}]
    population = read_impressions(write_jsonl(tmp_path, rows))
    assert list(population.users) == ["7"]
    assert list(population.items) == ["1", "2"]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('{"user": "u"', "not valid JSON"),
        ("[1]", "expected a JSON object, found a list"),
        ("null", "expected a JSON object, found null"),
        ('{"user": "u", "time": 1}', 'expected either "shown"'),
        ('{"user": "u", "time": 1, "shown": ["a"], "item": "b"}', 'expected either "shown"'),
        ('{"time": 1, "shown": ["a"]}', "has no 'user'"),
        ('{"user": "u", "shown": ["a"]}', "has no 'time'"),
        ('{"user": "u", "time": "noon", "shown": ["a"]}', "time 'noon' is neither ISO 8601"),
        ('{"user": "u", "time": "nan", "shown": ["a"]}', "time 'nan' is neither ISO 8601"),
        ('{"user": "u", "time": 1, "shown": []}', '"shown" is an empty list'),
        ('{"user": "u", "time": 1, "shown": "a"}', "'shown' must be a list of texts or numbers, found a text"),
        ('{"user": "u", "time": 1, "shown": ["a", null]}', "'shown' holds an empty item id"),
        ('{"user": "u", "time": 1, "shown": ["a"], "clicked": ["z"]}', 'under "clicked" is not among'),
        ('{"item": ""}', '"item" is empty'),
        ('{"user": {"id": 1}, "time": 1, "shown": ["a"]}', "'user' must be a text or a number, found an object"),
        ('{"user": true, "time": 1, "shown": ["a"]}', "'user' must be a text or a number, found true or false"),
        ('{"user": "u", "time": 1, "shown": ["a", ["b"]]}', "found a list with a list"),
    ],
)
def test_a_malformed_impression_is_named(tmp_path: Path, line: str, problem: str) -> None:
    path = write_jsonl(tmp_path, IMPRESSIONS)
    path.write_text(path.read_text() + "\n" + line + "\n")
    with pytest.raises(BadInput) as caught:
        read_impressions(path)
    assert str(caught.value).startswith(f"{path}, line {len(IMPRESSIONS) + 2}: ")
    assert problem in str(caught.value)


def test_what_cannot_be_learnt_from_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no impression has a click"):
        read_impressions(write_jsonl(tmp_path, [shows("u", 1, ["a", "b"], [])]))
    with pytest.raises(BadInput, match="only item is 'a'"):
        read_impressions(write_jsonl(tmp_path, [shows("u", 1, ["a"], ["a"])]))
    with pytest.raises(BadInput, match="has no impressions"):
        read_impressions(write_jsonl(tmp_path, [{"item": "a"}]))
    with pytest.raises(BadInput, match="is empty"):
        read_impressions(write_jsonl(tmp_path, []))
    path = write_jsonl(tmp_path, IMPRESSIONS)
    path.write_bytes(path.read_bytes() + b'{"item": "\xff"}\n')
    with pytest.raises(BadInput, match=rf"line {len(IMPRESSIONS) + 1}: not valid UTF-8"):
        read_impressions(path)


JSON_VALUES = st.none() | st.booleans() | st.integers(-5, 5) | st.sampled_from(["a", "b", "", "2026-01-01"])
JSON_OBJECTS = st.dictionaries(
    st.sampled_from(["user", "time", "shown", "clicked", "history", "item", "title"]),
    JSON_VALUES | st.lists(JSON_VALUES, max_size=3),
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(JSON_OBJECTS, min_size=1, max_size=3))
def test_any_objects_are_read_or_refused_in_one_line(tmp_path: Path, rows: list[dict[str, Any]]) -> None:
    try:
        population = read_impressions(write_jsonl(tmp_path, [*IMPRESSIONS, *rows]))
    except BadInput as error:
        assert "\n" not in str(error)
    else:
        assert population.n_users >= 3


def test_the_order_of_the_items_does_not_tell_whose_use_came_first(tmp_path: Path) -> None:
    rows = ["ann,tea", "bob,ale", "ann,milk"]
    orders = []
    for number, log in enumerate((rows, rows[::-1])):
        path = tmp_path / f"{number}.csv"
        path.write_text("\n".join(["user,item", *log]) + "\n")
        orders.append(list(read_csv(path).items))
    assert orders[0] == orders[1] == ["ale", "milk", "tea"]
