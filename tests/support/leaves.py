"""Certificates as others make them: RSA keys, a chain, what `openssl req` leaves out."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID

from certs.material import KeyPair


@dataclass(frozen=True, slots=True, kw_only=True)
class Foreign:
    """A certificate with its key, as objects."""

    certificate: x509.Certificate
    key: rsa.RSAPrivateKey

    @property
    def pair(self) -> KeyPair:
        """Return both as PEM, the key in the older form."""
        return KeyPair(
            certificate=self.certificate.public_bytes(serialization.Encoding.PEM),
            key=self.key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.TraditionalOpenSSL,
                serialization.NoEncryption(),
            ),
        )


def foreign_authority(now: datetime) -> Foreign:
    """Return an authority with an RSA key."""
    key = rsa.generate_private_key(65537, 2048)
    builder = _builder("their authority", "their authority", key, now).add_extension(
        x509.BasicConstraints(ca=True, path_length=None), critical=True
    )
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    made = builder.add_extension(identifier, critical=False).sign(key, hashes.SHA256())
    return Foreign(certificate=made, key=key)


def foreign_leaf(signer: Foreign | None, name: str, now: datetime) -> Foreign:
    """Return a leaf with a name and nothing else in it; without a signer it signs itself."""
    key = rsa.generate_private_key(65537, 2048)
    issuer = "leaf" if signer is None else "their authority"
    builder = _builder("leaf", issuer, key, now).add_extension(
        x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False
    )
    made = builder.sign(key if signer is None else signer.key, hashes.SHA256())
    return Foreign(certificate=made, key=key)


def _builder(
    subject: str, issuer: str, key: rsa.RSAPrivateKey, now: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(_name(subject))
        .issuer_name(_name(issuer))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=30))
    )


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])
