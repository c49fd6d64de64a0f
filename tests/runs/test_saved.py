"""A saved model: what is in its folder, and that it ranks without the data that it was trained on."""

import json
import shutil
import subprocess
import sys

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

from tests.runs.conftest import RATINGS, REQUESTS
from veilrec.client.reptile import FeatureRanker
from veilrec.core.errors import BadInput
from veilrec.runs import saved
from veilrec.runs.evaluation import evaluate_run
from veilrec.runs.model_files import RANKERS, load_clients, load_model
from veilrec.runs.request import RunRequest, prepare
from veilrec.runs.saved import open_model
from veilrec.runs.training import train
from veilrec.simulation.simulation import Simulation

KINDS = pytest.mark.parametrize("kind", REQUESTS)


@KINDS
def test_a_saved_model_scores_and_measures_as_the_trainer_that_saved_it(trained, kind):
    prepared, out = trained(kind)
    assert load_model(out / "model").ranker.kind == kind
    users = np.arange(10)
    ours, theirs = open_model(out).for_users, prepared.trainer.model()
    assert np.array_equal(ours.score_all(users), theirs.score_all(users))
    some = prepared.split.train.take(users)
    assert np.array_equal(ours.fold_in(some).score_all(users), theirs.fold_in(some).score_all(users))
    result, again = json.loads((out / "result.json").read_text()), evaluate_run(out)
    again.pop("data")
    assert {name: result[name] for name in again} == again


@KINDS
def test_nothing_that_was_used_is_recommended_and_all_users_get_what_each_gets(trained, kind):
    prepared, out = trained(kind)
    model, pairs = open_model(out), prepared.population.interactions.pairs()
    everybody = list(model.recommend_everybody(5))
    assert [best.user for best in everybody] == list(range(prepared.population.n_users))
    for best in everybody[::9]:
        assert not set(best.items) & set(pairs.row(best.user))
        alone = model.recommend_user(prepared.population.users[best.user], 5)
        assert [entry.item for entry in alone] == [entry.item for entry in model.named(best)]


@KINDS
def test_the_folder_alone_is_enough_for_anybody(trained, kind, tmp_path):
    _, out = trained(kind)
    model = open_model(out)
    shutil.copytree(out / "model", tmp_path / "handed")
    handed = open_model(tmp_path / "handed")
    history = [handed.items[4], handed.items[2]]
    best = handed.recommend(history, 6)
    assert best == model.recommend(history, 6)
    assert len({entry.item for entry in best} - set(history)) == 6
    assert handed.guarantee == model.guarantee
    with pytest.raises(BadInput, match=r"knows no users.* give --history"):
        handed.recommend_user("u01")
    # without any item that it knows, the list is that of somebody new; unknown and repeated ones are passed over
    new = model.recommend([], 6)
    assert len({entry.item for entry in new}) == 6
    assert model.recommend(["never seen"], 6) == new
    assert model.recommend([history[0], "never seen", f" {history[1]} ", history[0]], 6) == best
    assert model.split_history([history[0], "x", "x", f" {history[0]}"]) == ([history[0]], ["x"])


def test_models_of_no_torch_open_without_it(trained):
    assert set(REQUESTS) == set(RANKERS)  # every kind of ranker is among the runs that are trained here
    code = (
        "import sys; from pathlib import Path; from veilrec.runs.saved import open_model\n"
        "for out in sys.argv[1:]:\n"
        "    model = open_model(Path(out)); model.recommend([model.items[0]])\n"
        "    model.recommend_user(model.clients.users[0])\n"
        "print([name for name in ('torch', 'polars', 'matplotlib') if name in sys.modules])"
    )
    # veil-news reads words of news that come later, by polars
    for kinds, loaded in ((REQUESTS.keys() - {"news", "veil-news"}, []), (["veil-news"], ["polars"])):
        runs = [str(trained(kind)[1]) for kind in kinds]
        done = subprocess.run([sys.executable, "-c", code, *runs], capture_output=True, text=True, check=True)
        assert done.stdout.strip() == str(loaded)


def test_items_that_no_round_was_about_come_last_in_a_saved_model_too(tmp_path):
    settings = ("cohort.size=20", "selection.threshold=0.3")
    request = RunRequest("fedmf-sub-rr", RATINGS, seed=1, protocol="loo-full", settings=settings, rounds=1)
    train(prepare(request), tmp_path / "run")
    files = load_model(tmp_path / "run" / "model")
    best = open_model(tmp_path / "run").recommend([files.items[0]], 60)
    unsent = {files.items[int(i)] for i in np.flatnonzero(~files.sent)}
    assert {entry.item for entry in best[-len(unsent) + 1 :]} <= unsent


@pytest.fixture
def copy(trained, tmp_path):
    return shutil.copytree(trained("popularity")[1], tmp_path / "run")


def test_a_damaged_odd_or_missing_file_is_one_line(copy, trained, tmp_path):
    about = json.loads((copy / "model" / "ranker.json").read_text())
    other = (trained("news")[1] / "model" / "items.safetensors").read_bytes()
    names = ("ranker.json", "model.safetensors", "items.safetensors", "guarantee.json")
    for name, content, words in (
        *((name, content, "") for name in names for content in (None, b"", b"{}", b"not this")),
        ("ranker.json", json.dumps(about | {"kind": "oracle"}).encode(), "'oracle'"),
        ("ranker.json", json.dumps(about | {"format": 2}).encode(), "format 2"),
        ("items.safetensors", other, "60 items, and 200 ids"),
    ):
        path = copy / "model" / name
        whole = path.read_bytes()
        path.unlink() if content is None else path.write_bytes(content)
        with pytest.raises(BadInput, match=words or None) as refused:
            open_model(copy)
        assert "\n" not in str(refused.value)
        path.write_bytes(whole)
    (copy / "private" / "clients.safetensors").write_bytes(b"nothing")
    with pytest.raises(BadInput, match=r"clients.safetensors is damaged"):
        load_clients(copy)
    shutil.rmtree(copy / "model")
    with pytest.raises(BadInput, match="has no model yet.* --resume"):
        open_model(copy)
    with pytest.raises(BadInput, match="is no run of veilrec"):
        open_model(tmp_path / "nowhere")


def test_data_with_other_users_or_items_is_refused(tmp_path):
    log, text = tmp_path / "log.csv", "\n".join(["user,item", *(f"u{n % 9},i{n % 7}" for n in range(40))])
    log.write_text(text)
    train(prepare(RunRequest("popularity", f"csv:{log}", protocol="loo-full")), tmp_path / "run")
    for changed, words in (
        (text.replace("u8", "nobody"), "the users of .* are not those"),
        (text.replace("i6", "i99"), "the items of .* are not those"),
        (f"{text}\nu4,i5", "has 41 rows and had 40"),
    ):
        log.write_text(changed)
        with pytest.raises(BadInput, match=words):
            evaluate_run(tmp_path / "run")


def test_the_best_are_those_of_a_stable_sort():
    generator = np.random.default_rng(1)
    for count in (1, 3, 7, 40) * 20:
        scores = generator.integers(0, 4, 30).astype(np.float32)  # many are equal
        scores[generator.integers(0, 30, 2)] = np.nan
        used = generator.choice(30, 5, replace=False).astype(np.int32)
        rest = [i for i in range(30) if i not in used]
        wanted = sorted(rest, key=lambda i: (np.isnan(scores[i]), -scores[i] if scores[i] >= 0 else 0.0, i))
        assert saved.best_of(scores, used, count, 0).items.tolist() == wanted[:count]


def test_whoever_joins_learns_from_what_was_liked_and_gets_nothing_that_was_used(tmp_path):
    prepared = prepare(RunRequest("ease", RATINGS, seed=1, protocol="holdout-users-liked"))
    train(prepared, tmp_path / "run")
    model, likes = open_model(tmp_path / "run"), prepared.split.liked
    clients, user = model.clients, int(prepared.split.test.users[0])
    liked, used = (set(rows.row(user).tolist()) for rows in (likes, clients.used))
    assert liked < used
    got = model.recommend_user(clients.users[user], 10)
    wanted = model.recommend([model.items[item] for item in likes.row(user).tolist()], 60)
    names = {model.items[item] for item in used}
    assert got == [best for best in wanted if best.item not in names][:10]


FEW, BY_CHANCE = ("cohort.size=20",), ("cohort.size=20", "cohort.sampling=poisson", "rounds=2")
METHODS = {
    "dp-privrec": (*FEW, "features.users=[town,age]", "model.embedding=3", "model.hidden=[4]"),
    "popularity-head": FEW,
    **dict.fromkeys(("dp-fedmf", "priv-fedmf-sub", "dp-fedncf"), BY_CHANCE),
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
    rows = [f"zoe,i{7 * k % 40}" for k in range(count)]  # first in the log, last by id
    rows += [f"u{user},i{(user + 2 * k) % 40}" for user in range(40) for k in range(6)]
    (folder / "items.csv").write_text("\n".join(["item,kind", *(f"i{k},{'abc'[k % 3]}" for k in range(40))]))
    people = [f"u{user},{'ABC'[user % 3]},{20 + user}" for user in range(40)]
    (folder / f"{name}.people.csv").write_text("\n".join(["user,town,age", *people, f"zoe,{town},{age}"]))
    (folder / f"{name}.csv").write_text("\n".join(["user,item", *rows]))
    (folder / f"{name}.features.yaml").write_text(SCHEMA.replace("PEOPLE", f"{name}.people.csv"))
    return folder / f"{name}.csv"


def released(method, log, out):
    """All that the model's folder says, but for the numbers of tensors that were learnt."""
    prepared = prepare(RunRequest(method, f"csv:{log}", protocol="loo-full", settings=METHODS[method]))
    train(prepared, out)
    learnt = {"sent", *(f"weight.{name}" for name in prepared.trainer.parts().weights)}
    said = {}
    for path in sorted((out / "model").iterdir()):
        if path.suffix == ".json":
            said[path.name] = path.read_bytes()
            continue
        with safe_open(path, framework="numpy") as stored:
            said[path.name] = stored.metadata()
        for name, values in load_file(path).items():
            said[f"{path.name}:{name}"] = (values.dtype, values.shape) if name in learnt else values.tolist()
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
    if METHODS[method] == BY_CHANCE:
        files = ["guarantee.json", "items.safetensors", "model.safetensors", "ranker.json"]
        assert sorted({name.partition(":")[0] for name in one}) == files
        assert one["model.safetensors"] is None
        own = {name.partition(":")[2] for name in one if name.startswith("model.safetensors:")}
        assert all(name.startswith("weight.") or name == "sent" for name in own)
    else:
        assert {"items.codes", "items.numbers"} <= arrays
    if method == "popularity-head":
        weights = load_file(tmp_path / "run-0" / "model" / "model.safetensors")
        assert not any(weights[f"weight.layer1.{part}"].any() for part in ("weight", "bias")), "a head was released"
    assert not any("features" in name or "users" in name.removeprefix("weight.users.embedding") for name in arrays)


@pytest.mark.parametrize(
    ("method", "where"), [("dp-privrec", "tables"), ("popularity-head", "tables"), ("dp-privrec", "settings")]
)
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
