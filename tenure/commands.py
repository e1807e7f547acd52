"""Groups of commands: how one lists them in its help, and one that makes them when asked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from dataclasses import MISSING, fields
from importlib import import_module
from inspect import Parameter, Signature
from typing import TYPE_CHECKING, TypeVar, get_type_hints

import typer
from typer.core import TyperGroup
from typer.main import get_group

if TYPE_CHECKING:
    from _typeshed import DataclassInstance
    from typer._click import Command, Context, HelpFormatter

Options = TypeVar("Options", bound="DataclassInstance")
_SENTENCE_MAX = 1000


class Commands(TyperGroup):
    """A group whose help has the whole first sentence of each command."""

    def format_commands(self, ctx: Context, formatter: HelpFormatter) -> None:
        """Write the list; the one that this replaces ends most sentences in dots."""
        found = ((name, self.get_command(ctx, name)) for name in self.list_commands(ctx))
        rows = [
            (name, command.get_short_help_str(_SENTENCE_MAX))
            for name, command in found
            if command is not None and not command.hidden
        ]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def command_of(options: type[Options], run: Callable[[Options], None]) -> Callable[..., None]:
    """Return a command whose parameters are the fields of a dataclass, which `run` is given."""
    hints = get_type_hints(options, include_extras=True)
    parameters = (
        Parameter(
            each.name,
            Parameter.KEYWORD_ONLY,
            default=Parameter.empty if each.default is MISSING else each.default,
            annotation=hints[each.name],
        )
        for each in fields(options)
    )
    return with_parameters(parameters, lambda **given: run(options(**given)), run)


def with_parameters(
    parameters: Iterable[Parameter], act: Callable[..., None], described: Callable[..., None]
) -> Callable[..., None]:
    """Return a command that acts on these parameters, with the help text of a function."""

    def command(**given: object) -> None:
        act(**given)

    command.__doc__ = described.__doc__
    command.__signature__ = Signature([*parameters])  # type: ignore[attr-defined]  # inspect's own
    return command


class Verbs(MutableMapping[str, "Command"]):
    """
    Commands by name, each imported and made when somebody looks: a command line has one.

    Args:
        modules: name -> the module whose `register` adds it, or `module:function`.
        own: what is made already; listed where `modules` has its name, with no module.
    """

    def __init__(self, modules: Mapping[str, str], own: MutableMapping[str, Command]) -> None:
        self._modules = {**modules}
        self._made = own

    def __getitem__(self, name: str) -> Command:
        """Return a command; KeyError if there is none."""
        if name not in self._made:
            one = typer.Typer(rich_markup_mode=None)
            one.callback()(lambda: None)
            module, _, function = self._modules[name].partition(":")
            found = import_module(module)
            if function:
                one.command(name)(getattr(found, function))
            else:
                found.register(one)
            self._made[name] = get_group(one).commands[name]
        return self._made[name]

    def __setitem__(self, name: str, command: Command) -> None:
        """Add a command, as typer does."""
        self._modules[name], self._made[name] = "", command

    def __delitem__(self, name: str) -> None:
        """Take a command out."""
        del self._modules[name]
        self._made.pop(name, None)

    def __iter__(self) -> Iterator[str]:
        """Return the names, in the order of the help."""
        return iter(self._modules)

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._modules)
