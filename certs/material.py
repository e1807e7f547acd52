"""Keys and certificates: made, read and checked against one another. PEM in, PEM out."""

from __future__ import annotations

import hashlib
import ipaddress
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.x509 import verification
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

BACKDATED: Final = timedelta(hours=1)
"""How far before now a certificate is valid: clocks in a cluster are never quite the same."""


class CertificateError(Exception):
    """A certificate or a key can't be used; the message says which and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyPair:
    """A certificate with its private key, both PEM. The key is never shown."""

    certificate: bytes
    key: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateFacts:
    """
    What a certificate says of itself.

    Attributes:
        fingerprint: SHA-256 of the DER, hexadecimal.
        authority_key: key identifier of whoever signed it, hexadecimal; empty if it names none.
        subject_key: its own key identifier, hexadecimal.
        names: DNS names and IP addresses it is for, sorted.
    """

    fingerprint: str
    subject_key: str
    authority_key: str
    names: tuple[str, ...]
    not_before: datetime
    not_after: datetime


def issue_authority(common_name: str, *, now: datetime, lifetime: timedelta) -> KeyPair:
    """Return a new certificate authority (P-256), which signs itself and may sign leaves only."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _name(common_name)
    builder = (
        _builder(subject, subject, key.public_key(), now, lifetime)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(_authority_key(key.public_key()), critical=False)
    )
    return _signed(builder, key, key)


def issue_leaf(
    authority: KeyPair, names: Sequence[str], *, now: datetime, lifetime: timedelta
) -> KeyPair:
    """
    Return a serving certificate (P-256) for these DNS names and IP addresses.

    It ends with its authority at the latest.

    Raises:
        CertificateError: no name is given, or the authority can't be read.
    """
    if not names:
        raise CertificateError("a serving certificate needs a name")
    signer = _key(authority.key)
    issuer = _certificate(authority.certificate)
    lifetime = min(lifetime, issuer.not_valid_after_utc - now)
    key = ec.generate_private_key(ec.SECP256R1())
    alternatives = x509.SubjectAlternativeName([_alternative(name) for name in names])
    builder = (
        _builder(_name(names[0][:64]), issuer.subject, key.public_key(), now, lifetime)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(alternatives, critical=False)
        .add_extension(_authority_key(signer.public_key()), critical=False)
    )
    return _signed(builder, key, signer)


def facts_of(certificate: bytes) -> CertificateFacts:
    """Return what a PEM's first certificate says. Raises CertificateError: it can't be read."""
    return _facts(_certificate(certificate))


def bundle_facts(bundle: bytes) -> tuple[CertificateFacts, ...]:
    """Return what each certificate of a bundle says, in order. Raises CertificateError."""
    if not bundle.strip():
        return ()
    try:
        found = x509.load_pem_x509_certificates(bundle)
    except ValueError as error:
        raise CertificateError(f"a bundle can't be read: {error}") from error
    return tuple(_facts(one) for one in found)


def belongs_together(pair: KeyPair) -> bool:
    """Tell whether the key is the certificate's. Raises CertificateError: one can't be read."""
    return _private(pair.key).public_key() == _certificate(pair.certificate).public_key()


def check_pair(pair: KeyPair, bundle: bytes | None, names: Iterable[str], *, now: datetime) -> None:
    """
    Refuse a serving pair that clients who trust `bundle` would refuse under one of `names`.

    Without a bundle nobody here knows whom clients trust: then key, time and names alone count.

    Raises:
        CertificateError: the key is another's, the chain does not end in the bundle, it is not
            valid now, or a name is not covered.
    """
    if not belongs_together(pair):
        raise CertificateError("the key does not belong to the certificate")
    if bundle is None:
        _check_alone(_facts(_certificate(pair.certificate)), names, now)
        return
    chain = _chain(pair.certificate)
    try:
        store = verification.Store(x509.load_pem_x509_certificates(bundle))
    except ValueError as error:
        raise CertificateError(f"the bundle can't be read: {error}") from error
    policy = (
        verification.PolicyBuilder()
        .store(store)
        .time(now)
        .extension_policies(
            ca_policy=_lenient(verification.ExtensionPolicy.webpki_defaults_ca()),
            ee_policy=_lenient(verification.ExtensionPolicy.webpki_defaults_ee()),
        )
    )
    for name in names:
        try:
            policy.build_server_verifier(_subject(name)).verify(chain[0], chain[1:])
        except verification.VerificationError as error:
            raise CertificateError(f"clients would refuse {name}: {error}") from error


def _lenient(policy: verification.ExtensionPolicy) -> verification.ExtensionPolicy:
    """Return a policy that asks no more than API servers do: other people's leaves name no key."""
    return policy.may_be_present(
        x509.AuthorityKeyIdentifier, verification.Criticality.AGNOSTIC, None
    ).may_be_present(x509.KeyUsage, verification.Criticality.AGNOSTIC, None)


def _check_alone(leaf: CertificateFacts, names: Iterable[str], now: datetime) -> None:
    if not leaf.not_before <= now < leaf.not_after:
        between = f"from={leaf.not_before.isoformat()}, until={leaf.not_after.isoformat()}"
        raise CertificateError(f"clients would refuse it: it is not valid now: {between}")
    for name in names:
        parent = name.partition(".")[2]
        if name not in leaf.names and f"*.{parent}" not in leaf.names:
            raise CertificateError(f"clients would refuse {name}: the leaf is not for it")


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    public: ec.EllipticCurvePublicKey,
    now: datetime,
    lifetime: timedelta,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATED)
        .not_valid_after(now + lifetime)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
    )


def _signed(
    builder: x509.CertificateBuilder,
    key: ec.EllipticCurvePrivateKey,
    signer: ec.EllipticCurvePrivateKey,
) -> KeyPair:
    certificate = builder.sign(signer, hashes.SHA256())
    return KeyPair(
        certificate=certificate.public_bytes(serialization.Encoding.PEM),
        key=key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ),
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _authority_key(public: ec.EllipticCurvePublicKey) -> x509.AuthorityKeyIdentifier:
    return x509.AuthorityKeyIdentifier.from_issuer_public_key(public)


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _subject(name: str) -> x509.DNSName | x509.IPAddress:
    found = _alternative(name)
    assert isinstance(found, x509.DNSName | x509.IPAddress), found
    return found


def _certificate(pem: bytes) -> x509.Certificate:
    return _chain(pem)[0]


def _chain(pem: bytes) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(pem)
    except ValueError as error:
        raise CertificateError(f"a certificate can't be read: {error}") from error


def _private(pem: bytes) -> PrivateKeyTypes:
    try:
        return serialization.load_pem_private_key(pem, None)
    except (ValueError, TypeError, UnsupportedAlgorithm):  # a TypeError asks for a password
        # Nothing of the cause is kept: it may speak of the key.
        raise CertificateError("a private key can't be read") from None


def _key(pem: bytes) -> ec.EllipticCurvePrivateKey:
    key = _private(pem)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise CertificateError("a private key is not of an elliptic curve")
    return key


def _facts(certificate: x509.Certificate) -> CertificateFacts:
    try:
        extensions = certificate.extensions
    except (ValueError, x509.DuplicateExtension, x509.UnsupportedGeneralNameType) as error:
        raise CertificateError(f"a certificate's extensions can't be read: {error}") from error
    names: list[str] = []
    subject_key = authority_key = b""
    for extension in extensions:
        match extension.value:
            case x509.SubjectAlternativeName() as alternatives:
                names += alternatives.get_values_for_type(x509.DNSName)
                addresses = alternatives.get_values_for_type(x509.IPAddress)
                names += [str(address) for address in addresses]
            case x509.SubjectKeyIdentifier() as identifier:
                subject_key = identifier.digest
            case x509.AuthorityKeyIdentifier() as identifier:
                authority_key = identifier.key_identifier or b""
            case _:
                pass
    der = certificate.public_bytes(serialization.Encoding.DER)
    return CertificateFacts(
        fingerprint=hashlib.sha256(der).hexdigest(),
        subject_key=subject_key.hex(),
        authority_key=authority_key.hex(),
        names=tuple(sorted(names)),
        not_before=certificate.not_valid_before_utc,
        not_after=certificate.not_valid_after_utc,
    )
