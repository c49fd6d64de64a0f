"""A run of every family becomes a release, which ranks as the run does, without torch and without the data."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from tests.runs.conftest import NEWS, REQUESTS, client
from veilrec.client.queries import PlacedInput
from veilrec.client.recommender import QueryBudget, ServerLink
from veilrec.client.released import asking_of, offers_of, one_history
from veilrec.core.errors import BadInput
from veilrec.data.datasets import load
from veilrec.methods.news.ranker import NewsUsers
from veilrec.runs.release import ReleaseOptions, make_release
from veilrec.runs.release_model import embedder, open_client, ranking_of, texts_of
from veilrec.runs.request import RunRequest, prepare
from veilrec.runs.saved import open_model
from veilrec.runs.training import train
from veilrec.serving.edition import Edition
from veilrec.wire.releases import open_release
from veilrec.wire.signing import Rotation, new_key

PRIVATE = RunRequest("privaterec", NEWS, seed=1, noise="secure", rounds=2)
FAMILY = {
    "news": "news",
    "privaterec": "news",
    "matrix-factorisation": "factors",
    "least-squares": "factors",
    "private-least-squares": "factors",
    "veil": "catalogue",
}
KINDS = pytest.mark.parametrize("kind", [*REQUESTS, "privaterec"])


@pytest.fixture(scope="module")
def key(tmp_path_factory):
    return new_key(tmp_path_factory.mktemp("keys") / "a.key")


@pytest.fixture(scope="module")
def released(trained, tmp_path_factory, key):
    """From a kind of ranker to a run and its release."""
    folder = tmp_path_factory.mktemp("released")

    @cache
    def release(kind):
        run = folder / "privaterec-run" if kind == "privaterec" else trained(kind)[1]
        if kind == "privaterec":
            train(prepare(PRIVATE), run)
        return run, make_release(run, folder / kind, key, ReleaseOptions(unprotected=kind != "privaterec"))

    return release


@KINDS
def test_a_client_ranks_as_the_run_does(released, kind, tmp_path):
    run, release = released(kind)
    assert release.family == FAMILY.get(kind, "ranker")
    ids, model = texts_of(release).ids, open_model(run)
    for number, history in enumerate(([], [ids[3]], [ids[5], ids[2], ids[30]])):
        expected = model.recommend(history, 8)
        found = client(release, tmp_path / str(number), *history).recommend(8).items
        scores = np.array([item.score for item in found])
        apart = 1e-4 if release.family != "catalogue" else 0.02  # 16 bits a number: see test_release_catalogue
        assert np.abs(scores - np.array([best.score for best in expected])).max() < apart
        same = sum(item.id == best.item for item, best in zip(found, expected, strict=True))
        assert same == 8 or len(np.unique(np.round(scores, 4))) < 8  # but for ties
        assert [item.title for item in found] == [model.titles[model.items.find(item.id)] for item in found]


@KINDS
def test_it_says_what_it_promises_and_holds_nothing_of_anybody_but_the_model(released, kind):
    """Neither users nor their histories, states or the seed; and metrics only of synthetic data."""
    run, release = released(kind)
    card = release.content("model-card.md").decode()
    assert release.protected == (kind == "privaterec")
    assert ("UNPROTECTED" in card) == (not release.protected)
    assert release.guarantee.line() in card
    assert all(f"`{offer['mode']}`" in card for offer in release.manifest["offers"])
    people = set(open_model(run).clients.users)
    allowed = {f"{name}.safetensors" for name in ("items", "vectors", "serving", "readers", "encoder", "ranking")}
    allowed |= {f"model/{name}" for name in ("ranker.json", "guarantee.json", "ranker.safetensors")}
    allowed |= {"model-card.md", "model/model.safetensors", "model/items.safetensors"}
    assert set(release.manifest["files"]) <= allowed
    shapes = [t["shape"] for about in release.manifest["files"].values() for t in about.get("tensors", {}).values()]
    assert not any({len(people), len(people) + 1} & set(shape) for shape in shapes)
    texts = [path.read_text() for path in release.folder.rglob("*") if path.suffix in (".json", ".md")]
    assert not any(people & set(re.findall(r"[\w-]+", text)) for text in texts)


def test_a_run_that_is_not_publishable_is_refused_and_metrics_of_people_are_left_out(
    trained, tmp_path, key, monkeypatch
):
    train(prepare(replace(PRIVATE, noise="seeded")), tmp_path / "seeded")
    for run, words in ((trained("popularity")[1], "--unprotected"), (tmp_path / "seeded", "--noise secure")):
        with pytest.raises(BadInput, match=words):
            make_release(run, tmp_path / "release", key, ReleaseOptions())
        assert not (tmp_path / "release").exists()
    run = trained("popularity")[1]
    monkeypatch.setattr("veilrec.runs.release.SYNTHETIC", ())  # as if the data were of people
    shy = make_release(run, tmp_path / "shy", key, ReleaseOptions(unprotected=True))
    assert "metrics" not in shy.manifest["figures"]
    told = make_release(run, tmp_path / "told", key, ReleaseOptions(unprotected=True, metrics=True))
    assert "not cover" in told.manifest["figures"]["about"]


def test_versions_follow_each_other_and_keys_hand_over(trained, tmp_path, key):
    run, out, wishes = trained("popularity")[1], tmp_path / "release", ReleaseOptions(unprotected=True)
    assert [make_release(run, out, key, wishes).version for _ in range(2)] == [1, 2]
    other = new_key(tmp_path / "b.key")
    for signer, asked, words in (
        (key, replace(wishes, version=2), "not later"),
        (key, replace(wishes, name="other"), "holds"),
        (other, wishes, "another key"),
    ):
        with pytest.raises(BadInput, match=words):
            make_release(run, out, signer, asked)
    assert make_release(run, out, other, wishes, [Rotation.made(key, other.public)]).version == 3
    assert open_release(out, trusted=key.public).key == other.public


def test_odd_offers_and_places_are_refused_with_nothing_written(trained, tmp_path, key):
    run, out = trained("news")[1], tmp_path / "release"
    for offers, line in (
        (["attention:1"], "basis"),
        (["interest"], "MODE:EPSILON"),
        (["interest:x"], "MODE:EPSILON"),
        (["interest:1", "interest:2"], "twice"),
        (["unheard:1"], "unheard"),
        (["interest:1,noise=gaussian"], "noise means nothing"),
        (["interest:1,nonsense=2"], "nonsense"),
        (["interest:1,pool=some"], "pool"),
        (["pooled:1:1e-6,sensitive=health"], "sensitive"),
        (["interest:-1"], "epsilon"),
    ):
        with pytest.raises(BadInput, match=line):
            make_release(run, out, key, ReleaseOptions(unprotected=True, offers=offers))
        assert not out.exists()
    out.mkdir()
    (out / "mine").write_text("mine")
    with pytest.raises(BadInput, match="no release"):
        make_release(run, out, key, ReleaseOptions(unprotected=True))
    assert (out / "mine").read_text() == "mine"


def test_a_release_serves_as_the_paper_does_where_that_is_asked_for(tmp_path, key):
    """Padding, SoftPlus, both laws and both calibrations: client and server do what `evaluate` measures."""
    asked = replace(
        PRIVATE, noise="seeded", settings=("calibration=as-published", "privacy.pad_probability=0.5", "cohort.size=10")
    )
    train(prepare(asked), tmp_path / "run")
    for number, (offer, wanted) in enumerate(
        (
            ("attention:10,calibration=as-published,padding=0.5", ("laplace", "softplus", "as-published", 0.5)),
            ("attention:10:1e-3,calibration=as-published", ("gaussian", "softplus", "as-published", None)),
            ("attention:4,padding=0.5", ("laplace", "simplex", "proven", 0.5)),
            ("attention:4:1e-6,normalise=relu", ("gaussian", "relu", "proven", None)),
            ("vector:10,calibration=as-published", ("laplace", None, "as-published", None)),
        )
    ):
        out = tmp_path / str(number)
        release = make_release(tmp_path / "run", out, key, ReleaseOptions(unprotected=True, offers=[offer]))
        (mode, found), model = next(iter(offers_of(release).items())), ranking_of(release)
        asking = asking_of(found, model, release.arrays("serving.safetensors"))
        mechanism, fields = asking.mechanism, found.fields
        law, normalise, calibration, padding = wanted
        assert (fields["noise"], mechanism.calibration) == (law, calibration)
        assert (fields.get("normalise"), fields.get("padding")) == (normalise, padding)
        assert getattr(mechanism, "pad_probability", None) == padding
        assert mechanism.claimed_epsilon == float(offer.split(":")[1].split(",")[0])
        edition = Edition(release)
        assert normalise is None or edition.normalisation == normalise
        roomy = QueryBudget(history=1e4, click=1e4)
        state = open_client(tmp_path / f"state-{number}", release, server=Answers(release), allowance=roomy)
        state.read(*(texts_of(release).ids[row] for row in (3, 5)))
        assert state.recommend(3, mode).mode == mode
        if padding is not None:
            users, slots = NewsUsers(open_model(tmp_path / "run").for_users), model.longest
            histories = one_history(np.array([3, 5, 9], np.int32))
            np.testing.assert_allclose(model.pad, users.pad, atol=1e-6)
            given = PlacedInput(users.news, users.pad, slots, fill=calibration == "proven").inputs(histories)
            own = asking.encoder.inputs(histories)
            np.testing.assert_allclose(own.vectors, given.vectors, atol=1e-5)
            np.testing.assert_array_equal(own.taken, given.taken)
            expected = users.users_in_slots(given.vectors, given.taken)
            np.testing.assert_allclose(model.users_in_slots(own.vectors, own.taken), expected, atol=1e-4)


class Answers(ServerLink):
    """A server that answers every query with the first items."""

    def __init__(self, release):
        self.release = release

    def best(self, query, k):
        ids = texts_of(self.release).ids
        return [{"id": ids[row], "title": "", "score": -float(row)} for row in range(k)]


def test_default_offers_are_those_that_are_worth_something_and_it_is_said(released, tmp_path, key):
    """At epsilon 1e-3 attention is noise alone: it finds no more of the ten best than chance."""
    run, release = released("privaterec")
    modes = {offer["mode"] for offer in release.manifest["offers"]}
    figures, card = release.manifest["figures"], release.content("model-card.md").decode()
    assert len(figures["offers"]) == len(modes) and all("% of the ten best" in line for line in figures["offers"])
    assert {line.partition(":")[0] for line in figures["not_offered"]} == {"interest", "attention", "pooled"} - modes
    assert all(line in card for line in figures["not_offered"])
    offers = ("attention:0.001", "vector:1000000")
    asked = make_release(run, tmp_path / "asked", key, ReleaseOptions(offers=offers)).manifest["figures"]["offers"]
    noise, exact = (int(line.partition("keeps ")[2].partition("%")[0]) for line in asked)
    assert noise < 30 and exact > 90  # of 10 among 60 or more news, chance is 17 at most


def test_padding_is_offered_only_of_a_model_that_learnt_it(released, tmp_path, key):
    run, _ = released("privaterec")
    with pytest.raises(BadInput, match="trained with padding of 0"):
        make_release(run, tmp_path / "release", key, ReleaseOptions(offers=["attention:4,padding=0.5"]))


@pytest.mark.parametrize("kind", ["news", "privaterec"])
def test_the_text_of_a_new_item_becomes_the_vector_of_a_known_one(released, kind):
    assert embedder(released("popularity")[1]) is None
    release = released(kind)[1]
    embed, known, vectors = embedder(release), load(NEWS).catalogue, release.arrays("vectors.safetensors")["items"]
    for item in (0, 17, 101):
        texts = (known.titles, known.abstracts, known.categories, known.subcategories)
        found = embed(*(column[item] for column in texts))
        assert np.abs(found - vectors[item]).max() < 1e-5


def test_a_client_needs_neither_torch_nor_numba(released, tmp_path):
    releases = {kind: released(kind)[1] for kind in (*REQUESTS, "privaterec")}
    histories = [[texts_of(release).ids[n] for n in range(5, 60, 3)] for release in releases.values()]
    script = (
        "import io, json, sys; from contextlib import redirect_stderr, redirect_stdout\n"
        "from tests.core_only import hide; hide(); from veilrec.cli.main import run\n"
        "for asked in sys.argv[1:]:\n"
        "    folder, _, history = asked.partition(':')\n"
        "    sys.argv[1:] = ['query', folder, '-k', '3', '--json', '--history', history]\n"
        "    code, out, err = 0, io.StringIO(), io.StringIO()\n"
        "    with redirect_stdout(out), redirect_stderr(err):\n"
        "        try: run()\n"
        "        except SystemExit as end: code = end.code or 0\n"
        "    print(json.dumps([code, out.getvalue(), err.getvalue()]))"
    )
    asked = [f"{of.folder}:{','.join(history)}" for of, history in zip(releases.values(), histories, strict=True)]
    command, here = [sys.executable, "-c", script, *asked], Path(__file__).parents[2]
    done = subprocess.run(command, capture_output=True, text=True, cwd=here, check=True)
    for (kind, release), history, line in zip(releases.items(), histories, done.stdout.splitlines(), strict=True):
        code, out, err = json.loads(line)
        if kind == "veil-news":  # it reads texts of new news
            assert (code, "pip install 'veilrec[train]'" in err) == (2, True), kind
            continue
        assert code == 0, err
        found, expected = json.loads(out), client(release, tmp_path / kind, *history).recommend(3)
        assert (found["sent_bytes"], found["notes"]) == (0, list(expected.notes)), kind
        assert [item["id"] for item in found["items"]] == [item.id for item in expected.items], kind
