from datetime import UTC, datetime

import polars as pl
import pytest

from veilrec.core.errors import BadInput
from veilrec.data import ebnerd

NOON = datetime(2023, 5, 21, 12)
IDS = pl.List(pl.Int32)
SCHEMA = {
    "impression_id": pl.UInt32,
    "user_id": pl.UInt32,
    "impression_time": pl.Datetime("us"),
    "article_ids_inview": IDS,
    "article_ids_clicked": IDS,
}


def behaviours(*rows):
    return pl.DataFrame(rows, schema=SCHEMA, orient="row").with_columns(client_type=pl.lit(1, pl.Int8))


def write_split(folder, rows, past):
    folder.mkdir(parents=True, exist_ok=True)
    rows.write_parquet(folder / "behaviors.parquet")
    pl.DataFrame(
        {"user_id": list(past), "article_id_fixed": list(past.values())},
        schema={"user_id": pl.UInt32, "article_id_fixed": IDS},
    ).write_parquet(folder / "history.parquet")
    return folder


TRAIN = behaviours(
    (1, 10, NOON, [3, 1], [1]),
    (2, 20, NOON, [2, 3, 4], [4, 9]),
    (2, 20, NOON, [2, 3, 4], [4, 9]),
    (3, 30, NOON, [2, 3], None),
)
DEV = behaviours((4, 10, NOON, [5, 4], [5]))
ARTICLES = pl.DataFrame(
    {"article_id": [1, 2], "title": ["Et", None], "subtitle": ["Under", None], "category_str": ["nyheder", "sport"]}
)


def test_reads_both_splits(tmp_path):
    write_split(tmp_path / "train", TRAIN, {10: [2, 1], 20: [4], 99: [1]})
    write_split(tmp_path / "validation", DEV, {10: [2, 1, 1]})
    ARTICLES.write_parquet(tmp_path / "articles.parquet")
    population = ebnerd.read(tmp_path)
    ids = list(population.items)
    assert (list(population.users), ids[:2]) == (["10", "20", "30"], ["1", "2"])
    train, dev = population.impressions["train"], population.impressions["dev"]
    assert [ids[item] for item in train.shown.items] == ["3", "1", "2", "3", "4", "2", "3"]
    assert (train.clicked.tolist(), train.times[0]) == ([0, 1, 0, 0, 1, 0, 0], NOON.replace(tzinfo=UTC).timestamp())
    past = [[ids[item] for item in train.histories.row(int(row))] for row in train.history_of]
    assert past == [["2", "1"], ["4"], []]
    assert [ids[item] for item in dev.histories.row(int(dev.history_of[0]))] == ["2", "1", "1"]
    assert (list(population.catalogue.titles)[:3], population.catalogue.categories[1]) == (["Et", "", ""], "sport")
    log = population.interactions
    used = [[ids[item] for item in log.items[log.offsets[u] : log.offsets[u + 1]]] for u in range(3)]
    assert used == [["2", "1"], ["4"], []]
    counted = {"duplicates_merged": 1, "clicks_on_articles_not_shown": 1, "clicks": 3}
    assert counted.items() <= population.facts.items()


def test_works_without_articles_and_without_validation(tmp_path):
    write_split(tmp_path / "train", TRAIN, {10: [2, 1]})
    population = ebnerd.read(tmp_path)
    assert population.catalogue is None
    assert list(population.impressions) == list(ebnerd.read(tmp_path / "train").impressions) == ["train"]


def test_bad_rows_and_files_are_refused(tmp_path):
    for rows, problem in (
        (TRAIN.drop("article_ids_clicked"), r"behaviors\.parquet has no column article_ids_clicked"),
        (behaviours((1, 10, None, [1, 2], [1])), "row 1: impression_time is missing"),
        (behaviours((7, 10, NOON, [], [1])), "impression 7 shows no article"),
        (behaviours((1, 10, NOON, [1, 2], [])), "no impression has a click"),
        (behaviours(), "has no rows"),
        (TRAIN.with_columns(impression_time=pl.lit("noon")), "impression_time must be a timestamp"),
        (TRAIN.with_columns(article_ids_inview=pl.lit("1,2")), "article_ids_inview must be a list"),
    ):
        write_split(tmp_path / "train", rows, {10: [1]})
        with pytest.raises(BadInput, match=problem):
            ebnerd.read(tmp_path)
    path = tmp_path / "train" / "behaviors.parquet"
    path.write_bytes(b"PAR1 and no more")
    with pytest.raises(BadInput, match=r"behaviors\.parquet is not a whole parquet file") as caught:
        ebnerd.read(tmp_path)
    assert "\n" not in str(caught.value)
    path.unlink()
    with pytest.raises(BadInput, match=r"no behaviors\.parquet"):
        ebnerd.read(tmp_path)
