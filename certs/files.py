"""
Certificates that somebody else provides as files: cert-manager, a mounted Secret, an operator.

Kubelet swaps a mounted Secret as a whole by one symbolic link, so the folder is resolved once for
each look and both halves are read from the same one.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Final

from certs.material import CertificateError, KeyPair, facts_of
from certs.serving import Serving

CERTIFICATE: Final = "tls.crt"
KEY: Final = "tls.key"
AUTHORITY: Final = "ca.crt"
_SWAPPED: Final = "..data"


class Folder:
    """Keeps a server's leaf that of a folder with `tls.crt`, `tls.key` and, if there, `ca.crt`."""

    def __init__(
        self,
        path: Path,
        serving: Serving,
        *,
        names: tuple[str, ...],
        clock: Callable[[], datetime],
    ) -> None:
        self._path = path
        self._serving = serving
        self._names = names
        self._clock = clock

    def look(self) -> bool:
        """
        Serve what the folder holds, if it is another leaf; tell whether it was.

        Raises:
            CertificateError: a file is missing or clients would refuse the leaf; the one before is
                served on.
        """
        folder = self._path / _SWAPPED
        folder = (folder if folder.exists() else self._path).resolve()
        pair = KeyPair(certificate=_read(folder / CERTIFICATE), key=_read(folder / KEY))
        if facts_of(pair.certificate) == self._serving.leaf:
            return False
        authority = folder / AUTHORITY
        bundle = _read(authority) if authority.exists() else None
        self._serving.swap(pair, bundle, self._names, now=self._clock())
        return True


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        fact = (error.strerror or str(error)).lower()
        raise CertificateError(f"a certificate file can't be read: {fact}: file={path}") from error
