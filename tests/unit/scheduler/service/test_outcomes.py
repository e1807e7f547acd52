from __future__ import annotations

from typing import Any

import pytest

from certs.ports import ApiError, ConflictError
from ledger.domain.errors import (
    BusyError,
    CapacityError,
    ClockSkewError,
    CorruptLedgerError,
    FencedError,
    IdempotencyError,
    LedgerError,
    OverloadedError,
    StaleStreamError,
    UnknownOutcomeError,
)
from ledger.store.writing.commands import Outcome, Recorded
from ledger.store.writing.commands import Refused as NotRecorded
from scheduler.bind.protocol import Deposed, Done, Effect, NoAnswer, NotThere, PodNow, Rejected
from scheduler.service.outcomes import of_binding, of_command, of_pod


def status(code: int | None) -> ApiError:
    """Return a refusal of the API server; None = it did not answer."""
    return ApiError("no", status=code)


BINDINGS: dict[str, tuple[ConflictError | ApiError | None, type[Effect]]] = {
    "created": (None, Done),
    "409, whatever about": (ConflictError("conflict"), Rejected),
    "400, a Binding that it does not take": (status(400), Rejected),
    "401, a token that ran out": (status(401), Rejected),
    "403, no right, or a policy": (status(403), Rejected),
    "404, no such Pod": (status(404), NotThere),
    "408, it gave up reading": (status(408), NoAnswer),
    "410": (status(410), Rejected),
    "413, annotations too large": (status(413), Rejected),
    "422, invalid": (status(422), Rejected),
    "429, too many requests": (status(429), Rejected),
    "500": (status(500), NoAnswer),
    "502, a proxy lost it": (status(502), NoAnswer),
    "503": (status(503), NoAnswer),
    "504, etcd did not answer in time": (status(504), NoAnswer),
    "a time-out of ours, or a connection that was reset": (status(None), NoAnswer),
}


@pytest.mark.parametrize(("error", "told"), BINDINGS.values(), ids=BINDINGS)
def test_what_a_binding_came_to(error: ConflictError | ApiError | None, told: type[Effect]) -> None:
    """Only what the server says it did not do is known not to have happened."""
    assert type(of_binding(error)) is told


COMMANDS: dict[str, tuple[Outcome | LedgerError, type[Effect], type[Effect]]] = {
    "recorded": (Recorded(first=3, last=4), Done, Done),
    "the node moved on": (
        NotRecorded(error=StaleStreamError(stream="node/n", expected_version=1)),
        Rejected,
        Rejected,
    ),
    "the card is held": (NotRecorded(error=CapacityError("held")), Rejected, Rejected),
    "the key was another's": (NotRecorded(error=IdempotencyError("key")), Rejected, Rejected),
    "our clock moved": (NotRecorded(error=ClockSkewError("5 s")), Rejected, Rejected),
    "it contradicts the ledger": (NotRecorded(error=LedgerError("ended")), Rejected, Rejected),
    "another writer took over": (FencedError("epoch"), Deposed, Deposed),
    "the ledger is broken": (CorruptLedgerError("chain", position=3), Deposed, Deposed),
    "the answer was lost": (UnknownOutcomeError("lost"), NoAnswer, NoAnswer),
    "too many wait": (OverloadedError("1024"), Rejected, NoAnswer),
    "another process has the file": (BusyError("busy"), Rejected, NoAnswer),
    "the database is down": (LedgerError("down"), Rejected, NoAnswer),
}


@pytest.mark.parametrize(("answer", "first", "again"), COMMANDS.values(), ids=COMMANDS)
def test_what_a_command_came_to(
    answer: Outcome | LedgerError, first: type[Effect], again: type[Effect]
) -> None:
    """That nothing was recorded now says nothing of the time before."""
    assert type(of_command(answer, is_new=True)) is first
    assert type(of_command(answer, is_new=False)) is again


def test_a_refusal_says_why() -> None:
    """The words go to kube-scheduler."""
    assert of_command(OverloadedError("too many wait"), is_new=True) == Rejected("too many wait")


def read(**metadata: Any) -> dict[str, Any]:  # noqa: ANN401 - any field
    """Return a Pod that was read."""
    return {"metadata": {"uid": "u", "resourceVersion": "7"} | metadata, "spec": {}}


PROOF = {"tenure.sh/proof": '{"proof":{"attempt":3,"pod_uid":"u"}}'}
PODS: dict[str, tuple[dict[str, Any] | None, Effect]] = {
    "gone": (None, NotThere()),
    "re-created under the same name": (read(uid="v"), NotThere()),
    "unbound": (read(), PodNow("7")),
    "being deleted": (read(deletionTimestamp="2026-01-05T14:00:00Z"), PodNow("7", deleting=True)),
    "bound by nobody of ours": (read() | {"spec": {"nodeName": "n"}}, PodNow("7", "n")),
    "bound by our third attempt": (
        read(annotations=PROOF) | {"spec": {"nodeName": "n"}},
        PodNow("7", "n", 3),
    ),
}


@pytest.mark.parametrize(("pod", "told"), PODS.values(), ids=PODS)
def test_what_a_read_pod_tells(pod: dict[str, Any] | None, told: Effect) -> None:
    """By UID: a name may stand for another Pod by now."""
    assert of_pod(pod, "u") == told
