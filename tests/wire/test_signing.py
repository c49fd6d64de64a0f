"""Keys, made once, read by their owner alone, handed over by themselves only; and addresses of machines."""

from tests.wire.raising import raises
from veilrec.core.errors import BadInput
from veilrec.wire import signing


def test_a_key_comes_back_and_is_never_overwritten(tmp_path):
    path = tmp_path / "a.key"
    made = signing.new_key(path)
    read = {signing.read_public(source) for source in (str(signing.public_path(path)), made.public.hex())}
    assert read | {signing.read_key(path).public} == {made.public}
    assert path.stat().st_mode & 0o777 == 0o600
    raises(BadInput, "never overwritten", signing.new_key, path)


def test_refuses_keys_that_others_can_read_and_files_that_are_none(tmp_path):
    path = tmp_path / "a.key"
    signing.new_key(path)
    path.chmod(0o644)
    raises(BadInput, "others can read", signing.read_key, path)
    path.write_text("no key")
    path.chmod(0o600)
    raises(BadInput, "no secret key", signing.read_key, path)
    raises(BadInput, "keygen", signing.read_key, tmp_path / "none")
    raises(BadInput, "no public key", signing.read_public, str(path))
    raises(BadInput, "no public key", signing.read_public, str(tmp_path / "none"))


def test_a_signature_is_for_one_purpose_and_one_content(tmp_path):
    key = signing.new_key(tmp_path / "a.key")
    signature = key.sign(b"purpose\n", b"content")
    signing.check_signature(key.public, b"purpose\n", b"content", signature)
    for purpose, content in ((b"other\n", b"content"), (b"purpose\n", b"other"), (b"purpose\ncon", b"tent")):
        if purpose + content != b"purpose\ncontent":
            raises(signing.BadSignature, None, signing.check_signature, key.public, purpose, content, signature)


def test_refuses_odd_rotations():
    for fields in ({}, [], {"old": "00", "new": "00", "signature": ""}, "x"):
        raises(signing.BadSignature, None, signing.Rotation.from_json, fields)


def test_only_the_old_key_itself_hands_over(tmp_path):
    old, new, stranger = (signing.new_key(tmp_path / f"{name}.key") for name in ("old", "new", "stranger"))
    assert signing.follow(old.public, [signing.Rotation.made(old, new.public)]) == {old.public, new.public}
    assert signing.follow(new.public, [signing.Rotation.made(old, new.public)]) == {new.public}
    forged = signing.Rotation(old.public, stranger.public, signing.Rotation.made(stranger, stranger.public).signature)
    raises(signing.BadSignature, None, signing.follow, old.public, [forged])


def test_hosts_are_names_or_addresses_and_some_are_this_machine():
    this_machine = ("localhost", "127.0.0.1", "127.3.2.1", "::1")
    others = ("192.168.0.1", "10.0.0.1", "::", "localhost.org", "127.0.0.1.example.org", "")
    assert [signing.is_loopback(host) for host in (*this_machine, *others)] == [True] * 4 + [False] * 6
    for host in (*this_machine, "a-b.example.org", "Coordinator_1", "9to5.example"):
        assert signing.checked_host(host) == host
    for host in (
        *("", " ", "foo bar", "http://foo", "foo/", "foo:80", "[::1]", "a..b", "-a", "a-", "1.2.3", "999.1.1.1", "a\n"),
        *("b\u00fccher.example", "x" * 64, "fe80::1%eth0", ".".join(["x" * 60] * 5)),
    ):
        raises(BadInput, "give", signing.checked_host, host)
