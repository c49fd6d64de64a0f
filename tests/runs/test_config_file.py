"""A run asked for by a file: the same again, other options over it, and no name that means nothing."""

import json

import pytest
import yaml

from veilrec.core.errors import BadInput
from veilrec.runs.config_file import KNOWN, as_settings, make_request, read_config_file, write_request
from veilrec.runs.request import RunRequest, prepare
from veilrec.runs.training import train

DATA = "synthetic-ratings:users=150,items=200,seed=3"


def asked_for(path, *settings, **given):
    return make_request(read_config_file(path), given, settings)[0]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder, settings = tmp_path_factory.mktemp("runs"), ("local.dim=8", "cohort.size=20")
    request = RunRequest("fedmf", DATA, seed=2, rounds=2, protocol="loo-full", settings=settings)
    train(prepare(request), folder / "first")
    return folder


def test_config_yaml_of_a_run_gives_the_same_model_by_names_that_can_be_read(runs, tmp_path):
    request = asked_for(runs / "first" / "config.yaml")
    train(prepare(request), runs / "again")
    first, again = (json.loads((runs / name / "result.json").read_text()) for name in ("first", "again"))
    assert (again["weights_sha256"], again["metrics"]) == (first["weights_sha256"], first["metrics"])
    assert (runs / "again" / "config.yaml").read_text() == (runs / "first" / "config.yaml").read_text()
    assert set(yaml.safe_load((runs / "first" / "config.yaml").read_text())) <= set(KNOWN)
    assert as_settings({"local": {"layers": (8, 4)}, "threshold": None}) == ("local.layers=[8, 4]", "threshold=null")
    with pytest.raises(BadInput, match="is for fedmf, and mf was asked for"):
        asked_for(runs / "first", method="mf")
    with pytest.raises(BadInput, match="cannot be read"):
        read_config_file(tmp_path / "none.yaml")


def test_options_win_over_the_file(runs):
    request = asked_for(runs / "first", "cohort.size=10", seed=5, rounds=7)
    assert (request.seed, request.rounds, request.protocol) == (5, 7, "loo-full")
    assert request.settings == ("local.dim=8", "cohort.size=10")
    assert asked_for(runs / "first", "rounds=9").rounds is None  # as the setting says


def changed(runs, tmp_path, **config):
    file = yaml.safe_load((runs / "first" / "config.yaml").read_text())
    file["config"]["local"] |= config
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(file))
    return tmp_path / "config.yaml"


def test_what_other_defaults_came_to_is_set_but_not_on_other_data(runs, tmp_path):
    path = changed(runs, tmp_path, epochs=3, negatives=2)
    request, notes = make_request(read_config_file(path), {})
    assert request.settings[-2:] == ("local.epochs=3", "local.negatives=2")
    assert notes == ("set as in the file, otherwise than by default: local.epochs=3, local.negatives=2",)
    assert prepare(request).config.model_dump()["local"]["negatives"] == 2
    assert "local.epochs=5" in asked_for(path, "local.epochs=5").settings  # typed, and so not as in the file
    request, notes = make_request(read_config_file(path), {"data": "ml-100k"})
    assert request.settings == ("local.dim=8", "cohort.size=20")
    assert notes == ("with another data than the file's, only its settings are taken over",)


def test_a_file_by_hand_may_be_short_and_a_private_run_carries_its_caveats(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("method: mf\ndata: ml-100k\nsettings:\n  dim: 8\n  rate: 0.05\n")
    assert asked_for(path) == RunRequest("mf", "ml-100k", settings=("dim=8", "rate=0.05"))
    path.write_text(write_request(asked_for(path)))
    assert asked_for(path) == RunRequest("mf", "ml-100k", settings=("dim=8", "rate=0.05"))
    path = tmp_path / "best.yaml"
    for method, told in (("dp-fedmf", True), ("fedmf", False)):  # which promises nothing
        path.write_text(f"method: {method}\ndata: {DATA}\nrounds: 2\ncaveats: [Chosen on data.]\n")
        assert ("Chosen on data." in prepare(asked_for(path)).guarantee().caveats) == told


def test_a_bad_file_is_refused(tmp_path):
    path = tmp_path / "bad.yaml"
    for text, words in (
        ("method: mf\nsede: 1\nfoo: 2", r"unknown name 'sede': did you mean seed.*and 1 more: foo"),
        ("method: mf", "names no data"),
        ("data: ml-100k", "names no method"),
        ("method: mf\ndata: x\nseed: one", "seed is 'one'"),
        ("method: mf\ndata: x\nsettings: dim=8", "give a list of name=value"),
        ("method: mf\ndata: x\nsettings: [8]", "8 is no name=value"),
        ("method: mf\ndata: x\nnoise: loud", "noise is 'loud'"),
        ("method: mf\ndata: x\nconfig: 3", "config is 3"),
        ("method: mf\ndata: x\nconfig: {dims: 3}", "unknown setting of mf 'dims'"),
        ("[", "is no YAML"),
        ("", "no list of names and values"),
        ("- 1", "no list of names and values"),
    ):
        path.write_text(text)
        with pytest.raises(BadInput, match=words):
            asked_for(path)
