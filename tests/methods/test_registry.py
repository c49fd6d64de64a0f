"""The table of methods, their descriptions, and the settings that they take."""

import json
import subprocess
import sys

import pytest

from tests.methods.tastes import ON_RATINGS
from veilrec.core.errors import BadInput
from veilrec.data.datasets import DATASETS
from veilrec.methods import registry
from veilrec.methods.base import configure, is_set, leaves, setting_names
from veilrec.methods.privrec.common import WITH_FEATURES
from veilrec.methods.registry import METHODS, all_methods, describe, everything, full_name, get, listed, read_index
from veilrec.runs.request import RunRequest, prepare


def test_an_unknown_name_gets_the_nearest_ones():
    with pytest.raises(
        BadInput, match=r"unknown method 'fedfm': did you mean .*fedmf.* \d+ more: see `veilrec methods`$"
    ):
        get("fedfm")


def test_names_are_matched_without_case():
    for typed in ("FEDMF", "FedMF", " fedmf "):
        assert get(typed) is get("fedmf") and full_name(typed) == "fedmf"
    assert full_name("dp_fedmf") == "dp-fedmf"


@pytest.fixture(scope="module")
def own_log(tmp_path_factory):
    """Seven days of impressions, four of eight items each, without titles."""
    lines = [
        {"user": f"u{user}", "time": f"2026-01-0{day}T10:00:00Z", "shown": shown, "clicked": shown[:1]}
        for day in range(1, 8)
        for user in range(12)
        for shown in [[f"n{(user + day + k) % 8}" for k in range(4)]]
    ]
    path = tmp_path_factory.mktemp("own") / "log.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.mark.parametrize("name", [name for name in ON_RATINGS if get(name).datasets != WITH_FEATURES])
def test_a_method_that_knows_items_by_their_ids_learns_from_impressions(name, own_log):
    assert "impressions" in get(name).datasets
    everybody = ("cohort.size=0",) if "cohort" in get(name).config.model_fields else ()
    prepared = prepare(RunRequest(name, f"impressions:{own_log}", rounds=1, settings=everybody))
    report = prepared.trainer.step(0)
    counts_only = any(exemption.check == "learns" for exemption in get(name).exemptions)
    assert report.loss is None or report.loss > 0.0 or counts_only


@pytest.mark.parametrize(
    ("done", "unneeded"),
    [
        ("from veilrec.methods.registry import METHODS", "veilrec.methods.priv_fedmf_sub veilrec.methods.news"),
        ("from veilrec.methods.registry import names; names()", "numpy numba scipy pydantic veilrec.methods.base"),
        ("from veilrec.methods.registry import all_methods, describe; [describe(m) for m in all_methods()]", "torch"),
    ],
)
def test_listing_methods_needs_nothing_heavy(done, unneeded):
    script = f"import sys; {done}; print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert not set(unneeded.split()) & set(ran.stdout.split())


def test_the_index_is_derived_and_cached(tmp_path, monkeypatch):
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
    assert [path.name for path in (tmp_path / "methods").iterdir()] == ["other-index.json"]


def test_a_cache_that_cannot_be_written_is_not_used(tmp_path, monkeypatch):
    (tmp_path / "methods").write_text("a file, not a folder")
    monkeypatch.setenv("VEILREC_CACHE", str(tmp_path))
    assert [entry["name"] for entry in read_index()] == list(METHODS)


def test_filters():
    private = listed(private=True)
    assert {entry["name"] for entry in private} >= {"dp-fedmf", "fednewsrec"}
    assert all("-DP per" in entry["guarantee"] for entry in private)
    assert "fedmf" not in {entry["name"] for entry in private}
    on_news = {entry["name"] for entry in listed(data="MIND:folder")}
    assert "nrms" in on_news and "nrms" not in {entry["name"] for entry in listed(data="ml-1m")}
    assert {entry["group"] for entry in listed(paper="FedNewsRec")} == {"fednewsrec"}
    assert {entry["name"] for entry in listed(paper="He et al.")} == {"mf", "ncf", "fedncf"}
    with pytest.raises(BadInput, match="unknown paper 'fednewsreck': did you mean fednewsrec"):
        listed(paper="fednewsreck")
    with pytest.raises(BadInput, match="unknown data set 'ml-2m': did you mean ml-1m"):
        listed(data="ml-2m")


def test_every_name_leads_to_its_method_on_known_data_with_all_its_settings_as_json():
    assert [method.name for method in all_methods()] == list(METHODS)
    for name in METHODS:
        assert set(get(name).datasets) <= set(DATASETS), name
        spec = everything(name)
        assert json.loads(json.dumps(spec))["name"] == name
        assert {setting["name"] for setting in spec["settings"]} == set(setting_names(get(name).config)), name


def test_settings_come_with_their_comments_tuned_values_and_choices():
    spec = everything("dp-fedmf")
    settings = {setting["name"]: setting for setting in spec["settings"]}
    assert settings["adapt_epochs"]["about"].startswith("local epochs with which a new user joins")
    assert settings["privacy.epsilon"] == {
        "name": "privacy.epsilon",
        "default": 8.0,
        "tuned": 8.0,
        "choices": [],
        "about": "proven: of a user, over the whole run; as published: of a message, as the paper counts",
    }
    assert spec["published"]["ml-1m"]["hr@10"] == 0.515
    assert settings["calibration"]["choices"] == ["proven", "as-published"]
    assert settings["aggregation"]["choices"][0] == "sum"
    config, rounds = configure(get("dp-fedmf"), preset="tuned", dataset="")
    tuned = dict(leaves(config.model_dump(mode="json")))
    assert {name: setting["tuned"] for name, setting in settings.items()} == tuned and spec["tuned_rounds"] == rounds
    for name in ("local.loss", "local.user_rate", "calibration", "privacy.delta", "server.optimiser"):
        assert settings[name]["about"], name


def refusal(method, setting):
    with pytest.raises(BadInput) as refused:
        configure(method, preset="tuned", dataset="", settings=[setting])
    return str(refused.value)


def test_a_noise_as_published_without_a_finite_epsilon_is_refused():
    method = get("fednewsrec")
    settings = ["calibration=as-published", "privacy.clip_value=1e308"]
    config, _ = configure(method, preset="tuned", dataset="", settings=settings)
    with pytest.raises(BadInput, match=r"privacy.clip_value is 1e\+308 and privacy.scale 0.015: no finite epsilon"):
        method.guarantee(config)


@pytest.mark.parametrize("method", [m for m in all_methods() if m.config.model_fields], ids=lambda method: method.name)
def test_names_the_nearest_setting_and_refuses_bad_values(method):
    values = leaves(method.config().model_dump())
    known = next(name for name, value in values if isinstance(value, int | float) and not isinstance(value, bool))
    parent, _, last = known.rpartition(".")
    wrong = f"{parent}.{last}s" if parent else f"{last}s"
    assert "did you mean" in refusal(method, f"{wrong}=1") and known in refusal(method, f"{wrong}=1")
    told = refusal(method, f"{known}=many")
    assert "'many'" in told and "\n" not in told


def test_who_asks_a_method_without_noise_for_privacy_is_told_its_private_relative():
    for setting in ("calibration=proven", "privacy.epsilon=3"):
        assert "train its private relative dp-fedmf" in refusal(get("fedmf"), setting)
        assert "`veilrec methods --private`" in refusal(get("popularity"), setting)
    for method in all_methods():
        if method.private_relative is not None:
            relative = get(method.private_relative)
            assert relative.guarantee(configure(relative, preset="tuned", dataset="")[0]).basis == "proven"


def test_presets_are_matched_without_case():
    assert configure(get("fedmf"), preset="Paper", dataset="") == configure(get("fedmf"), preset="paper", dataset="")
    with pytest.raises(BadInput, match=r"unknown preset of fedmf 'papers': did you mean paper\?"):
        configure(get("fedmf"), preset="papers", dataset="")


def test_what_the_user_has_set():
    assert is_set(["local.dim=3", " cohort.size = 5"], "cohort.size")
    assert not is_set(["cohort.sampling=fixed"], "cohort.size")
