"""Calls by https with a token of our own, both from files that others write anew."""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import aiohttp

from ledger.domain.errors import InputError, TenureError
from ledger.domain.resources import AGENT_PROTOCOL

ANSWER_BYTES_MAX: Final = 32 * 2**20
"""All Pods of a large node take 2 MiB."""


class NoAnswerError(TenureError):
    """Whoever was asked could not be reached, or not in time. Ask again later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """An answer of whatever status; `retry_after` in seconds, 0 where none is given."""

    status: int
    body: bytes
    retry_after: float = 0.0


class Authority:
    """Whom a server's certificate has to be of; the file is read again when it changes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._made: tuple[tuple[int, int, int], ssl.SSLContext] | None = None

    def context(self) -> ssl.SSLContext:
        """Return what checks certificates now. Raises InputError: no certificate can be read."""
        try:
            now = self._path.stat()
            version = (now.st_ino, now.st_mtime_ns, now.st_size)
            if self._made is None or self._made[0] != version:
                context = ssl.create_default_context(cafile=self._path)
                context.set_alpn_protocols([AGENT_PROTOCOL, "http/1.1"])
                self._made = version, context
        except (OSError, ssl.SSLError) as error:
            raise InputError(f"no authority: {error}", place=str(self._path)) from error
        return self._made[1]


def token_in(path: Path) -> str:
    """Return the token of a file. Raises InputError: there is none."""
    try:
        text = path.read_text(encoding="ascii").strip()
    except (OSError, ValueError) as error:
        raise InputError(f"can't be read: {error}", place=str(path)) from error
    if not text or not text.isprintable() or " " in text:
        raise InputError("no token is in it", place=str(path))
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """
    Calls one server.

    Attributes:
        url: without a path, `https://HOST:PORT`.
        server_name: whose name the certificate has to have; None = the host's.
    """

    session: aiohttp.ClientSession
    url: str
    authority: Authority
    token: Path
    server_name: str | None = None

    async def call(self, path: str, *, seconds: float, body: bytes | None = None) -> Answer:
        """
        Get what is at a path, or post a body there.

        Raises:
            NoAnswerError: there was no whole answer in so many seconds.
            InputError: no token, or no authority, can be read.
        """
        headers = {"Authorization": f"Bearer {token_in(self.token)}"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        context = self.authority.context()
        try:
            async with (
                asyncio.timeout(seconds),
                self.session.request(
                    "GET" if body is None else "POST",
                    f"{self.url}{path}",
                    data=body,
                    headers=headers,
                    ssl=context,
                    server_hostname=self.server_name,
                    allow_redirects=False,
                ) as answer,
            ):
                content = await answer.content.read(ANSWER_BYTES_MAX + 1)
                while len(content) <= ANSWER_BYTES_MAX and not answer.content.at_eof():
                    content += await answer.content.read(ANSWER_BYTES_MAX + 1)
                said = answer.headers.get("Retry-After", "")
                status = answer.status
        except TimeoutError as error:
            raise NoAnswerError(f"no answer: url={self.url}, seconds={seconds}") from error
        except (aiohttp.ClientError, OSError) as error:
            fact = str(error) or type(error).__name__
            raise NoAnswerError(f"can't be reached: url={self.url}: {fact}") from error
        if len(content) > ANSWER_BYTES_MAX:
            raise NoAnswerError(f"the answer is too long: url={self.url}, max={ANSWER_BYTES_MAX}")
        retry_after = float(said) if said.isascii() and said.isdigit() else 0.0
        return Answer(status=status, body=content, retry_after=retry_after)
