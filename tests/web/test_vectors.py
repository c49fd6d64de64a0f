"""The vectors are what this Python makes: a browser that keeps to them does the same."""

import base64
import json

import pytest

from tests.web.make_vectors import ALL, FOLDER, content_of
from veilrec.core.errors import BadInput
from veilrec.wire.messages import BadMessage
from veilrec.wire.queries import read_pool
from veilrec.wire.releases import Newest, open_release

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
    return bool(found == expected)


@pytest.mark.parametrize("name", ALL)
def test_vectors_are_those_of_this_python(name):
    kept = json.loads((FOLDER / f"{name}.json").read_text())
    far = SINGLE if name in ("veil", "trainer") else 0.0
    assert alike(json.loads(content_of(name)), kept, far), "run `python -m tests.web.make_vectors`; what else changed?"


@pytest.mark.parametrize("case", RELEASES["cases"], ids=lambda case: case["name"])
def test_releases_are_judged_as_in_the_browser(case, tmp_path):
    envelope, trust = case["envelope"], case["trust"]
    (tmp_path / "manifest.json").write_bytes(envelope["manifest"].encode())
    (tmp_path / "manifest.sig").write_text(json.dumps(envelope["signature"]))
    if envelope["keys"]:
        (tmp_path / "keys.json").write_text(json.dumps(envelope["keys"]))
    (tmp_path / RELEASES["file"]["path"]).write_bytes(base64.b64decode(RELEASES["file"]["content"]))
    trusted = None if trust["key"] is None else bytes.fromhex(trust["key"])
    newest = next((Newest(name, it["version"], it["digest"]) for name, it in trust["newest"].items()), None)
    if case["good"]:
        assert open_release(tmp_path, trusted=trusted, newest=newest).key.hex() == envelope["signature"]["key"]
    else:
        with pytest.raises(BadInput):
            open_release(tmp_path, trusted=trusted, newest=newest)


def test_files_that_are_no_pools_are_none_here_either():
    pools = json.loads((FOLDER / "pools.json").read_text())
    assert read_pool(base64.b64decode(pools["file"])).ids == pools["ids"]
    for broken in pools["broken"]:
        with pytest.raises(BadMessage):
            read_pool(base64.b64decode(broken))
