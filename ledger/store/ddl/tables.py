"""How a table is described, for the schema and for migrations alike, on both databases."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.schema import SchemaItem
from sqlalchemy.types import TypeEngine

NAMES: Final = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    "pk": "pk_%(table_name)s",
}
# A STRICT table of SQLite knows no BIGINT; its INTEGER has 64 bits.
_TYPES: Final[Mapping[str, TypeEngine[Any]]] = {
    "number": sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
    "text": sa.Text(),
    "bytes": sa.LargeBinary(),
}


def describe_table(
    metadata: sa.MetaData,
    name: str,
    columns: str,
    *parts: SchemaItem,
    key: str,
    of: Mapping[str, str] = MappingProxyType({}),
    rowid: bool = True,
    partition_by: str | None = None,
) -> sa.Table:
    """
    Describe a table whose columns take their own type only, on SQLite too.

    Args:
        columns: `name type`, by commas; a question mark behind the type allows NULL.
        key: the columns of its primary key.
        of: columns that refer to the column of the same name in another table.
    """
    described: list[SchemaItem] = []
    for column, kind in (each.split() for each in columns.split(", ")):
        refers = [sa.ForeignKey(f"{of[column]}.{column}")] if column in of else []
        described.append(
            sa.Column(
                column,
                _TYPES[kind.removesuffix("?")],
                *refers,
                nullable=kind.endswith("?"),
                primary_key=column in key.split(),
                autoincrement=False,
            )
        )
    return sa.Table(
        name,
        metadata,
        *described,
        *parts,
        sqlite_strict=True,
        sqlite_with_rowid=rowid,
        postgresql_partition_by=partition_by,
    )


def check(name: str, condition: str) -> sa.CheckConstraint:
    """Return a CHECK; the table's name comes in front of its own."""
    return sa.CheckConstraint(condition, name=name)


def within(**bounds: tuple[int, int]) -> tuple[sa.CheckConstraint, ...]:
    """Return a CHECK for each column: not below the first of its bounds, not above the second."""
    return tuple(
        check(f"{column}_bounds", f"{column} BETWEEN {low} AND {high}")
        for column, (low, high) in bounds.items()
    )


def index(
    columns: str, *, name: str | None = None, unique: bool = False, where: str | None = None
) -> sa.Index:
    """Return an index over columns, by spaces; with `where` over those rows alone."""
    only = None if where is None else sa.text(where)
    return sa.Index(name, *columns.split(), unique=unique, sqlite_where=only, postgresql_where=only)
