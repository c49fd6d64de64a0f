"""Methods as a comparison names them."""

import pytest

from veilrec.core.errors import BadInput
from veilrec.runs.comparison import make_contenders

GIVEN = {"data": "synthetic-ratings", "protocol": None, "preset": None, "rounds": None}


@pytest.mark.parametrize(
    ("specs", "shared", "found", "notes"),
    [
        (
            ["fedmf", "dp-fedmf:privacy.epsilon=4, local.dim=16", "fedncf:local.layers=[16, 8]"],
            [],
            [(), ("privacy.epsilon=4", "local.dim=16"), ("local.layers=[16, 8]",)],
            [],
        ),
        (  # a setting reaches all that have it
            ["fedmf", "ease", "dp-fedmf:local.dim=4"],
            ["local.dim=8"],
            [("local.dim=8",), (), ("local.dim=8", "local.dim=4")],
            ["--set local.dim=8 is for fedmf, dp-fedmf:local.dim=4; not for ease"],
        ),
        (["fedmf", "fedmf-lean"], ["fedmf.local.dim=8"], [("local.dim=8",), ()], []),
    ],
)
def test_settings_of_all_and_of_one(specs, shared, found, notes):
    contenders, told = make_contenders(specs, GIVEN, shared)
    assert [c.label.replace(", ", ",") for c in contenders] == [spec.replace(", ", ",") for spec in specs]
    assert ([c.request.settings for c in contenders], told) == (found, notes)


def test_presets_and_rounds_can_be_of_one():
    contenders, _ = make_contenders(["fedmf:preset=paper", "fedmf:rounds=7", "ease", "mf"], GIVEN | {"rounds": 3})
    asked = [(c.request.preset, c.request.rounds, c.request.settings) for c in contenders]
    assert asked == [("paper", 3, ()), ("tuned", None, ("rounds=7",)), ("tuned", None, ()), ("tuned", 3, ())]


def test_a_file_stands_for_its_settings(tmp_path):
    best = tmp_path / "best.yaml"
    best.write_text("method: mf\ndata: ml-100k\nsettings: [dim=4]\nrounds: 6\ncaveats: [Tuned.]\n")
    (mf,), notes = make_contenders([f"mf:{best},rate=0.1"], GIVEN)
    assert (mf.request.settings, mf.request.rounds, mf.request.data) == (("dim=4", "rate=0.1"), 6, "synthetic-ratings")
    assert mf.request.caveats == ("Tuned.",)
    assert notes == []
    with pytest.raises(BadInput, match="is for mf, and ease was asked for"):
        make_contenders([f"ease:{best}"], GIVEN)


@pytest.mark.parametrize(
    ("specs", "shared", "words"),
    [
        ([], (), "at least one method"),
        (["fedmv"], (), "did you mean fedmf"),
        (["mf", "mf"], (), "mf is given twice"),
        (["mf:dim=8", "mf: dim=8"], (), "mf:dim=8 is given twice"),
        (["mf:dims=8"], (), "unknown setting of mf 'dims'"),
        (["mf:dim=eight"], (), "setting dim of mf is 'eight'"),
        (["mf:dim"], (), "dim is neither name=value nor a file"),
        (["mf:preset=best"], (), "unknown preset"),
        (["mf", "ease"], ("dims=8",), "--set dims=8 fits none of mf, ease: unknown setting 'dims': did you mean dim"),
        (["mf"], ("ease.ridge=1",), "ease is not compared; compared are mf"),
        (["mf"], ("dim",), "expected name=value"),
    ],
)
def test_what_cannot_be_meant_is_refused(specs, shared, words):
    with pytest.raises(BadInput, match=words):
        make_contenders(specs, GIVEN, shared)
