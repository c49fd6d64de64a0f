import gzip
import json

import pytest

from veilrec.core.errors import BadInput
from veilrec.data import adressa


def event(user, time, article=None, **more):
    about = {} if article is None else {"id": article, "keywords": "x,y", "activeTime": 12}
    return {"eventId": time, "userId": user, "time": time, "url": "http://adressa.no", **about, **more}


FIRST = [
    event("cx:1", 1483225203, "a2", title="Ny bro", category1="nyheter|trondheim"),
    event("cx:1", 1483225100, "a1", category1="sport"),
    event("cx:2", 1483225204),
    event("cx:1", 1483225203, "a2", title="Ny bro", category1="nyheter|trondheim"),
]
SECOND = [event("cx:2", 1483311600, "a1", title="Kamp på Lerkendal"), event("cx:1", 1483311601, "a2")]


def write(path, events):
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(one, ensure_ascii=False) + "\n" for one in events).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)


def test_reads_all_days_in_time_order(tmp_path):
    write(tmp_path / "one_week" / "20170101", FIRST)
    write(tmp_path / "one_week" / "20170102.gz", SECOND)
    (tmp_path / "one_week" / "README").write_text("not a day")
    population = adressa.read(tmp_path)
    assert list(population.users) == ["cx:1", "cx:2"]
    assert list(population.items) == ["a1", "a2"]
    log = population.interactions
    assert log.items.tolist() == [0, 1, 1, 0]  # reading an article again is kept
    assert log.times.tolist() == [1483225100, 1483225203, 1483311601, 1483311600]
    assert log.offsets.tolist() == [0, 3, 4]
    assert population.impressions == {}
    assert population.cut == 1483315200  # 2017-01-02, the last file's day: no event is as late
    assert list(population.catalogue.titles) == ["Kamp på Lerkendal", "Ny bro"]
    assert list(population.catalogue.categories) == ["sport", "nyheter"]
    assert list(population.catalogue.subcategories) == ["sport", "nyheter|trondheim"]
    assert population.facts == {"rows": 6, "events_without_article": 1, "duplicates_merged": 1}


def test_folders_that_are_no_log_and_malformed_lines_are_refused(tmp_path):
    for folder in (tmp_path / "nowhere", tmp_path):
        with pytest.raises(BadInput, match="no day file such as 20170101"):
            adressa.read(folder)
    write(tmp_path / "a" / "20170101", [event("u", 1, "x"), event("u", 2)])
    with pytest.raises(BadInput, match="at least 2 different articles"):
        adressa.read(tmp_path)
    write(tmp_path / "b" / "20170101", FIRST)
    with pytest.raises(BadInput, match="several logs"):
        adressa.read(tmp_path)
    write(tmp_path / "d" / "20170199", FIRST)
    with pytest.raises(BadInput, match="20170199 is named after no day"):
        adressa.read(tmp_path / "d")
    write(tmp_path / "c" / "20170101", FIRST)
    good = (tmp_path / "c" / "20170101").read_text()
    for wrong, problem in (
        (json.dumps({**event("u", 1, "a"), "time": "noon"}), "time is not in seconds"),
        ('{"id": "a", "time": 1}', "has no userId"),
        ("{broken", "not valid JSON"),
    ):
        (tmp_path / "c" / "20170101").write_text(f"{good}{wrong}\n")
        with pytest.raises(BadInput, match=rf"20170101, line 5: .*{problem}"):
            adressa.read(tmp_path / "c")
