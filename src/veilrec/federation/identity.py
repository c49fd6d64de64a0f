"""Who is who in a federation: certificates, signing keys, invitations, and the endorsement of keys by invitations.

Certificates: a small authority for one federation, which its clients trust and no other. They are valid from 2020 on,
for decades: a client whose clock was set back or forward must not be locked out, and a federation that is over is ended
by throwing its keys away, not by a date.

Signatures: a client has its own Ed25519 key, made where it runs. What it sends is signed together with the federation,
the kind and the round: a message cannot be passed off as one of another client, round or federation.

Key endorsement: an invitation is a key as well, and signs the lasting key of the client that uses it. Whoever has to
know the keys of clients (a helper, and with pairwise secure aggregation every client) has the public halves of the
invitations in a file; a key that the coordinator names counts only if the invitation of its place endorses it.
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from veilrec.core.errors import BadInput
from veilrec.core.files import replacing
from veilrec.federation.federation import FILE, BadTask, Federation
from veilrec.wire.signing import SigningKey, check_signature, new_key, read_key

_FROM, _TO = datetime(2020, 1, 1, tzinfo=UTC), datetime(2060, 1, 1, tzinfo=UTC)
ALWAYS = ("localhost", "127.0.0.1", "::1")


def make_certificates(authority: Path, certificate: Path, key: Path, *, hosts: Sequence[str], federation: str) -> None:
    """An authority's certificate, and a server's with its key; the authority's own key is thrown away."""
    root_key, server_key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    name = _common_name(f"veilrec federation {federation[:8]}")
    root = (
        _certificate(name, name, root_key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .sign(root_key, hashes.SHA256())
    )
    names = dict.fromkeys((*ALWAYS, *hosts))
    served = (
        _certificate(_common_name("veilrec coordinator"), name, server_key.public_key())
        .add_extension(x509.SubjectAlternativeName([_alternative(host) for host in names]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(root_key.public_key()), critical=False)
        .sign(root_key, hashes.SHA256())
    )
    write_file(authority, root.public_bytes(serialization.Encoding.PEM), 0o644)
    write_file(certificate, served.public_bytes(serialization.Encoding.PEM), 0o644)
    secret = server_key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    write_file(key, secret)


def _certificate(subject: x509.Name, issuer: x509.Name, public: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(_FROM)
        .not_valid_after(_TO)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
    )


def _common_name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def write_file(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Write a file with a mode: by default one that only its owner may read."""
    with replacing(path, mode=mode) as part:
        part.chmod(mode)
        part.write_bytes(content)


INVITATION, IDENTITY = "invitation", "identity.key"  # files in the folder of a client or helper
PURPOSE = b"veilrec federation\n"
_INVITATION = re.compile(r"(.+?):([0-9a-f]{64})(?::([0-9a-f]{64}))?")


def statement(federation: str, client: str, kind: str, number: int, content: bytes) -> bytes:
    """Encode what a signature is over."""
    return _statement(federation, client, kind, number, hashlib.sha256(content).hexdigest())


def _statement(federation: str, client: str, kind: str, number: int, digest: str) -> bytes:
    return "\n".join((federation, client, kind, str(number), digest)).encode()


def sign(key: SigningKey, federation: str, client: str, kind: str, number: int, content: bytes) -> bytes:
    """A client's word for a content."""
    return key.sign(PURPOSE, statement(federation, client, kind, number, content))


def check(public: bytes, federation: str, client: str, kind: str, number: int, content: bytes, signed: bytes) -> None:
    """Refuse what the client did not sign, for this federation, kind and round."""
    check_signature(public, PURPOSE, statement(federation, client, kind, number, content), signed)


def check_digest(
    public: bytes, federation: str, client: str, kind: str, number: int, digest: str, signed: bytes
) -> None:
    """Refuse what the client did not sign, before it has come: `digest` is the SHA-256 that it is said to have."""
    check_signature(public, PURPOSE, _statement(federation, client, kind, number, digest), signed)


@dataclass(frozen=True)
class Invitation:
    """What lets a client enrol, once: `DEVICE:SECRET:DIGEST` in a file that only the client's owner has.

    The secret is a key. With it the client endorses its own lasting key; whoever keeps places knows the public half,
    so that nobody, the coordinator included, can put another key in the place of an invited client. The digest is that
    of what was agreed on (`Federation.agreed`): whoever is invited takes part in this and in nothing else.
    """

    client: str
    key: SigningKey
    agreed: bytes = b""

    @classmethod
    def new(cls, client: str, agreed: bytes = b"") -> Invitation:
        """Draw a new invitation."""
        return cls(client, SigningKey(Ed25519PrivateKey.generate()), agreed)

    def text(self) -> str:
        """Encode for its file."""
        agreed = f":{self.agreed.hex()}" if self.agreed else ""
        return f"{self.client}:{self.key.secret.private_bytes_raw().hex()}{agreed}\n"

    @classmethod
    def read(cls, text: str, where: object) -> Invitation:
        """Read what `text` wrote."""
        found = _INVITATION.fullmatch(text.strip())
        if found is None:
            raise BadInput(f"{where} is no invitation: ask whoever runs the federation for another one")
        key = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(found[2]))
        return cls(found[1], SigningKey(key), bytes.fromhex(found[3] or ""))

    def check(self, made: Federation) -> None:
        """Refuse a federation that is not the one that this invitation is to."""
        if self.agreed != made.digest:
            raise BadInput(
                f"{FILE} is not what {self.client} was invited to: it was edited, or is that of another federation, so"
                " nothing is done; bring back the one that init wrote"
            )

    @property
    def public(self) -> bytes:
        """The public half of the invitation's key."""
        return self.key.public

    def endorse(self, federation: str, key: bytes) -> bytes:
        """The invitation's word for a client's lasting key."""
        return sign(self.key, federation, self.client, "enrol", 0, key)


def check_endorsement(invitation: bytes, federation: str, client: str, key: bytes, endorsement: bytes) -> None:
    """Refuse a key that the invitation of a client does not endorse."""
    check(invitation, federation, client, "enrol", 0, key, endorsement)


InvitationList = dict[int, tuple[str, bytes]]
"""The name of a client, and the public half of its invitation, by its place."""


def invited_text(invited: InvitationList) -> str:
    """Encode a list of invitations for those who check endorsements."""
    return json.dumps({str(place): [name, public.hex()] for place, (name, public) in invited.items()}) + "\n"


def list_digest(text: str) -> str:
    """Digest an encoded list of invitations."""
    return hashlib.sha256(text.encode()).hexdigest()


def read_invited(path: Path, whose: str, *, digest: str | None = None) -> InvitationList:
    """Read a list of invitations; one with another digest than `digest` is refused."""
    try:
        text = path.read_text()
        listed = json.loads(text)
        invited = {int(place): (str(name), bytes.fromhex(public)) for place, (name, public) in listed.items()}
    except FileNotFoundError:
        raise BadInput(f"{whose}: it has no {path.name}; use what `federate init` made") from None
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise BadInput(f"{path} cannot be read ({type(error).__name__}): bring back its own") from None
    if digest is not None and list_digest(text) != digest:
        raise BadInput(f"{path} is not that of this federation: copy it again from where init wrote it")
    return invited


def listed(keys: Iterable[tuple[int, bytes, bytes]]) -> bytes:
    """Encode places, keys and endorsements, as a coordinator names them."""
    entries = [{"place": place, "key": key.hex(), "endorsement": endorsement.hex()} for place, key, endorsement in keys]
    return json.dumps(entries).encode()


class EndorsedKeys:
    """The lasting keys of clients, by place, that their invitations endorse.

    `again` reads the list of invitations once more, where somebody may be added to it.
    """

    def __init__(
        self, federation: str, invited: InvitationList, again: Callable[[], InvitationList] | None = None
    ) -> None:
        self._federation, self._invited, self._again = federation, invited, again
        self.keys: dict[int, bytes] = {}

    def learn(self, named: bytes, *, strangers: bool = False) -> None:
        """Take in the keys that a coordinator names, if they are endorsed; a place has one key, the first.

        Those of strangers, whose places are in no list here, are refused, or count for nothing.
        """
        try:
            for entry in json.loads(named):
                place, key = int(entry["place"]), bytes.fromhex(entry["key"])
                if self.keys.get(place) == key or (strangers and not self._knows(place)):
                    continue
                name, invitation = self._invitation(place)
                check_endorsement(invitation, self._federation, name, key, bytes.fromhex(entry["endorsement"]))
                if self.keys.setdefault(place, key) != key:
                    raise BadTask(f"the client in place {place} has another key than before")
        except (ValueError, KeyError, TypeError, RecursionError):
            raise BadTask("the list of clients cannot be read") from None

    def _knows(self, place: int) -> bool:
        """Whether a place has an invitation; the list is read again for one that was not in it."""
        if place not in self._invited and self._again is not None:
            self._invited = {**self._again(), **self._invited}
        return place in self._invited

    def _invitation(self, place: int) -> tuple[str, bytes]:
        """Name and invitation of a place."""
        if not self._knows(place):
            raise BadTask(
                f"the coordinator names a client in place {place}, and nobody has announced it here: if it was invited"
                " later, tell this helper with `veilrec federate admit`"
            )
        return self._invited[place]


def keep(path: Path, text: str) -> None:
    """Write a file that only its owner may read."""
    write_file(path, text.encode())


def read_invitation(folder: Path) -> Invitation:
    """Read the invitation in the folder of a client or helper."""
    path = folder / INVITATION
    try:
        return Invitation.read(path.read_text(errors="replace"), path)
    except OSError as error:
        raise BadInput(f"{path} cannot be read ({error.strerror}): without an invitation nobody enrols") from None


def pin(folder: Path, made: Federation) -> None:
    """Tie the invitation in a folder to what was agreed on."""
    keep(folder / INVITATION, replace(read_invitation(folder), agreed=made.digest).text())


def identity_of(folder: Path) -> SigningKey:
    """Read the lasting signing key in the folder of a client or helper; make it when it is first needed."""
    path = folder / IDENTITY
    if not path.exists():
        path.with_name(path.name + ".pub").unlink(missing_ok=True)
        return new_key(path)
    return read_key(path)
