from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from veilrec.data import mind, mind_export, synthetic_news, synthetic_ratings
from veilrec.data.population import Impressions, Population
from veilrec.data.strings import Strings
from veilrec.errors import BadInput


def rows(population: Population, part: Impressions) -> list[tuple[object, ...]]:
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


def test_what_is_written_is_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mind_export, "_ROWS_AT_ONCE", 100)  # several pieces
    made = synthetic_news.generate(users=120, seed=5)
    mind_export.write(made, tmp_path / "out")
    read = mind.read(tmp_path / "out")
    for split in ("train", "dev"):
        assert rows(made, made.impressions[split]) == rows(read, read.impressions[split])
    assert made.catalogue is not None
    assert read.catalogue is not None
    for name in ("titles", "categories", "subcategories", "abstracts"):
        assert list(getattr(made.catalogue, name)) == list(getattr(read.catalogue, name))
    assert list(made.items) == list(read.items)


def test_the_format_is_that_of_mind(tmp_path: Path) -> None:
    mind_export.write(synthetic_news.generate(users=10, seed=1), tmp_path / "out")
    behaviours = (tmp_path / "out" / "train" / "behaviors.tsv").read_text().splitlines()
    number, user, moment, history, candidates = behaviours[0].split("\t")
    assert (number, user) == ("1", "U01")
    assert moment.startswith("1/")  # 1 January, without a zero in front
    assert moment.endswith((" AM", " PM"))
    assert all(item.startswith("N") for item in history.split(" "))
    assert {word[-2:] for word in candidates.split(" ")} == {"-0", "-1"}
    news = (tmp_path / "out" / "dev" / "news.tsv").read_text().splitlines()
    assert {line.count("\t") for line in news} == {7}


def test_tabs_and_line_breaks_in_titles_become_blanks(tmp_path: Path) -> None:
    made = synthetic_news.generate(users=10, seed=1)
    assert made.catalogue is not None
    titles = ['a\tb\nc "d"', *list(made.catalogue.titles)[1:]]
    mind_export.write(replace(made, catalogue=replace(made.catalogue, titles=Strings.of(titles))), tmp_path / "out")
    catalogue = mind.read(tmp_path / "out").catalogue
    assert catalogue is not None
    assert catalogue.titles[0] == 'a b c "d"'


def test_items_without_a_catalogue_get_empty_titles(tmp_path: Path) -> None:
    made = replace(synthetic_news.generate(users=10, seed=1), catalogue=None)
    mind_export.write(made, tmp_path / "out")
    catalogue = mind.read(tmp_path / "out").catalogue
    assert catalogue is not None
    assert set(catalogue.titles) == {""}


def test_refusals_leave_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no impressions"):
        mind_export.write(synthetic_ratings.generate(users=100), tmp_path / "out")
    made = synthetic_news.generate(users=10, seed=1)
    blanks = Strings.of(["a b", *list(made.users)[1:]])
    with pytest.raises(BadInput, match="user id 'a b'"):
        mind_export.write(replace(made, users=blanks), tmp_path / "out")
    broken = replace(made.impressions["train"], history_of=np.zeros(1, np.int32))
    with pytest.raises(IndexError):
        mind_export.write(replace(made, impressions={"train": broken}), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_an_existing_folder_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").touch()
    with pytest.raises(BadInput, match="exists already"):
        mind_export.write(synthetic_news.generate(users=10), tmp_path / "out")
