"""How Postgres is opened: with limits on how long it may take, and as itself in its lists."""

from __future__ import annotations

import logging
from typing import Any, Final

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError
from sqlalchemy.pool import NullPool

from ledger.domain.errors import InputError
from ledger.store.place import without_password

CONNECT_SECONDS: Final = 5
APPLICATION: Final = "tenure"
SILENCE: Final = {
    "keepalives": 1,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}
"""Half a minute of silence is the end of a connection, not the two hours of the kernel."""

_ALWAYS: Final = {
    "lock_timeout": "5s",
    "idle_in_transaction_session_timeout": "60s",
    "search_path": "public,pg_temp",
    "TimeZone": "UTC",
    "client_min_messages": "warning",
}
_WRITING: Final = {
    "statement_timeout": "30s",
    "synchronous_commit": "on",
    # The rules are planned once, by keys alone: a plan that fits the small tables of the first
    # append is no plan for the large ones of the last.
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "jit": "off",
}
_READING: Final = {
    "statement_timeout": "60s",
    "default_transaction_isolation": "repeatable read",
    "default_transaction_read_only": "on",
}


def postgres_url(url: str) -> URL:
    """
    Return the parts of a ledger URL, for the driver of synchronous callers.

    Raises:
        InputError: it can't be read, or names no database.
    """
    try:
        parsed = make_url(url.replace("postgres://", "postgresql://", 1))
    except (ArgumentError, ValueError) as error:
        raise InputError(
            "not a ledger URL: use postgresql://user@host/database or sqlite:///PATH",
            place=without_password(url),
        ) from error
    if not parsed.database:
        raise InputError("the URL names no database", place=shown(parsed))
    return parsed.set(drivername="postgresql+psycopg")


def shown(url: URL) -> str:
    """Return a URL for messages: never with its password."""
    query = {name: value for name, value in url.query.items() if name != "password"}
    return url.set(drivername="postgresql", query=query).render_as_string(hide_password=True)


def settings(*, write: bool) -> dict[str, str]:
    """Return the settings of a connection's transactions, by the names that the server has."""
    return _ALWAYS | (_WRITING if write else _READING)


def postgres_engine(url: URL, *, write: bool) -> Engine:
    """
    Return an engine on the database: one connection each time it is asked, no pool.

    A reader's transaction is one consistent snapshot and can't write. A writer's sees what was
    committed when each of its statements began: it locks the head, and what it finds then is true.
    """
    own = url.query.get("options", "")
    options = [own] if isinstance(own, str) and own else []
    for name, value in settings(write=write).items():
        options.append(f"-c {name}={value.replace(' ', chr(92) + ' ')}")
    arguments: dict[str, Any] = {
        "options": " ".join(options),
        "application_name": APPLICATION,
        "connect_timeout": CONNECT_SECONDS,
        **{name: value for name, value in SILENCE.items() if name not in url.query},
        "client_encoding": "utf8",
    }
    from ledger.store.driver_postgres import Number, is_news  # noqa: PLC0415 - SQLite needs none

    logging.getLogger("psycopg").addFilter(is_news)
    engine = create_engine(
        url.difference_update_query(["options", "application_name", "connect_timeout"]),
        connect_args=arguments,
        paramstyle="format",
        poolclass=NullPool,
        hide_parameters=True,  # rows are no part of an error's text
    )

    @event.listens_for(engine, "connect")
    def _connected(connection: Any, _record: object) -> None:  # noqa: ANN401 - the driver's
        connection.adapters.register_loader("numeric", Number)

    return engine


def one_snapshot(connection: Connection) -> None:
    """Make the transaction that has just begun see one state of the database until its end."""
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")


def take_your_time(connection: Connection) -> None:
    """Let the statements of this transaction run as long as they must."""
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql("SET LOCAL statement_timeout = 0")
