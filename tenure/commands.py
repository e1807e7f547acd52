"""How a group of commands lists them in its help."""

from __future__ import annotations

from typing import TYPE_CHECKING

from typer.core import TyperGroup

if TYPE_CHECKING:
    from typer._click import Context, HelpFormatter

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
