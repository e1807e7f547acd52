"""
What the API server and the ledger answer, in the words of the bind protocol.

Rule: GPU-sharing contract C.6; notes on the bind protocol in `scheduler.bind.protocol`. Only an
answer that says so means that nothing was changed; whatever else happened, nobody knows.
"""

from __future__ import annotations

from typing import Final

from certs.ports import ApiError, ConflictError, Object
from ledger.domain.annotations.proof import attempt_in
from ledger.domain.errors import CorruptLedgerError, FencedError, LedgerError, UnknownOutcomeError
from ledger.store.writing import commands
from ledger.store.writing.commands import Outcome, Recorded
from scheduler.bind.protocol import Deposed, Done, Effect, NoAnswer, NotThere, PodNow, Rejected

NOT_FOUND: Final = 404
REQUEST_TIMEOUT: Final = 408


def is_definite(error: ApiError) -> bool:
    """
    Tell whether the API server said no before it changed anything: 4xx but 408.

    A 5xx may come after the write (504, or 500 from a write whose answer etcd lost).
    """
    status = error.status
    return status is not None and 400 <= status < 500 and status != REQUEST_TIMEOUT


def of_binding(error: ConflictError | ApiError | None) -> Effect:
    """Return what a POST of a Binding came to; None = it succeeded."""
    if error is None:
        return Done()
    if isinstance(error, ConflictError):
        return Rejected(str(error))  # another UID or version, a node, a deletion: the Pod tells
    if error.status == NOT_FOUND:
        return NotThere()
    return Rejected(str(error)) if is_definite(error) else NoAnswer()


def of_pod(pod: Object | None, pod_uid: str) -> Effect:
    """Return the Pod of that UID, if it is what the name stands for now."""
    metadata = (pod or {}).get("metadata", {})
    if pod is None or metadata.get("uid") != pod_uid:
        return NotThere()
    return PodNow(
        resource_version=metadata["resourceVersion"],
        node=(pod.get("spec") or {}).get("nodeName") or "",
        attempt=attempt_in(metadata.get("annotations") or {}, pod_uid),
        deleting=metadata.get("deletionTimestamp") is not None,
    )


def of_command(answer: Outcome | LedgerError, *, is_new: bool) -> Effect:
    """
    Return what recording a command came to.

    Args:
        is_new: nothing is known to have been recorded that is not, so that "nothing was recorded"
            is the end of it. After a lost answer, or for what must be recorded, it is not.
    """
    match answer:
        case Recorded():
            return Done()
        case commands.Refused(error=error):
            return Rejected(str(error))
        case FencedError() | CorruptLedgerError():
            return Deposed()
        case UnknownOutcomeError():
            return NoAnswer()
        case LedgerError():
            return Rejected(str(answer)) if is_new else NoAnswer()
