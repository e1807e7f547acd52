"""`tenure serve webhook` as a process: it starts, serves, changes its leaf, and goes in order."""

from __future__ import annotations

import asyncio
import json
import resource
import signal
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from certs.material import KeyPair, facts_of, issue_authority, issue_leaf
from certs.record import read_record
from tenure.cli import app
from tenure.exits import run
from tenure.serving.options import KUBE_API_SERVER
from tests.support.forked import Forked, forked
from tests.support.kube.control_plane import free_port
from tests.support.kube.fake_api import HANG, Canned, FakeApi, fake_api
from tests.support.kube.schedulers import client_leaf
from tests.support.reviews import review

pytestmark = pytest.mark.integration

SECONDS_MAX = 120.0
PATIENT = f"""
import tenure.serving.webhook
from webhook.server.app import ServerLimits

tenure.serving.webhook.LOOKUP_SECONDS = {SECONDS_MAX}
ServerLimits.__init__.__kwdefaults__["seconds_max"] = {SECONDS_MAX}
"""
"""What is run before the command where a test, and no clock, decides how long requests wait."""
SECRET = "/api/v1/namespaces/tenure-system/secrets/tenure-webhook-certs"
HOOKS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/tenure"


def issue() -> tuple[KeyPair, KeyPair]:
    """Return an authority and a leaf for the loopback."""
    now, lifetime = datetime.now(UTC), timedelta(days=1)
    authority = issue_authority("test", now=now, lifetime=lifetime)
    return authority, issue_leaf(authority, ["127.0.0.1"], now=now, lifetime=lifetime)


def write(folder: Path, *, authority: KeyPair, leaf: KeyPair) -> None:
    """Write the files that somebody else keeps."""
    folder.mkdir(exist_ok=True)
    (folder / "tls.crt").write_bytes(leaf.certificate)
    (folder / "tls.key").write_bytes(leaf.key)
    (folder / "ca.crt").write_bytes(authority.certificate)


@dataclass(slots=True, kw_only=True)
class Running:
    """One process with the API server that it asks, and its two ports."""

    process: Forked
    api: FakeApi
    hooks: int
    probes: int
    log: Path

    async def ready(self) -> str:
        """Return what it says of its readiness; nothing while it does not listen."""
        try:
            async with (
                aiohttp.ClientSession() as session,
                session.get(f"http://127.0.0.1:{self.probes}/readyz") as answer,
            ):
                return (await answer.text()).strip()
        except aiohttp.ClientError:
            return ""

    async def until(self, holds: Callable[[], Awaitable[bool]]) -> None:
        """Wait until something holds."""
        async with asyncio.timeout(SECONDS_MAX):
            while True:
                if await holds():
                    return
                await asyncio.sleep(0.05)

    async def until_ready(self) -> None:
        """Wait until calls should come."""

        async def holds() -> bool:
            assert self.process.poll() is None, self.log.read_text()
            return await self.ready() == "ok"

        await self.until(holds)

    async def until_in_flight(self, count: int) -> None:
        """Wait until so many requests are being answered."""

        async def holds() -> bool:
            async with (
                aiohttp.ClientSession() as session,
                session.get(f"http://127.0.0.1:{self.probes}/metrics") as answer,
            ):
                lines = (await answer.text()).splitlines()
            return f"tenure_admission_in_flight_requests {count}.0" in lines

        await self.until(holds)

    async def listens(self) -> bool:
        """Tell whether anyone may come to the hooks."""
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", self.hooks)
        except ConnectionRefusedError:
            return False
        writer.close()
        return True

    async def ended(self) -> int:
        """Wait for its end and return its exit code."""
        return await asyncio.to_thread(self.process.wait, SECONDS_MAX)

    async def idle(self, trusted: bytes, count: int) -> list[asyncio.StreamWriter]:
        """Open connections that ask for nothing."""
        opened = [
            await asyncio.open_connection("127.0.0.1", self.hooks, ssl=trusting(trusted))
            for _ in range(count)
        ]
        return [writer for _, writer in opened]

    def resident_bytes(self) -> int:
        """Return how much memory the process takes."""
        pages = Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]
        return int(pages) * resource.getpagesize()

    async def served_leaf(self, trusted: bytes) -> str:
        """Return the fingerprint of the leaf that a new connection gets."""
        _, writer = await asyncio.open_connection(
            "127.0.0.1", self.hooks, ssl=trusting(trusted), server_hostname="127.0.0.1"
        )
        der = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        writer.close()
        return facts_of(ssl.DER_cert_to_PEM_cert(der).encode()).fingerprint


def trusting(bundle: bytes) -> ssl.SSLContext:
    """Return how a caller connects that trusts these authorities."""
    return ssl.create_default_context(cadata=bundle.decode())


@asynccontextmanager
async def running(tmp_path: Path, *arguments: str, first: str = "") -> AsyncIterator[Running]:
    """Run the service against a fake API server; at the end it is gone."""
    async with fake_api() as api:
        api.add_namespace("ml")
        hooks, probes = free_port(), free_port()
        log = tmp_path / "log"
        command = [
            *("serve", "webhook", "--kubeconfig", str(api.kubeconfig(tmp_path))),
            *("--listen", f"127.0.0.1:{hooks}", "--probes", f"127.0.0.1:{probes}"),
            *("--name", "127.0.0.1", "--replica", "one", *arguments),
        ]
        log.touch()
        process = Forked(command, log, cwd=tmp_path, first=first)
        try:
            yield Running(process=process, api=api, hooks=hooks, probes=probes, log=log)
        finally:
            process.kill()
            process.wait()


async def ask(
    session: aiohttp.ClientSession,
    port: int,
    namespace: str = "ml",
    *,
    percent: str = "50",
    hook: str = "mutate",
) -> dict[str, Any]:
    """Send a Pod to be completed, and return the answer."""
    amounts = {"koordinator.sh/gpu-core": percent, "koordinator.sh/gpu-memory-ratio": percent}
    container = {"name": "main", "image": "x", "resources": {"limits": amounts}}
    metadata = {"name": "train", "namespace": namespace}
    body = review({"metadata": metadata, "spec": {"containers": [container]}})
    body["request"]["namespace"] = namespace
    async with session.post(f"https://127.0.0.1:{port}/{hook}?timeout=60s", json=body) as answer:
        assert answer.status == 200, await answer.text()
        found: dict[str, Any] = (await answer.json())["response"]
        return found


def test_it_serves_a_provided_leaf_and_the_next_one_without_a_restart(tmp_path: Path) -> None:
    """Connections that are open go on; new ones get the new leaf."""
    folder = tmp_path / "certs"
    (old, first), (new, second) = issue(), issue()
    write(folder, authority=old, leaf=first)

    async def run() -> None:
        options = ("--certificates", str(folder), "--drain-seconds", "0")
        async with running(tmp_path, *options) as service:
            await service.until_ready()
            connector = aiohttp.TCPConnector(ssl=trusting(old.certificate), limit=1)
            async with aiohttp.ClientSession(connector=connector) as session:
                assert (await ask(session, service.hooks))["patchType"] == "JSONPatch"
                write(folder, authority=new, leaf=second)
                wanted = facts_of(second.certificate).fingerprint

                async def changed() -> bool:
                    try:
                        return await service.served_leaf(new.certificate) == wanted
                    except ssl.SSLError:
                        return False

                await service.until(changed)
                assert (await ask(session, service.hooks))["allowed"]
            service.process.send_signal(signal.SIGTERM)
            assert await service.ended() == 0
            assert all(json.loads(line) for line in service.log.read_text().splitlines())
            assert "PRIVATE" not in service.log.read_text()

    asyncio.run(run())


def test_refusals_that_nobody_takes_are_not_remembered(tmp_path: Path) -> None:
    """Anybody may be refused so often, by words that are long."""
    authority, leaf = issue()
    write(tmp_path / "certs", authority=authority, leaf=leaf)
    first = """
from tenure.serving.telling_refusals import RefusalQueue
RefusalQueue.__init__.__defaults__ = (1,)
"""

    async def run() -> None:
        options = ("--certificates", str(tmp_path / "certs"), "--drain-seconds", "0")
        async with running(tmp_path, *options, first=first) as service:
            await service.until_ready()
            connector = aiohttp.TCPConnector(ssl=trusting(authority.certificate))
            async with aiohttp.ClientSession(connector=connector) as session:
                for _ in range(3):
                    said = await ask(session, service.hooks, percent="150", hook="validate")
                    assert not said["allowed"]
                async with session.get(f"http://127.0.0.1:{service.probes}/metrics") as answer:
                    lines = (await answer.text()).splitlines()
            assert "tenure_admission_refusals_dropped_total 0.0" in lines

    asyncio.run(run())


def test_with_an_authority_of_callers_the_api_server_alone_is_answered(tmp_path: Path) -> None:
    """By its name, which no other leaf of that authority has."""
    authority, leaf = issue()
    write(tmp_path / "certs", authority=authority, leaf=leaf)
    (tmp_path / "callers.crt").write_bytes(authority.certificate)

    async def asked(port: int, shown: KeyPair | None) -> bool:
        context = trusting(authority.certificate)
        if shown is not None:
            (tmp_path / "shown.pem").write_bytes(shown.certificate + shown.key)
            context.load_cert_chain(tmp_path / "shown.pem")
        connector = aiohttp.TCPConnector(ssl=context)
        async with aiohttp.ClientSession(connector=connector) as session:
            try:
                return bool((await ask(session, port))["allowed"])
            except aiohttp.ClientError:
                return False

    async def run() -> None:
        options = ("--certificates", str(tmp_path / "certs"), "--drain-seconds", "0")
        callers = ("--client-ca", str(tmp_path / "callers.crt"))
        async with running(tmp_path, *options, *callers) as service:
            await service.until_ready()
            assert await asked(service.hooks, client_leaf(authority, KUBE_API_SERVER))
            for other in (None, client_leaf(authority, "system:node:n1"), client_leaf(issue()[0])):
                assert not await asked(service.hooks, other)

    asyncio.run(run())


@asynccontextmanager
async def waiting_requests(
    tmp_path: Path, *arguments: str
) -> AsyncIterator[tuple[Running, Callable[[], asyncio.Task[dict[str, Any]]]]]:
    """Run the service with an API server that answers nobody; yield how to send it a request."""
    folder = tmp_path / "certs"
    authority, leaf = issue()
    write(folder, authority=authority, leaf=leaf)
    options = ("--certificates", str(folder), *arguments)
    async with running(tmp_path, *options, first=PATIENT) as service:
        await service.until_ready()
        service.api.add_namespace("plain", managed=False)  # read anew for each request
        service.api.gate.clear()
        connector = aiohttp.TCPConnector(ssl=trusting(authority.certificate))
        async with aiohttp.ClientSession(connector=connector) as session:
            yield (
                service,
                lambda: asyncio.create_task(ask(session, service.hooks, "plain")),
            )


def test_on_sigterm_calls_are_taken_for_a_while_yet(tmp_path: Path) -> None:
    """It says that it is going, and answers whoever asks all the same."""

    async def run() -> None:
        long = ("--drain-seconds", "600")
        async with waiting_requests(tmp_path, *long) as (service, ask_for_a_pod):
            waiting = [ask_for_a_pod() for _ in range(5)]
            await service.until_in_flight(5)
            service.process.send_signal(signal.SIGTERM)

            async def says_so() -> bool:
                return await service.ready() == "stopping"

            await service.until(says_so)
            waiting.append(ask_for_a_pod())
            await service.until_in_flight(6)
            service.api.gate.set()
            assert all(answer["allowed"] for answer in await asyncio.gather(*waiting))
            assert service.process.poll() is None

    asyncio.run(run())


def test_requests_that_outlast_the_drain_are_answered(tmp_path: Path) -> None:
    """Nobody else can come any more, and it ends with 0 behind the last answer."""

    async def run() -> None:
        async with waiting_requests(tmp_path, "--drain-seconds", "0") as (service, ask_for_a_pod):
            waiting = [ask_for_a_pod() for _ in range(5)]
            await service.until_in_flight(5)
            service.process.send_signal(signal.SIGTERM)

            async def is_closed() -> bool:
                return not await service.listens()

            await service.until(is_closed)
            assert not any(each.done() for each in waiting)
            service.api.gate.set()
            assert all(answer["allowed"] for answer in await asyncio.gather(*waiting))
            assert await service.ended() == 0

    asyncio.run(run())


def test_a_burst_in_a_new_namespace_is_answered_though_its_look_up_hangs(tmp_path: Path) -> None:
    """Nobody shares the fate of the first look-up; the watch tells of the namespace meanwhile."""
    folder = tmp_path / "certs"
    authority, leaf = issue()
    write(folder, authority=authority, leaf=leaf)

    async def run() -> None:
        options = ("--certificates", str(folder), "--drain-seconds", "0")
        async with running(tmp_path, *options, first=PATIENT) as service:
            await service.until_ready()
            path = "/api/v1/namespaces/new"
            service.api.canned[path] = Canned(how=HANG)
            service.api.add_namespace("new")
            connector = aiohttp.TCPConnector(ssl=trusting(authority.certificate), limit=0)
            async with aiohttp.ClientSession(connector=connector) as session:
                asked = (ask(session, service.hooks, "new") for _ in range(40))
                answers = await asyncio.gather(*asked)
            assert {answer["patchType"] for answer in answers} == {"JSONPatch"}

    asyncio.run(run())


def test_idle_callers_cost_little_memory(tmp_path: Path) -> None:
    """A tenth of what they did: each had a buffer of 256 KiB for what it never sent."""
    folder = tmp_path / "certs"
    authority, leaf = issue()
    write(folder, authority=authority, leaf=leaf)

    async def run() -> None:
        options = ("--certificates", str(folder), "--drain-seconds", "0")
        async with running(tmp_path, *options) as service:
            await service.until_ready()
            first = await service.idle(authority.certificate, 10)
            before = service.resident_bytes()
            more = await service.idle(authority.certificate, 200)
            assert (service.resident_bytes() - before) / 200 < 128 * 1024
            for writer in (*first, *more):
                writer.close()

    asyncio.run(run())


def test_it_makes_its_own_leaf_publishes_it_and_signs_off(tmp_path: Path) -> None:
    """The Secret, the caBundle and the Leases, with nothing but an empty API server."""

    async def run() -> None:
        async with running(tmp_path, "--drain-seconds", "0") as service:
            hook = {"name": "a", "clientConfig": {}}
            metadata = {"name": "tenure", "resourceVersion": "1"}
            service.api.objects[HOOKS] = {"metadata": metadata, "webhooks": [hook]}
            await service.until_ready()

            async def published() -> bool:
                told = service.api.objects[HOOKS]["webhooks"][0]["clientConfig"]
                return bool(told.get("caBundle"))

            await service.until(published)
            record = read_record(service.api.objects[SECRET])
            assert record is not None
            served = await service.served_leaf(record.bundle)
            assert served == facts_of(record.leaf.certificate).fingerprint
            service.process.send_signal(signal.SIGTERM)
            assert await service.ended() == 0
            leases = [one for name, one in service.api.objects.items() if "/leases/" in name]
            assert [one["spec"]["holderIdentity"] for one in leases] == [""]
            assert "PRIVATE" not in service.log.read_text()

    asyncio.run(run())


def test_with_the_api_away_it_waits_and_still_goes_when_told(tmp_path: Path) -> None:
    """Not ready, alive, and gone within its grace period."""

    async def run() -> None:
        async with running(tmp_path, "--drain-seconds", "0") as service:
            service.api.away = True

            async def waits() -> bool:
                return await service.ready() == "no certificate yet"

            await service.until(waits)
            service.process.send_signal(signal.SIGTERM)
            assert await service.ended() == 0

    asyncio.run(run())


def test_it_comes_up_when_the_api_comes_back(tmp_path: Path) -> None:
    """Without a restart."""

    async def run() -> None:
        async with running(tmp_path, "--drain-seconds", "0") as service:
            service.api.canned[SECRET] = Canned(status=500)

            async def asked() -> bool:
                return service.api.seen.count(("GET", SECRET)) >= 2

            await service.until(asked)
            assert await service.ready() == "no certificate yet"
            del service.api.canned[SECRET]
            await service.until_ready()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("arguments", "fact"),
    [
        pytest.param(["--kubeconfig", "absent"], "no such kubeconfig", id="no kubeconfig"),
        pytest.param(["--replica", "A_b"], "--replica: not a name", id="a replica's name"),
        pytest.param(["--secret", "../x"], "--secret: not a name", id="a Secret's name"),
        pytest.param(["--secret", "s" * 64], "--secret: not a name", id="too long a name"),
        pytest.param(["--config", "absent.yaml"], "can't read it", id="no settings file"),
        pytest.param(["--certificates", "absent"], "can't be read", id="no certificates"),
    ],
)
def test_what_it_can_not_start_with_is_one_clear_error(
    tmp_path: Path, arguments: list[str], fact: str
) -> None:
    """Exit 2, no traceback."""
    kubeconfig = FakeApi(url="http://127.0.0.1:1").kubeconfig(tmp_path)
    given = ["--kubeconfig", str(kubeconfig), *arguments]
    done = forked("serve", "webhook", *given, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert fact in done.stderr.replace("\n", " ")
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "fact"),
    [
        pytest.param(["--listen", "8443"], "--listen: expected HOST:PORT", id="no host"),
        pytest.param(["--probes", "[::]:x"], "--probes: expected HOST:PORT", id="no port"),
        pytest.param(["--drain-seconds", "-1"], "drain-seconds", id="a time before now"),
    ],
)
def test_options_that_say_nothing_are_refused_before_anything_is_looked_at(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], fact: str
) -> None:
    """Exit 2, no traceback."""
    kubeconfig = FakeApi(url="http://127.0.0.1:1").kubeconfig(tmp_path)
    code = run(app, ["serve", "webhook", "--kubeconfig", str(kubeconfig), *arguments])
    told = capsys.readouterr()
    assert (code, told.out) == (2, ""), told.err
    assert fact in told.err.replace("\n", " ")
    assert "Traceback" not in told.err


def test_an_option_comes_from_the_environment_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As a Deployment sets it; the error names the option all the same."""
    monkeypatch.setenv("TENURE_WEBHOOK_LISTEN", "nowhere")
    assert run(app, ["serve", "webhook"]) == 2
    assert "--listen: expected HOST:PORT: value='nowhere'" in capsys.readouterr().err
