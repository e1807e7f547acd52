"""What a webhook refused reaches the ledger once, from its queue over HTTP, on either database."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest
from aiohttp.test_utils import TestServer

from certs.ports import ApiError
from ledger.domain.errors import InputError, UnknownOutcomeError
from ledger.domain.log.events import RequestRefused
from ledger.store.open import Ledger
from ledger.store.writing import commands
from ledger.store.writing.append import Writer
from ledger.store.writing.commands import Command, Outcome
from scheduler.service import refusing
from scheduler.service.api.callers import Caller, Headers
from scheduler.service.api.http import api_app
from scheduler.service.api.refusals import RefusalRoutes
from scheduler.service.api.words import WEBHOOK_ACCOUNT, user_of
from tenure.serving.telling_refusals import RefusalQueue, RefusalSender, RefusalTarget
from tests.support.live import StillClock
from tests.support.stores import Store, start
from webhook.server.metrics import Metrics
from webhook.server.ports import RefusalRecord

WEBHOOK = user_of(WEBHOOK_ACCOUNT)
REFUSED = RefusalRecord(
    uid="review-1",
    kind="Pod",
    namespace="ml",
    name="train",
    user="ada",
    rule="DevicePercent",
    mode="enforce",
    field="spec.containers[0]",
    message="must be a percentage",
)


class Lane:
    """A lane over a writer; `lost`: answers that do not come."""

    def __init__(self, writer: Writer, lost: int = 0) -> None:
        self._writer = writer
        self.lost = lost

    @property
    def epoch(self) -> int:
        """The writer's epoch."""
        return self._writer.head.epoch

    @property
    def position(self) -> int:
        """The writer's position."""
        return self._writer.head.position

    async def record(self, command: Command) -> Outcome:
        """Record a command, and perhaps lose the answer."""
        [outcome] = commands.record(self._writer, [command])
        if self.lost:
            self.lost -= 1
            raise UnknownOutcomeError("lost")
        return outcome


class Known:
    """Takes whoever has the token for the webhook."""

    def __init__(self, user: str) -> None:
        self.user = user

    async def who(self, headers: Headers, *_: object) -> Caller:
        """Return who calls."""
        is_ours = headers.getall("Authorization", ()) == ["Bearer good"]
        return Caller(user=self.user if is_ours else "nobody")


class Believing:
    """Nobody shows a certificate here."""

    def believes(self, _: object) -> bool:
        """Believe it."""
        return True


def told(
    ledger: Ledger,
    folder: Path,
    act: Callable[[RefusalQueue, RefusalSender, RefusalRoutes], Awaitable[None]],
    *,
    lost: int = 0,
    token: str = "good",
) -> list[RequestRefused]:
    """Let a webhook tell the service that writes this ledger; return what it has of it."""
    (folder / "token").write_text(token)
    routes = RefusalRoutes(
        Lane(start(ledger), lost), lambda *_: None, StillClock(), user=WEBHOOK, why_not=lambda: ""
    )

    async def telling() -> None:
        app = api_app(routes.routes(), Known(WEBHOOK), Believing(), lambda _: nullcontext())
        async with TestServer(app) as server:
            target = RefusalTarget(
                url=str(server.make_url("")), authority=folder, token=folder / "token"
            )
            async with aiohttp.ClientSession(target.url) as session:
                queue = RefusalQueue(Metrics())
                await act(queue, RefusalSender(queue, target, session), routes)

    asyncio.run(telling())
    return [one.event for one in ledger.read_events() if isinstance(one.event, RequestRefused)]


def test_each_object_that_was_refused_is_recorded_with_all_its_violations(
    store: Store, tmp_path: Path
) -> None:
    """Warnings are none; a Binding of somebody else is a takeover."""

    async def act(queue: RefusalQueue, sender: RefusalSender, _: RefusalRoutes) -> None:
        queue.put(REFUSED)
        queue.put(replace(REFUSED, rule="MemoryRatio", field="spec.containers[1]"))
        queue.put(replace(REFUSED, uid="review-2", mode="warn"))
        queue.put(replace(REFUSED, uid="review-3", kind="Binding"))
        await sender.send()

    with store.open() as ledger:
        first, second = told(ledger, tmp_path, act)
    assert (first.stage, first.pod_uid, first.pod_name) == ("admission", "review-1", "train")
    assert [one.reason for one in first.reasons] == ["DevicePercent", "MemoryRatio"]
    assert first.message.startswith("spec.containers[0]: must be a percentage; spec.containers[1]")
    assert (second.stage, second.pod_uid) == ("takeover", "review-3")


def test_what_got_no_answer_is_told_again_and_recorded_once(store: Store, tmp_path: Path) -> None:
    """The webhook can't know whether it was taken."""

    async def act(queue: RefusalQueue, sender: RefusalSender, routes: RefusalRoutes) -> None:
        queue.put(REFUSED)
        queue.put(replace(REFUSED, uid="review-2"))
        with pytest.raises(ApiError, match="took no refusals") as raised:
            await sender.send()
        assert raised.value.status == 503
        await sender.send()
        await sender.send()
        assert routes.counts == {"recorded": 2}

    with store.open() as ledger:
        assert len(told(ledger, tmp_path, act, lost=1)) == 2


def test_a_namespace_that_is_refused_without_end_fills_no_ledger(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is dropped is counted, and others are recorded."""
    monkeypatch.setattr(refusing, "NAMESPACE_BURST", 3.0)

    async def act(queue: RefusalQueue, sender: RefusalSender, routes: RefusalRoutes) -> None:
        for number in range(5):
            queue.put(replace(REFUSED, uid=f"review-{number}"))
        queue.put(replace(REFUSED, uid="other", namespace="other"))
        await sender.send()
        assert routes.counts == {"recorded": 4, "dropped": 2}

    with store.open() as ledger:
        assert len(told(ledger, tmp_path, act)) == 4


def test_what_is_told_again_spends_no_budget(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A webhook that gets no answer tells all of a message again, as often as it takes."""
    monkeypatch.setattr(refusing, "NAMESPACE_BURST", 6.0)

    async def act(queue: RefusalQueue, sender: RefusalSender, routes: RefusalRoutes) -> None:
        for number in range(5):
            queue.put(replace(REFUSED, uid=f"review-{number}"))
        for _ in range(4):
            with pytest.raises(ApiError):
                await sender.send()
        await sender.send()
        queue.put(replace(REFUSED, uid="the last"))
        await sender.send()
        assert routes.counts == {"recorded": 6}

    with store.open() as ledger:
        assert len(told(ledger, tmp_path, act, lost=4)) == 6


def test_names_that_are_long_on_purpose_keep_no_other_refusal_back(
    store: Store, tmp_path: Path
) -> None:
    """A message that is too large is sent in parts: its users choose how long a name is."""
    long = "\N{GRINNING FACE}" * 2_000

    async def act(queue: RefusalQueue, sender: RefusalSender, routes: RefusalRoutes) -> None:
        for number in range(150):
            queue.put(replace(REFUSED, uid=f"review-{number}", name=long))
        queue.put(replace(REFUSED, uid="other", namespace="other"))
        await sender.send()
        assert routes.counts == {"recorded": 151}

    with store.open() as ledger:
        assert told(ledger, tmp_path, act)[-1].namespace == "other"


def test_nobody_but_the_webhook_is_heard(store: Store, tmp_path: Path) -> None:
    """And whoever has no token file says so."""

    async def act(queue: RefusalQueue, sender: RefusalSender, _: RefusalRoutes) -> None:
        queue.put(REFUSED)
        with pytest.raises(ApiError, match="webhooks alone"):
            await sender.send()
        (tmp_path / "token").unlink()
        with pytest.raises(InputError, match="token"):
            await sender.send()

    with store.open() as ledger:
        assert told(ledger, tmp_path, act, token="bad") == []


@pytest.mark.parametrize("body", ['{"refusals": 1}', "[]", '{"refusals": [{"uid": ""}]}', "x"])
def test_what_can_not_be_read_is_a_400(store: Store, tmp_path: Path, body: str) -> None:
    """With its field; nothing of it is recorded."""

    async def act(_: RefusalQueue, sender: RefusalSender, __: RefusalRoutes) -> None:
        session = sender._session  # one call as somebody else would make it
        headers = {"Authorization": "Bearer good"}
        async with session.post("/webhook/v1/refusals", data=body, headers=headers) as answer:
            assert answer.status == 400
            assert (await answer.json())["message"].startswith("body")

    with store.open() as ledger:
        assert told(ledger, tmp_path, act) == []


def test_a_refusal_that_can_not_be_read_keeps_no_other_back(store: Store, tmp_path: Path) -> None:
    """It is counted and named, by its place in the message; a name of its user's is cut."""
    longest = "x" * 2_000_000

    async def act(_: RefusalQueue, sender: RefusalSender, routes: RefusalRoutes) -> None:
        def item(**changes: object) -> dict[str, object]:
            violation = {"rule": "DevicePercent", "field": "spec", "message": "no"}
            words = {"uid": "u", "kind": "Pod", "namespace": "ml", "name": "x", "user": "ada"}
            return {**words, "violations": [violation], **changes}

        items = [
            item(),
            item(uid=longest[:400_000]),
            item(uid="v", namespace=longest[:300_000]),
            item(uid="w", violations=[]),
            item(uid="y", name=longest[:200_000]),
        ]
        headers = {"Authorization": "Bearer good"}
        session = sender._session  # one call as somebody else would make it
        async with session.post(
            "/webhook/v1/refusals", json={"refusals": items}, headers=headers
        ) as answer:
            assert answer.status == 200
            said = await answer.json()
        places = [str(each).partition(":")[0] for each in said.pop("faults")]
        assert said == {"format": 1, "recorded": 2, "unreadable": 3}
        assert places == ["body.refusals[1].uid", "body.refusals[2].namespace", "body.refusals[3]"]
        assert routes.counts == {"recorded": 2, "unreadable": 3}

    with store.open() as ledger:
        recorded = told(ledger, tmp_path, act)
    assert [(one.pod_uid, len(one.pod_name)) for one in recorded] == [("u", 1), ("y", 253)]
