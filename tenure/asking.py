"""What every question has: whose lines it shows, how it is drawn, and an answer with notes."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from ledger.domain.errors import InputError
from tenure.exits import with_next
from tenure.output import LINE_WIDTH, WIDTH_MAX, WIDTH_MIN

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from ledger.store.open import Ledger

_Q = TypeVar("_Q", bound="DataclassInstance")
_Q_contra = TypeVar("_Q_contra", contravariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """
    Whose lines may be seen: everybody's, or those of one namespace.

    In the sight of one namespace others' holders are left out, names and amounts; nothing is called
    free because of that.

    Attributes:
        binding: what a service alone knows, by `namespace/name`: UIDs of Pods whose bind waits for
            their gang, and how many have come.
        in_part: likewise why the gangs of Pods may start in part.
    """

    namespace: str = ""
    binding: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    in_part: Mapping[str, str] = field(default_factory=dict)

    @property
    def whole(self) -> bool:
        """Everybody's lines are seen."""
        return not self.namespace

    def sees(self, namespace: str) -> bool:
        """Tell whether a namespace's lines are seen."""
        return self.whole or namespace == self.namespace

    def expect_whole(self, what: str) -> None:
        """Raise InputError where a question is about everybody, and not everybody is seen."""
        if not self.whole:
            error = InputError(f"{what} is about the Pods of all namespaces", field="--namespace")
            raise with_next(error, "ask without a namespace; it takes the right for all of them")


EVERYBODY: Final = Sight()


@dataclass(frozen=True, slots=True, kw_only=True)
class Screen:
    """Where a drawing is shown: how wide it is, and what it knows."""

    width: int = 80
    blocks: bool = True
    colour: bool = False


class Answer:
    """An answer for stdout, its notes for stderr, and whether it is no, as the exit code says."""

    def __init__(self, *, is_no: bool = False) -> None:
        self.is_no = is_no
        self.out = io.StringIO()
        self.notes: list[str] = []

    @property
    def text(self) -> str:
        """The answer alone."""
        return self.out.getvalue()

    def note(self, text: str) -> None:
        """Note something beside the answer."""
        self.notes.append(text)

    def warn(self, what: object) -> None:
        """Note a warning, on one line."""
        self.note(f"warning: {what}".replace("\n", " "))

    def draw(self, picture: Any, screen: Screen) -> None:  # noqa: ANN401 - what rich can print
        """Draw a picture of rich's as this screen shows it."""
        from rich.console import Console

        console = Console(
            file=self.out,
            width=screen.width,
            force_terminal=screen.colour,
            color_system="standard" if screen.colour else None,
            highlight=False,
            legacy_windows=False,
        )
        console.print(picture, soft_wrap=True, end="")


class Answers(Protocol[_Q_contra]):
    """Answers one kind of question out of a ledger; the files' commands and the service call it."""

    def __call__(self, source: Ledger, question: _Q_contra, sight: Sight, /) -> Answer:
        """Answer. Raises InputError: the question can't be read, or is of what nobody knows."""


def params_of(question: DataclassInstance) -> list[tuple[str, str]]:
    """Return a question as the parameters of a URL; what is as usual goes without saying."""
    given = ((each.name, getattr(question, each.name), each.default) for each in fields(question))
    return [(name, _text(value)) for name, value, usual in given if value != usual]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines:
    """How long lines for people may be where the asker is, which any question may say."""

    columns: int | None = None


def lines_here() -> Lines:
    """Return how long they may be in this process."""
    width = LINE_WIDTH.get()
    return Lines(columns=None if width is None else min(width, WIDTH_MAX))


def lines_of(params: Iterable[tuple[str, str]]) -> Lines:
    """Return the line length that parameters give. Raises InputError: no width that is allowed."""
    lines = question_of(Lines, params)
    if lines.columns is not None and not WIDTH_MIN <= lines.columns <= WIDTH_MAX:
        fact = f"a line has {WIDTH_MIN} to {WIDTH_MAX} columns: value={lines.columns}"
        raise InputError(fact, field="columns")
    return lines


def question_of(kind: type[_Q], params: Iterable[tuple[str, str]]) -> _Q:
    """
    Return the question that parameters of a URL ask.

    Raises:
        InputError: one is unknown, said twice, missing or no value of its kind.
    """
    import msgspec

    said: dict[str, str] = {}
    known = {each.name for each in fields(kind)}
    for name, value in params:
        if name not in known:
            error = InputError("unknown parameter", field=name)
            raise with_next(error, f"known are {', '.join(sorted(known))}")
        if name in said:
            raise InputError("said twice", field=name)
        said[name] = value
    try:
        return msgspec.convert(said, kind, strict=False)
    except msgspec.ValidationError as error:
        fact, _, where = str(error).partition(" - at `$")
        raise InputError(fact, field=where.strip(".`")) from error


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
