"""How a settings file says a field of the settings, as far as its name and type leave it open."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """
    Stands in the field's `Annotated`; what reads a file finds it there (`tenure/settings.py`).

    Attributes:
        key: its key, below that of the class; empty = the field's name in camel case.
        words: the texts that it may be; empty = whatever its type is.
        any_case: they are written in any case.
        least, most: bounds of a number; without `most`, the least length of something else.
        given: its type in the file, where that is another one.
        read: makes the value of what the file says. Raises InputError.
        unless: key of the setting that counts where this one is not there.
    """

    key: str = ""
    words: tuple[str, ...] = ()
    any_case: bool = False
    least: int | None = None
    most: int | None = None
    given: Any = None
    read: Callable[[Any], object] | None = None
    unless: str = ""
