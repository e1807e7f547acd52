"""
How a command ends: its exit code, and the one message when it could not do what was asked.

Rule: cli.md, Commands: 0 done; 1 the answer is no; 2 wrong usage or unreadable input. Ours beside
it: 3 an error of our own, 4 `verify` could not compare everything, 130 interrupted. Who stopped
reading the output has what it wanted.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, TypeVar

from ledger.domain import errors
from tenure.output import LINE_WIDTH, WIDTH_MIN

if TYPE_CHECKING:
    import typer
    from rich.console import Console

DONE: Final = 0
NO: Final = 1
UNREADABLE: Final = 2
OURS: Final = 3
NOT_COMPARED: Final = 4
"""`tenure verify` found nothing wrong, and could not compare everything."""
INTERRUPTED: Final = 130

DEBUG_VARIABLE: Final = "TENURE_DEBUG"
"""Set to 1, an error of our own is shown with its traceback."""

AnyError = TypeVar("AnyError", bound=BaseException)

_CONTROL: Final = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if code != 10}


class AnswerIsNo(Exception):  # noqa: N818 - an answer, not an error
    """The command did its work and the answer is no: exit `code`, nothing more is printed."""

    def __init__(self, code: int = NO) -> None:
        super().__init__(code)
        self.code = code


def with_next(error: AnyError, step: str) -> AnyError:
    """Return `error` with the one step to take next, printed below its message."""
    error.add_note(step)
    return error


def run(app: typer.Typer, arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    return ended(lambda: _main_of(app)(args=words, prog_name="tenure", standalone_mode=False))


def ended(act: Callable[[], object]) -> int:
    """Act, and return the exit code. What the user did wrong has no traceback."""
    _expect_streams()
    here = LINE_WIDTH.set(_width_here())
    try:
        code = act()
        sys.stdout.flush()
    except (AnswerIsNo, BrokenPipeError, KeyboardInterrupt, SystemExit) as stop:
        return _stopped(stop)
    except (errors.TenureError, OSError) as error:
        return _failed(error)
    except Exception as error:  # noqa: BLE001 - the process edge
        parser = sys.modules.get("typer")  # a service may have read its command line before
        if parser is not None and isinstance(error, parser.Abort):
            return _stopped(error)
        if parser is not None and isinstance(error, parser.TyperException):
            return _wrong_usage(error)
        return _ours(error)
    finally:
        LINE_WIDTH.reset(here)
    return _interrupted() if code == INTERRUPTED else code if isinstance(code, int) else DONE


@functools.cache
def _main_of(app: typer.Typer) -> Callable[..., object]:
    """Return what runs the command line; to make that takes as long as many a command."""
    from typer.main import get_command

    return get_command(app).main


def _width_here() -> int | None:
    """Return how long lines may be where COLUMNS or a terminal tells, never below 80."""
    told = os.environ.get("COLUMNS", "")
    if told.isascii() and told.isdigit() and int(told):
        return max(WIDTH_MIN, int(told))
    if not sys.stdout.isatty():
        return None
    return max(WIDTH_MIN, os.get_terminal_size(sys.stdout.fileno()).columns)


def note(text: str) -> None:
    """Write one line beside the answer, on stderr: a warning, progress, the ledger used."""
    print(printable(text), file=sys.stderr, flush=True)  # noqa: T201 - this is the command line


def warn(text: str) -> None:
    """Write one warning on stderr."""
    note(f"warning: {text}".replace("\n", " "))


@functools.cache
def stderr() -> Console:
    """Return the console beside the answer. It has colours on a terminal and without NO_COLOR."""
    from rich.console import Console

    return Console(stderr=True, highlight=False)


@functools.cache
def stdout() -> Console:
    """Return the console of the answer; colours as `stderr`."""
    from rich.console import Console

    return Console(highlight=False)


def printable(text: str) -> str:
    """Return `text` with control characters spelled out: a name can't steer the terminal."""
    return text.translate(_CONTROL)


def _stopped(stop: BaseException) -> int:
    if isinstance(stop, AnswerIsNo):
        return _flushed(stop.code)
    if isinstance(stop, BrokenPipeError) or isinstance(stop.__context__, BrokenPipeError):
        _keep_quiet()
        return DONE
    if isinstance(stop, SystemExit):
        return stop.code if isinstance(stop.code, int) else DONE if stop.code is None else OURS
    return _interrupted()


def _flushed(code: int) -> int:
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _keep_quiet()
    return code


def _keep_quiet() -> None:
    """Nobody reads what is still to come: keep the interpreter's own flush at exit quiet too."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _expect_streams() -> None:
    """Give a process that was started without stdout or stderr one that nobody reads."""
    for number, name in ((1, "stdout"), (2, "stderr")):
        if getattr(sys, name) is None:
            unread = os.open(os.devnull, os.O_WRONLY)
            if unread != number:
                os.dup2(unread, number)
                os.close(unread)
            setattr(sys, name, os.fdopen(number, "w", encoding="utf-8"))


def _interrupted() -> int:
    _say("interrupted", "run it again; a simulation with --ledger goes on with --resume")
    return INTERRUPTED


def _wrong_usage(error: typer.TyperException) -> int:
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "tenure"
    if type(error).__name__ == "NoArgsIsHelpError":
        note(error.format_message())
        return UNREADABLE
    text = " ".join(error.format_message().replace("Value error, ", "").split())
    _say(f"{text[:1].lower()}{text[1:]}".rstrip("."), f"see `{command} --help`")
    return UNREADABLE


def _failed(error: errors.TenureError | OSError) -> int:
    if isinstance(error, (errors.CapacityError, errors.IdempotencyError)):
        return _ours(error)
    if isinstance(error, OSError):
        places = [str(name) for name in (error.filename, error.filename2) if name]
        _say(": ".join([*places, (error.strerror or str(error)).lower()]), _step(error))
        return UNREADABLE
    _say(str(error), _step(error))
    return UNREADABLE


def _step(error: errors.TenureError | OSError) -> str:
    notes = getattr(error, "__notes__", ())
    if notes:
        return str(notes[0])
    match error:
        case errors.InputError(field=field) if field:
            return "correct that field and run it again"
        case errors.InputError(place=place) if place:
            return "correct that place and run it again"
        case errors.UnknownEventError():
            return "read it with the release that wrote it, or a newer one"
        case errors.CorruptLedgerError():
            return "run `tenure verify` for every finding, then restore a copy"
        case errors.LedgerError():
            return "make sure that no other process writes this ledger, then run it again"
        case OSError():
            return "check the path and its permissions"
        case _:
            return "see `tenure --help`"


def _ours(error: Exception) -> int:
    if os.environ.get(DEBUG_VARIABLE) == "1":
        import traceback

        traceback.print_exception(error)
    fact = f"{type(error).__name__}: {error}".rstrip(": ").splitlines()[0]
    _say(
        f"internal error, not your input: {fact}",
        f"report it with the output of the same command under {DEBUG_VARIABLE}=1",
    )
    return OURS


def _say(fact: str, step: str) -> None:
    console = stderr()
    console.print("error:", style="bold red", end=" ")
    console.print(printable(fact), markup=False, soft_wrap=True)
    console.print(f"next: {printable(step)}", markup=False, soft_wrap=True)
