import errno

import pytest

from veilrec.core.errors import BadInput
from veilrec.report.demo import check_places, choose_scenarios, workshop


def test_scenarios_have_their_seed_folders_of_their_own_and_private_methods():
    films, news = choose_scenarios("all", 4)
    assert (films.kind, news.kind) == ("ratings", "news")
    assert (choose_scenarios("ratings", 4), choose_scenarios("news", 4)) == ((films,), (news,))
    for scenario in (films, news):
        assert scenario.data.endswith("seed=4")
        assert {(t.request.data, t.request.seed) for t in scenario.trainings} == {(scenario.data, 4)}
    folders = [training.folder for scenario in (films, news) for training in scenario.trainings]
    assert len(folders) == len(set(folders))
    requests = {training.request.method: training.request for training in films.trainings}
    assert next(iter(requests)) == "fedmf" and films.serves == "veil"
    assert requests["dp-fedmf"].settings == ("privacy.epsilon=8",)
    assert (requests["veil"].settings, requests["veil"].noise) == (("privacy.epsilon=1",), "secure")
    assert [films.release, news.release] == ["release-films", "release"]  # the last one is what `make serve` serves


def test_a_workshop_is_gone_after_success_failure_and_interruption(tmp_path):
    check_places(tmp_path / "out", tmp_path / "report.html")  # which writes nothing
    assert not list(tmp_path.iterdir())
    with workshop(tmp_path / "out") as work:
        (work / "file").write_text("x")
    assert not list(tmp_path.iterdir())
    with pytest.raises(KeyboardInterrupt), workshop(tmp_path / "out"):
        raise KeyboardInterrupt
    with pytest.raises(BadInput, match="No space left on device.*free some space"), workshop(tmp_path / "out"):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert not list(tmp_path.iterdir())
