"""Identity of a node: a P-256 key with a self-signed certificate, known by the SHA-256 of the certificate alone."""

from __future__ import annotations

import datetime
import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from bymi.core.errors import InputError
from bymi.core.files import read_bytes

KEY, CERTIFICATE = "key.pem", "certificate.pem"
HOST_NAME = "bymi-node"
"""Name in every certificate. It identifies nobody; TLS compares it with a name, and all nodes share one."""

_LIMIT = 1 << 14  # bytes of a key or certificate file
_YEARS = 10


@dataclass(frozen=True)
class Identity:
    """Private key and certificate as PEM, and the certificate's fingerprint."""

    key: bytes
    certificate: bytes
    fingerprint: str

    def __repr__(self) -> str:  # the key must not reach a log
        return f"Identity({self.fingerprint})"


def new_identity() -> Identity:
    """A fresh key with a self-signed certificate. P-256: gRPC has no common signature algorithm with Ed25519."""
    key = ec.generate_private_key(ec.SECP256R1())
    serial = x509.random_serial_number()
    # TLS finds a trusted certificate by its subject, so subjects must differ.
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, f"{HOST_NAME}-{serial:x}")])
    start = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)  # clocks differ
    end = start + datetime.timedelta(days=365 * _YEARS)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), serial, start, end)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(HOST_NAME)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    secret = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    public = certificate.public_bytes(serialization.Encoding.DER)
    return Identity(secret, certificate.public_bytes(serialization.Encoding.PEM), fingerprint_of(public))


def write_identity(folder: Path) -> Identity:
    """A new identity, stored in a folder. An existing key is never overwritten."""
    folder.mkdir(parents=True, exist_ok=True)
    made = new_identity()
    try:
        write_secret(folder / KEY, made.key)
    except FileExistsError:
        raise InputError(f"--out: got {folder}, which has a {KEY} already; allowed: a folder without one") from None
    (folder / CERTIFICATE).write_bytes(made.certificate)
    return made


def write_secret(path: Path, content: bytes) -> None:
    """Write a new file that is readable by its owner only; FileExistsError if there is one."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)


def read_identity(folder: Path) -> Identity:
    """The identity stored in a folder."""
    key, certificate = (read_bytes(folder / name, limit=_LIMIT) for name in (KEY, CERTIFICATE))
    try:
        secret = serialization.load_pem_private_key(key, None)
    except (ValueError, TypeError):
        raise InputError(f"{folder / KEY}: not an unencrypted PEM key") from None
    der = certificate_der(certificate, str(folder / CERTIFICATE))
    ours = x509.load_der_x509_certificate(der).public_key()
    if not isinstance(secret, ec.EllipticCurvePrivateKey) or secret.public_key() != ours:
        raise InputError(f"{folder}: the certificate does not belong to the key")
    return Identity(key, certificate, fingerprint_of(der))


def certificate_der(certificate: bytes, where: str) -> bytes:
    """DER bytes of a certificate in PEM or DER with a P-256 key; a one-line InputError for anything else."""
    try:
        pem = certificate.lstrip().startswith(b"-----")
        found = x509.load_pem_x509_certificate(certificate) if pem else x509.load_der_x509_certificate(certificate)
        curve = found.public_key()
    except Exception:  # the parser raises errors of many kinds, some of its own
        raise InputError(f"{where}: not a certificate") from None
    if not isinstance(curve, ec.EllipticCurvePublicKey) or curve.curve.name != "secp256r1":
        raise InputError(f"{where}: got a certificate of another key, allowed: P-256, as `bymi node keygen` makes")
    return found.public_bytes(serialization.Encoding.DER)


def pem_of(der: bytes) -> bytes:
    """A certificate as PEM."""
    return x509.load_der_x509_certificate(der).public_bytes(serialization.Encoding.PEM)


def fingerprint_of(der: bytes) -> str:
    """SHA-256 of a certificate, in hexadecimal."""
    return hashlib.sha256(der).hexdigest()
