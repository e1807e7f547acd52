"""Commands that need an optional extra, in an environment that may not have it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ledger.domain.errors import InputError
from tenure.exits import with_next


@contextmanager
def needs(extra: str) -> Iterator[None]:
    """Import what an extra brings. Raises InputError: it is missing; with what to install."""
    try:
        yield
    except ModuleNotFoundError as error:
        missing = InputError(f"this command needs the extra `{extra}`: missing={error.name}")
        raise with_next(missing, how_to_install(extra)) from error


def how_to_install(extra: str) -> str:
    """Return the step that installs an extra: from no index, where `tenure` is another project."""
    words = 'in the checkout: pip install ".[{0}]"; with a wheel: pip install "./FILE.whl[{0}]"'
    return words.format(extra)
