"""The vectors are what this Python makes: a browser that keeps to them does the same."""

import base64
import json

import numpy as np
import pytest
from safetensors import SafetensorError
from safetensors.numpy import load, save_file

from tests.serving import toys
from tests.web.make_vectors import ALL, FOLDER, content_of
from veilrec.client.released import ReleasedNews
from veilrec.core.errors import BadInput
from veilrec.wire.messages import BadMessage
from veilrec.wire.queries import read_pool
from veilrec.wire.releases import BadRelease, Newest, canonical, describe_file, open_release, sign_release
from veilrec.wire.signing import Revocation

SINGLE = 1e-5  # scores of veil are made in single precision, whose sums are in any order
RELEASES = json.loads((FOLDER / "releases.json").read_text())


def alike(found, expected, far=0.0):
    """Texts and whole numbers exactly; others as far as another machine's arithmetic may carry them."""
    if isinstance(expected, dict):
        return found.keys() == expected.keys() and all(alike(found[key], expected[key], far) for key in expected)
    if isinstance(expected, list):
        return len(found) == len(expected) and all(alike(a, b, far) for a, b in zip(found, expected, strict=True))
    if isinstance(expected, float):
        return bool(found == pytest.approx(expected, rel=far or 1e-9, abs=far or 1e-12))
    if found == expected:
        return True
    if isinstance(expected, str) and isinstance(found, str) and (arrays := tensors_of(expected)) is not None:
        return alike(tensors_of(found), arrays, far)
    return False


def tensors_of(text):
    """The numbers of a file of tensors in base64; None of another text."""
    try:
        return {name: values.astype(float).ravel().tolist() for name, values in load(base64.b64decode(text)).items()}
    except (ValueError, SafetensorError):
        return None


@pytest.mark.parametrize("name", ALL)
def test_vectors_are_those_of_this_python(name):
    kept = json.loads((FOLDER / f"{name}.json").read_text())
    far = SINGLE if name in ("veil", "trainer") else 0.0
    assert alike(json.loads(content_of(name)), kept, far), "run `python -m tests.web.make_vectors`; what else changed?"


@pytest.mark.parametrize("case", RELEASES["cases"], ids=lambda case: case["name"])
def test_releases_are_judged_as_in_the_browser(case, tmp_path):
    envelope, trust = case["envelope"], case["trust"]
    (tmp_path / "manifest.json").write_bytes(envelope["manifest"].encode())
    (tmp_path / "manifest.sig").write_bytes(canonical(envelope["signature"]) + b"\n")
    if envelope["keys"]:
        (tmp_path / "keys.json").write_bytes(canonical(envelope["keys"]) + b"\n")
    (tmp_path / RELEASES["file"]["path"]).write_bytes(base64.b64decode(RELEASES["file"]["content"]))
    trusted = None if trust["key"] is None else bytes.fromhex(trust["key"])
    (seen,) = trust["newest"].items() or [("none", {"version": 1, "digest": ""})]
    revoked = tuple(Revocation.from_json(each) for each in trust.get("revoked", ()))
    newest = Newest(seen[0], seen[1]["version"], seen[1]["digest"], revoked)
    how = {"trusted": trusted, "newest": newest, "clock": lambda: case["now"]}
    if case["good"]:
        release = open_release(tmp_path, **how)
        assert release.key.hex() == envelope["signature"]["key"]
        assert bool(release.warning(case["now"])) is case["warned"]
    else:
        with pytest.raises(BadInput) as caught:
            open_release(tmp_path, **how)
        assert "\n" not in str(caught.value)
        assert "missing" not in str(caught.value)  # it was the manifest that was refused, not what lies beside it


def test_encoders_that_do_not_run_are_refused_here_too(tmp_path):
    vectors = json.loads((FOLDER / "encoders.json").read_text())
    (tmp_path / "encoder.safetensors").write_bytes(base64.b64decode(vectors["cases"][0]["weights"]))
    save_file({"items": np.ones((3, 8), np.float32)}, tmp_path / "vectors.safetensors")
    save_file({"nobody": np.zeros(8, np.float32)}, tmp_path / "serving.safetensors")
    files = {path.name: describe_file(path) for path in tmp_path.iterdir()}
    sizes = {"items": 3, "dim": 8, "interests": 0, "longest": 6}

    def opened(program):
        sign_release(tmp_path, toys.manifest_of(sizes=sizes, files=files, encoder=program), toys.KEY)
        return ReleasedNews(open_release(tmp_path))

    assert opened(vectors["cases"][0]["program"]).n_items == 3
    for case in vectors["malformed"]:
        with pytest.raises(BadRelease) as caught:
            opened(case["program"])
        assert "\n" not in str(caught.value)


def test_files_that_are_no_pools_are_none_here_either():
    pools = json.loads((FOLDER / "pools.json").read_text())
    assert read_pool(base64.b64decode(pools["file"])).ids == pools["ids"]
    for broken in pools["broken"]:
        with pytest.raises(BadMessage):
            read_pool(base64.b64decode(broken))
