"""A question asked again and again, on a screen of its own."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from ledger.domain.errors import InputError
from tenure.asking import Answers
from tenure.exits import stdout, with_next
from tenure.live.place import Place
from tenure.opening import clock_us
from tenure.units import format_time

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_Q = TypeVar("_Q", bound="DataclassInstance")


def watch(
    place: Place, name: str, answers: Answers[_Q], question: Callable[[int], _Q], interval: float
) -> None:
    """
    Draw the answer again and again, until Ctrl-C; `question` is given the screen's width.

    Raises InputError: stdout is no terminal.
    """
    from rich.live import Live
    from rich.text import Text

    console = stdout()
    if not console.is_terminal:
        error = InputError("needs a terminal", field="--watch")
        raise with_next(error, "leave it out, or ask for -o json again and again")
    with (
        suppress(KeyboardInterrupt),
        place.asked_again(name, answers) as ask,
        Live(console=console, screen=True, auto_refresh=False) as shown,
    ):
        while True:  # until Ctrl-C, which is how a watch ends well
            text = Text.from_ansi(ask(question(console.width)).text)
            text.append(f"\n{format_time(clock_us())}, every {interval:g} s, Ctrl-C ends")
            shown.update(text, refresh=True)
            time.sleep(interval)
