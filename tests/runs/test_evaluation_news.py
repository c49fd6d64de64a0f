"""Saved news models at work: on a data set with other ids, for known users and for new ones."""

import json
import shutil
import zlib
from dataclasses import replace

import numpy as np
import pytest

from tests.methods.tiny_news import SMALL, method
from veilrec.core.csr import Csr
from veilrec.core.errors import BadInput
from veilrec.data import mind
from veilrec.data.population import ItemTable, Strings
from veilrec.data.synthetic_news import generate
from veilrec.runs.evaluation import evaluate_run
from veilrec.runs.request import RunRequest, prepare
from veilrec.runs.saved import open_model
from veilrec.runs.training import train

HEAD = ("cohort.size=20", "text.sentence_dim=16", "size.attention=4")
NAMES = ("nrms", "naml", "lstur", "dkn", "fm", "plm-nr", "fednewsrec-head")  # every way to read news


@pytest.fixture(autouse=True)
def made_up_sentences(monkeypatch, tmp_path_factory):
    """Sentence vectors that depend on the title alone, without the language model; and a cache of our own."""
    monkeypatch.setenv("VEILREC_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))

    def vectors(catalogue):
        seeds = [zlib.crc32(title.encode()) for title in catalogue.titles]
        return np.stack([np.random.default_rng(seed).standard_normal(384, np.float32) for seed in seeds])

    monkeypatch.setattr("veilrec.methods.news.text_vectors.whole_vectors", vectors)
    monkeypatch.setattr("veilrec.models.text_embeddings.model_folder", lambda: None)  # the package is not needed then


def renamed(whole):
    """The same people and news under other ids, the news in another order."""
    order = np.random.default_rng(5).permutation(whole.n_items)
    number = np.argsort(order).astype(np.int32)

    def moved(rows):
        return Csr(rows.offsets, number[rows.items])

    columns = (getattr(whole.catalogue, name) for name in ("titles", "categories", "subcategories", "abstracts"))
    catalogue = ItemTable(*(Strings.of(column[int(place)] for place in order) for column in columns))
    users = Strings.of(f"other{user}" for user in whole.users)
    items = Strings.of(f"X{place}" for place in range(whole.n_items))
    parts = whole.impressions.items()
    shown = {name: replace(part, shown=moved(part.shown), histories=moved(part.histories)) for name, part in parts}
    return replace(whole, users=users, items=items, impressions=shown, catalogue=catalogue)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """MIND folders: `first`, the same under other ids, and another one."""
    folder = tmp_path_factory.mktemp("mind")
    first = generate(users=60, news=240, days=3, seed=3)
    mind.write(first, folder / "first")
    mind.write(renamed(first), folder / "renamed")
    mind.write(generate(users=30, news=300, days=3, seed=8), folder / "other")
    return folder


def run(folders, out, name):
    kind = ("cohort.size=20",) if method(name).kind == "federated" else ("batch=64",)
    request = RunRequest(name, f"mind:{folders / 'first'}", seed=1, settings=(*SMALL, *kind), rounds=1)
    train(prepare(request), out)
    return out


@pytest.mark.parametrize("name", NAMES)
def test_a_model_reads_the_text_and_not_the_ids(name, folders, tmp_path):
    out = run(folders, tmp_path / "run", name)
    own = evaluate_run(out)["metrics"]
    assert own == json.loads((out / "result.json").read_text())["metrics"]
    elsewhere = evaluate_run(out, data=f"mind:{folders / 'renamed'}")["metrics"]
    assert elsewhere == pytest.approx(own, abs=1e-4)
    other = evaluate_run(out, data=f"mind:{folders / 'other'}")
    assert other["metrics"]["cases"] > 20 and set(other["baselines"]) == {"popularity", "random"}
    opened = open_model(out)
    best = opened.recommend([opened.items[3], opened.items[1]], 3)
    assert all(entry.title for entry in best)
    assert len(best) == len(opened.recommend_user(opened.clients.users[0], 3)) == 3


@pytest.fixture(scope="module")
def trained(folders, tmp_path_factory):
    return run(folders, tmp_path_factory.mktemp("runs") / "cennewsrec", "cennewsrec")


def test_a_folder_with_one_part_is_asked_whole_and_the_order_of_a_new_history_counts(folders, trained):
    both = evaluate_run(trained, data=f"mind:{folders / 'other'}")["metrics"]
    dev = evaluate_run(trained, data=f"mind:{folders / 'other' / 'dev'}")
    assert (dev["protocol"], dev["metrics"]) == ("mind", pytest.approx(both, abs=1e-4))
    # of a part that is asked, popularity may count the histories but not the clicks
    assert dev["baselines"]["popularity"]["auc"] < 0.8
    opened = open_model(trained)
    history = [opened.items[int(item)] for item in opened.clients.used.row(0)]
    forwards, backwards = opened.recommend(history, 5), opened.recommend(history[::-1], 5)
    assert [entry.score for entry in forwards] != [entry.score for entry in backwards]
    assert opened.recommend([*history, history[0]], 5) == forwards  # a repeated id adds nothing


def test_what_cannot_be_measured_elsewhere_is_refused(folders, trained, tmp_path):
    train(prepare(RunRequest("popularity", f"mind:{folders / 'first'}", seed=1, rounds=1)), tmp_path / "run")
    for run, protocol, data, words in (
        (trained, None, f"mind:{folders / 'first' / 'train'}", r"of the .* impressions were in the training"),
        (trained, "loo-full", "synthetic-news:users=40,news=240,seed=4", "asks about users of its own training"),
        (tmp_path / "run", None, f"mind:{folders / 'other'}", "popularity knows items by their ids"),
    ):
        with pytest.raises(BadInput, match=words):
            evaluate_run(run, protocol, data)


def test_other_news_are_ranked_when_those_of_the_training_are_gone(folders, tmp_path):
    shutil.copytree(folders / "first", tmp_path / "first")
    request = RunRequest("fednewsrec-head", f"mind:{tmp_path / 'first'}", seed=1, settings=HEAD, rounds=1)
    train(prepare(request), tmp_path / "run")
    before = evaluate_run(tmp_path / "run", data=f"mind:{folders / 'other'}")["metrics"]
    shutil.rmtree(tmp_path / "first")
    assert evaluate_run(tmp_path / "run", data=f"mind:{folders / 'other'}")["metrics"] == before
    with pytest.raises(BadInput, match=r"of the .* impressions were in the training"):
        evaluate_run(tmp_path / "run", data=f"mind:{folders / 'first' / 'train'}")
    assert open_model(tmp_path / "run" / "model").recommend(["N001"], 2)


def test_frozen_word_vectors_come_back(folders, tmp_path):
    words = tmp_path / "words.txt"
    words.write_text("about 0.25 -0.5 0\nafter 0.25 -0.5 1\nactor 0.25 -0.5 2\n")
    settings = (*SMALL, f"text.words={words}", "text.freeze_words=true", "batch=64")
    request = RunRequest("nrms", f"mind:{folders / 'first'}", seed=1, settings=settings, rounds=1)
    result = train(prepare(request), tmp_path / "run")
    words.unlink()
    assert evaluate_run(tmp_path / "run")["metrics"] == result["metrics"]
    assert str(tmp_path) not in (tmp_path / "run" / "model" / "ranker.json").read_text()


def test_users_of_dev_alone_and_without_any_history_get_news_too(folders, tmp_path):
    lines = (folders / "first" / "dev" / "behaviors.tsv").read_text().splitlines()
    _, _, when, history, shown = lines[0].split("\t")
    extra = [f"10000\tlate\t{when}\t{history}\t{shown}", f"10001\tnew\t{when}\t\t{shown}"]
    mine = shutil.copytree(folders / "first", tmp_path / "data")
    (mine / "dev" / "behaviors.tsv").write_text("\n".join([*lines, *extra]) + "\n")
    request = RunRequest("nrms", f"mind:{mine}", seed=1, settings=SMALL, rounds=1)
    train(prepare(request), tmp_path / "run")
    opened = open_model(tmp_path / "run")
    for user in ("late", "new"):
        assert [bool(best.title) for best in opened.recommend_user(user, 4)] == [True] * 4
    with pytest.raises(BadInput, match="no user 'nobody'.* for somebody who was not in the training give --history"):
        opened.recommend_user("nobody", 4)
    with (mine / "train" / "news.tsv").open("a") as news:
        news.write("N-new\tnews\tus\tOne more\t\t\t[]\t[]\n")
    with pytest.raises(BadInput, match=r"has 241 items and had 240 when .* was trained"):
        evaluate_run(tmp_path / "run")
