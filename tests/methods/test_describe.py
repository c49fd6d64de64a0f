"""The index of methods, and the full description of one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from veilrec.core.errors import BadInput
from veilrec.methods import registry
from veilrec.methods.base import configure, leaves, setting_names
from veilrec.methods.registry import METHODS, all_methods, describe, everything, get, listed, read_index


def test_the_index_is_derived_and_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VEILREC_CACHE", str(tmp_path))
    derived = [describe(method) for method in all_methods()]
    assert read_index() == derived
    monkeypatch.setattr(registry, "all_methods", lambda: [])
    assert read_index() == derived
    (cached,) = (tmp_path / "methods").iterdir()
    cached.write_text("{")
    assert read_index() == []
    monkeypatch.setattr(registry, "_source_digest", lambda: "other")
    read_index()
    assert [path.name for path in (tmp_path / "methods").iterdir()] == ["other.json"]


def test_a_cache_that_cannot_be_written_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "methods").write_text("a file, not a folder")
    monkeypatch.setenv("VEILREC_CACHE", str(tmp_path))
    assert [entry["name"] for entry in read_index()] == list(METHODS)


def test_descriptions_are_complete_and_are_json() -> None:
    for method in all_methods():
        described = describe(method)
        assert json.loads(json.dumps(described)) == described
        for key in ("name", "kind", "group", "paper", "model", "summary", "datasets", "guarantee", "rounds"):
            assert described[key], key
        assert "tuned" in described["presets"]
        assert described["private"] == ("proven" in described["guarantee"])


def test_filters() -> None:
    private = listed(private=True)
    assert {entry["name"] for entry in private} >= {"dp-fedmf", "fednewsrec"}
    assert all("-DP per" in entry["guarantee"] for entry in private)
    assert "fedmf" not in {entry["name"] for entry in private}
    on_news = {entry["name"] for entry in listed(data="MIND:folder")}
    assert "nrms" in on_news
    assert "nrms" not in {entry["name"] for entry in listed(data="ml-1m")}
    assert {entry["group"] for entry in listed(paper="FedNewsRec")} == {"fednewsrec"}
    assert {entry["name"] for entry in listed(paper="He et al.")} == {"mf", "ncf", "fedncf"}
    with pytest.raises(BadInput, match="unknown paper 'fednewsreck': did you mean fednewsrec"):
        listed(paper="fednewsreck")
    with pytest.raises(BadInput, match="unknown data set 'ml-2m': did you mean ml-1m"):
        listed(data="ml-2m")


def test_everything_about_a_method_is_json_and_has_its_settings() -> None:
    for name in METHODS:
        about = everything(name)
        assert json.loads(json.dumps(about))["name"] == name
        assert {setting["name"] for setting in about["settings"]} == set(setting_names(get(name).config)), name


def test_settings_come_with_their_comments() -> None:
    settings = {setting["name"]: setting for setting in everything("dp-fedmf")["settings"]}
    assert settings["adapt_epochs"]["about"].startswith("local epochs with which a new user joins")
    assert settings["privacy.epsilon"] == {
        "name": "privacy.epsilon",
        "default": 8.0,
        "tuned": 8.0,
        "choices": [],
        "about": "proven: of a user, over the whole run; as published: of a message, as the paper counts",
    }
    assert everything("dp-fedmf")["published"]["ml-1m"]["hr@10"] == 0.515


def test_settings_say_what_preset_tuned_makes_of_them_and_what_they_may_be() -> None:
    about = everything("dp-fedmf")
    settings = {setting["name"]: setting for setting in about["settings"]}
    assert settings["calibration"]["choices"] == ["proven", "as-published"]
    assert settings["aggregation"]["choices"][0] == "sum"
    config, rounds = configure(get("dp-fedmf"), preset="tuned", dataset="")
    tuned = dict(leaves(config.model_dump(mode="json")))
    assert {name: setting["tuned"] for name, setting in settings.items()} == tuned
    assert about["tuned_rounds"] == rounds
    for name in ("local.loss", "local.user_rate", "calibration", "privacy.delta", "server.optimiser"):
        assert settings[name]["about"], name
