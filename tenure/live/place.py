"""Where a command's question goes: to a ledger, or by `--live` or `--server` to a service."""

from __future__ import annotations

import functools
import inspect
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from ledger.domain.errors import InputError
from tenure.asking import EVERYBODY, Answer, Answers, lines_here, params_of
from tenure.exits import AnswerIsNo, note, stdout, with_next
from tenure.opening import clock_us, opened
from tenure.options import LedgerUrl, Live, Namespace, Server, ServerCa, ServerName, TokenFile
from tenure.output import OutputFormat, fitted
from tenure.units import format_time

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from ledger.store.open import Ledger
    from tenure.live.service import Service

NO_PARQUET: Final = "a service answers in text: take -o csv or -o json"

Opens: TypeAlias = "Callable[..., AbstractContextManager[Ledger]]"
_Q = TypeVar("_Q", bound="DataclassInstance")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What the options say of where a question goes. Made by `place_of`."""

    ledger: str | None
    service: Any = None
    dump: Callable[[], AbstractContextManager[Ledger]] | None = None

    def over(self, files: Sequence[str] | None, opens: Opens, **how: bool) -> Place:
        """
        Ask the ledger that `opens` makes of files, where there are some.

        Raises:
            InputError: a ledger or a service is named, too.
        """
        if not files:
            return self
        if self.service is not None or self.ledger is not None:
            field = "--live" if self.service is not None else "--ledger"
            error = InputError("files are asked in place of a ledger", field=field)
            raise with_next(error, f"leave {field} or the files out")
        return replace(self, dump=functools.partial(opens, files, **how))

    def opened(self, why: str = "") -> AbstractContextManager[Ledger]:
        """
        Open the ledger, of files where these are asked, for what a service does not do.

        Raises:
            InputError: a service is meant; with `why` it can't.
        """
        if self.service is not None:
            error = InputError(why or "a service answers no such question", field="--live")
            raise with_next(error, "ask a ledger by --ledger")
        return self.dump() if self.dump is not None else opened(self.ledger)

    def ask(self, name: str, answers: Answers[_Q], question: _Q) -> Answer:
        """Return the answer to a question, wherever it goes. Raises InputError: it has none."""
        if self.service is not None:
            params = [*params_of(question), *params_of(lines_here())]
            answer: Answer = self.service.ask(name, params)
            return answer
        with self.opened() as source:
            return answers(source, question, EVERYBODY)

    @contextmanager
    def asked_again(self, name: str, answers: Answers[_Q]) -> Iterator[Callable[[_Q], Answer]]:
        """Yield what asks one question after the other, over one ledger that is open."""
        if self.service is not None:
            yield lambda question: self.ask(name, answers, question)
            return
        with opened(self.ledger) as source:
            yield lambda question: answers(source, question, EVERYBODY)

    def print(self, name: str, answers: Answers[_Q], question: _Q) -> None:
        """Print the answer to a question. Raises InputError as `ask`."""
        say(self.ask(name, answers, question), getattr(question, "output", None))


def expect_now(files: Sequence[str] | None, **given: object) -> None:
    """Raise InputError for an option that asks more of files than their one moment."""
    for name in (name for name, value in given.items() if files and value not in {None, False}):
        error = InputError("files show one moment only", field=f"--{name}")
        raise with_next(error, "leave the files out to ask the ledger")


def service_of(place: Place) -> Service:
    """Return the service that is meant. Raises InputError: none is."""
    if place.service is None:
        error = InputError("only the service that runs can do it", field="--live")
        raise with_next(error, "give --live, or --server URL")
    service: Service = place.service
    return service


def say(answer: Answer, output: OutputFormat | None = None) -> None:
    """
    Write an answer to stdout, a table no wider than that is, and the notes beside it to stderr.

    Raises:
        AnswerIsNo: it is no.
    """
    sys.stdout.write(fitted(answer.text) if output is OutputFormat.TABLE else answer.text)
    for text in answer.notes:
        note(text)
    if answer.is_no:
        raise AnswerIsNo


def asks(*, but: Collection[str] = ()) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """
    Give a command the options of `place_of`, where it has `place`, which it is handed instead.

    Args:
        but: options that make no sense for it.
    """

    def with_options(command: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(command, eval_str=True)
        every = inspect.signature(place_of, eval_str=True).parameters
        options = {name: option for name, option in every.items() if name not in but}
        parameters = [
            option
            for each in own.parameters.values()
            for option in (options.values() if each.name == "place" else [each])
        ]

        @functools.wraps(command)
        def asking(**given: Any) -> None:  # noqa: ANN401 - whatever the options are
            said = {name: given.pop(name) for name in options}
            command(**given, place=place_of(**said))

        described: Any = asking
        described.__signature__ = own.replace(parameters=parameters)
        described.__annotations__ = {each.name: each.annotation for each in parameters}
        return asking

    return with_options


def place_of(
    *,
    ledger: LedgerUrl = None,
    live: Live = False,
    server: Server = None,
    token_file: TokenFile = None,
    server_ca: ServerCa = None,
    server_name: ServerName = None,
    namespace: Namespace = None,
) -> Place:
    """Return the place that options of `asks` name. Raises InputError: they do not go together."""
    direct = {"--token-file": token_file, "--server-ca": server_ca, "--server-name": server_name}
    if not live and server is None:
        for option, value in {**direct, "--namespace": namespace}.items():
            if value is not None:
                raise with_next(
                    InputError("a ledger is asked, which has no rights", field=option),
                    "give --live or --server URL too",
                )
        return Place(ledger=ledger)
    if ledger is not None:
        raise InputError("a ledger and a service exclude each other", field="--ledger")
    if live and server is not None:
        raise InputError("--live and --server exclude each other", field="--live")
    if live and any(value is not None for value in direct.values()):
        option = next(name for name, value in direct.items() if value is not None)
        raise InputError("it goes with --server", field=option)
    if server is not None and not server.startswith("https://"):
        fact = f"a service is asked by https alone: value={server!r}"
        raise with_next(InputError(fact, field="--server"), "such as https://127.0.0.1:8444")
    from tenure.extras import needs

    with needs("service"):
        from tenure.live.service import Service

    service = Service(
        url=server or "",
        token_file=token_file,
        authority_file=server_ca,
        name=server_name or "",
        namespace=namespace or "",
    )
    return Place(ledger=None, service=service)


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
