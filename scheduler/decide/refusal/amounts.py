"""Amounts in the texts of refusals, as a Pod's spec would write them."""

from __future__ import annotations

from typing import Final

_MIB: Final = 1 << 20
_GIB: Final = 1 << 30


def cores(milli: int) -> str:
    """Return CPUs: `0.2`, `64`."""
    sign = "-" if milli < 0 else ""
    whole, part = divmod(abs(milli), 1000)
    return f"{sign}{whole}.{part:03d}".rstrip("0").rstrip(".")


def size(size_bytes: int) -> str:
    """Return what is asked for, rounded up: `80Gi`, `1025Mi`."""
    return f"{size_bytes // _GIB}Gi" if size_bytes % _GIB == 0 else mib_up(size_bytes)


def size_down(size_bytes: int) -> str:
    """Return what is there, rounded down."""
    return f"{size_bytes // _GIB}Gi" if size_bytes % _GIB == 0 else mib_down(size_bytes)


def mib_up(size_bytes: int) -> str:
    """Return MiB, rounded up."""
    return f"{-(-size_bytes // _MIB)}Mi"


def mib_down(size_bytes: int) -> str:
    """Return MiB, rounded down."""
    return f"{size_bytes // _MIB}Mi"
