"""A server that goes away while a ledger is opened: whoever opens it hears so in our words."""

from __future__ import annotations

import asyncio

import pytest
from sqlalchemy import make_url

from ledger.domain.errors import LedgerError
from ledger.store.open import Mode, open_ledger
from tests.support.relay import listening, reach, through
from tests.support.stores import PostgresStore

MESSAGES_MAX = 200
_BYTES = 65_536


class Fuse:
    """Carries so many messages to the server of a ledger, then ends every connection."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.left = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry one client's messages, each with its answer."""
        there, back = await reach(make_url(self.url))
        answers = asyncio.create_task(_carry(there, writer))
        while self.left > 0 and (data := await reader.read(_BYTES)):
            self.left -= 1
            if self.left > 0:
                back.write(data)
        answers.cancel()
        back.close()
        writer.close()


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(_BYTES):
        writer.write(data)


@pytest.mark.parametrize("mode", ["read", "write", "upgrade"])
def test_a_server_lost_at_any_moment_of_opening_is_an_error_of_the_ledger(
    postgres_store: PostgresStore, mode: Mode
) -> None:
    """However much was asked before; never one of the driver, which no caller waits for."""
    fuse = Fuse(postgres_store.url)
    said: list[str] = []
    with listening(fuse.serve) as (port, _):
        for fuse.left in range(1, MESSAGES_MAX):
            try:
                open_ledger(through(postgres_store.url, port), mode=mode).close()
            except LedgerError as error:
                said.append(str(error))
            else:
                break
    assert 5 < len(said) < MESSAGES_MAX - 1
    assert all("the database" in each for each in said), said
