"""A small folder signed as a release, without a model in it."""

import numpy as np
from safetensors.numpy import save_file

from veilrec.privacy.guarantee import no_guarantee
from veilrec.wire.releases import CLIENT, FORMAT, describe_file, sign_release


def manifest_of(folder, **changed):
    listed = sorted(path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("manifest"))
    files = {path.relative_to(folder).as_posix(): describe_file(path) for path in listed if path.name != "keys.json"}
    fields = {
        "format": FORMAT,
        "minimum_client": CLIENT,
        "name": "news",
        "version": 3,
        "created": "2026-01-01T00:00:00Z",
        "expires": "2999-01-01T00:00:00Z",
        "made_by": "a test",
        "method": "nrms",
        "family": "ranker",
        "protected": False,
        "why_unprotected": ["a test"],
        "guarantee": no_guarantee("a test").to_json(),
        "sizes": {"items": 3, "dim": 0, "interests": 0, "longest": 0},
        "encoder": None,
        "offers": [],
        "data": {},
        "figures": {},
        "files": files,
    }
    return fields | changed


def signed_folder(folder, key, keys=(), **changed):
    (folder / "model").mkdir(parents=True, exist_ok=True)
    save_file({"a": np.arange(6, dtype=np.float32).reshape(2, 3)}, folder / "a.safetensors")
    (folder / "model" / "ranker.json").write_text("{}\n")
    sign_release(folder, manifest_of(folder, **changed), key, keys)
    return folder
