"""A small certificate authority for one federation: devices trust it and nobody else.

Its certificates are valid from 2020 on, for decades: a device whose clock was set back or forward must not be locked
out, and a federation that is over is ended by throwing its keys away, not by a date.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from veilrec._files import replacing

_FROM, _TO = datetime(2020, 1, 1, tzinfo=UTC), datetime(2060, 1, 1, tzinfo=UTC)
ALWAYS = ("localhost", "127.0.0.1", "::1")


def make(authority: Path, certificate: Path, key: Path, *, hosts: Sequence[str], federation: str) -> None:
    """An authority's certificate, and a server's with its key; the authority's own key is thrown away."""
    root_key, server_key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    name = _name(f"veilrec federation {federation[:8]}")
    root = (
        _certificate(name, name, root_key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .sign(root_key, hashes.SHA256())
    )
    names = dict.fromkeys((*ALWAYS, *hosts))
    served = (
        _certificate(_name("veilrec coordinator"), name, server_key.public_key())
        .add_extension(x509.SubjectAlternativeName([_alternative(host) for host in names]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(root_key.public_key()), critical=False)
        .sign(root_key, hashes.SHA256())
    )
    _write(authority, root.public_bytes(serialization.Encoding.PEM), 0o644)
    _write(certificate, served.public_bytes(serialization.Encoding.PEM), 0o644)
    secret = server_key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    _write(key, secret, 0o600)


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


def _name(common: str) -> x509.Name:
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


def _write(path: Path, content: bytes, mode: int) -> None:
    with replacing(path, mode=mode) as part:
        part.chmod(mode)
        part.write_bytes(content)
