"""
The TLS context of a server whose certificate changes while it runs.

A live context is never loaded into: a certificate with another one's key would break every
handshake from then on. A new context is built and checked, then handed out for new connections.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterable
from datetime import datetime
from typing import Final

from certs.material import CertificateError, Facts, KeyPair, check_pair, facts_of

_MINIMUM: Final = ssl.TLSVersion.TLSv1_3


class Serving:
    """
    Serves one leaf at a time; connections that are open keep the one they began with.

    Args:
        clients: whose leaves callers must show, as PEM; None lets everybody in.

    Raises:
        CertificateError: `clients` holds no certificate.
    """

    def __init__(self, *, clients: bytes | None = None) -> None:
        self._clients = clients
        self._current: ssl.SSLContext | None = None
        self._facts: Facts | None = None
        self._outer = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._outer.minimum_version = _MINIMUM
        self._outer.sni_callback = self._choose
        self._ask_callers(self._outer)

    @property
    def context(self) -> ssl.SSLContext:
        """The context to listen with; the same one for as long as the server runs."""
        return self._outer

    @property
    def leaf(self) -> Facts | None:
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
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = _MINIMUM
        self._ask_callers(context)
        _load(context, pair)
        if self._current is None:
            _load(self._outer, pair)  # so that OpenSSL knows which kinds of keys there are
        self._current = context
        self._facts = facts_of(pair.certificate)

    def _ask_callers(self, context: ssl.SSLContext) -> None:
        if self._clients is None:
            return
        try:
            context.load_verify_locations(cadata=self._clients.decode("ascii"))
        except (ValueError, ssl.SSLError) as error:
            raise CertificateError(f"callers' authority can't be read: {error}") from error
        context.verify_mode = ssl.CERT_REQUIRED

    def _choose(
        self, connection: ssl.SSLObject | ssl.SSLSocket, _name: str | None, _: ssl.SSLContext
    ) -> int | None:
        if self._current is None:
            return ssl.ALERT_DESCRIPTION_INTERNAL_ERROR
        connection.context = self._current
        return None


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
