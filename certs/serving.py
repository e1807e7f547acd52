"""
The TLS context of a server whose certificate changes while it runs.

A live context is never loaded into: a certificate with another one's key would break every
handshake from then on. A new context is built and checked, then handed out for new connections.

Certificates may be provided by somebody else as files: cert-manager, a mounted Secret, an operator.
Kubelet swaps a mounted Secret as a whole by one symbolic link, so the folder is resolved once for
each look and both halves are read from the same one.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final
from weakref import WeakKeyDictionary

from certs.material import CertificateError, CertificateFacts, KeyPair, check_pair, facts_of

_MINIMUM: Final = ssl.TLSVersion.TLSv1_3
CERTIFICATE: Final = "tls.crt"
KEY: Final = "tls.key"
AUTHORITY: Final = "ca.crt"
_SWAPPED: Final = "..data"


class Serving:
    """
    Serves one leaf at a time; connections that are open keep the one they began with.

    Args:
        clients: whose leaves callers must show, as PEM; None lets everybody in.
        optional: a caller may show no leaf; one that it shows must be of `clients`, and without
            `clients` it may show none. Whose leaves these are can change: see `trust`.
        protocols: what callers may choose from by ALPN, the best one first; none = it is not asked.

    Raises:
        CertificateError: `clients` holds no certificate.
    """

    def __init__(
        self,
        *,
        clients: bytes | None = None,
        optional: bool = False,
        protocols: tuple[str, ...] = (),
    ) -> None:
        self._clients = clients
        self._protocols = protocols
        self._optional = optional
        self._pair: KeyPair | None = None
        self._current: ssl.SSLContext | None = None
        self._facts: CertificateFacts | None = None
        self._verified: WeakKeyDictionary[ssl.SSLContext, bytes] = WeakKeyDictionary()
        self._outer = self._made()
        self._outer.sni_callback = self._choose

    @property
    def context(self) -> ssl.SSLContext:
        """The context to listen with; the same one for as long as the server runs."""
        return self._outer

    @property
    def leaf(self) -> CertificateFacts | None:
        """What is served to new connections; None before the first leaf."""
        return self._facts

    def swap(
        self, pair: KeyPair, bundle: bytes | None, names: Iterable[str], *, now: datetime
    ) -> None:
        """
        Serve this leaf from the next handshake on; without a bundle its chain is not checked.

        Raises:
            CertificateError: clients would refuse it; the one before is served on.
        """
        check_pair(pair, bundle, names, now=now)
        context = self._made(pair)
        if self._current is None:
            _load(self._outer, pair)  # so that OpenSSL knows which kinds of keys there are
        self._current, self._pair = context, pair
        self._facts = facts_of(pair.certificate)

    def trust(self, clients: bytes | None) -> None:
        """
        Believe leaves of this authority alone from now on; callers may still show none.

        Raises:
            CertificateError: it holds no certificate; the one before is believed on.
        """
        assert self._optional, "whom callers must belong to does not change"
        before, self._clients = self._clients, clients
        try:
            made = self._made(self._pair)
        except CertificateError:
            self._clients = before
            raise
        self._current = None if self._pair is None else made

    def believes(self, context: ssl.SSLContext) -> bool:
        """Tell whether a leaf that a connection of this context showed is one to believe now."""
        return self._clients is not None and self._verified.get(context) == self._clients

    def _made(self, pair: KeyPair | None = None) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = _MINIMUM
        # A connection that resumes shows a leaf that nobody verifies. The API server and
        # kube-scheduler never resume, and the two tickets are two fifths of a handshake's work.
        context.num_tickets = 0
        if self._protocols:
            context.set_alpn_protocols(self._protocols)
        self._ask_callers(context)
        if pair is not None:
            _load(context, pair)
        return context

    def _ask_callers(self, context: ssl.SSLContext) -> None:
        if self._optional:
            context.verify_mode = ssl.CERT_OPTIONAL
        if self._clients is None:
            return
        try:
            context.load_verify_locations(cadata=self._clients.decode("ascii"))
        except (ValueError, ssl.SSLError) as error:
            raise CertificateError(f"callers' authority can't be read: {error}") from error
        if not self._optional:
            context.verify_mode = ssl.CERT_REQUIRED
        self._verified[context] = self._clients

    def _choose(
        self, connection: ssl.SSLObject | ssl.SSLSocket, _name: str | None, _: ssl.SSLContext
    ) -> int | None:
        if self._current is None:
            return ssl.ALERT_DESCRIPTION_INTERNAL_ERROR
        connection.context = self._current
        return None


def common_names(connection: ssl.SSLObject | ssl.SSLSocket | None) -> tuple[str, ...]:
    """Return the common names of the leaf that a caller showed, none without one."""
    leaf = None if connection is None else connection.getpeercert()
    subject: Any = (leaf or {}).get("subject", ())
    return tuple(value for part in subject for key, value in part if key == "commonName")


def _load(context: ssl.SSLContext, pair: KeyPair) -> None:
    """Load a pair from memory: OpenSSL reads files only, and the key shall not touch a disk."""
    file = os.memfd_create("tenure-leaf", os.MFD_CLOEXEC)
    try:
        os.write(file, pair.key + b"\n" + pair.certificate)
        context.load_cert_chain(f"/proc/self/fd/{file}")
    except (OSError, ssl.SSLError) as error:
        raise CertificateError(f"the leaf can't be loaded: {error}") from error
    finally:
        os.close(file)


@dataclass(slots=True, eq=False)
class Folder:
    """Keeps a server's leaf that of a folder with `tls.crt`, `tls.key` and, if there, `ca.crt`."""

    path: Path
    serving: Serving
    names: tuple[str, ...]
    clock: Callable[[], datetime]

    def look(self) -> bool:
        """
        Serve what the folder holds, if it is another leaf; tell whether it was.

        Raises:
            CertificateError: a file is missing or clients would refuse the leaf; the one before is
                served on.
        """
        folder = self.path / _SWAPPED
        folder = (folder if folder.exists() else self.path).resolve()
        pair = KeyPair(certificate=_read(folder / CERTIFICATE), key=_read(folder / KEY))
        if facts_of(pair.certificate) == self.serving.leaf:
            return False
        authority = folder / AUTHORITY
        bundle = _read(authority) if authority.exists() else None
        self.serving.swap(pair, bundle, self.names, now=self.clock())
        return True


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        fact = (error.strerror or str(error)).lower()
        raise CertificateError(f"a certificate file can't be read: {fact}: file={path}") from error
