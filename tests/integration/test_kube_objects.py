"""API objects over HTTP: what every way of failing is turned into, and that it always ends."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path

import pytest
from kubernetes_asyncio.config import incluster_config

from certs.material import issue_authority, issue_leaf
from certs.ports import ApiError, ConflictError
from tenure.kube import objects as kube_objects
from tenure.kube.objects import KubeObjects, connected
from tests.support.kube.fake_api import CUT, HANG, Canned, FakeApi, fake_api

pytestmark = pytest.mark.integration

SECRETS = "/api/v1/namespaces/n/secrets"
NAMED = f"{SECRETS}/s"
LEASE = "/apis/coordination.k8s.io/v1/namespaces/n/leases/l"
Act = Callable[[KubeObjects, FakeApi], Awaitable[None]]


@asynccontextmanager
async def client_of(
    api: FakeApi, folder: Path, *, timeout_seconds: float = 60.0
) -> AsyncIterator[KubeObjects]:
    """Connect to a fake server by a kubeconfig."""
    kubeconfig = str(api.kubeconfig(folder))
    async with connected(kubeconfig, timeout_seconds=timeout_seconds) as objects:
        yield objects


def run(act: Act, folder: Path, *, timeout_seconds: float = 60.0) -> None:
    """Run a server and act on it."""

    async def main() -> None:
        async with (
            fake_api() as api,
            client_of(api, folder, timeout_seconds=timeout_seconds) as objects,
        ):
            await act(objects, api)

    asyncio.run(main())


def named(name: str, **metadata: object) -> dict[str, object]:
    """Return an object that has nothing but a name."""
    return {"metadata": {"name": name, **metadata}}


def test_an_object_is_made_read_changed_and_removed(tmp_path: Path) -> None:
    """Every write says the version that it is based on."""

    async def act(objects: KubeObjects, api: FakeApi) -> None:
        assert await objects.read(NAMED) is None
        made = await objects.create(SECRETS, named("s"))
        changed = await objects.replace(NAMED, {**made, "data": {"a": "eA=="}})
        test = {"op": "test", "path": "/metadata/resourceVersion"}
        version = changed["metadata"]["resourceVersion"]
        patch = [{**test, "value": version}, {"op": "add", "path": "/type", "value": "t"}]
        assert (await objects.patch(NAMED, patch))["type"] == "t"
        await objects.remove(NAMED)
        await objects.remove(NAMED)
        assert await objects.read(NAMED) is None
        assert set(api.tokens) == {"Bearer sesame"}

    run(act, tmp_path)


@pytest.mark.parametrize("bypass", ["", "api.example"])
def test_a_proxy_of_the_environment_is_used_and_its_netrc_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bypass: str
) -> None:
    """As kubectl does: all calls go through the proxy, unless `no_proxy` names the server."""
    netrc = tmp_path / "netrc"
    netrc.write_text("default login anna password secret\n")
    monkeypatch.setenv("NETRC", str(netrc))
    monkeypatch.setenv("no_proxy", bypass)

    async def main() -> None:
        async with fake_api() as proxy:
            monkeypatch.setenv("http_proxy", proxy.url)
            kubeconfig = proxy.kubeconfig(tmp_path)
            kubeconfig.write_text(kubeconfig.read_text().replace(proxy.url, "http://api.example"))
            async with connected(str(kubeconfig), timeout_seconds=5) as objects:
                if bypass:
                    with pytest.raises(ApiError, match=r"api\.example"):
                        await objects.read(NAMED)
                    assert not proxy.tokens
                    return
                await objects.create(SECRETS, named("s"))
                assert set(proxy.tokens) == {"Bearer sesame"}

    asyncio.run(main())


def test_what_has_changed_or_gone_is_a_conflict(tmp_path: Path) -> None:
    """The catcher looks again: creating twice, an old version, a failing test, an absent object."""

    async def act(objects: KubeObjects, _: FakeApi) -> None:
        made = await objects.create(SECRETS, named("s"))
        await objects.replace(NAMED, made)
        stale = [{"op": "test", "path": "/metadata/resourceVersion", "value": "0"}]
        for attempt in (
            objects.create(SECRETS, named("s")),
            objects.replace(NAMED, made),
            objects.patch(NAMED, stale),
            objects.replace(f"{SECRETS}/absent", made),
            objects.patch(f"{SECRETS}/absent", stale),
        ):
            with pytest.raises(ConflictError):
                await attempt

    run(act, tmp_path)


@pytest.mark.parametrize(
    ("canned", "fact"),
    [
        pytest.param(Canned(status=500, body=b'{"message":"etcd"}'), "500: etcd", id="500"),
        pytest.param(Canned(status=401, body=b'{"message":"who?"}'), "401: who?", id="401"),
        pytest.param(Canned(status=403), "status=403", id="403"),
        pytest.param(Canned(status=502, body=b"<html>"), "status=502", id="a proxy's page"),
        pytest.param(Canned(body=b"<html>"), "is no object", id="no JSON"),
        pytest.param(Canned(body=b"[1]"), "is no object", id="a list"),
        pytest.param(Canned(body=b"[" * 100_000), "is no object", id="nested for ever"),
        pytest.param(Canned(body=b'{"a":', how=CUT), "can't be reached", id="cut within"),
    ],
)
def test_every_other_failure_is_the_apis(tmp_path: Path, canned: Canned, fact: str) -> None:
    """One class for all, with words for the log; trying again later may work."""

    async def act(objects: KubeObjects, api: FakeApi) -> None:
        api.canned[LEASE] = canned
        for read in (objects.read, objects.read_list):
            with pytest.raises(ApiError, match=fact):
                await read(LEASE)
        del api.canned[LEASE]
        assert await objects.read(LEASE) is None  # the connection pool is none the worse

    run(act, tmp_path)


def test_a_list_is_the_same_object_by_object(tmp_path: Path) -> None:
    """What is around the items is there at once; one that can't be read is an error at its turn."""

    async def act(objects: KubeObjects, api: FakeApi) -> None:
        lists = "/api/v1/namespaces/n/pods"
        assert await objects.read_list(LEASE) is None
        for told in (b'"items":[{"a":"\\u00fc"},{"b":[1,{"items":[2]}]}],', b'"items":null,', b""):
            api.canned[lists] = Canned(body=b'{%s"metadata":{"continue":"x"}}' % told)
            whole, one = await objects.read(lists), await objects.read_list(lists)
            assert whole is not None
            assert one is not None
            assert list(one["items"]) == (whole.get("items") or [])
            assert one["metadata"] == whole["metadata"] == {"continue": "x"}
        api.canned[lists] = Canned(body=b'{"items":[{"a":1},{"a":"\xff"}]}')
        one = await objects.read_list(lists)
        assert one is not None
        assert next(one["items"]) == {"a": 1}
        with pytest.raises(ApiError, match="can't be read"):
            next(one["items"])
        for broken in (b'{"items":{"a":1}}', b'{"items":[1,]}', b'{"items":%s' % (b"[" * 100_000)):
            api.canned[lists] = Canned(body=broken)
            with pytest.raises(ApiError, match="is no object"):
                await objects.read_list(lists)

    run(act, tmp_path)


def test_a_server_that_says_nothing_is_given_up(tmp_path: Path) -> None:
    """Every call ends, or one hung connection would stop a rotation for ever."""

    async def act(objects: KubeObjects, api: FakeApi) -> None:
        api.canned[LEASE] = Canned(how=HANG)
        for one in (objects, objects.within(0.2)):
            with pytest.raises(ApiError, match="did not answer"):
                await one.read(LEASE)

    run(act, tmp_path, timeout_seconds=0.3)


def test_an_answer_without_end_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is bounded by us, not by who answers."""
    monkeypatch.setattr(kube_objects, "ANSWER_BYTES_MAX", 100_000)

    async def act(objects: KubeObjects, api: FakeApi) -> None:
        api.canned[LEASE] = Canned(body=b'"' + b"x" * 1_000_000 + b'"')
        with pytest.raises(ApiError, match="too large"):
            await objects.read(LEASE)

    run(act, tmp_path)


def test_creating_in_a_namespace_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    """A 404 of a creation made nothing, though reading takes it for an answer."""

    async def act(objects: KubeObjects, api: FakeApi) -> None:
        api.canned[SECRETS] = Canned(status=404)
        with pytest.raises(ApiError, match="nothing to create it in") as caught:
            await objects.create(SECRETS, named("s"))
        assert caught.value.status == 404

    run(act, tmp_path)


def test_what_is_said_of_a_secret_is_not_repeated(tmp_path: Path) -> None:
    """A refusal may quote what was sent, and errors go to logs."""

    async def act(objects: KubeObjects, api: FakeApi) -> None:
        api.canned[NAMED] = Canned(status=400, body=b'{"message":"bad data: c2VjcmV0"}')
        with pytest.raises(ApiError) as refused:
            await objects.replace(NAMED, named("s"))
        assert "c2VjcmV0" not in str(refused.value)
        assert "status=400" in str(refused.value)

    run(act, tmp_path)


@pytest.mark.parametrize("ahead", [-3600, -6, 0, 6, 3600])
def test_a_clock_that_differs_from_the_servers_is_noticed(tmp_path: Path, ahead: int) -> None:
    """To the second, which is what the Date header tells."""

    async def act(objects: KubeObjects, api: FakeApi) -> None:
        theirs = datetime.now(UTC) - timedelta(seconds=ahead)
        api.canned[LEASE] = Canned(date=format_datetime(theirs, usegmt=True))
        await objects.read(LEASE)
        assert abs(objects.skew().total_seconds() - ahead) < 1.5

    run(act, tmp_path)


def test_a_date_that_is_none_tells_nothing(tmp_path: Path) -> None:
    """Then nobody is kept from leading."""

    async def act(objects: KubeObjects, api: FakeApi) -> None:
        for date in ("tomorrow", "Mon, 02 Mar 2026 10:00:00 -0000"):
            api.canned[LEASE] = Canned(date=date)
            await objects.read(LEASE)
            assert objects.skew() == timedelta()

    run(act, tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(None, id="no file"),
        pytest.param("", id="an empty file"),
        pytest.param("}{", id="no YAML"),
        pytest.param("kind: Config\n", id="nothing in it"),
    ],
)
def test_credentials_that_are_none_are_one_clear_error(tmp_path: Path, content: str | None) -> None:
    """Never a traceback of the client library."""
    path = tmp_path / "kubeconfig"
    if content is not None:
        path.write_text(content)

    async def main() -> None:
        async with connected(str(path)):
            raise AssertionError("that was no kubeconfig")

    with pytest.raises(ApiError, match=r"no credentials|no such kubeconfig"):
        asyncio.run(main())


def test_a_tab_in_a_kubeconfig_is_named_with_its_place(tmp_path: Path) -> None:
    """On one line."""
    path = tmp_path / "kubeconfig"
    path.write_text("kind: Config\n\tclusters: []\n")

    async def main() -> None:
        async with connected(str(path)):
            raise AssertionError("that was no kubeconfig")

    with pytest.raises(ApiError, match=r'a tab .* in "[^"]*/kubeconfig", line 2, column 1$'):
        asyncio.run(main())


def test_a_service_accounts_token_is_read_again_when_kubelet_has_a_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such tokens end after about an hour; the client looks at the file once a minute."""
    now = datetime.now(UTC)
    authority = issue_authority("test", now=now, lifetime=timedelta(days=1))
    leaf = issue_leaf(authority, ["127.0.0.1"], now=now, lifetime=timedelta(days=1))
    token, ca = tmp_path / "token", tmp_path / "ca.crt"
    token.write_text("first")
    ca.write_bytes(authority.certificate)
    pem = tmp_path / "leaf.pem"
    pem.write_bytes(leaf.key + leaf.certificate)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(pem)
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(token))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(ca))
    monkeypatch.setattr(incluster_config, "TOKEN_REFRESH_PERIOD", timedelta(seconds=0))

    async def main() -> None:
        async with fake_api(tls) as api:
            host, port = api.url.removeprefix("https://").split(":")
            monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
            monkeypatch.setenv("KUBERNETES_SERVICE_PORT", port)
            async with connected() as objects:
                await objects.read(LEASE)
                token.write_text("second")
                await objects.read(LEASE)
                token.write_text("")  # kubelet is just writing
                with pytest.raises(ApiError, match="empty"):
                    await objects.read(LEASE)
                token.write_text("third")
                await objects.read(LEASE)
            assert api.tokens == ["Bearer first", "Bearer second", "Bearer third"]

    asyncio.run(main())


def test_no_kind_of_the_api_is_loaded_to_call_it() -> None:
    """A service keeps 36 MB and half a second of its start: it calls by path, and reads JSON."""
    program = (
        "import sys, tenure.serving.scheduler\n"
        "library = [name for name in sys.modules if name.startswith('kubernetes_asyncio')]\n"
        "print(len(library) < 30, 'kubernetes_asyncio.client.models' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.split() == ["True", "False"]
