"""Amounts of devices, CPUs and memory as people read them."""

from __future__ import annotations

from typing import Final

_BYTE_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def format_bytes(amount: int) -> str:
    """Return bytes with the largest binary unit that leaves at least 1: `16 GiB`, `1.5 GiB`."""
    number, unit = float(amount), 0
    while abs(number) >= 1024 and unit < len(_BYTE_UNITS) - 1:
        number, unit = number / 1024, unit + 1
    return f"{number:.1f}".removesuffix(".0") + f" {_BYTE_UNITS[unit]}"


def format_cores(cpu_milli: int) -> str:
    """Return CPU thousandths as cores: `8`, `0.5`."""
    return f"{cpu_milli / 1000:.3f}".rstrip("0").removesuffix(".")


def format_cards(core_percent: int) -> str:
    """Return core percent as cards: `4`, `0.35`."""
    return f"{core_percent / 100:.2f}".rstrip("0").removesuffix(".")
