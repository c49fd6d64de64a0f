"""A release is used whole and as it was signed, or not at all."""

import json
import shutil

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from safetensors.numpy import save_file

from tests.wire.raising import raises
from tests.wire.release_folder import manifest_of, signed_folder
from veilrec.core.errors import BadInput
from veilrec.wire.releases import CLIENT, BadRelease, Newest, canonical, open_release, parse_manifest, sign_release
from veilrec.wire.signing import RELEASE, Rotation, SigningKey, encoded

KEY = SigningKey(Ed25519PrivateKey.from_private_bytes(bytes(range(32))))
OTHER = SigningKey(Ed25519PrivateKey.from_private_bytes(bytes(range(1, 33))))


@pytest.fixture
def folder(tmp_path):
    return signed_folder(tmp_path / "release", KEY)


def refused(folder, line, **how):
    with pytest.raises(BadInput, match=line) as caught:
        open_release(folder, **how)
    assert "\n" not in str(caught.value)


def test_opens_what_was_signed(folder):
    release = open_release(folder, trusted=KEY.public)
    assert (release.name, release.version, release.key) == ("news", 3, KEY.public)
    assert np.array_equal(release.arrays("a.safetensors")["a"], np.arange(6, dtype=np.float32).reshape(2, 3))
    assert release.content("model/ranker.json") == b"{}\n"
    raises(BadRelease, "no file", release.content, "../secret")


def test_refuses_no_release_another_key_what_is_too_large_and_what_is_not_signed(folder, tmp_path):
    refused(tmp_path, "is no release")
    refused(folder, "has not handed over", trusted=OTHER.public)
    refused(folder, "at most 10 are read", largest=10)
    signature = (folder / "manifest.sig").read_bytes()
    (folder / "manifest.sig").unlink()
    refused(folder, "not signed")
    (folder / "manifest.sig").write_bytes(signature)
    (folder / "manifest.json").write_bytes(b" " * ((1 << 20) + 1))
    refused(folder, "at most")


def test_refuses_a_signature_of_another_key_under_the_trusted_name(folder):
    signature = json.loads((folder / "manifest.sig").read_text())
    sign_release(folder, manifest_of(folder, version=4), OTHER)
    forged = json.loads((folder / "manifest.sig").read_text()) | {"key": signature["key"]}
    (folder / "manifest.sig").write_text(json.dumps(forged))
    refused(folder, "signature is not that of key", trusted=KEY.public)


def test_refuses_an_older_one_and_another_of_the_same_number(folder):
    release = open_release(folder)
    open_release(folder, newest=release.newest)
    refused(folder, "never goes back", newest=Newest("news", 4, release.digest))
    refused(folder, "another content", newest=Newest("news", 3, "0" * 64))
    open_release(folder, newest=Newest("films", 9, "0" * 64))


def test_refuses_altered_missing_added_and_linked_files(folder, tmp_path):
    content = (folder / "a.safetensors").read_bytes()
    (folder / "a.safetensors").write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    refused(folder, "altered")
    (folder / "a.safetensors").write_bytes(content + b" ")
    refused(folder, "bytes and not")
    (folder / "a.safetensors").unlink()
    refused(folder, "missing")
    (tmp_path / "elsewhere").write_bytes(content)
    (folder / "a.safetensors").symlink_to(tmp_path / "elsewhere")
    refused(folder, "missing")
    (folder / "a.safetensors").unlink()
    (folder / "a.safetensors").write_bytes(content)
    open_release(folder)
    (folder / "model" / "more.json").write_text("{}")
    refused(folder, "not signed")


def test_refuses_other_arrays_than_the_manifest_says(folder):
    save_file({"a": np.zeros((3, 2), np.float32)}, folder / "a.safetensors")
    changed = manifest_of(folder)
    changed["files"]["a.safetensors"]["tensors"] = {"a": {"dtype": "F32", "shape": [2, 3]}}
    sign_release(folder, changed, KEY)
    refused(folder, "other arrays")


ODD_MANIFESTS = (
    ({"format": 2}, "format"),
    ({"minimum_client": CLIENT + 1}, "needs a client"),
    ({"version": 0}, "impossible"),
    ({"version": True}, "version"),
    ({"name": "../up"}, "impossible"),
    ({"family": "other"}, "impossible"),
    ({"extra": 1}, "extra"),
    ({"offers": {}}, "offers"),
    ({"guarantee": {"basis": "proven"}}, "guarantee"),
    ({"files": {"../x": {"bytes": 1, "sha256": "0" * 64}}}, "not allowed"),
    ({"files": {"x": {"bytes": -1, "sha256": "0" * 64}}}, "not allowed"),
    ({"files": {f"f{n}": {"bytes": 1, "sha256": "0" * 64} for n in range(65)}}, "files"),
)


def test_refuses_odd_manifests_also_signed_ones(folder):
    right = manifest_of(folder)
    for change, line in ODD_MANIFESTS:
        content = canonical(right | change)
        raises(BadInput, line, parse_manifest, content)
        (folder / "manifest.json").write_bytes(content)
        signature = {"format": 1, "key": KEY.public.hex(), "signature": encoded(KEY.sign(RELEASE, content))}
        (folder / "manifest.sig").write_text(json.dumps(signature))
        refused(folder, line, trusted=KEY.public)


def test_a_key_hands_over(folder, tmp_path):
    third = SigningKey(Ed25519PrivateKey.from_private_bytes(bytes(range(2, 34))))
    chain = (Rotation.made(KEY, OTHER.public), Rotation.made(OTHER, third.public))
    later = signed_folder(tmp_path / "later", third, chain)
    for trusted in (KEY, OTHER, third):
        assert open_release(later, trusted=trusted.public).key == third.public
    stale = signed_folder(tmp_path / "stale", KEY, chain)
    refused(stale, "has not handed over", trusted=KEY.public)
    forged = (Rotation(KEY.public, third.public, Rotation.made(OTHER, third.public).signature),)
    refused(signed_folder(tmp_path / "forged", third, forged), "signature is not", trusted=KEY.public)
    refused(signed_folder(tmp_path / "other", third, chain[1:]), "has not handed over", trusted=KEY.public)


def test_of_a_thousand_mutations_none_is_accepted(folder, tmp_path):
    """Bytes changed, cut, doubled, swapped or put in, in every file, the signature included."""
    generator = np.random.default_rng(7)
    whole = open_release(folder, trusted=KEY.public)
    names = [*whole.manifest["files"], "manifest.json", "manifest.sig"]
    contents = {name: (folder / name).read_bytes() for name in names}
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    accepted = []
    for number in range(1000):
        name = names[number % len(names)]
        mutated = _mutated(contents[name], generator)
        if mutated == contents[name]:
            continue
        (copy / name).write_bytes(mutated)
        try:
            opened = open_release(copy, trusted=KEY.public)
        except BadInput:
            pass
        else:  # a signature may be written in another way, and is then still the same one
            if name != "manifest.sig" or opened.signature != whole.signature or opened.key != whole.key:
                accepted.append((number, name))
        (copy / name).write_bytes(contents[name])
    assert accepted == []
    open_release(copy, trusted=KEY.public)


def _mutated(content, generator):
    place = int(generator.integers(0, max(1, len(content))))
    match int(generator.integers(0, 5)):
        case 0:
            changed = content[place] ^ (1 << int(generator.integers(0, 8)))
            return content[:place] + bytes([changed]) + content[place + 1 :]
        case 1:
            return content[:place]
        case 2:
            return content[:place] + content[place : place + 8] + content[place:]
        case 3:
            return content[:place] + generator.bytes(int(generator.integers(1, 9))) + content[place:]
    return generator.bytes(len(content))
