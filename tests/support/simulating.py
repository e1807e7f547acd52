"""`tenure simulate` over objects, read back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

NOW: Final = "2026-01-01T00:00:00Z"
"""The virtual time at which these runs begin."""

Simulate = Callable[..., dict[str, Any]]
"""Takes objects, and settings by section; returns the JSON document."""
