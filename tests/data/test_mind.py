"""MIND's files: what they say is read, every fault is named, and what is written is read back."""

import gzip
from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from veilrec.core.errors import BadInput
from veilrec.data import mind, synthetic_news, synthetic_ratings
from veilrec.data.population import Strings

NEWS = [
    ["N1", "sport", "football", "First title", "An abstract", "", '[{"WikidataId": "Q1"}]', "[]"],
    ["N2", "news", "politics", 'A "quoted" title', "", "", "[]", "[]"],
    ["N3", "news", "world", "Third titlé", "", "", "[]", "[]"],
]
TRAIN = [
    ["1", "U1", "11/13/2019 8:36:57 AM", "N1 N2", "N2-0 N3-1"],
    ["2", "U2", "11/9/2019 12:00:00 PM", "", "N1-1 N9-0"],
    ["3", "U1", "11/12/2019 8:36:57 PM", "N1 N2", "N1-1 N8-0 N9-1"],
]
DEV = [
    ["1", "U3", "11/15/2019 1:00:00 PM", "N3 N7", "N2-0 N3-1"],
    ["2", "U1", "11/15/2019 1:00:00 PM", "N1 N2", "N9-0"],
]


def lines(rows):
    return "".join("\t".join(row) + "\n" for row in rows)


def write_split(folder, behaviours, news=NEWS):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "behaviors.tsv").write_text(lines(behaviours), encoding="utf-8")
    (folder / "news.tsv").write_text(lines(news), encoding="utf-8")
    return folder


def test_reads_train_and_dev(tmp_path):
    write_split(tmp_path / "MINDsmall_train", TRAIN)
    write_split(tmp_path / "MINDsmall_dev", DEV)
    population = mind.read(tmp_path)
    assert list(population.users) == ["U1", "U2", "U3"]
    assert list(population.items) == ["N1", "N2", "N3", "N7", "N8", "N9"]
    train, dev = population.impressions["train"], population.impressions["dev"]
    assert (train.users.tolist(), train.shown.row(0).tolist()) == ([0, 1, 0], [1, 2])
    assert train.clicked.tolist() == [0, 1, 1, 0, 1, 0, 1]
    assert train.times[0] == datetime(2019, 11, 13, 8, 36, 57, tzinfo=UTC).timestamp()
    assert train.times[1] == datetime(2019, 11, 9, 12, tzinfo=UTC).timestamp()
    assert [train.histories.row(row).tolist() for row in train.history_of] == [[0, 1], [], [0, 1]]
    assert len(train.histories) == 2  # equal ones are kept once
    assert dev.histories.row(int(dev.history_of[0])).tolist() == [2, 3]
    catalogue = population.catalogue
    assert list(catalogue.titles) == ["First title", 'A "quoted" title', "Third titlé", "", "", ""]
    described = catalogue.categories[0], catalogue.abstracts[0], catalogue.entities[0]
    assert described == ("sport", "An abstract", '[{"WikidataId": "Q1"}]')
    ids, log = list(population.items), population.interactions
    used = [[ids[item] for item in log.items[log.offsets[u] : log.offsets[u + 1]]] for u in range(3)]
    assert used == [["N1", "N2", "N9", "N3"], ["N1"], ["N3", "N7"]]  # histories, then training clicks in time
    odd = {"impressions_without_both_labels": 1, "empty_histories": 1, "news_without_text": 3, "duplicates_merged": 0}
    unknown = {"unknown_candidates": 4, "unknown_in_histories": 1}
    assert population.facts == {"rows": 5, "shown": 10, "clicks": 5, **odd, **unknown}


def test_one_data_set_in_or_below_the_folder_is_found_and_repeated_rows_are_merged(tmp_path):
    for name, rows in (("behaviors.tsv.gz", TRAIN), ("news.tsv.gz", NEWS)):
        (tmp_path / name).write_bytes(gzip.compress(lines(rows).encode()))
    assert list(mind.read(tmp_path).impressions) == ["train"]  # alone
    write_split(tmp_path / "below" / "one" / "train", TRAIN)
    assert mind.read(tmp_path / "below").n_users == 2
    write_split(tmp_path / "twice" / "train", [*TRAIN, ["4", *TRAIN[0][1:]]])
    population = mind.read(tmp_path / "twice")
    assert (len(population.impressions["train"]), population.facts["duplicates_merged"]) == (3, 1)


@pytest.mark.parametrize(
    ("names", "fault"),
    [
        (["one/train", "two/x_train"], r"2 data sets: name one of .*one.*two"),
        (["MINDsmall_train", "MINDlarge_train", "MINDlarge_dev"], r"MINDlarge, .*MINDsmall"),
        (["x_dev"], "no train"),
        (["dev"], "no train"),
        ([], r"behaviors\.tsv"),
        (["train", "-train/news.tsv"], r"no news\.tsv"),
    ],
)
def test_folders_that_are_not_one_data_set_are_refused(tmp_path, names, fault):
    for name in names:
        if name.startswith("-"):
            (tmp_path / name[1:]).unlink()
        else:
            write_split(tmp_path / name, TRAIN)
    with pytest.raises(BadInput, match=fault):
        mind.read(tmp_path)
    with pytest.raises(BadInput, match="no folder"):
        mind.read(tmp_path / "nowhere")


WHEN = "11/13/2019 8:36:57 AM"


def test_what_cannot_be_read_or_learnt_from_is_named(tmp_path):
    for rows, problem in (
        ([*TRAIN, ["4", "U1", WHEN, "N1"]], "line 4: .*expected 5 fields"),
        ([*TRAIN, ["4", "U1", "2019-11-13", "N1", "N1-0"]], "line 4: time '2019-11-13' is not like"),
        ([*TRAIN, ["4", "U1", WHEN, "N1", "N1-0 N2"]], r"behaviors\.tsv, line 4: candidate 'N2' does not end in -0"),
        ([*TRAIN, ["4", "U1", WHEN, "N1", "N1-0 N2-2"]], "line 4: candidate 'N2-2' does not end in -0"),
        ([*TRAIN, ["4", "U1", WHEN, "N1", "N1-0  N2-1"]], "line 4: .*stray blank"),
        ([*TRAIN, ["4", "U1", WHEN, "N1", "N1-0 -1"]], "line 4: candidate '-1' does not end"),
        ([*TRAIN, ["4", "U1", WHEN, "N1", ""]], "line 4: candidates is empty"),
        ([*TRAIN, ["4", "", WHEN, "N1", "N1-0"]], "line 4: user is empty"),
        ([TRAIN[0], TRAIN[0], ["3", *TRAIN[0][1:4], "N1"]], "line 3: candidate 'N1'"),  # behind a merged row
        ([["1", "U1", WHEN, "N1", "N1-0 N2-0"]], "no impression has a click"),
        ([["1", "U1", WHEN, "N1", "N1-1"]], "the only item is 'N1'"),
    ):
        write_split(tmp_path / "train", rows, NEWS[:1] if "only item" in problem else NEWS)
        with pytest.raises(BadInput, match=problem):
            mind.read(tmp_path)


def test_entity_vectors_of_both_splits_are_joined(tmp_path):
    train, dev = write_split(tmp_path / "train", TRAIN), write_split(tmp_path / "dev", DEV)
    (train / "entity_embedding.vec").write_text("Q1\t0.5\t-1\t\nQ2\t1\t2\t\n")
    (dev / "entity_embedding.vec").write_text("Q1\t9\t9\t\nQ3\t3\t1e-3\t\n")
    ids, vectors = mind.read(tmp_path).catalogue.entity_vectors
    assert list(ids) == ["Q1", "Q2", "Q3"]
    np.testing.assert_allclose(vectors, [[0.5, -1], [1, 2], [3, 1e-3]])
    (dev / "entity_embedding.vec").write_text("Q1\t1\n")
    with pytest.raises(BadInput, match="differ in length"):
        mind.read(tmp_path)
    for line in ("Q2\t1", "Q2\t1\tx", "Q2"):
        (dev / "entity_embedding.vec").write_text(f"Q1\t0.5\t-1\n{line}\n")
        with pytest.raises(BadInput, match=r"entity_embedding\.vec, line 2: expected an entity id and 2 numbers"):
            mind.read(tmp_path)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(alphabet="NU123/: APM-01\t\n", max_size=60))
def test_any_text_is_read_or_refused_in_one_line(tmp_path, text):
    (tmp_path / "news.tsv").write_text(lines(NEWS), encoding="utf-8")
    (tmp_path / "behaviors.tsv").write_text(lines(TRAIN) + text, encoding="utf-8")
    try:
        population = mind.read(tmp_path)
    except BadInput as error:
        assert "\n" not in str(error)
    else:
        assert len(population.impressions["train"]) >= 3


def plain_rows(population, part):
    """Impressions with external ids."""
    users, items = list(population.users), list(population.items)
    return [
        (
            users[part.users[row]],
            int(part.times[row]),
            [items[item] for item in part.shown.row(row)],
            part.clicked[part.shown.offsets[row] : part.shown.offsets[row + 1]].tolist(),
            [items[item] for item in part.histories.row(int(part.history_of[row]))],
        )
        for row in range(len(part))
    ]


def test_what_is_written_is_read_back_in_the_format_of_mind(tmp_path, monkeypatch):
    monkeypatch.setattr(mind, "_ROWS_AT_ONCE", 100)  # several pieces
    made = synthetic_news.generate(users=120, seed=5)
    mind.write(made, tmp_path / "out")
    read = mind.read(tmp_path / "out")
    for split in ("train", "dev"):
        assert plain_rows(made, made.impressions[split]) == plain_rows(read, read.impressions[split])
    for name in ("titles", "categories", "subcategories", "abstracts"):
        assert list(getattr(made.catalogue, name)) == list(getattr(read.catalogue, name))
    assert list(made.items) == list(read.items)
    behaviours = (tmp_path / "out" / "train" / "behaviors.tsv").read_text().splitlines()
    number, user, moment, history, candidates = behaviours[0].split("\t")
    assert (number, user) == ("1", "U001")
    assert moment.startswith("1/") and moment.endswith((" AM", " PM"))  # 1 January, without a zero in front
    assert all(item.startswith("N") for item in history.split(" "))
    assert {word[-2:] for word in candidates.split(" ")} == {"-0", "-1"}
    news = (tmp_path / "out" / "dev" / "news.tsv").read_text().splitlines()
    assert {line.count("\t") for line in news} == {7}


def test_odd_titles_and_none_can_be_written(tmp_path):
    made = synthetic_news.generate(users=10, seed=1)
    titles = ['a\tb\nc "d"', *list(made.catalogue.titles)[1:]]
    mind.write(replace(made, catalogue=replace(made.catalogue, titles=Strings.of(titles))), tmp_path / "odd")
    assert mind.read(tmp_path / "odd").catalogue.titles[0] == 'a b c "d"'
    mind.write(replace(made, catalogue=None), tmp_path / "none")
    assert set(mind.read(tmp_path / "none").catalogue.titles) == {""}


def test_what_cannot_be_written_leaves_nothing_behind(tmp_path):
    with pytest.raises(BadInput, match="no impressions"):
        mind.write(synthetic_ratings.generate(users=100), tmp_path / "out")
    made = synthetic_news.generate(users=10, seed=1)
    blanks = Strings.of(["a b", *list(made.users)[1:]])
    with pytest.raises(BadInput, match="user id 'a b'"):
        mind.write(replace(made, users=blanks), tmp_path / "out")
    broken = replace(made.impressions["train"], history_of=np.zeros(1, np.int32))
    with pytest.raises(IndexError):
        mind.write(replace(made, impressions={"train": broken}), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_the_real_samples(real):
    folder = real("mind")
    sample = mind.read(folder / "MINDsmall_train_sample5000")
    assert sample.n_users == 4637
    assert (sample.facts["rows"], sample.facts["shown"], sample.facts["clicks"]) == (5000, 189_359, 7542)
    text = mind.read(folder / "MINDsmall_textsample")
    assert {name: len(part) for name, part in text.impressions.items()} == {"train": 1308, "dev": 908}
    facts = {"shown": 22_186 + 10_986, "clicks": 1605 + 977, "news_without_text": 0}
    assert facts.items() <= text.facts.items()
