"""Which release this is."""

from __future__ import annotations

from typing import Final

NOT_INSTALLED: Final = "0+checkout"


def tenure_version() -> str:
    """Return the installed version, as it is written into every ledger."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("tenure")
    except PackageNotFoundError:  # run from a checkout that was never set up
        return NOT_INSTALLED
