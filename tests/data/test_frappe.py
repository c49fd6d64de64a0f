"""Frappe: its known counts, its context, and the extended set with two negatives for every use."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from veilrec.core.errors import BadInput
from veilrec.data.frappe import CONTEXT, extended, read
from veilrec.data.population import Interactions

HEADER = "user\titem\tcnt\t" + "\t".join(CONTEXT) + "\n"
CONTEXT_TAIL = "\tmorning\tsunday\tweekend\thome\tfree\tsunny\tSpain\t0\n"


def write(folder: Path, rows: list[str]) -> Path:
    (folder / "frappe.csv").write_text(HEADER + "".join(row + CONTEXT_TAIL for row in rows))
    return folder


def test_frappe_has_its_known_counts(real):
    population = read(real("frappe"))
    log = population.interactions
    assert (population.n_users, population.n_items, len(log)) == (957, 4082, 96_203)
    assert len(log.pairs().items) == 18_842
    sizes = {name: len(values) for name, values in log.context_values.items()}
    assert list(sizes.values()) == [7, 7, 2, 3, 2, 9, 80, 233]
    assert population.catalogue is not None
    assert population.catalogue.titles[0] == "Any.DO To-do & Tasks List"


def test_the_extended_set_has_288_609_rows(real):
    population = read(real("frappe"))
    rows = extended(population, seed=1)
    assert len(rows) == 288_609
    assert int(rows.labels.sum()) == 96_203
    pairs = population.interactions.pairs()
    used = pairs.row_numbers() * population.n_items + pairs.items
    drawn = rows.users.astype(np.int64) * population.n_items + rows.items
    assert not np.isin(drawn[rows.labels == 0], used).any()
    assert np.isin(drawn[rows.labels == 1], used).all()


def test_negatives_are_uniform_over_what_was_not_used(tmp_path):
    population = read(write(tmp_path, ["0\t1\t1", "0\t3\t1", "1\t0\t1", "1\t2\t1", "1\t4\t1", "1\t5\t1"]))
    log = population.interactions
    copies = 3000
    many = replace(
        population,
        interactions=Interactions(
            offsets=log.offsets * copies, items=np.concatenate([np.tile([1, 3], copies), np.tile([0, 2, 4, 5], copies)])
        ),
    )
    rows = extended(many, seed=5)
    negatives = rows.items.reshape(-1, 3)[:, 1:]
    assert (negatives[:, 0] != negatives[:, 1]).all()
    first_user = negatives[: 2 * copies]
    counts = np.bincount(first_user.ravel(), minlength=6)
    assert counts[[1, 3]].tolist() == [0, 0]
    # 12,000 draws over 4 items: 3,000 each, standard deviation at most 48; 6 of them fail once in 10^8
    assert np.abs(counts[[0, 2, 4, 5]] - 3000).max() < 6 * 48
    assert np.array_equal(extended(many, seed=5).items, rows.items)
    assert not np.array_equal(extended(many, seed=6).items, rows.items)


def test_context_is_coded_and_repeated(tmp_path):
    write(tmp_path, ["0\t1\t1", "1\t0\t2"])
    text = (tmp_path / "frappe.csv").read_text().replace("1\t0\t2\tmorning", "1\t0\t2\tnight")
    (tmp_path / "frappe.csv").write_text(text + "1\t9\t7" + CONTEXT_TAIL + "2\t7\t7" + CONTEXT_TAIL)
    population = read(tmp_path)
    log = population.interactions
    assert [log.context_values["daytime"][code] for code in log.context["daytime"]] == [
        *("morning", "night", "morning", "morning")
    ]
    rows = extended(population, seed=0)
    assert rows.context["daytime"].tolist() == [0, 0, 0, 1, 1, 1, 0, 0, 0, 0, 0, 0]


def test_a_user_of_everything_leaves_no_negatives(tmp_path):
    population = read(write(tmp_path, ["0\t1\t1", "0\t0\t1", "1\t0\t1"]))
    with pytest.raises(BadInput, match="user 0 has used all but 0 of 2 items"):
        extended(population, seed=0)


def test_faults_are_named(tmp_path):
    with pytest.raises(BadInput, match=r"frappe\.csv, line 3: cnt 'x' is not a whole number"):
        read(write(tmp_path, ["0\t1\t1", "0\t2\tx"]))
    with pytest.raises(BadInput, match="line 2: expected 11 fields separated by tabs, found 10"):
        read(write(tmp_path, ["0\t1"]))
    (tmp_path / "frappe.csv").write_text("a\tb\n1\t2\n")
    with pytest.raises(BadInput, match="line 1: the header must be user item cnt"):
        read(tmp_path)


def test_metadata_may_be_quoted_partial_or_wrong(tmp_path):
    write(tmp_path, ["0\t1\t1", "1\t0\t2", "1\t2\t2"])
    meta = 'item\tcategory\tname\tdescription\n0\tTools\tClock\t"two\nlines"\n1\tunknown\tunknown\tunknown\n'
    (tmp_path / "meta.csv").write_text(meta)
    catalogue = read(tmp_path).catalogue
    assert catalogue is not None
    assert catalogue.abstracts is not None
    assert list(catalogue.titles) == ["Clock", "", ""]
    assert list(catalogue.abstracts) == ["two\nlines", "", ""]
    (tmp_path / "meta.csv").write_text("item\tname\n0\tClock\n")
    with pytest.raises(BadInput, match="line 1: the header lacks category, description"):
        read(tmp_path)


def test_people_have_their_usual_context_and_apps_what_the_store_says(tmp_path):
    write(tmp_path, ["0\t1\t900", "0\t3\t1", "0\t5\t1", "1\t1\t1"])
    text = (tmp_path / "frappe.csv").read_text()
    text = text.replace("0\t3\t1\tmorning", "0\t3\t1\tnight").replace("0\t5\t1\tmorning", "0\t5\t1\tnight")
    text = text.replace("1\t1\t1\tmorning\tsunday\tweekend\thome", "1\t1\t1\tmorning\tsunday\tweekend\tunknown")
    (tmp_path / "frappe.csv").write_text(text)
    meta = "item\tcategory\tname\tdescription\tdownloads\tlanguage\trating\n"
    meta += "1\tTools\tA\tx\t1,000 - 5,000\ten\t4.4\n3\tunknown\tunknown\tunknown\tunknown\tunknown\tunknown\n"
    (tmp_path / "meta.csv").write_text(meta + "5\tArt\tB\ty\t10,000+\tes\t5\n")
    features = read(tmp_path).features
    assert [feature.name for feature in features.users.features] == [name for name in CONTEXT if name != "cost"]
    assert features.users.features[0].values == ("morning", "night")
    assert features.users.codes[:, 0].tolist() == [2, 1]  # rows are counted, not how often an app was used
    named = dict(zip((f.name for f in features.users.features), features.users.unknown().T.tolist(), strict=True))
    assert named["homework"] == [False, True]
    assert named["city"] == [True, True]  # 0: not known
    items = {feature.name: feature.values for feature in features.items.features}
    assert items["cost"] == ("free",)
    assert items["category"] == ("Art", "Tools")
    assert items["downloads"] == ("1000", "10000")
    assert features.items.unknown().tolist() == [[False] * 5, [False, *[True] * 4], [False] * 5]
    starts = dict(zip(items, features.items.starts, strict=False))
    ratings = features.items.codes[:, 4] - starts["rating"] - 1
    assert [items["rating"][place] for place in ratings[[0, 2]]] == ["4.0", "5.0"]


def test_without_meta_data_apps_are_free_or_paid(tmp_path):
    features = read(write(tmp_path, ["0\t1\t1", "1\t0\t2"])).features
    assert [feature.name for feature in features.items.features] == ["cost"]


def test_features_of_the_real_log(real):
    features = read(real("frappe")).features
    assert {f.name: len(f.values) for f in features.users.features} == {
        **{"daytime": 7, "weekday": 7, "isweekend": 2, "homework": 2, "weather": 8, "country": 79, "city": 232}
    }
    assert {f.name: len(f.values) for f in features.items.features} == {
        **{"cost": 2, "category": 31, "language": 28, "downloads": 10, "rating": 9}
    }
    assert features.items.unknown().sum(axis=0).tolist() == [0, 550, 550, 550, 550]
