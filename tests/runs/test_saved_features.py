"""What is saved of methods that read features: nothing that a client adapted, and nothing of anybody's features."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file

from veilrec.client.reptile import FeatureRanker
from veilrec.runs.request import RunRequest, prepare
from veilrec.runs.saved import open_model
from veilrec.runs.training import train
from veilrec.simulation.simulation import Simulation

METHODS = {
    "dp-privrec": ("cohort.size=20", "features.users=[town,age]", "model.embedding=3", "model.hidden=[4]"),
    "popularity-head": ("cohort.size=20",),
}
SCHEMA = """users:
  file: PEOPLE
  features:
    town: {kind: category, values: [A, B, C]}
    age: {kind: number, low: 0, high: 100}
items:
  file: items.csv
  features:
    kind: {kind: category, values: [a, b, c]}
"""


def log_of(folder, name, count, town, age):
    """Forty people with all items between them, and one who has so many and is described so."""
    rows = [f"u{user},i{(user + 2 * k) % 40}" for user in range(40) for k in range(6)]
    rows += [f"zoe,i{k}" for k in range(count)]
    (folder / "items.csv").write_text("\n".join(["item,kind", *(f"i{k},{'abc'[k % 3]}" for k in range(40))]))
    people = [f"u{user},{'ABC'[user % 3]},{20 + user}" for user in range(40)]
    (folder / f"{name}.people.csv").write_text("\n".join(["user,town,age", *people, f"zoe,{town},{age}"]))
    (folder / f"{name}.csv").write_text("\n".join(["user,item", *rows]))
    (folder / f"{name}.features.yaml").write_text(SCHEMA.replace("PEOPLE", f"{name}.people.csv"))
    return folder / f"{name}.csv"


def released(method, log, out):
    """All that the model's folder says, but for the numbers of tensors that were learnt."""
    request = RunRequest(method, f"csv:{log}", protocol="loo-full", settings=METHODS[method], rounds=None)
    prepared = prepare(request)
    train(prepared, out)
    learnt = {f"weight.{name}" for name in prepared.trainer.parts().weights}
    said = {}
    for path in sorted((out / "model").iterdir()):
        if path.suffix == ".json":
            said[path.name] = json.loads(path.read_text())
            continue
        for name, values in load_file(path).items():
            said[f"{path.name}:{name}"] = values.shape if name in learnt else values.tolist()
    return said


def both(method, folder):
    """What is released with one person and with another."""
    logs = [log_of(folder, "one", 3, "A", 30), log_of(folder, "other", 12, "C", 77)]
    one, other = (released(method, log, folder / f"run-{place}") for place, log in enumerate(logs))
    return one, other


@pytest.mark.parametrize("method", METHODS)
def test_but_for_learnt_numbers_a_model_says_the_same_whoever_took_part(method, tmp_path):
    one, other = both(method, tmp_path)
    assert one == other
    arrays = {name.partition(":")[2] for name in one if ":" in name}
    assert {"items.codes", "items.numbers"} <= arrays
    if method == "popularity-head":
        weights = load_file(tmp_path / "run-0" / "model" / "model.safetensors")
        assert not any(weights[f"weight.layer1.{part}"].any() for part in ("weight", "bias")), "a head was released"
    assert not any("features" in name or "users" in name.removeprefix("weight.users.embedding") for name in arrays)


LEAKS = [("dp-privrec", "tables"), ("popularity-head", "tables"), ("dp-privrec", "settings")]


@pytest.mark.parametrize(("method", "where"), LEAKS)
def test_adapted_weights_or_features_in_the_model_are_seen(method, where, tmp_path, monkeypatch):
    """Leak what a client adapted into the tables of a model, or the features of people into its settings."""
    sound_parts, sound, leak = Simulation.parts, getattr(FeatureRanker, where), {}

    def parts(self):
        made = sound_parts(self)
        if where == "settings":
            leak["kept"] = {name: values.tolist() for name, values in made.private.items()}
        else:
            model = self.plan.ranker.model(made.weights, made.private, self.histories)
            leak["adapted"] = model.adapted(np.array([len(self.histories) - 1]))
        return made

    monkeypatch.setattr(Simulation, "parts", parts)
    monkeypatch.setattr(FeatureRanker, where, lambda self, *weights: sound(self, *weights) | leak)
    one, other = both(method, tmp_path)
    assert one != other


def test_a_saved_client_keeps_the_features_of_its_user(tmp_path):
    released("dp-privrec", log_of(tmp_path, "one", 8, "C", 77), tmp_path / "run")
    model = open_model(tmp_path / "run")
    own = model.recommend_user("zoe", 5)
    used = [model.items[int(k)] for k in model.clients.trained_on.row(40)]
    again = model.recommend(used, 40, about={"town": "C", "age": "77"})
    shown = {best.item: best.score for best in again}
    assert all(best.score == pytest.approx(shown[best.item], rel=1e-6) for best in own)
    stranger = {best.item: best.score for best in model.recommend(used, 40)}
    assert any(best.score != pytest.approx(stranger[best.item], rel=1e-6) for best in own)
