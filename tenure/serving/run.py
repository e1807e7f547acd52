"""How a service starts from the command line, and how what stops it is said."""

from __future__ import annotations

import os
import re
import resource
import socket
import sys
from collections.abc import Coroutine
from typing import Any, Final

from ledger.domain.errors import InputError
from tenure.exits import with_next

DESCRIPTORS_MAX: Final = 65_536
"""Enough for four connections of each of 8,000 nodes, and all others."""
SWITCH_SECONDS: Final = 0.001
"""
How long a thread that computes keeps the interpreter from one that waits. The loop lets go of it at
each system call. Beside such a thread it answered 1.4 times as many calls as by the usual 5 ms.
"""


def run_service(serve: Coroutine[Any, Any, None]) -> None:
    """
    Run a service until it ends, on libuv's loop, on which TLS in a burst costs half.

    It may open as many descriptors as the system lets it, up to `DESCRIPTORS_MAX`.

    Raises InputError: it can't start with what it was given.
    """
    import uvloop  # none of it to read a command line, which is left behind

    from certs.material import CertificateError
    from certs.ports import ApiError

    sys.setswitchinterval(SWITCH_SECONDS)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = DESCRIPTORS_MAX if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS_MAX)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    try:
        uvloop.run(serve)
    except CertificateError as error:
        step = "give it a folder with tls.crt, tls.key and ca.crt that belong together"
        raise with_next(InputError(str(error)), step) from error
    except ApiError as error:
        step = "give --kubeconfig, or run it in a Pod with a service account"
        raise with_next(InputError(str(error)), step) from error
    except OSError as error:
        step = "choose another address"
        raise with_next(InputError(f"can't listen: {error}"), step) from error


def default_replica() -> str:
    """Return what tells this replica from others: the Pod's name, else host and process."""
    host = re.sub(r"[^a-z0-9]+", "-", socket.gethostname().lower()).strip("-") or "replica"
    return os.environ.get("POD_NAME") or f"{host}-{os.getpid()}"
