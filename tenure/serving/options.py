"""
Options of a process: each is declared once, as a field of the dataclass of its process.

The field has the type, the default and an `Option`. Command line and environment are made from it
(`tenure/serving/serve.py`). What a Deployment runs stands in `deploy/`, and a test reads it by
these fields.

The process itself imports this: nothing here may import what reads a command line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import KW_ONLY, MISSING, Field, dataclass, fields
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar, get_args, get_type_hints

from ledger.domain.errors import InputError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T")
Options = TypeVar("Options", bound="DataclassInstance")
PORT_MAX: Final = 65_535


class Address(NamedTuple):
    """Host and port to listen on; port 0 takes a free one."""

    host: str
    port: int

    @classmethod
    def read(cls, text: str) -> Address:
        """Return host and port of `HOST:PORT`. Raises InputError: it is something else."""
        host, colon, port = text.rpartition(":")
        if not (colon and host and port.isascii() and port.isdigit() and int(port) <= PORT_MAX):
            raise InputError(f"expected HOST:PORT: value={text!r}")
        return cls(host.strip("[]"), int(port))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


TLS_ADDRESS: Final = Address.read("0.0.0.0:8443")
PROBES_ADDRESS: Final = Address.read("0.0.0.0:8080")


@dataclass(frozen=True, slots=True)
class Option:
    """
    How a field is given on the command line and by the environment.

    Attributes:
        help: one sentence, for people.
        variable: the environment's; None = `TENURE_`, the process and the flag; empty = none.
        metavar: what the help calls the value; None = its type.
        read: makes the value of its text; None = the type does.
    """

    help: str
    _: KW_ONLY
    variable: str | None = None
    metavar: str | None = None
    least: float | None = None
    read: Callable[[str], object] | None = None


def if_given(read: Callable[[str], T]) -> Callable[[str], T | None]:
    """Return what reads a text, of which an empty one, as of an empty variable, gives none."""
    return lambda text: read(text) if text else None


KUBE_API_SERVER: Final = "kube-apiserver-kubelet-client"
"""The common name that kubeadm gives kube-apiserver as a caller."""
DEBUG: Final = Option("Log more.", variable="")
PROBES: Final = Option("HOST:PORT for /livez, /readyz and /metrics, plain.", read=Address.read)


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """One option of a process: a field, its type and its `Option`."""

    field: Field[Any]
    kind: Any
    option: Option
    process: str

    @property
    def flag(self) -> str:
        """Return its name on the command line."""
        return f"--{self.field.name.replace('_', '-')}"

    @property
    def variable(self) -> str:
        """Return its name in the environment; empty = it has none."""
        name = self.option.variable
        return f"TENURE_{self.process}_{self.field.name}".upper() if name is None else name

    @property
    def is_made(self) -> bool:
        """Tell whether its default is made when the process starts."""
        return self.field.default_factory is not MISSING

    def default(self) -> Any:  # noqa: ANN401 - of any type
        """Return its default; MISSING if it has to be given."""
        made = self.field.default_factory
        return self.field.default if made is MISSING else made()

    def read(self, given: Any) -> Any:  # noqa: ANN401 - of any type
        """
        Return the value that a command line gives.

        Raises:
            InputError: the text is no such value; with the flag.
        """
        if isinstance(given, list):
            return tuple(given)
        if given is None or self.option.read is None:
            return given
        try:
            return self.option.read(given)
        except InputError as error:
            raise error.within(self.flag) from error


def declared(options: type[DataclassInstance]) -> Iterator[Declared]:
    """Yield the options of a process, in the order of its help."""
    hints = get_type_hints(options, include_extras=True)
    process = options.__name__.removesuffix("Options")
    for field in fields(options):
        kind, option = get_args(hints[field.name])
        yield Declared(field=field, kind=kind, option=option, process=process)


def read(options: type[Options], given: Mapping[str, Any]) -> Options:
    """
    Return the options that a command line gives.

    Args:
        given: name of a field -> its value; None, or nothing for a default that is made, means that
            it is not given.

    Raises:
        InputError: a text is no such value, or options do not go together; with the flag.
    """
    values = {}
    for each in declared(options):
        value = given[each.field.name]
        if value or not (value is None or each.is_made):
            values[each.field.name] = each.read(value)
    return options(**values)
