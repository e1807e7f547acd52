"""The admission server as kube-apiserver meets it: one HTTP request after the other."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import gzip
import io
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from concurrent.futures import Executor, Future
from contextlib import asynccontextmanager, contextmanager
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

import aiohttp
import pytest

from tenure.serving.connections import Connection, ConnectionLimits, Connections
from tenure.serving.listening import listening
from tenure.serving.probes import probes_app
from tests.support.loops import until
from webhook.decide.facts import QuotaFact
from webhook.decide.review import ReviewLimits
from webhook.decide.settings import DEFAULT_ADMISSION, AdmissionSettings
from webhook.server.app import TOLD_MAX, Admission, ServerLimits, hooks_app
from webhook.server.metrics import Metrics
from webhook.server.ports import LookupFailedError, RefusalRecord

IN_FLIGHT = "tenure_admission_in_flight_requests"
LOOPBACK = ("127.0.0.1", 0)
SECONDS_MAX = 60.0
"""More than anything here takes, on however busy a machine."""
UNHURRIED = ServerLimits(seconds_max=SECONDS_MAX)
GOOD = {"koordinator.sh/gpu-core": "50", "koordinator.sh/gpu-memory-ratio": "50"}
BAD = {"koordinator.sh/gpu-core": "150", "koordinator.sh/gpu-memory-ratio": "50"}


@dataclass(slots=True)
class Fakes:
    """Look-ups, settings and a sink for refusals; a look-up may fail or take its time."""

    managed: bool = True
    error: str = ""
    wait_seconds: float = 0.0
    settings: AdmissionSettings = DEFAULT_ADMISSION
    records: list[RefusalRecord] = field(default_factory=list)
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    gate: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        """Answer until a test closes the gate."""
        self.gate.set()

    @property
    def current(self) -> AdmissionSettings:
        """The settings of now."""
        return self.settings

    async def namespace_labels(self, namespace: str) -> Mapping[str, str]:
        """Return the labels of the one namespace there is."""
        assert namespace == "team-a"
        self.asked.set()
        await self.gate.wait()
        await asyncio.sleep(self.wait_seconds)
        if self.error:
            raise LookupFailedError(self.error)
        return {"tenure.sh/managed": "true"} if self.managed else {}

    async def quotas(self, namespace: str) -> tuple[QuotaFact, ...]:
        """Return no quotas."""
        assert namespace == "team-a"
        return ()

    async def pod(self, namespace: str, name: str) -> Mapping[str, object] | None:
        """Return no Pod."""
        raise LookupFailedError(f"{namespace}/{name}")

    def put(self, record: RefusalRecord) -> None:
        """Take a refusal."""
        self.records.append(record)


class Held(Executor):
    """Work that is done when a test says so: whoever does not wait for it goes on."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []
        self.released = False
        self.something = asyncio.Event()

    def submit(self, work: Callable[..., Any], /, *args: Any, **how: Any) -> Future[Any]:  # noqa: ANN401
        """Take work and do nothing yet."""
        future: Future[Any] = Future()

        def act() -> None:
            try:
                future.set_result(work(*args, **how))
            except Exception as error:  # noqa: BLE001 - whatever it is, whoever waits has it
                future.set_exception(error)

        if self.released:
            act()
        else:
            self.waiting.append(act)
        self.something.set()
        return future

    def release(self) -> None:
        """Do what waits, and from now on everything at once."""
        self.released = True
        for act in self.waiting:
            act()


class Counted(Connections):
    """Connections that tell how many requests have come, by their heads."""

    come: int = 0

    @contextmanager
    def answering(self, connection: Connection | None) -> Iterator[None]:
        """Count one more."""
        self.come += 1
        with super().answering(connection):
            yield

    async def until_come(self, count: int) -> None:
        """Wait until the heads of so many requests are here."""
        await until(lambda: self.come == count)


@dataclass(slots=True)
class Served:
    """A running server, by the URLs of its hooks and its probes."""

    hooks: str
    probes: str
    session: aiohttp.ClientSession
    fakes: Fakes
    not_ready: list[str]
    metrics: Metrics
    held: Held
    connections: Counted


@asynccontextmanager
async def served(fakes: Fakes, limits: ServerLimits, connections: Counted) -> AsyncIterator[Served]:
    """Run both applications on free ports of the loopback."""
    not_ready: list[str] = []
    held = Held()
    metrics = Metrics()
    admission = Admission(
        settings=fakes,
        lookups=fakes,
        take_refusal=fakes.put,
        metrics=metrics,
        limits=limits,
        why_not_ready=lambda: "".join(not_ready),
        aside=held,
        answering=connections.answering,
    )
    async with (
        listening(hooks_app(admission), LOOPBACK, connections, finish_seconds=60.0) as hooks,
        listening(
            probes_app(metrics.registry, admission.why_not_ready),
            LOOPBACK,
            Connections(),
            finish_seconds=60.0,
        ) as probes,
        aiohttp.ClientSession() as session,
    ):
        urls = [f"http://127.0.0.1:{port}" for port in (hooks, probes)]
        yield Served(urls[0], urls[1], session, fakes, not_ready, metrics, held, connections)


def run(
    act: Callable[[Served], Awaitable[None]],
    *,
    fakes: Fakes | None = None,
    limits: ServerLimits | None = None,
    connections: ConnectionLimits | None = None,
) -> None:
    """Run a server, act on it, stop it."""

    async def main() -> None:
        bounded = Counted(connections)
        async with served(fakes or Fakes(), limits or UNHURRIED, bounded) as found:
            await act(found)

    asyncio.run(main())


def review(amounts: Mapping[str, str], **request: object) -> dict[str, Any]:
    """Return an AdmissionReview that creates a Pod."""
    container = {
        "name": "main",
        "image": "x",
        "resources": {"limits": amounts, "requests": amounts},
    }
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "train", "namespace": "team-a"},
        "spec": {"containers": [container]},
    }
    return {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "uid-1",
            "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "resource": {"group": "", "version": "v1", "resource": "pods"},
            "operation": "CREATE",
            "namespace": "team-a",
            "name": "train",
            "userInfo": {"username": "ada"},
            "object": pod,
            **request,
        },
    }


async def ask(served: Served, hook: str, body: object, **how: Any) -> tuple[int, Any]:  # noqa: ANN401
    """Send a review and return status and body."""
    query = how.pop("query", "timeout=1h")
    async with served.session.post(f"{served.hooks}/{hook}?{query}", json=body, **how) as answer:
        raw = await answer.text()
        return answer.status, json.loads(raw) if answer.status == 200 else raw


def test_a_good_pod_is_allowed_with_a_patch() -> None:
    """The uid is echoed and the patch is base64 of JSON Patch."""

    async def act(served: Served) -> None:
        status, body = await ask(served, "mutate", review(GOOD))
        response = body["response"]
        assert (status, response["uid"], response["allowed"]) == (200, "uid-1", True)
        assert response["patchType"] == "JSONPatch"
        patch = json.loads(base64.b64decode(response["patch"]))
        assert {"op": "add", "path": "/spec/schedulerName", "value": "tenure"} in patch

    run(act)


def test_a_bad_pod_is_refused_with_its_field_and_noted() -> None:
    """Refusals are answers, status 200; they are counted, handed on and logged."""

    async def act(served: Served) -> None:
        status, body = await ask(served, "validate", review(BAD))
        response = body["response"]
        assert (status, response["allowed"]) == (200, False)
        assert response["status"]["code"] == 422
        fields = [cause["field"] for cause in response["status"]["details"]["causes"]]
        assert fields == ["spec.containers[0].resources.requests[koordinator.sh/gpu-core]"]
        (record,) = served.fakes.records
        assert (record.rule, record.user) == ("DevicePercent", "ada")
        labels = {"rule": "DevicePercent", "mode": "enforce"}
        counted = served.metrics.registry.get_sample_value
        assert counted("tenure_admission_violations_total", labels) == 1.0

    run(act)


def test_of_one_object_few_violations_are_handed_on() -> None:
    """Its user chooses how many it has; the answer has all of them, and all are counted."""
    asked = review(BAD)
    spec = asked["request"]["object"]["spec"]
    spec["containers"] = [{**spec["containers"][0], "name": f"c-{one}"} for one in range(40)]

    async def act(served: Served) -> None:
        status, body = await ask(served, "validate", asked)
        assert status == 200, body
        causes = body["response"]["status"]["details"]["causes"]
        assert len(served.fakes.records) == TOLD_MAX < 40 <= len(causes)
        labels = {"rule": "DevicePercent", "mode": "enforce"}
        counted = served.metrics.registry.get_sample_value
        assert counted("tenure_admission_violations_total", labels) == 40.0

    run(act, limits=replace(UNHURRIED, containers_quick=100))


def test_a_dry_run_is_answered_alike_and_leaves_no_note() -> None:
    """Nothing happens, so nothing is recorded."""

    async def act(served: Served) -> None:
        _, body = await ask(served, "validate", review(BAD, dryRun=True))
        assert not body["response"]["allowed"]
        assert served.fakes.records == []

    run(act)


def test_an_unmanaged_namespace_is_left_alone() -> None:
    """Opting in is a label of the namespace."""

    async def act(served: Served) -> None:
        _, body = await ask(served, "mutate", review(GOOD))
        assert body["response"] == {"uid": "uid-1", "allowed": True}

    run(act, fakes=Fakes(managed=False))


@pytest.mark.parametrize(
    ("body", "status", "fact"),
    [
        pytest.param(b"", 400, "not valid JSON", id="nothing"),
        pytest.param(b"{", 400, "not valid JSON", id="half an object"),
        pytest.param(b"[]", 400, "expected an AdmissionReview", id="a list"),
        pytest.param(b'{"kind":"Pod"}', 400, "apiVersion", id="another kind"),
        pytest.param(b"\xff\xfe", 400, "not", id="no text"),
        pytest.param(
            json.dumps(review(GOOD)).replace('"uid": "uid-1"', '"uid": "a", "uid": "b"').encode(),
            400,
            "a key is there twice",
            id="a key twice",
        ),
        pytest.param(b'{"a":' * 200 + b"1" + b"}" * 200, 400, "too deep", id="nested too deep"),
        pytest.param(b'"' + b"x" * 5_000 + b'"', 413, "too large", id="too large"),
    ],
)
@pytest.mark.parametrize("hook", ["mutate", "validate"])
def test_a_broken_request_is_an_error_and_never_an_answer(
    hook: str, body: bytes, status: int, fact: str
) -> None:
    """The API server then goes by the failurePolicy; the reason is in its log."""

    async def act(served: Served) -> None:
        headers = {"Content-Type": "application/json"}
        async with served.session.post(
            f"{served.hooks}/{hook}", data=body, headers=headers
        ) as answer:
            text = await answer.text()
            assert (answer.status, "allowed" in text) == (status, False)
            assert fact in text

    limits = replace(UNHURRIED, review=ReviewLimits(bytes_max=4_000))
    run(act, limits=limits)


def test_compressed_and_foreign_bodies_are_not_read() -> None:
    """A small request can't unpack into a large one."""

    async def act(served: Served) -> None:
        packed = gzip.compress(json.dumps(review(GOOD)).encode())
        for headers in (
            {"Content-Type": "application/json", "Content-Encoding": "gzip"},
            {"Content-Type": "text/plain"},
        ):
            async with served.session.post(
                f"{served.hooks}/mutate", data=packed, headers=headers
            ) as answer:
                assert answer.status == 415, await answer.text()

    run(act)


def test_a_look_up_that_fails_is_our_failure_and_no_refusal() -> None:
    """Status 503: the hook's failurePolicy decides."""

    async def act(served: Served) -> None:
        status, text = await ask(served, "mutate", review(GOOD))
        assert (status, text) == (503, "the API could not be asked: it is away\n")

    run(act, fakes=Fakes(error="it is away"))


def test_the_time_that_the_caller_gives_is_kept() -> None:
    """With one second given an answer comes, though its look-up never ends."""

    async def act(served: Served) -> None:
        served.fakes.gate.clear()
        status, _ = await ask(served, "mutate", review(GOOD), query="timeout=1s")
        assert status == 504

    run(act)


def test_a_burst_waits_for_its_turn_and_is_answered() -> None:
    """Of 300 at once none is turned away, however few are answered at a time."""

    async def act(served: Served) -> None:
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector) as session:
            burst = replace(served, session=session)
            asked = (ask(burst, "mutate", review(GOOD)) for _ in range(300))
            answers = await asyncio.gather(*asked)
        assert {status for status, _ in answers} == {200}

    limits = replace(UNHURRIED, in_flight_max=2)
    run(act, fakes=Fakes(wait_seconds=0.001), limits=limits)


def test_who_waits_for_its_turn_waits_no_longer_than_its_caller() -> None:
    """One that is answered for ever keeps the next one waiting until that one's time is over."""

    async def act(served: Served) -> None:
        served.fakes.gate.clear()
        first = asyncio.create_task(ask(served, "mutate", review(GOOD), query="timeout=1h"))
        await served.fakes.asked.wait()
        assert (await ask(served, "mutate", review(GOOD), query="timeout=1s"))[0] == 504
        served.fakes.gate.set()
        assert (await first)[0] == 200

    run(act, limits=replace(UNHURRIED, in_flight_max=1))


@pytest.mark.parametrize("length", [1_000, 1_000_000], ids=["small", "large"])
def test_callers_who_never_send_their_body_keep_nobody_out(length: int) -> None:
    """More of them than are answered at once, on connections of their own; the rest is answered."""

    async def act(served: Served) -> None:
        host, port = served.hooks.removeprefix("http://").split(":")
        head = (
            f"POST /validate HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {length}\r\n\r\n{{"
        )
        slow = [await asyncio.open_connection(host, int(port)) for _ in range(5)]
        try:
            for _, writer in slow:
                writer.write(head.encode())
                await writer.drain()
            await served.connections.until_come(len(slow))
            assert [(await ask(served, "validate", review(GOOD)))[0] for _ in range(3)] == [200] * 3
        finally:
            for _, writer in slow:
                writer.close()

    run(act, limits=replace(UNHURRIED, in_flight_max=2))


def test_large_bodies_that_never_end_keep_no_other_large_one_out() -> None:
    """However many there are; what they cost in memory is bounded for all of them together."""

    async def act(served: Served) -> None:
        host, port = served.hooks.removeprefix("http://").split(":")
        head = "POST /validate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        whole = json.dumps(review(GOOD)).encode()
        lines = []
        for body in (*[b"{"] * 40, whole + b" " * (1_000_000 - len(whole))):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(f"{head}Content-Length: 1000000\r\n\r\n".encode() + body)
            lines.append((reader, writer))
            await served.connections.until_come(len(lines))
        await served.held.something.wait()
        served.held.release()
        assert b"200" in await lines[-1][0].readline()
        for _, writer in lines:
            writer.close()

    run(act)


def test_a_body_that_takes_long_to_read_holds_nobody_up() -> None:
    """Whoever can reach the port can send one; others are answered while it is read."""
    body = b"[" + b"{}," * 50_000 + b"{}]"

    async def act(served: Served) -> None:
        headers = {"Content-Type": "application/json"}
        url = f"{served.hooks}/validate"
        large = asyncio.ensure_future(
            served.session.post(url, data=io.BytesIO(body), headers=headers)
        )
        await served.held.something.wait()
        assert (await ask(served, "validate", review(GOOD)))[0] == 200
        assert not large.done()
        served.held.release()
        assert (await large).status == 400

    run(act)


def many(count: int) -> dict[str, Any]:
    """Return a review of a Pod with so many containers."""
    body = review(GOOD)
    spec = body["request"]["object"]["spec"]
    spec["containers"] = [{**spec["containers"][0], "name": f"c{one}"} for one in range(count)]
    return body


@pytest.mark.parametrize("hook", ["mutate", "validate"])
def test_a_decision_about_many_containers_holds_nobody_up(hook: str) -> None:
    """Whatever else is to be decided is decided meanwhile."""

    async def act(served: Served) -> None:
        long = asyncio.ensure_future(ask(served, hook, many(ServerLimits().containers_quick + 1)))
        await served.held.something.wait()
        assert (await ask(served, hook, review(GOOD)))[0] == 200
        assert not long.done()
        served.held.release()
        assert (await long)[0] == 200

    run(act)


@pytest.mark.parametrize("hook", ["mutate", "validate"])
def test_more_containers_than_are_decided_on_are_refused_in_a_sentence(hook: str) -> None:
    """Its user reads the limit: an HTTP error reaches nobody but the API server."""

    async def act(served: Served) -> None:
        served.held.release()
        status, body = await ask(served, hook, many(250))
        assert status == 200
        assert "at most 250 in one list" not in str(body)
        status, body = await ask(served, hook, many(251))
        assert status == 200
        answer = body["response"]
        assert (answer["uid"], answer["allowed"]) == ("uid-1", False)
        assert answer["status"]["message"] == (
            'Pod "train" is invalid: spec.containers: Invalid value: 251 entries: admission'
            " decides on Pods of at most 250 in one list"
        )

    run(act)


def test_one_ephemeral_container_too_many_is_refused_in_a_sentence() -> None:
    """What was there before it does not count: a Pod may always lose a finalizer."""

    async def act(served: Served) -> None:
        served.held.release()
        for before, after, is_refused in ((250, 251, True), (0, 251, True), (249, 250, False)):
            body = many(1)
            request = body["request"]
            request |= {"operation": "UPDATE", "subResource": "ephemeralcontainers"}
            request["object"]["spec"]["schedulerName"] = "tenure"
            request["oldObject"] = deepcopy(request["object"])
            for key, count in (("object", after), ("oldObject", before)):
                request[key]["spec"]["ephemeralContainers"] = [
                    {"name": f"e{one}", "image": "x"} for one in range(count)
                ]
            for hook in ("mutate", "validate"):
                status, answer = await ask(served, hook, body)
                assert status == 200
                assert ("at most 250 in one list" in str(answer)) == is_refused

    run(act)


async def send(served: Served, hook: str, data: bytes) -> tuple[int, str]:
    """Send these bytes as JSON and return status and body."""
    headers = {"Content-Type": "application/json"}
    url = f"{served.hooks}/{hook}?timeout=1h"
    async with served.session.post(url, data=io.BytesIO(data), headers=headers) as answer:
        return answer.status, await answer.text()


BEYOND = {
    "nested too deep": (b"[" * 70 + b"]" * 70, "too deep: depth_max=64"),
    "nested without end": (b"[" * 100_000 + b"]" * 100_000, "too deep: depth_max=64"),
    "a long text": (b'"' + b"x" * 2**20 + b'x"', "a text is too long: length=1048577"),
    "a number out of range": (b"1e999", "a number is out of range: value=1e999"),
    "digits without end": (b"9" * 5_000, "a number has too many digits"),
    "more values than are read": (
        b"[" + b"0," * 2**20 + b"0]",
        "too many values: values_max=1048576",
    ),
    "a large body": (b'"' + b"x" * 9 * 2**20 + b'"', "too large: bytes_max=8388608"),
}


@pytest.mark.parametrize("hook", ["mutate", "validate"])
@pytest.mark.parametrize(("value", "fact"), BEYOND.values(), ids=BEYOND)
def test_what_is_beyond_a_limit_of_reading_is_refused_in_a_sentence(
    hook: str, value: bytes, fact: str
) -> None:
    """Where the API server says whose it is, in front of the object."""

    async def act(served: Served) -> None:
        served.held.release()
        sent = json.dumps(review(GOOD), separators=(",", ":")).encode()
        data = sent.replace(b'"object":{', b'"object":{"more":' + value + b",")
        status, text = await send(served, hook, data)
        assert status == 200, text
        answer = json.loads(text)["response"]
        assert (answer["uid"], answer["allowed"]) == ("uid-1", False)
        assert answer["status"]["message"].startswith(f'Pod "train" is invalid: {fact}')

    run(act)


def test_an_update_beyond_a_limit_of_reading_is_no_answer() -> None:
    """What is stored may be beyond it, and has to change still: the failure policy lets it."""

    async def act(served: Served) -> None:
        served.held.release()
        body = review(GOOD)
        body["request"] |= {"operation": "UPDATE", "oldObject": body["request"]["object"]}
        text = json.dumps(body, separators=(",", ":")).encode()
        data = text.replace(b'"object":{', b'"object":{"more":1e999,')
        assert (await send(served, "validate", data))[0] == 400

    run(act)


async def connect(served: Served) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Open a connection and send nothing."""
    host, port = served.hooks.removeprefix("http://").split(":")
    return await asyncio.open_connection(host, int(port))


def test_idle_callers_make_room_for_whoever_asks() -> None:
    """The one that has been open for the longest goes first; those that are answered stay."""

    async def act(served: Served) -> None:
        served.fakes.gate.clear()
        answered = asyncio.create_task(ask(served, "mutate", review(GOOD)))
        await served.fakes.asked.wait()
        idle = [await connect(served) for _ in range(3)]
        async with asyncio.timeout(SECONDS_MAX):
            assert await idle[0][0].read() == b""
        served.fakes.gate.set()
        assert (await answered)[0] == 200
        async with aiohttp.ClientSession() as another:
            assert (await ask(replace(served, session=another), "mutate", review(GOOD)))[0] == 200
        for _, writer in idle:
            writer.close()

    run(act, connections=ConnectionLimits(open_max=3))


def test_where_all_are_being_answered_one_more_is_closed() -> None:
    """Memory is bounded whoever calls, and nobody loses the answer that he waits for."""

    async def act(served: Served) -> None:
        served.fakes.gate.clear()
        answered = [asyncio.create_task(ask(served, "mutate", review(GOOD))) for _ in range(2)]
        await until(lambda: served.metrics.registry.get_sample_value(IN_FLIGHT) == 2.0)
        reader, writer = await connect(served)
        async with asyncio.timeout(SECONDS_MAX):
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
        writer.close()
        served.fakes.gate.set()
        assert [(await one)[0] for one in answered] == [200, 200]

    run(act, connections=ConnectionLimits(open_max=2))


@pytest.mark.parametrize("head", [b"", b"POST /mutate HTTP/1.1\r\nHost: x\r\n"])
def test_a_head_that_never_ends_does(head: bytes) -> None:
    """Whether nothing comes or only its beginning."""

    async def act(served: Served) -> None:
        reader, writer = await connect(served)
        writer.write(head)
        async with asyncio.timeout(SECONDS_MAX):
            with contextlib.suppress(ConnectionError):  # closed before it was written
                assert await reader.read() == b""
        writer.close()

    run(act, connections=ConnectionLimits(idle_seconds=0.2))


def test_probes_tell_whether_calls_should_come() -> None:
    """Not ready is no reason to be killed; and whoever calls then is sent elsewhere next time."""

    async def act(served: Served) -> None:
        async def get(path: str) -> tuple[int, str]:
            async with served.session.get(f"{served.probes}/{path}") as answer:
                return answer.status, await answer.text()

        assert await get("livez") == await get("readyz") == (200, "ok\n")
        served.not_ready.append("stopping")
        assert await get("readyz") == (503, "stopping\n")
        assert await get("livez") == (200, "ok\n")
        async with served.session.post(f"{served.hooks}/mutate", json=review(GOOD)) as answer:
            assert (answer.status, answer.headers["Connection"]) == (200, "close")
        status, text = await get("metrics")
        assert status == 200
        assert "tenure_admission_requests_total{" in text

    run(act)


def test_pods_alike_are_decided_once_and_answered_each(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Each with its own uid, counted and logged under its own name."""

    async def act(served: Served) -> None:
        remembered = served.metrics.registry.get_sample_value
        for number in range(5):
            if number == 4:
                served.fakes.managed = False
            body = review(GOOD, uid=f"uid-{number}", name=f"p-{number}")
            body["request"]["object"] = {
                "kind": "Pod",
                "apiVersion": "v1",
                "metadata": {"name": f"p-{number}", "namespace": "team-a"},
                "spec": body["request"]["object"]["spec"],
            }
            in_order = {key: body[key] for key in ("kind", "apiVersion", "request")}
            async with served.session.post(
                f"{served.hooks}/mutate",
                data=json.dumps(in_order, separators=(",", ":")),
                headers={"Content-Type": "application/json"},
            ) as answer:
                response = json.loads(await answer.text())["response"]
            assert response["uid"] == f"uid-{number}"
            assert ("patch" in response) is (number < 4)
            times = {0: 0.0, 1: 0.0, 2: 1.0, 3: 2.0, 4: 2.0}
            assert remembered("tenure_admission_remembered_total") == times[number]

    with caplog.at_level(logging.INFO, logger="tenure.admission"):
        run(act)
    records = [one.__dict__ for one in caplog.records if one.name == "tenure.admission"]
    assert [one["object_name"] for one in records] == [f"p-{number}" for number in range(5)]
    assert [one["uid"] for one in records] == [f"uid-{number}" for number in range(5)]


def test_every_decision_is_one_line_without_the_object(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A Pod's spec may hold secrets; what was decided about it may be read by anyone."""

    async def act(served: Served) -> None:
        await ask(served, "validate", review({**BAD, "secret/thing": "1"}))

    with caplog.at_level(logging.INFO, logger="tenure.admission"):
        run(act)
    (record,) = [one for one in caplog.records if one.name == "tenure.admission"]
    assert record.getMessage() == "admission"
    assert {"decision": "refused", "rules": ["DevicePercent"], "object_name": "train"}.items() <= (
        record.__dict__.items()
    )
    assert "secret/thing" not in str(record.__dict__)
