"""The listener for people over TLS: who is believed by which certificate, and who by a token."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest
from aiohttp import web

from certs.material import KeyPair
from scheduler.service.api.callers import Caller
from scheduler.service.api.http import Route, json_answer
from tenure.serving.scheduling.api import ApiListener
from tests.support.api_callers import (
    PROXY,
    Cluster,
    api_options,
    authority,
    caller,
    proxy_leaf,
    server_folder,
)
from tests.support.kube.control_plane import free_port

pytestmark = pytest.mark.integration

ANNA: Final = {"X-Remote-User": "anna", "X-Remote-Group": "ml"}


@dataclass(slots=True)
class Scene:
    """A listener, whom it belongs to, and whom its cluster believes."""

    cluster: Cluster
    listener: ApiListener
    port: int
    server: KeyPair
    folder: Path
    took: list[tuple[str, int]]

    async def ask(
        self, own: KeyPair | None, headers: dict[str, str], path: str = "/who-am-i"
    ) -> tuple[int, dict[str, Any]]:
        """Ask once over a connection of its own."""
        context = caller(self.server, self.folder, own)
        async with (
            aiohttp.ClientSession(f"https://127.0.0.1:{self.port}") as session,
            session.get(path, headers=headers, ssl=context) as answer,
        ):
            return answer.status, json.loads(await answer.read())


async def cut_off(_: web.Request, __: Caller) -> web.StreamResponse:
    """Fail as a connection of ours to something else does."""
    raise ConnectionResetError("by the database")


async def mistaken(_: web.Request, who: Caller) -> web.StreamResponse:
    """Make a mistake."""
    raise AssertionError(who)


async def who_am_i(_: web.Request, who: Caller) -> web.StreamResponse:
    """Say who called."""
    return json_answer({"user": who.user, "groups": who.groups, "how": who.how})


def served(folder: Path, act: Callable[[Scene], Coroutine[Any, Any, None]]) -> None:
    """Serve one route, and act on it."""
    server, proxies = authority("server"), authority("proxies")
    cluster = Cluster(proxies=proxies, tokens={"good": "sa"})

    async def main() -> None:
        port = free_port()
        options = api_options(port, server_folder(folder / "server", server))
        listener = ApiListener(options, cluster, lambda: datetime.now(UTC))
        await listener.read_rule()
        routes = [
            Route(method="GET", path="/who-am-i", act=who_am_i),
            Route(method="GET", path="/mistaken", act=mistaken),
            Route(method="GET", path="/cut-off", act=cut_off),
        ]
        took: list[tuple[str, int]] = []
        async with listener.listening(
            routes, lambda route, status, _: took.append((route, status))
        ):
            scene = Scene(
                cluster=cluster,
                listener=listener,
                port=port,
                server=server,
                folder=folder,
                took=took,
            )
            await act(scene)

    asyncio.run(main())


def test_headers_count_over_the_proxys_certificate(tmp_path: Path) -> None:
    """The user and groups that it names."""

    async def act(scene: Scene) -> None:
        assert scene.cluster.proxies is not None
        status, body = await scene.ask(proxy_leaf(scene.cluster.proxies), ANNA)
        assert (status, body) == (200, {"user": "anna", "groups": ["ml"], "how": "request-header"})

    served(tmp_path, act)


def test_headers_without_a_certificate_are_a_401_that_clients_can_read(tmp_path: Path) -> None:
    """In the words of a Status."""

    async def act(scene: Scene) -> None:
        status, body = await scene.ask(None, ANNA)
        assert (status, body["kind"], body["reason"]) == (401, "Status", "Unauthorized")

    served(tmp_path, act)


def test_a_certificate_of_another_authority_does_not_even_connect(tmp_path: Path) -> None:
    """Not with headers, and not with a token; and so does the server's own leaf, shown as ours."""

    async def act(scene: Scene) -> None:
        leaf = scene.folder / "server"
        served_leaf = KeyPair(
            certificate=(leaf / "tls.crt").read_bytes(), key=(leaf / "tls.key").read_bytes()
        )
        for own in (proxy_leaf(authority("proxies")), served_leaf):
            for headers in (ANNA, {"Authorization": "Bearer good"}):
                with pytest.raises((aiohttp.ClientError, OSError)):
                    await scene.ask(own, headers)

    served(tmp_path, act)


def test_a_certificate_whose_name_is_not_allowed_is_not_believed(tmp_path: Path) -> None:
    """The list of names is read again like the authority."""

    async def act(scene: Scene) -> None:
        assert scene.cluster.proxies is not None
        own = proxy_leaf(scene.cluster.proxies)
        scene.cluster.names = (PROXY.upper(), "another")
        await scene.listener.read_rule()
        assert (await scene.ask(own, ANNA))[0] == 401
        scene.cluster.names = ()
        await scene.listener.read_rule()
        assert (await scene.ask(own, ANNA))[0] == 200

    served(tmp_path, act)


def test_a_token_is_enough(tmp_path: Path) -> None:
    """Whose it is, the API server says."""

    async def act(scene: Scene) -> None:
        status, body = await scene.ask(None, {"Authorization": "Bearer good"})
        assert (status, body["user"], body["how"]) == (200, "sa", "token")
        assert (await scene.ask(None, {"Authorization": "Bearer bad"}))[0] == 401
        scene.cluster.away = True
        status, body = await scene.ask(None, {"Authorization": "Bearer other"})
        assert (status, body["reason"]) == (503, "ServiceUnavailable")

    served(tmp_path, act)


def test_an_authority_that_is_believed_no_more_counts_for_no_open_connection(
    tmp_path: Path,
) -> None:
    """The next request on it is told to connect again; the new authority's leaf counts at once."""

    async def act(scene: Scene) -> None:
        assert scene.cluster.proxies is not None
        old = proxy_leaf(scene.cluster.proxies)
        context = caller(scene.server, scene.folder, old)
        async with aiohttp.ClientSession(f"https://127.0.0.1:{scene.port}") as session:
            async with session.get("/who-am-i", headers=ANNA, ssl=context) as answer:
                assert answer.status == 200
            scene.cluster.proxies = authority("new proxies")
            await scene.listener.read_rule()
            async with session.get("/who-am-i", headers=ANNA, ssl=context) as answer:
                assert (answer.status, answer.headers["Retry-After"]) == (503, "1")
                assert answer.headers["Connection"] == "close"
        with pytest.raises((aiohttp.ClientError, OSError)):
            await scene.ask(old, ANNA)
        assert (await scene.ask(proxy_leaf(scene.cluster.proxies), ANNA))[0] == 200

    served(tmp_path, act)


def test_no_authority_any_more_means_no_certificate_is_believed(tmp_path: Path) -> None:
    """Tokens go on."""

    async def act(scene: Scene) -> None:
        assert scene.cluster.proxies is not None
        own = proxy_leaf(scene.cluster.proxies)
        scene.cluster.proxies = None
        await scene.listener.read_rule()
        with pytest.raises((aiohttp.ClientError, OSError)):
            await scene.ask(own, ANNA)
        assert (await scene.ask(None, {"Authorization": "Bearer good"}))[0] == 200

    served(tmp_path, act)


def test_an_api_server_that_is_away_changes_nobody(tmp_path: Path) -> None:
    """What it said last counts on."""

    async def act(scene: Scene) -> None:
        assert scene.cluster.proxies is not None
        scene.cluster.away = True
        with pytest.raises(Exception, match="did not answer"):
            await scene.listener.read_rule()
        assert (await scene.ask(proxy_leaf(scene.cluster.proxies), ANNA))[0] == 200

    served(tmp_path, act)


def test_no_connection_resumes_another(tmp_path: Path) -> None:
    """A session that is resumed shows the leaf of the first, which nobody verified again."""

    async def act(scene: Scene) -> None:
        assert scene.cluster.proxies is not None
        context = caller(scene.server, scene.folder, proxy_leaf(scene.cluster.proxies))

        def resumes() -> bool:
            address, session = ("127.0.0.1", scene.port), None
            for _ in range(2):
                with (
                    socket.create_connection(address, 5) as plain,
                    context.wrap_socket(plain, server_hostname="127.0.0.1", session=session) as tls,
                ):
                    tls.sendall(b"GET /apis HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
                    while tls.recv(4096):
                        pass
                    session, reused = tls.session, tls.session_reused
            return bool(reused)

        assert not await asyncio.to_thread(resumes)

    served(tmp_path, act)


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/apis", "APIGroupList"),
        ("/apis/audit.tenure.sh", "APIGroup"),
        ("/apis/audit.tenure.sh/v1alpha1", "APIResourceList"),
    ],
    ids=["groups", "the group", "its version"],
)
def test_whoever_connects_is_told_of_the_group_whatever_else_is_down(
    path: str, kind: str, tmp_path: Path
) -> None:
    """An unavailable group stalls the deletion of namespaces."""

    async def act(scene: Scene) -> None:
        scene.cluster.away = True
        status, body = await scene.ask(None, {}, path)
        assert (status, body["kind"]) == (200, kind)

    served(tmp_path, act)


def test_nothing_of_the_group_can_be_deleted_or_watched(tmp_path: Path) -> None:
    """The controllers of namespaces and of garbage pass it by."""

    async def act(scene: Scene) -> None:
        _, body = await scene.ask(None, {}, "/apis/audit.tenure.sh/v1alpha1")
        assert [one["verbs"] for one in body["resources"]] == [["get"]]

    served(tmp_path, act)


def test_another_path_is_a_404_in_the_words_of_a_status(tmp_path: Path) -> None:
    """Also for whoever is known."""

    async def act(scene: Scene) -> None:
        status, body = await scene.ask(None, {"Authorization": "Bearer good"}, "/filter")
        assert (status, body["reason"]) == (404, "NotFound")
        await scene.ask(None, ANNA)
        assert scene.took == [("/{rest}", 404), ("/who-am-i", 401)]

    served(tmp_path, act)


def test_a_leaf_that_is_swapped_keeps_whose_certificates_are_believed(tmp_path: Path) -> None:
    """A connection of before goes on too: it is the authority that counts."""

    async def act(scene: Scene) -> None:
        assert scene.cluster.proxies is not None
        context = caller(scene.server, scene.folder, proxy_leaf(scene.cluster.proxies))
        async with aiohttp.ClientSession(f"https://127.0.0.1:{scene.port}") as session:
            for again in range(2):
                async with session.get("/who-am-i", headers=ANNA, ssl=context) as answer:
                    assert answer.status == 200, again
                server_folder(scene.folder / "server", scene.server)
                assert scene.listener.look()
        fresh: ssl.SSLContext = context
        async with (
            aiohttp.ClientSession(f"https://127.0.0.1:{scene.port}") as session,
            session.get("/who-am-i", headers=ANNA, ssl=fresh) as answer,
        ):
            assert answer.status == 200

    served(tmp_path, act)


@pytest.mark.parametrize("path", ["/mistaken", "/cut-off"])
def test_a_mistake_of_ours_is_a_500_without_what_it_was(tmp_path: Path, path: str) -> None:
    """The log has it; a token or a name of somebody else's may be in its words."""

    async def act(scene: Scene) -> None:
        status, body = await scene.ask(None, {"Authorization": "Bearer good"}, path)
        assert (status, body["reason"]) == (500, "InternalError")
        assert "sa" not in body["message"].split()

    served(tmp_path, act)


def test_discovery_is_answered_before_there_is_anything_else_to_say(tmp_path: Path) -> None:
    """Whatever is asked besides is asked again, on another connection; so it is at the end."""
    server = authority("server")
    cluster = Cluster(proxies=None, tokens={"good": "sa"})
    group, asked = "/apis/audit.tenure.sh/v1alpha1", {"Authorization": "Bearer good"}

    async def main() -> None:
        port = free_port()
        options = api_options(port, server_folder(tmp_path / "server", server))
        listener = ApiListener(options, cluster, lambda: datetime.now(UTC))
        late, took = listener.late_routes(), list[str]()
        async with listener.listening(took=lambda route, *_: took.append(route), late=late):
            scene = Scene(cluster, listener, port, server, tmp_path, [])
            for there in (False, True, False):
                if there:
                    late.come([Route(method="GET", path="/who/{name}", act=who_am_i)])
                else:
                    late.go()
                status, body = await scene.ask(None, {}, group)
                assert (status, body["kind"]) == (200, "APIResourceList")
                status, _ = await scene.ask(None, asked, "/who/anna")
                assert status == (200 if there else 503)
                status, _ = await scene.ask(None, asked, "/else")
                assert status == (404 if there else 503)
        assert took.count("/who/{name}") == 1

    asyncio.run(main())
