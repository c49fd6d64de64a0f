"""Own logs of impressions: what may stand in them, and what is refused."""

import gzip
import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from veilrec.core.errors import BadInput
from veilrec.data.impression_logs import LONGEST_HISTORY, read_impressions

DAY = 86_400


def shows(user, time, shown, clicked, **more):
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


def write_jsonl(folder, rows):
    path = folder / "log.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def histories(population, part):
    ids = list(population.items)
    return [[ids[item] for item in part.histories.row(int(row))] for row in part.history_of]


def test_reads_impressions_items_and_histories(tmp_path):
    population = read_impressions(write_jsonl(tmp_path, IMPRESSIONS), cut=2 * DAY)
    assert list(population.users) == ["u1", "u2", "u3"]
    assert list(population.items) == ["a", "b", "c", "d"]
    train, dev = population.impressions["train"], population.impressions["dev"]
    assert (train.times.tolist(), train.clicked.tolist()) == ([0, DAY, DAY], [0, 1, 1, 0, 0, 0])
    assert histories(population, train) == [[], ["b"], ["d", "b"]]
    assert dev.times.tolist() == [2 * DAY + 5, 2 * DAY, 2 * DAY + 36_000]
    assert histories(population, dev) == [["b", "a", "d"], ["b", "a"], []]
    assert list(population.catalogue.titles) == ["", "Title of b", "", ""]
    log, ids = population.interactions, list(population.items)
    used = [[ids[item] for item in log.items[log.offsets[u] : log.offsets[u + 1]]] for u in range(3)]
    assert used == [["b", "a"], ["d", "b"], []]
    assert population.facts["items_described"] == 1


def test_histories_are_the_latest_clicks_before_the_second(tmp_path):
    rows = [shows("u", 5, ["a", "b"], ["a"]), shows("u", 5, ["b", "c"], ["b"]), shows("u", 6, ["a", "c"], ["c"])]
    population = read_impressions(write_jsonl(tmp_path, rows))
    parts = [histories(population, population.impressions[part]) for part in ("train", "dev")]
    assert parts == [[[], []], [["a", "b"]]]
    clicks = LONGEST_HISTORY + 10
    rows = [shows("u", t, [f"i{t}", "x"], [f"i{t}"]) for t in range(clicks)]
    population = read_impressions(write_jsonl(tmp_path, rows))
    assert histories(population, population.impressions["dev"])[-1] == [f"i{t}" for t in range(9, clicks - 1)]


def test_a_given_moment_cuts_the_log_and_without_one_the_last_fifth_of_each_user_is_dev(tmp_path):
    often = [shows("u", 100 - t, ["a", "b"], ["a"]) for t in range(11)]
    rows = [
        *often,
        shows("v", 3, ["a", "b"], ["a"]),
        shows("v", 2, ["b", "a"], ["a"]),
        shows("w", 1, ["a", "b"], ["b"]),
    ]
    path = write_jsonl(tmp_path, rows)
    population = read_impressions(path)
    dev = population.impressions["dev"]
    assert list(zip(dev.users.tolist(), dev.times.tolist(), strict=True)) == [(0, 100), (0, 99), (1, 3)]
    assert len(population.impressions["train"]) == 11
    assert (population.facts["cut"], population.cut) == ("the last fifth of each user's impressions", None)
    given_cut = read_impressions(path, cut=95)
    assert sorted(given_cut.impressions["dev"].times.tolist()) == [95, 96, 97, 98, 99, 100]
    assert (given_cut.cut, "cut" in given_cut.facts) == (95, False)
    for cut, side in ((1, "before it"), (101, "from it on")):
        with pytest.raises(BadInput, match=f"--cut leaves no impression {side} in .*log.jsonl: give a moment within"):
            read_impressions(path, cut=cut)
    assert list(read_impressions(write_jsonl(tmp_path, rows[:1])).impressions) == ["train"]


def test_duplicates_are_merged_and_ids_stay_as_they_are(tmp_path):
    text = "\n\n".join(json.dumps(row) for row in [*IMPRESSIONS, IMPRESSIONS[1], IMPRESSIONS[0]])
    path = tmp_path / "log.jsonl.gz"
    path.write_bytes(gzip.compress(text.encode()))
    facts = read_impressions(path).facts
    assert (facts["rows"], facts["duplicates_merged"], facts["item_lines_merged"]) == (6, 1, 1)
    for user, time, shown, more in (
        (123456789012345678901234, 1, ["[a]", "true", "b"], {}),  # like JSON, and long
        (7, 1.5, [1, 2], {"client": {"kind": "phone"}}),  # numbers, and a key that is passed over
    ):
        population = read_impressions(write_jsonl(tmp_path, [shows(user, time, shown, shown[-1:], **more)]))
        assert (list(population.users), list(population.items)) == ([str(user)], sorted(map(str, shown)))


def test_a_malformed_impression_is_named(tmp_path):
    for line, problem in (
        ('{"user": "u"', "not valid JSON"),
        ("[1]", "expected a JSON object, found [1]"),
        ("null", "expected a JSON object, found null"),
        ('{"user": "u", "time": 1}', 'expected either "shown"'),
        ('{"user": "u", "time": 1, "shown": ["a"], "item": "b"}', 'expected either "shown"'),
        ('{"time": 1, "shown": ["a"]}', "has no 'user'"),
        ('{"user": "u", "shown": ["a"]}', "has no 'time'"),
        ('{"user": "u", "time": "noon", "shown": ["a"]}', "time 'noon' is neither ISO 8601"),
        ('{"user": "u", "time": "nan", "shown": ["a"]}', "time 'nan' is neither ISO 8601"),
        ('{"user": "u", "time": 1, "shown": []}', '"shown" is an empty list'),
        ('{"user": "u", "time": 1, "shown": "a"}', "'shown' must be a list of texts or numbers, found \"a\""),
        ('{"user": "u", "time": 1, "shown": ["a", null]}', "'shown' holds an empty item id"),
        ('{"user": "u", "time": 1, "shown": ["a"], "clicked": ["z"]}', 'under "clicked" is not among'),
        ('{"item": ""}', '"item" is empty'),
        ('{"user": {"id": 1}, "time": 1, "shown": ["a"]}', "'user' must be a text or a number, found {\"id\": 1}"),
        ('{"user": true, "time": 1, "shown": ["a"]}', "'user' must be a text or a number, found true"),
        ('{"user": "u", "time": 1, "shown": ["a", ["b"]]}', 'found ["a", ["b"]]'),
    ):
        path = write_jsonl(tmp_path, IMPRESSIONS)
        path.write_text(path.read_text() + "\n" + line + "\n")
        with pytest.raises(BadInput) as caught:
            read_impressions(path)
        assert str(caught.value).startswith(f"{path}, line {len(IMPRESSIONS) + 2}: ")
        assert problem in str(caught.value)


def test_all_faulty_lines_are_told_at_once_and_what_cannot_be_learnt_from_is_refused(tmp_path):
    good = json.dumps(IMPRESSIONS[1])
    lines = ["not json", "", good, '{"user": "u", "time": "noon", "shown": ["a"]}', '{"user": "u"}', "{", good]
    path = tmp_path / "log.jsonl"
    path.write_text("\n".join(lines))
    with pytest.raises(BadInput) as caught:
        read_impressions(path)
    told = str(caught.value).splitlines()
    assert told[0] == f"{path} has faults in 4 lines"
    assert [line.split(":")[0] for line in told[1:]] == ["  line 1", "  line 4", "  line 5", "  line 6"]
    assert "not valid JSON from character 1 on" in told[1]
    for content, fault in (
        (b"{\n" * 30, r"faults in 30 lines(?s:.*)\n  and 20 more$"),
        (b"user,item\nu,a\n", "looks like CSV and not like JSON lines: leave out --kind impressions"),
        (b'{"user": "u", "time": 1, "shown": ["a", "b"], "clicked": []}', "no impression has a click"),
        (b'{"user": "u", "time": 1, "shown": ["a"], "clicked": ["a"]}', "only item is 'a'"),
        (b'{"item": "a"}', "has no impressions"),
        (b"", "is empty"),
        (b'{"item": "a"}\n{"item": "\xff"}\n', "line 2: not valid UTF-8"),
    ):
        (tmp_path / "log.jsonl").write_bytes(content)
        with pytest.raises(BadInput, match=fault):
            read_impressions(tmp_path / "log.jsonl")


JSON_VALUES = st.none() | st.booleans() | st.integers(-5, 5) | st.sampled_from(["a", "b", "", "2026-01-01"])
JSON_OBJECTS = st.dictionaries(
    st.sampled_from(["user", "time", "shown", "clicked", "history", "item", "title"]),
    JSON_VALUES | st.lists(JSON_VALUES, max_size=3),
)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(JSON_OBJECTS, min_size=1, max_size=3))
def test_any_objects_are_read_or_refused_line_by_line(tmp_path, rows):
    try:
        population = read_impressions(write_jsonl(tmp_path, [*IMPRESSIONS, *rows]))
    except BadInput as error:
        assert all(" line " in line for line in str(error).splitlines()[1:])
    else:
        assert population.n_users >= 3
