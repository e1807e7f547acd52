"""A progress bar beside the answer, where someone is watching."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from threading import Lock, Timer

from tenure.exits import stderr

Progress = Callable[[int, int], None]
"""Takes how much is done, and of how much; 0 for the latter keeps what was said before."""


@contextmanager
def progress_bar(what: str, total: int | None = None) -> Iterator[Progress | None]:
    """Yield what moves a bar on stderr; None off a terminal (cli.md, Commands, "Common")."""
    console = stderr()
    if not console.is_terminal:
        yield None
        return
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn() if total is None else TimeRemainingColumn(),
    )
    with Bar(*columns, console=console, transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda done, of: bar.update(task, completed=done, total=of or None)


@contextmanager
def bar_after(seconds: float, what: str) -> Iterator[None]:
    """Show that something takes its time once it has taken so long; nothing off a terminal."""
    if not stderr().is_terminal:
        yield
        return
    with ExitStack() as shown:
        lock, done = Lock(), False

        def show() -> None:
            with lock:
                if not done:
                    shown.enter_context(progress_bar(what))

        timer = Timer(seconds, show)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            with lock:
                done = True


@contextmanager
def counting_bar(what: str, total: int) -> Iterator[Callable[[int], None] | None]:
    """Give a function that takes how much of `total` is done; None off a terminal."""
    with progress_bar(what, total=total) as progress:
        yield None if progress is None else lambda done: progress(done, total)
