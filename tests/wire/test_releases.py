"""A release is used whole and as it was signed, or not at all."""

import json
import os
import shutil
import signal
from contextlib import suppress

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from safetensors.numpy import save_file

from tests.wire.raising import raises
from tests.wire.release_folder import manifest_of, signed_folder
from veilrec.core.errors import BadInput
from veilrec.wire.releases import CLIENT, BadRelease, Newest, canonical, open_release, parse_manifest, sign_release
from veilrec.wire.signing import RELEASE, Revocation, Rotation, SigningKey, encoded

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
    (folder / "manifest.sig").write_bytes(canonical(forged) + b"\n")
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
    refused(folder, "no plain file")
    (folder / "a.safetensors").unlink()
    (folder / "a.safetensors").write_bytes(content)
    open_release(folder)
    (folder / "model" / "more.json").write_text("{}")
    refused(folder, "no plain file that was signed")


@pytest.mark.parametrize("name", ["manifest.json", "manifest.sig", "keys.json", "model/ranker.json", "more", "model"])
def test_refuses_pipes_devices_and_links_without_reading_them(folder, tmp_path, name):
    def waited(*_):
        raise AssertionError("it was read")

    content = (folder / name).read_bytes() if (folder / name).is_file() else b"[]\n"
    if name == "model":
        (folder / name).rename(tmp_path / "moved")
    else:
        (folder / name).unlink(missing_ok=True)
        (tmp_path / "moved").write_bytes(content)
    before = signal.signal(signal.SIGALRM, waited)
    try:
        for make in (
            os.mkfifo,
            lambda path: path.symlink_to("/dev/zero"),
            lambda path: path.symlink_to(tmp_path / "moved"),
        ):
            make(folder / name)
            signal.alarm(20)
            refused(folder, "no plain file|cannot be read|is no release|is not signed")
            (folder / name).unlink()
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def test_an_old_release_says_what_to_do(folder):
    fields = manifest_of(folder)
    del fields["expires"]
    raises(BadRelease, "older veilrec .* release the run again", parse_manifest, canonical(fields))


def test_expires_after_a_time_of_grace_in_which_it_is_used_with_a_warning(folder):
    sign_release(folder, manifest_of(folder, created="2026-01-01T00:00:00Z", expires="2026-04-01T00:00:00Z"), KEY)
    day, last = 86_400.0, 1_775_001_600.0
    for moment, told in ((last - 15 * day, ""), (last - day, "needed soon"), (last + 13 * day, "2026-04-15T00:00:00Z")):
        assert told in open_release(folder, clock=lambda now=moment: now).warning(moment)
    refused(folder, "expired at 2026-04-01T00:00:00Z and is not used any more", clock=lambda: last + 14 * day)
    assert open_release(folder, clock=None).version == 3  # to look at, and to be followed by a newer one


def test_what_was_revoked_stays_revoked(folder, tmp_path):
    third = SigningKey(Ed25519PrivateKey.from_private_bytes(bytes(range(2, 34))))
    heirs = (Rotation.made(KEY, OTHER.public), Rotation.made(KEY, third.public))
    by_third = signed_folder(tmp_path / "before", third, heirs)
    assert open_release(by_third, trusted=KEY.public).revoked == ()
    told = signed_folder(tmp_path / "told", OTHER, (*heirs, Revocation.made(OTHER, third.public)), version=4)
    newest = open_release(told, trusted=KEY.public).newest
    later = signed_folder(tmp_path / "later", third, heirs, version=5)
    assert open_release(later, trusted=KEY.public).version == 5
    refused(later, "or the key was given up or revoked", trusted=KEY.public, newest=newest)
    raises(BadInput, "cannot revoke itself", Revocation.made, OTHER, OTHER.public)


def test_refuses_other_arrays_than_the_manifest_says(folder):
    save_file({"a": np.zeros((3, 2), np.float32)}, folder / "a.safetensors")
    changed = manifest_of(folder)
    changed["files"]["a.safetensors"]["tensors"] = {"a": {"dtype": "F32", "shape": [2, 3]}}
    sign_release(folder, changed, KEY)
    refused(folder, "other arrays")


ODD_MANIFESTS = (
    ({"format": 2}, "format"),
    ({"minimum_client": CLIENT + 1}, "needs a client"),
    ({"version": 0}, "version 0"),
    ({"version": True}, "version"),
    ({"": 1}, "its field ''"),
    ({"name": "../up"}, "name"),
    ({"family": "other"}, "family"),
    ({"extra": 1}, "extra"),
    ({"offers": {}}, "offers"),
    ({"guarantee": {"basis": "proven"}}, "guarantee"),
    ({"files": {"../x": {"bytes": 1, "sha256": "0" * 64}}}, "not allowed"),
    ({"files": {"x": {"bytes": -1, "sha256": "0" * 64}}}, "files"),
    ({"files": {f"f{n}": {"bytes": 1, "sha256": "0" * 64} for n in range(65)}}, "files"),
)


def test_refuses_odd_manifests_also_signed_ones(folder):
    right = manifest_of(folder)
    for change, line in ODD_MANIFESTS:
        content = canonical(right | change)
        raises(BadInput, line, parse_manifest, content)
        (folder / "manifest.json").write_bytes(content)
        signature = {"format": 1, "key": KEY.public.hex(), "signature": encoded(KEY.sign(RELEASE, content))}
        (folder / "manifest.sig").write_bytes(canonical(signature) + b"\n")
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
        with suppress(BadInput):
            open_release(copy, trusted=KEY.public)
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
