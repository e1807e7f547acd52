from __future__ import annotations

import asyncio
import contextlib
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from certs.material import CertificateError, KeyPair, issue_authority, issue_leaf
from certs.serving import Serving
from tests.support.kube.schedulers import client_leaf

NOW = datetime.now(UTC)
DAY = timedelta(days=1)


def _authority(name: str) -> KeyPair:
    return issue_authority(name, now=NOW, lifetime=DAY)


async def _call(context: ssl.SSLContext, port: int) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    writer.write(b"?")
    try:
        return await reader.read(2)
    except (ssl.SSLError, ConnectionError):
        return b""
    finally:
        writer.close()


def _caller(authority: KeyPair, own: KeyPair | None, folder: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=authority.certificate.decode())
    if own is not None:
        (folder / "own.pem").write_bytes(own.certificate + own.key)
        context.load_cert_chain(folder / "own.pem")
    return context


@pytest.mark.parametrize(
    ("who", "answer_to_them"),
    [("theirs", b"ok"), ("a stranger's", b""), ("none", b"")],
    ids=["of the authority", "of another authority", "without a leaf"],
)
def test_only_callers_with_a_leaf_of_the_authority_are_let_in(
    who: str, answer_to_them: bytes, tmp_path: Path
) -> None:
    """Also after the server's own leaf was swapped for another."""
    server, clients, other = _authority("server"), _authority("clients"), _authority("other")
    own = {"theirs": client_leaf(clients), "a stranger's": client_leaf(other), "none": None}[who]

    async def main() -> None:
        serving = Serving(clients=clients.certificate)
        for _ in range(2):
            leaf = issue_leaf(server, ["127.0.0.1"], now=NOW, lifetime=DAY)
            serving.swap(leaf, server.certificate, ["127.0.0.1"], now=NOW)

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(1)
            writer.write(b"ok")
            await writer.drain()
            writer.close()

        at = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=serving.context)
        async with at:
            port = at.sockets[0].getsockname()[1]
            assert await _call(_caller(server, own, tmp_path), port) == answer_to_them

    asyncio.run(main())


@pytest.mark.parametrize("optional", [False, True], ids=["a leaf is a must", "a leaf is a may"])
def test_nobody_is_given_a_ticket_to_resume_with(*, optional: bool, tmp_path: Path) -> None:
    """Whoever comes again is verified again; nor does a new connection pay for tickets."""
    server, clients = _authority("server"), _authority("clients")
    serving = Serving(clients=clients.certificate, optional=optional)
    leaf = issue_leaf(server, ["127.0.0.1"], now=NOW, lifetime=DAY)
    serving.swap(leaf, server.certificate, ["127.0.0.1"], now=NOW)
    ends = [ssl.MemoryBIO() for _ in range(2)]
    caller = _caller(server, client_leaf(clients), tmp_path)
    theirs = caller.wrap_bio(ends[0], ends[1], server_hostname="127.0.0.1")
    ours = serving.context.wrap_bio(ends[1], ends[0], server_side=True)

    for end in (theirs, ours, theirs, ours):
        with contextlib.suppress(ssl.SSLWantReadError):
            end.do_handshake()
    with contextlib.suppress(ssl.SSLWantReadError):
        theirs.read()  # what a server sends after the handshake

    assert ours.getpeercert(), "the caller showed its leaf"
    assert theirs.session is not None
    assert not theirs.session.has_ticket


def test_an_authority_that_can_not_be_read_is_refused() -> None:
    """Nobody would be let in, and nobody would know why."""
    with pytest.raises(CertificateError, match="callers' authority"):
        Serving(clients=b"none")
