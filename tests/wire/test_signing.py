"""Keys, made once, read by their owner alone, handed over by themselves only; and addresses of machines."""

import pytest

from veilrec.core.errors import BadInput
from veilrec.wire.signing import (
    BadSignature,
    Rotation,
    check_signature,
    checked_host,
    follow,
    is_loopback,
    new_key,
    public_path,
    read_key,
    read_public,
)


def test_a_key_comes_back_and_is_never_overwritten(tmp_path):
    path = tmp_path / "a.key"
    made = new_key(path)
    assert read_key(path).public == made.public == read_public(str(public_path(path))) == read_public(made.public.hex())
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(BadInput, match="never overwritten"):
        new_key(path)


def test_refuses_keys_that_others_can_read_and_files_that_are_none(tmp_path):
    path = tmp_path / "a.key"
    new_key(path)
    path.chmod(0o644)
    with pytest.raises(BadInput, match="others can read"):
        read_key(path)
    path.write_text("no key")
    path.chmod(0o600)
    with pytest.raises(BadInput, match="no secret key"):
        read_key(path)
    with pytest.raises(BadInput, match="keygen"):
        read_key(tmp_path / "none")
    with pytest.raises(BadInput, match="no public key"):
        read_public(str(path))
    with pytest.raises(BadInput, match="no public key"):
        read_public(str(tmp_path / "none"))


def test_a_signature_is_for_one_purpose_and_one_content(tmp_path):
    key = new_key(tmp_path / "a.key")
    signature = key.sign(b"purpose\n", b"content")
    check_signature(key.public, b"purpose\n", b"content", signature)
    for purpose, content in ((b"other\n", b"content"), (b"purpose\n", b"other"), (b"purpose\ncon", b"tent")):
        if purpose + content != b"purpose\ncontent":
            with pytest.raises(BadSignature):
                check_signature(key.public, purpose, content, signature)


def test_refuses_odd_rotations():
    for fields in ({}, [], {"old": "00", "new": "00", "signature": ""}, "x"):
        with pytest.raises(BadSignature):
            Rotation.from_json(fields)


def test_only_the_old_key_itself_hands_over(tmp_path):
    old, new, stranger = (new_key(tmp_path / f"{name}.key") for name in ("old", "new", "stranger"))
    assert follow(old.public, [Rotation.made(old, new.public)]) == {old.public, new.public}
    assert follow(new.public, [Rotation.made(old, new.public)]) == {new.public}
    forged = Rotation(old.public, stranger.public, Rotation.made(stranger, stranger.public).signature)
    with pytest.raises(BadSignature):
        follow(old.public, [forged])


def test_hosts_are_names_or_addresses_and_some_are_this_machine():
    this_machine = ("localhost", "127.0.0.1", "127.3.2.1", "::1")
    others = ("192.168.0.1", "10.0.0.1", "::", "localhost.org", "127.0.0.1.example.org", "")
    assert [is_loopback(host) for host in (*this_machine, *others)] == [True] * 4 + [False] * 6
    for host in (*this_machine, "a-b.example.org", "Coordinator_1", "9to5.example"):
        assert checked_host(host) == host
    for host in (
        *("", " ", "foo bar", "http://foo", "foo/", "foo:80", "[::1]", "a..b", "-a", "a-", "1.2.3", "999.1.1.1", "a\n"),
        *("b\u00fccher.example", "x" * 64, "fe80::1%eth0", ".".join(["x" * 60] * 5)),
    ):
        with pytest.raises(BadInput, match="give"):
            checked_host(host)
