"""Frappe: its known counts, and the context that becomes features."""

import pytest

from veilrec.core.errors import BadInput
from veilrec.data.frappe import CONTEXT, read

HEADER = "user\titem\tcnt\t" + "\t".join(CONTEXT) + "\n"
CONTEXT_TAIL = "\tmorning\tsunday\tweekend\thome\tfree\tsunny\tSpain\t0\n"


def write(folder, *rows, header=HEADER):
    (folder / "frappe.csv").write_text(header + "".join(row + CONTEXT_TAIL for row in rows))
    return folder


def test_the_real_log_has_its_known_counts_and_features(real):
    population = read(real("frappe"))
    log, features = population.interactions, population.features
    assert (population.n_users, population.n_items, len(log)) == (957, 4082, 96_203)
    assert len(log.pairs().items) == 18_842
    assert population.catalogue.titles[0] == "Any.DO To-do & Tasks List"
    users = {"daytime": 7, "weekday": 7, "isweekend": 2, "homework": 2, "weather": 8, "country": 79, "city": 232}
    assert {f.name: len(f.values) for f in features.users.features} == users
    items = {"cost": 2, "category": 31, "language": 28, "downloads": 10, "rating": 9}
    assert {f.name: len(f.values) for f in features.items.features} == items
    assert features.items.unknown().sum(axis=0).tolist() == [0, 550, 550, 550, 550]


def test_faults_are_named_and_metadata_may_be_absent_quoted_partial_or_wrong(tmp_path):
    for rows, header, fault in (
        (["0\t1\t1", "0\t2\tx"], HEADER, r"frappe\.csv, line 3: cnt 'x' is not a whole number"),
        (["0\t1"], HEADER, "line 2: expected 11 fields separated by tabs, found 10"),
        (["1\t2"], "a\tb" + CONTEXT_TAIL, "line 1: the header must be user item cnt"),
    ):
        with pytest.raises(BadInput, match=fault):
            read(write(tmp_path, *rows, header=header))
    write(tmp_path, "0\t1\t1", "1\t0\t2", "1\t2\t2")
    assert [feature.name for feature in read(tmp_path).features.items.features] == ["cost"]
    meta = 'item\tcategory\tname\tdescription\n0\tTools\tClock\t"two\nlines"\n1\tunknown\tunknown\tunknown\n'
    (tmp_path / "meta.csv").write_text(meta)
    catalogue = read(tmp_path).catalogue
    assert list(catalogue.titles) == ["Clock", "", ""]
    assert list(catalogue.abstracts) == ["two\nlines", "", ""]
    (tmp_path / "meta.csv").write_text("item\tname\n0\tClock\n")
    with pytest.raises(BadInput, match="line 1: the header lacks category, description"):
        read(tmp_path)


def test_people_have_their_usual_context_and_apps_what_the_store_says(tmp_path):
    text = HEADER + "".join(row + CONTEXT_TAIL for row in ["0\t1\t900", "0\t3\t1", "0\t5\t1", "1\t1\t1"])
    text = text.replace("0\t3\t1\tmorning", "0\t3\t1\tnight").replace("0\t5\t1\tmorning", "0\t5\t1\tnight")
    text = text.replace("1\t1\t1\tmorning\tsunday\tweekend\thome", "1\t1\t1\tmorning\tsunday\tweekend\tunknown")
    (tmp_path / "frappe.csv").write_text(text)
    meta = "item\tcategory\tname\tdescription\tdownloads\tlanguage\trating\n"
    meta += "1\tTools\tA\tx\t1,000 - 5,000\ten\t4.4\n3\tunknown\tunknown\tunknown\tunknown\tunknown\tunknown\n"
    (tmp_path / "meta.csv").write_text(meta + "5\tArt\tB\ty\t10,000+\tes\t5\n")
    features = read(tmp_path).features
    assert [feature.name for feature in features.users.features] == [name for name in CONTEXT if name != "cost"]
    times_of_day = features.users.features[0].values
    assert "noon" in times_of_day  # lists of values are fixed: they do not show what people have
    found = [times_of_day[code - 1] for code in features.users.codes[:, 0]]
    assert found == ["night", "morning"]  # rows are counted, not how often an app was used
    named = dict(zip((f.name for f in features.users.features), features.users.unknown().T.tolist(), strict=True))
    assert (named["homework"], named["city"]) == ([False, True], [True, True])  # city 0: not known
    items = {feature.name: feature.values for feature in features.items.features}
    assert items["cost"] == ("free", "paid")
    assert items["category"] == ("Art", "Tools")
    assert items["downloads"] == ("1000", "10000")
    assert features.items.unknown().tolist() == [[False] * 5, [False, *[True] * 4], [False] * 5]
    starts = dict(zip(items, features.items.starts, strict=False))
    ratings = features.items.codes[:, 4] - starts["rating"] - 1
    assert [items["rating"][place] for place in ratings[[0, 2]]] == ["4.0", "5.0"]
