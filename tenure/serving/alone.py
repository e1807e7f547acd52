"""A service once its command line is read: the same process, without a command line."""

from __future__ import annotations

import os
import pickle
import sys
from typing import Any, Final, NoReturn

_DESCRIPTOR: Final = 1
"""Which argument of the program says where the options are."""


def go_on(module: str, options: object) -> NoReturn:
    """
    Serve, as a program of our own in this process: that is 13 MiB less for as long as it serves.

    The options, read and checked, come along in memory that nobody else has.

    Args:
        module: what is run; it begins with `told`.
    """
    told = os.memfd_create("tenure", 0)  # kept open by what comes
    with os.fdopen(told, "wb", closefd=False) as file:
        pickle.dump(options, file)
    os.lseek(told, 0, os.SEEK_SET)
    os.execv(sys.executable, [sys.executable, "-P", "-m", module, str(told)])  # noqa: S606 - ourselves


def told() -> Any:  # noqa: ANN401 - of any process
    """Return the options that came along."""
    with os.fdopen(int(sys.argv[_DESCRIPTOR]), "rb") as file:
        return pickle.load(file)  # noqa: S301 - what we wrote ourselves
