"""Own logs of uses: what may stand in them, what is read all the same, and what is refused with all its faults."""

import csv
import gzip
import io
from datetime import UTC, datetime

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from veilrec.core.errors import BadInput
from veilrec.data.delimited import CsvOptions
from veilrec.data.own_csv import LEFT_OUT, read_csv


def write_csv(folder, content, name="log.csv"):
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


ID = st.text(st.characters(categories=("L", "N")), min_size=1, max_size=4)


@settings(max_examples=50)
@given(
    rows=st.lists(st.tuples(ID, ID, st.integers(0, 10**11)), min_size=2, max_size=30, unique=True),
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
    for index, user in enumerate(population.users):
        span = slice(log.offsets[index], log.offsets[index + 1])
        found = [(population.items[item], when) for item, when in zip(log.items[span], log.times[span], strict=True)]
        own = [(item, when) for owner, item, when in rows if owner == user]
        assert found == sorted(own, key=lambda use: use[1])  # sorted() keeps ties in file order


def uses(population):
    """User and item of every row, user after user."""
    log = population.interactions
    return [
        (user, population.items[item])
        for index, user in enumerate(population.users)
        for item in log.items[log.offsets[index] : log.offsets[index + 1]]
    ]


def listed(column):
    return None if column is None else column.tolist()


def test_columns_in_any_order_and_case_and_others_ignored(tmp_path):
    text = 'Time;RATING;comment;"item";user\n2024-05-01T18:30:00Z;4;"a;b";x;u\n1714588201;5;;y;u\n'
    population = read_csv(write_csv(tmp_path, text))
    log = population.interactions
    assert list(population.items) == ["x", "y"]
    assert (log.ratings.tolist(), log.times.tolist()) == ([4, 5], [1714588200, 1714588201])
    assert population.facts["columns_ignored"] == "comment"


def test_times_in_seconds_in_smaller_units_or_iso_8601(tmp_path):
    now = 1_714_588_200
    same = ("2024-05-01T18:30:00Z", "2024-05-01 18:30:00", "2024-05-01T20:30+02:00", "20240501T1830")
    for moment in ("1714588200", *same):
        population = read_csv(write_csv(tmp_path, f"user,item,time\nu,a,{moment}\nu,b,2024-05-02\n"))
        assert population.interactions.times.tolist() == [now, 1714608000]
    for parts, unit in [(10**3, "milliseconds"), (10**6, "microseconds"), (10**9, "nanoseconds")]:
        population = read_csv(write_csv(tmp_path, f"user,item,time\nu,a,{now * parts}\nu,b,{(now + 5) * parts + 1}\n"))
        assert (population.interactions.times.tolist(), population.facts["times_in"]) == ([now, now + 5], unit)
    mixed = f"user,item,time\nu,a,{now * 1000}\nv,b,{now}\nw,b,\n"  # one person's times do not change another's
    population = read_csv(write_csv(tmp_path, mixed), options=CsvOptions(skip_bad=True))
    assert population.interactions.times.tolist() == [now, now]


def test_several_files_are_one_log_without_its_repetitions(tmp_path):
    population = read_csv(write_csv(tmp_path, "user,item,time\nu,a,1\nu,a,1\nu,a,2\nu,b,3\n"))
    assert population.interactions.items.tolist() == [0, 0, 1]  # only exact repetitions are merged
    assert population.facts == {"rows": 4, "duplicates_merged": 1}
    one = write_csv(tmp_path, "user,item\nu,a\n", "1.csv")
    two = write_csv(tmp_path, gzip.compress(b"item,user\nb,v\na,u\n"), "2.csv.gz")
    population = read_csv(one, two)
    assert list(population.users) == ["u", "v"]
    assert population.facts == {"rows": 3, "duplicates_merged": 1}
    three = write_csv(tmp_path, "user,item,rating\nu,a,1\n", "3.csv")
    with pytest.raises(BadInput, match=r"3\.csv has the columns user, item, rating"):
        read_csv(one, three)


def test_bad_files_and_options_are_refused_in_one_line(tmp_path):
    for content, chosen, fault in (
        ("", {}, r"is empty.*header such as user,item,rating,time"),
        ("u,a,5\nu,b,4\n", {}, "line 1: no column user and no column item"),
        ("user,thing\nu,a\n", {}, "line 1: no column item"),
        ("user,item,User\nu,a,v\n", {}, "line 1: column 'user' occurs more than once"),
        ("user,item\nu,a\nv,a\n", {}, "every row has the item 'a', and at least 2 items are needed"),
        (b"user,item,\xe9\nu,a,1\n", {}, r"line 1: not valid UTF-8 .*'é' in cp1252\): give --encoding cp1252"),
        ("user,item\nu,a\n".encode("utf-16"), {}, "of UTF-16 give --encoding utf-16"),
        ("user,item\nu,a\n".encode("utf-16-le"), {}, "of UTF-16 give --encoding utf-16"),
        (b"user/item\nu/a\n", {}, "no column user and no column item.*if nothing was split, give --separator"),
        ("user,item\nu,a\nv,b,c\n", {}, "line 3: expected 2 fields separated by ',', found 3"),
        ("user,item,rating\nu,a,4\nu,b,good\n", {}, "line 3: rating 'good' is not a number"),
        (f"user,item,time\nu,a,1\nu,b,{2**70}\n", {}, f"line 3: time '{2**70}' is neither"),
        ("user,item\nu,a\n ,b\n", {}, "line 3: user is empty"),
        ("user,item,time\nu,a,1\nu,b,yesterday\n", {}, "line 3: time 'yesterday' is neither seconds since 1970"),
        ("user,item,time\nu,a,1\nu,b,\n", {}, "line 3: time is empty"),
        ('user,item\nu,"a\n', {}, "line 2: the quotes do not match"),
        ("Kunde,item\nu,a\n", {"user_column": "Kund"}, "--user-column Kund: .*did you mean Kunde"),
        ("user,user_id,item\nu,1,a\n", {}, "user and user_id may each be the user: say which with --user-column"),
        ("user,item,worth\nu,a,1\nu,b,2\n", {"decimal": ","}, "has no column that is known as one"),
        ("user,item,time\nu,a,1\n", {"time_format": "%Q"}, "'%Q' cannot be used"),
        ("x,x,item\nu,v,a\n", {"user_column": "x"}, "column 'x' occurs 2 times"),
        ("a,b\n1,2\n", {"user_column": "a", "item_column": "a"}, "column 'a' cannot be both user and item"),
        ("u1,i1,5\nu1,i2,4\n", {}, "a file without a header is read with --no-header"),
        ("user,item,rating\nu,a,4.5\nu,b,1\n", {"decimal": ","}, "rating '4.5' is not a number"),
        ("", {"encoding": "utf-9"}, "--encoding utf-9 does not exist"),
        ("user,item\nü,a\n", {"encoding": "ascii"}, "line 2: not valid ascii .*: give --encoding utf-8"),
        ("", {"separator": ""}, "--separator '' splits nothing"),
        ("", {"decimal": "x"}, "--decimal is 'x'"),
        ("", {"time_format": "dd.mm"}, "--time-format 'dd.mm' cannot be used"),
        ("user,item\nu\nv\n", {"skip_bad": True}, "no row is left without its bad ones"),
        (b"PK\x03\x04" + b"\0" * 20 + b"xl/", {}, "is no table of text: .*of Excel save the sheet as CSV"),
        (b"user,item\nu,a\n" + b"\0" * 100, {}, "is no table of text: give a CSV"),
        (b'{"user": "u"}\n', {"skip_bad": True}, "JSON lines are for --kind impressions"),
        (b"\x1f\x8b" + b"rubbish", {}, "not a whole gzip file"),
        (b"user,item\nu\x81\xe9,a\n", {"skip_bad": True}, r"line 2: not valid UTF-8 \(byte 0x81, .*encoding cp1252"),
    ):
        path = write_csv(tmp_path, content)
        with pytest.raises(BadInput, match=fault) as caught:
            read_csv(path, options=CsvOptions(**chosen))
        assert "\n" not in str(caught.value), fault


GERMAN = (
    "Kunde;Artikel;Note;Datum\r\n"
    " anna ;film-7;4,5;01.05.2024 18:30\r\n"
    "\r\n"
    'ben;"film;2";3,0;02.05.2024 09:00\r\n'
    ";;;\r\n"
    "ben;film-7;gut;02.05.2024 09:01\r\n"
    "ben;film-7;2,0;gestern\r\n"
    ";film-7;2,0;02.05.2024 09:01\r\n"
    "ben;film-7\r\n"
    'ben;"film-7;2,0;02.05.2024 09:01\r\n'
)
GERMAN_OPTIONS = {"rating_column": "note", "time_format": "%d.%m.%Y %H:%M", "decimal": ","}


def test_a_messy_file_is_read_with_options_and_everything_left_out_is_counted(tmp_path):
    path = write_csv(tmp_path, GERMAN.encode("utf-8-sig"))
    population = read_csv(path, options=CsvOptions(**GERMAN_OPTIONS, skip_bad=True))
    assert uses(population) == [("anna", "film-7"), ("ben", "film;2")]
    assert population.interactions.ratings.tolist() == [4.5, 3.0]
    assert population.interactions.times.tolist() == [1714588200, 1714640400]
    told = {"rows": 2, "duplicates_merged": 0, "blank_lines": 2, "ids_stripped": 1, "rows_left_out": 5}
    faults = ("expected 4 fields separated by ';'", "the quotes do not match", "Kunde is empty", "Note is not a number")
    told |= {f"{LEFT_OUT}{fault}": 1 for fault in (*faults, "Datum is not a time in the format %d.%m.%Y %H:%M")}
    told["columns_used"] = "'Kunde' as user, 'Artikel' as item, 'Note' as rating, 'Datum' as time"
    assert population.facts == told


def test_all_faults_are_told_at_once_with_lines_values_and_advice(tmp_path):
    path = write_csv(tmp_path, GERMAN)
    with pytest.raises(BadInput) as caught:
        read_csv(path, options=CsvOptions(rating_column="Note"))
    told = str(caught.value).splitlines()
    assert told[0] == f"{path} has faults in 7 rows"
    for line, phrases in zip(
        told[1:],
        (
            ("expected 4 fields separated by ';': 1 row, such as found 2 (line 9)",),
            ("the quotes do not match: 1 row, such as line 10",),
            ("Kunde is empty: 1 row, such as line 8",),
            ("Note is not a number: 5 rows, such as '4,5' (line 2), '3,0' (line 4)", "for 4,5 give --decimal ','"),
            ("Datum is neither seconds since 1970 nor ISO 8601: 5 rows", "give --time-format '%d.%m.%Y %H:%M'"),
            ("Put them right: no row is without a fault",),
        ),
        strict=True,
    ):
        assert all(phrase in line for phrase in phrases), line
    with pytest.raises(BadInput, match="or leave such rows out with --skip-bad"):
        read_csv(path, options=CsvOptions(**GERMAN_OPTIONS))


def test_blanks_behind_a_closing_quote_are_taken_off_like_all_others(tmp_path):
    log = 'user;item\nu; "a;""b"" ;c" \n"v" ;"two\nlines"\t\n"w;x\n"w" ;"a"\n'
    population = read_csv(write_csv(tmp_path, log), options=CsvOptions(skip_bad=True))
    assert uses(population) == [("u", 'a;"b" ;c'), ("v", "two\nlines"), ("w", "a")]
    assert population.facts["rows_left_out"] == 1


def test_without_a_header_the_columns_are_user_item_rating_time(tmp_path):
    for log, ratings, times in [
        ("u,a,4\nu,b,5\n", [4, 5], None),
        ("u,a,1714588200\nu,b,1714588201\n", None, [1714588200, 1714588201]),
        ("u,a,2024-05-01\nu,b,2024-05-02\n", None, [1714521600, 1714608000]),
        ("u,a,4,7\nu,b,5,8\n", [4, 5], [7, 8]),
        ("u,a,red\nu,b,blue\n", None, None),
    ]:
        found = read_csv(write_csv(tmp_path, log), options=CsvOptions(header=False)).interactions
        assert (listed(found.ratings), listed(found.times)) == (ratings, times)


def test_common_headers_are_known_the_plain_name_goes_first_and_a_doubt_is_asked(tmp_path):
    for header in [
        "userId,movieId,rating,timestamp",
        "user_id:token,item_id:token,rating:float,timestamp:float",
        "CUSTOMER_ID,Product-ID,Stars,created_at",
        "Kunde,Artikel,Bewertung,Zeitpunkt",
        "uid,track,score,ts",
        '"reviewerID","asin","overall","unixReviewTime"',
        *(f"Kunde,Artikel,{name},Datum" for name in ("Sterne", "Punkte", "Stars", "Score", "Wertung")),
    ]:
        population = read_csv(write_csv(tmp_path, f"{header}\nu,a,1,100.5\nu,b,2,200\n"))
        assert uses(population) == [("u", "a"), ("u", "b")]
        assert (listed(population.interactions.ratings), listed(population.interactions.times)) == ([1, 2], [100, 200])
        assert f"{header.split(',')[2].strip(chr(34))!r} as rating" in population.facts["columns_used"]
    assert uses(read_csv(write_csv(tmp_path, "uid,user,item,sku\n1,u,a,x\n2,v,b,y\n"))) == [("u", "a"), ("v", "b")]
    path = write_csv(tmp_path, "userid,artist,track\nu,a,x\nu,a,y\n")
    with pytest.raises(BadInput, match="track and artist may each be the item: say which with --item-column"):
        read_csv(path)
    assert uses(read_csv(path, options=CsvOptions(item_column="TRACK"))) == [("u", "x"), ("u", "y")]


def test_the_same_two_rows_in_many_clothes(tmp_path):
    for chosen, content in [
        ({"header": False}, b"u,a\nu,b\n"),
        ({"header": False, "user_column": "3", "item_column": "1"}, b"a,x,u\nb,y,u\n"),
        ({"separator": "::"}, b"user::item\nu::a\nu::b\n"),
        ({"separator": "tab"}, b"user\titem\nu\ta\nu\tb\n"),
        ({"separator": "¦"}, "user¦item\nu¦a\nu¦b\n".encode()),
        ({"encoding": "utf-16"}, "user,item\nu,a\nu,b\n".encode("utf-16")),
        ({"encoding": "utf-16-le"}, "user,item\nu,a\nu,b\n".encode("utf-16-le")),
        ({"rating_column": "none"}, b"user,item,rating\nu,a,good\nu,b,\n"),
        ({}, b"\xef\xbb\xbfuser,item\r\nu,a\r\n\r\nu,b\r\n\r\n"),
        ({}, b"user,item\ru,a\ru,b\r"),
        ({}, b"\n\nuser|item\nu|a\n  \nu|b"),
        ({}, b"x,user,x,item\n1,u,2,a\n3,u,4,b\n"),
        ({}, b'user,item,note\nu,a,"two\nlines, and ""more"""\nu, "b",\n'),
        ({}, gzip.compress(b"user,item\nu,a\nu,b\n", mtime=0)),
    ]:
        assert uses(read_csv(write_csv(tmp_path, content), options=CsvOptions(**chosen))) == [("u", "a"), ("u", "b")]


def test_parquet_is_read_as_it_is(tmp_path):
    path = tmp_path / "log.parquet"
    when = [datetime(2024, 5, 1, 18, 30, tzinfo=UTC), datetime(1970, 1, 1, tzinfo=UTC), None]
    pl.DataFrame({"user_id": [7, 7, 8], "sku": ["b", "a", "a"], "stars": [1.5, 2, 3], "ts": when}).write_parquet(path)
    population = read_csv(path, options=CsvOptions(skip_bad=True))
    assert uses(population) == [("7", "a"), ("7", "b")]
    assert (population.interactions.times.tolist(), population.facts["rows_left_out"]) == ([0, 1714588200], 1)
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(BadInput, match="not a whole parquet file"):
        read_csv(path)


def test_a_short_line_and_a_long_one_do_not_make_up_for_each_other(tmp_path):
    for mark in ("", '"'):
        log = f"user,item,time\nu,{mark}a{mark},1\nu,b\nu,c,2,3\nu,d,4\n"
        with pytest.raises(BadInput, match=r"2 rows, such as found 2 \(line 3\), found 4 \(line 4\)"):
            read_csv(write_csv(tmp_path, log))


FIELD = st.text(st.sampled_from("ab ,;\"\n\t'é\u2028\x0b|%"), max_size=5)
STRIPPED = FIELD.map(lambda text: f"x{text}x")


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(st.tuples(STRIPPED, STRIPPED, FIELD), min_size=2, max_size=12),
    separator=st.sampled_from([",", ";", "\t", "|"]),
    end=st.sampled_from(["\n", "\r\n"]),
)
def test_whatever_a_csv_writer_writes_is_read(tmp_path, rows, separator, end):
    out = io.StringIO()
    writer = csv.writer(out, delimiter=separator, lineterminator=end)
    writer.writerows([("user", "item", "note"), *rows])
    path = write_csv(tmp_path, out.getvalue())
    if len({item for _, item, _ in rows}) > 1:
        population = read_csv(path)
        assert (population.facts["rows"], population.facts.get("rows_left_out")) == (len(rows), None)
        assert set(uses(population)) == {(user, item) for user, item, _ in rows}


GOOD_LINE = st.sampled_from(["u,a,1", "v,b,2", '"w","c",3', "x,d,4"])
BAD_LINE = st.sampled_from(["u,a", "u,a,b,c", ",a,1", "u,,2", 'u,"a"b,1', "u,a,never"])


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lines=st.lists(st.tuples(st.booleans(), GOOD_LINE, BAD_LINE), max_size=20), blank=st.sampled_from(["", "  ", ",,"])
)
def test_bad_rows_cost_no_good_one(tmp_path, lines, blank):
    written = [good if is_good else bad for is_good, good, bad in lines]
    text = "\n".join(["user,item,time", "u,a,0", "u,b,0", blank, *written, blank, "z,a,9"])
    population = read_csv(write_csv(tmp_path, text), options=CsvOptions(skip_bad=True))
    bad = sum(not is_good for is_good, _, _ in lines)
    assert (population.facts["rows"], population.facts.get("rows_left_out", 0)) == (3 + len(lines) - bad, bad)
    assert population.facts["blank_lines"] == 2
    if bad:
        first = next(number for number, (is_good, _, _) in enumerate(lines, 5) if not is_good)
        with pytest.raises(BadInput, match=rf"line {first}\b"):
            read_csv(tmp_path / "log.csv")


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    content=st.binary(max_size=60) | st.text(st.sampled_from('user,itm;\n\r" \t01\x00'), max_size=60).map(str.encode)
)
def test_anything_is_read_or_refused(tmp_path, content):
    for chosen in (CsvOptions(), CsvOptions(skip_bad=True), CsvOptions(header=False)):
        for path in (write_csv(tmp_path, content), write_csv(tmp_path, b"user,item,time\n" + content, "more.csv")):
            try:
                assert read_csv(path, options=chosen).n_items >= 2
            except BadInput as error:
                assert str(path) in str(error)


FORMATS = st.sampled_from(["%d.%m.%Y %H:%M:%S", "%Y/%m/%d %H.%M.%S", "%m/%d/%y %I:%M:%S %p", "%d %B %Y, %H:%M:%S"])


@settings(max_examples=60)
@given(
    moments=st.lists(st.datetimes(datetime(1970, 1, 1), datetime(2068, 12, 31)), min_size=1, max_size=5),
    given_format=FORMATS,
)
def test_times_in_a_format_are_what_python_reads(tmp_path_factory, moments, given_format):
    path = tmp_path_factory.mktemp("times") / "log.csv"
    texts = [moment.strftime(given_format) for moment in moments]
    path.write_text("\n".join(["user;item;time", "u;a;" + texts[0], *(f"u;i{n};{t}" for n, t in enumerate(texts))]))
    log = read_csv(path, options=CsvOptions(time_format=given_format)).interactions
    expected = [int(datetime.strptime(text, given_format).replace(tzinfo=UTC).timestamp()) for text in texts]
    assert log.times.tolist() == sorted([expected[0], *expected])


def test_without_a_header_one_row_decides_how_all_are_read_and_that_is_told(tmp_path):
    more = "".join(f"u{number},i{number % 3},{1 + number % 5}\n" for number in range(6))
    for rating, ratings in (("4", True), ("4000000", False)):  # of one person: a rating, or a time
        population = read_csv(write_csv(tmp_path, f"a,i1,{rating}\n{more}"), options=CsvOptions(header=False))
        assert (population.interactions.ratings is not None) == ratings
        assert ["header" in told for told in population.exact] == [True]
    assert read_csv(write_csv(tmp_path, f"user,item,rating\na,i1,4\n{more}")).exact == ()
