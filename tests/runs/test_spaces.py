"""What a search may choose."""

import pytest

from veilrec.core.errors import BadInput
from veilrec.methods.base import configure
from veilrec.methods.registry import get
from veilrec.runs.tuning import Choice, Range, default_space, read_space


def usual(name):
    method = get(name)
    config, rounds = configure(method, preset="tuned", dataset="")
    return default_space(method, config, rounds)


def read(tmp_path, text, method="fedmf"):
    path = tmp_path / "space.yaml"
    path.write_text(text)
    return read_space(path, get(method), "tuned", "")


def test_the_rule_is_around_the_preset():
    space = usual("fedmf")
    assert space["local.dim"] == Choice(("16", "32", "64"))
    assert space["local.epochs"] == Range(2, 10, log=True, whole=True)
    assert space["server.rate"] == Range(0.1, 10.0, log=True)
    assert "rounds" not in space
    assert "cohort.size" not in space
    assert usual("ease") == {"ridge": Range(50.0, 5000.0, log=True)}


def test_a_promise_is_never_searched_for_and_private_rounds_are(tmp_path):
    space = usual("dp-fedmf")
    assert not [name for name in space if "epsilon" in name or "delta" in name]
    assert space["privacy.clip_norm"] == Range(0.0625, 1.0, log=True)
    assert space["rounds"] == Range(5, 20, log=True, whole=True)
    with pytest.raises(BadInput, match="is a promise and not searched for"):
        read(tmp_path, "privacy.epsilon: [1, 8]", "dp-fedmf")
    with pytest.raises(BadInput, match="popularity has no settings with a usual range: give --space"):
        usual("popularity")
    with pytest.raises(BadInput, match="cannot be read"):
        read_space(tmp_path / "none.yaml", get("mf"), "tuned", "")


def test_a_file_has_ranges_and_choices(tmp_path):
    space = read(
        tmp_path,
        "local.item_rate: {low: 1e-3, high: 1, log: true}\nlocal.dim: {low: 4, high: 64}\n"
        "aggregation: [mean, sum]\nrounds: [3, 5]\n",
    )
    assert space == {
        "local.item_rate": Range(0.001, 1, log=True),
        "local.dim": Range(4, 64, whole=True),
        "aggregation": Choice(("mean", "sum")),
        "rounds": Choice(("3", "5")),
    }
    assert read(tmp_path, "local.layers: [[16, 8], [8, 4]]", "fedncf")["local.layers"].values == ("[16, 8]", "[8, 4]")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("locl.dim: [8]", "unknown setting of fedmf 'locl.dim': did you mean local.dim"),
        ("local.dim: {low: 5}", "high: Field required"),
        ("local.dim: {low: five, high: 6}", "low: .*found 'five'"),
        ("local.dim: {low: 5, high: 2}", "low has to be below high"),
        ("local.item_rate: {low: 0, high: 2, log: true}", "logarithmic"),
        ("local.item_rate: {low: 0.1, high: 2, log: maybe}", "log: .*boolean"),
        ("local.dim: 3", "give {low: L, high: H, log: true} or a list"),
        ("local.dim: []", "one or more values"),
        ("local.dim: [8, 8]", "each value once"),
        ("local.dim: {low: 1.5, high: 3}", "whole numbers"),
        ("local.dim: {low: 1, high: 3, step: 1}", "step: Unexpected"),
        ("local.item_rate: {low: -1, high: 2}", "-1 cannot be"),
        ("aggregation: [mean, median]", "median cannot be"),
        ("", "no list of names and values"),
        ("[", "is no YAML"),
    ],
)
def test_a_bad_space_is_refused(tmp_path, text, words):
    with pytest.raises(BadInput, match=words):
        read(tmp_path, text)
