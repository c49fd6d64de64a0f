from __future__ import annotations

import errno
from pathlib import Path

import pytest

from veilrec.core.errors import BadInput
from veilrec.methods.registry import get
from veilrec.report.demo import check_places, choose_scenarios, workshop


def test_all_kinds_are_films_and_news_and_every_request_is_of_their_seed() -> None:
    films, news = choose_scenarios("all", 4)
    assert (films.kind, news.kind) == ("ratings", "news")
    assert choose_scenarios("news", 4) == (news,)
    assert choose_scenarios("ratings", 4) == (films,)
    for scenario in (films, news):
        assert scenario.data.endswith("seed=4")
        assert {t.request.data for t in scenario.trainings} == {scenario.data}
        assert {t.request.seed for t in scenario.trainings} == {4}


def test_runs_of_all_parts_have_folders_of_their_own() -> None:
    folders = [training.folder for scenario in choose_scenarios("all", 0) for training in scenario.trainings]
    assert len(folders) == len(set(folders))


def test_films_are_shown_with_a_private_method_beside_the_others() -> None:
    (films,) = choose_scenarios("ratings", 0)
    private = [t.request for t in films.trainings if get(t.request.method).name == "dp-fedmf"]
    assert [request.settings for request in private] == [("privacy.epsilon=8",)]
    assert films.trainings[0].request.method == "fedmf"
    (veil,) = [t.request for t in films.trainings if t.request.method == "veil"]
    assert (veil.settings, veil.noise) == (("privacy.epsilon=1",), "secure")
    assert films.serves == "veil"


def test_releases_have_folders_of_their_own() -> None:
    folders = [scenario.release for scenario in choose_scenarios("all", 0)]
    assert folders == ["release-films", "release"]  # the last one is what `make serve` serves


def test_a_workshop_is_gone_after_success_failure_and_interruption(tmp_path: Path) -> None:
    with workshop(tmp_path / "out") as room:
        (room / "file").write_text("x")
    assert not list(tmp_path.iterdir())
    with pytest.raises(KeyboardInterrupt), workshop(tmp_path / "out"):
        raise KeyboardInterrupt
    with pytest.raises(BadInput, match="No space left on device.*free some space"), workshop(tmp_path / "out"):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert not list(tmp_path.iterdir())


def test_checking_places_writes_nothing(tmp_path: Path) -> None:
    check_places(tmp_path / "out", tmp_path / "report.html")
    assert not list(tmp_path.iterdir())
