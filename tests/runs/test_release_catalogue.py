"""A run of veil becomes a catalogue that a client ranks by itself: as the run does, in few bytes, with nobody in it."""

import json
from dataclasses import replace

import numpy as np
import pytest

from tests.runs.conftest import client
from veilrec.client.released import one_history, packed, program_of, unpacked
from veilrec.core.errors import BadInput
from veilrec.runs.model_files import load_model
from veilrec.runs.release import ReleaseOptions, make_release
from veilrec.runs.release_model import parts_of, ranking_of
from veilrec.runs.request import RunRequest, prepare
from veilrec.runs.saved import open_model
from veilrec.runs.training import train
from veilrec.wire.releases import BadRelease
from veilrec.wire.signing import new_key

FILMS = "synthetic-ratings:users=150,items=120,mean_history=12,seed=3"
REQUEST = RunRequest("veil", FILMS, seed=1, protocol="loo-full", settings=("people=20000",), noise="secure", rounds=6)
HISTORIES = ([], ["i003"], ["i005", "i002", "i030"], [f"i{number:03d}" for number in range(5, 60, 3)])


@pytest.fixture(scope="module")
def released(tmp_path_factory):
    folder = tmp_path_factory.mktemp("films")
    train(prepare(REQUEST), folder / "run")
    return folder / "run", make_release(folder / "run", folder / "release", new_key(folder / "a.key"), ReleaseOptions())


def test_a_client_ranks_as_the_run_does_to_what_sixteen_bits_hold_and_says_that_nothing_left(released, tmp_path):
    (run, release), told = released, []
    assert release.family == "catalogue"
    for number, history in enumerate(HISTORIES):
        expected = {best.item: best.score for best in open_model(run).recommend(history, 100)}
        answer = client(release, tmp_path / str(number), *history).recommend(100)
        assert (answer.sent, answer.guarantee, answer.ranked_by) == (None, None, "client")
        told += answer.notes
        found = answer.items
        spread = float(np.std(list(expected.values())))
        assert {item.id for item in found[:60]} <= set(expected)
        assert max(abs(item.score - expected[item.id]) for item in found if item.id in expected) < 5e-3 * spread
    assert "popular" in told[0] and "content" in told[0] and "everybody" in told[0]
    assert told[1].startswith("Ranked here by 1 item, with the weights of everybody")
    assert told[3].startswith("Ranked here by 19 items in their order, with weights fitted to the latest 15")
    with client(release, tmp_path / "asks", "i003") as asking:
        with pytest.raises(BadInput, match="none-sent"):
            asking.recommend(3, "interest")
        assert [item.id for item in asking.recommend(3, "nobody").items] != ["i003"]
    model, history = ranking_of(release), np.arange(5, 60, 3, dtype=np.int32)
    assert np.abs(model.scores(history) - model.scores(history[::-1])).max() > 0.01  # the order counts


def test_it_is_small_and_carries_neither_votes_nor_what_the_run_keeps(released):
    run, release = released
    files = release.manifest["files"]
    assert set(files) == {"items.safetensors", "ranking.safetensors", "model-card.md", "model/guarantee.json"}
    wide = sum((run / "model" / f"{name}.safetensors").stat().st_size for name in ("ranker", "model"))
    assert files["ranking.safetensors"]["bytes"] < 0.6 * wide
    tensors = files["ranking.safetensors"]["tensors"]
    assert {name.partition(".")[0] for name in tensors} == {"content", "learnt", "places", "whitening"}
    assert tensors["content.basis"]["dtype"] == tensors["content.texts"]["dtype"] == "F16"
    people = len(open_model(run).clients.users)
    assert not any({people, people + 1} & set(about["shape"]) for about in tensors.values())


LOG = [f"u{user},i{(user + 2 * k) % 40}" for user in range(40) for k in range(6)]
FEATURES = """items:
  file: ../items.csv
  features:
    kind: {kind: categories}
    year: {kind: number, low: 1990, high: 2020}
"""


def test_but_for_what_was_learnt_a_release_is_the_same_whatever_a_user_has(tmp_path):
    """Names, types, shapes, settings and all that is public: only the numbers that the proof covers may differ."""
    items = [f"i{n},{'ab'[n % 2]}|{'cde'[n % 3]},{1990 + n % 30}" for n in range(40)]
    (tmp_path / "items.csv").write_text("\n".join(["item,kind,year", *items]))
    told, key = [], new_key(tmp_path / "a.key")
    for extra in (3, 12):
        log = tmp_path / str(extra) / "log.csv"
        log.parent.mkdir()
        log.write_text("\n".join(["user,item", *(f"somebody,i{7 * k % 40}" for k in range(extra)), *LOG]))
        log.with_suffix(".features.yaml").write_text(FEATURES)
        settings = ("people=20000",)
        request = RunRequest("veil", f"csv:{log}", protocol="loo-full", settings=settings, noise="secure", rounds=3)
        train(prepare(request), log.parent / "run")
        release = make_release(log.parent / "run", log.parent / "release", key, ReleaseOptions(name="films"))
        arrays = release.arrays("ranking.safetensors")
        assert len(arrays["content.kernels"]) > 3
        public = {name: arrays[name].tobytes() for name in arrays if not name.startswith(("learnt.", "places."))}
        files = {name: about.get("tensors", about["bytes"]) for name, about in release.manifest["files"].items()}
        manifest = {
            name: release.manifest[name]
            for name in release.manifest.keys() - {"created", "expires", "files", "figures"}
        }
        told.append({"public": public, "files": files, "manifest": manifest})
        assert "somebody" not in json.dumps(release.manifest) + (release.folder / "model-card.md").read_text()
    assert told[0] == told[1]


def test_what_does_not_fit_together_is_refused_in_one_line(released):
    run, _ = released
    files = load_model(run / "model")
    ranker, n_items = files.ranker, len(files.items)
    program, arrays = program_of(ranker), packed(ranker, ranker.learnt(files.weights))
    assert unpacked(program, arrays, n_items).fold_in(one_history(np.zeros(0, np.int32))).n_items == n_items
    codes, weights = arrays["content.codes"].copy(), arrays["learnt.weights"].copy()
    codes[0, 0], weights[0] = 200, np.inf
    for how, what, count in (
        (program | {"ranks": "other"}, arrays, n_items),
        (program | {"formulas": 99}, arrays, n_items),
        (program | {"reading": {"recency": "x"}}, arrays, n_items),
        (program | {"caution": None}, arrays, n_items),
        (program, arrays | {"content.codes": codes}, n_items),
        (program, arrays | {"learnt.weights": weights}, n_items),
        (program, arrays | {"learnt.map": arrays["learnt.map"][1:]}, n_items),
        (program, {name: values for name, values in arrays.items() if name != "whitening"}, n_items),
        (program, arrays, n_items + 1),
    ):
        with pytest.raises(BadRelease) as refused:
            unpacked(how, what, count)
        assert "\n" not in str(refused.value)


def test_numbers_that_sixteen_bits_do_not_hold_are_not_released(tmp_path):
    train(prepare(replace(REQUEST, noise="seeded", seed=2)), tmp_path / "run")  # the same noise and lists every time
    files = load_model(tmp_path / "run" / "model")
    content = files.ranker.content
    tables, scales = content.tables * np.float32(1e-9), content.scales * np.float32(1e9)  # kernels are the same
    tiny = replace(files.ranker, content=replace(content, tables=tables, scales=scales))
    with pytest.raises(BadInput, match="16 bits"):
        parts_of(replace(files, ranker=tiny), None)
    with pytest.raises(BadInput, match="leave --offer out"):
        parts_of(files, ["interest:1"])
