"""The service's answers as bytes, and what an agent confirms; docs/contracts/agents.md."""

from __future__ import annotations

from typing import Any, Final, TypeVar

import msgspec

from agent.decide.claim_ends import NOTHING_ASKED, AskedClaims
from agent.decide.confirming import Observed, Said
from agent.decide.node_holdings import Change, CpuClaim, HeldByPod, NodeHoldings, Origin
from agent.witness.history import AGAIN_SECONDS_MAX, Shown
from ledger.domain.annotations.proof import BoundContainer, ProvenContainer
from ledger.domain.cpuset import CpuSet, parse_cpuset
from ledger.domain.errors import InputError
from ledger.domain.resources import NVIDIA_GPU

FORMAT: Final = 1


class _Node(msgspec.Struct):
    name: str
    uid: str


class _Ledger(msgspec.Struct):
    cluster: str = ""
    incarnation: str = ""


class _Answer(msgspec.Struct):
    format: int
    node: _Node
    position: int
    ledger: _Ledger = msgspec.field(default_factory=_Ledger)


class _Holdings(_Answer, kw_only=True):
    holdings: tuple[HeldByPod, ...]


class _Changes(_Answer, kw_only=True):
    changes: tuple[Change, ...]
    claims: AskedClaims = NOTHING_ASKED


_D = TypeVar("_D")
_T = TypeVar("_T", bound=_Answer)


class Verdict(msgspec.Struct, frozen=True):
    """What the service says of one Pod that was confirmed; `docs/contracts/agents.md`."""

    pod_uid: str
    result: str
    attempt: int = 0
    why: str = ""


class Verdicts(msgspec.Struct, frozen=True):
    """
    What came of a confirmation, in the order of what was confirmed.

    Attributes:
        taken: it counts; else another message of this node was taken since we knew its number.
    """

    taken: bool = True
    assigned: tuple[Verdict, ...] = ()
    gone: tuple[Verdict, ...] = ()
    here: tuple[Verdict, ...] = ()
    observed: tuple[Verdict, ...] = ()
    cleared: tuple[str, ...] = ()

    @property
    def ended(self) -> frozenset[str]:
        """Return who is here and holds nothing any more."""
        return frozenset(one.pod_uid for one in self.here if one.result == "nothing")


class _Beside(msgspec.Struct):
    sequence: int | None = None
    cpu_claims: tuple[CpuClaim, ...] | None = None


class _Checkpoint(msgspec.Struct):
    checkpoint: str
    consistency: tuple[str, ...] | None = None
    again_seconds: int = 0


class _Reason(msgspec.Struct):
    message: str = ""


def _parsed(kind: type, value: object) -> object:
    assert kind is CpuSet, kind
    if not isinstance(value, str):
        raise InputError("cpus: expected a CPU list")
    return parse_cpuset(value)


_HOLDINGS: Final = msgspec.json.Decoder(_Holdings, dec_hook=_parsed)
_CHANGES: Final = msgspec.json.Decoder(_Changes, dec_hook=_parsed)
_VERDICTS: Final = msgspec.json.Decoder(Verdicts)
_BESIDE: Final = msgspec.json.Decoder(_Beside, dec_hook=_parsed)
_CHECKPOINT: Final = msgspec.json.Decoder(_Checkpoint)
_REASON: Final = msgspec.json.Decoder(_Reason)


def read_holdings(body: bytes) -> tuple[Origin, int, tuple[HeldByPod, ...]]:
    """Return origin, position and holdings. Raises InputError: not of this contract or format."""
    answer = _read(_HOLDINGS, body)
    return _origin(answer), answer.position, answer.holdings


def read_changes(body: bytes) -> tuple[Origin, int, tuple[Change, ...], AskedClaims]:
    """Return origin, position, changes and questions. Raises InputError: as `read_holdings`."""
    answer = _read(_CHANGES, body)
    return _origin(answer), answer.position, answer.changes, answer.claims


def read_verdicts(body: bytes) -> Verdicts:
    """Return what came of a confirmation. Raises InputError: as `read_holdings`."""
    return _decoded(_VERDICTS, body, "not an answer to a confirmation")


def read_beside(body: bytes) -> _Beside:
    """Return what each answer says besides; None = it does not. Raises as `read_holdings`."""
    return _decoded(_BESIDE, body)


def read_reason(body: bytes) -> str:
    """Return the words of a refusal, as far as it has any."""
    try:
        return _REASON.decode(body).message
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return body[:200].decode(errors="replace")


def confirmation(said: Said, sequence: int | None = None) -> bytes:
    """Return the message of a confirmation; `sequence`: its number, None = messages have none."""
    listed = [
        {"pod_uid": uid, "attempt": attempt, "containers": list(map(_given, containers))}
        for uid, attempt, containers in said.assigned
    ]
    body: dict[str, Any] = {"assigned": listed, "gone": said.gone, "here": said.here}
    body["observed"] = [_observed(each) for each in said.observed]
    body["claims"] = [
        {
            "claim_uid": one.claim_uid,
            "attempt": one.attempt,
            "question": one.question,
            "pods": one.pods,
        }
        for one in said.claims
    ]
    if said.runs is not None:
        body["runs"] = said.runs
    if said.crossing is not None:
        body["crossing"] = {uid: str(cpus) for uid, cpus in said.crossing.items()}
    if sequence is not None:
        body["sequence"] = sequence
    return msgspec.json.encode(body)


def _observed(pod: Observed) -> dict[str, Any]:
    devices = [
        {"container": container, "resource": NVIDIA_GPU, "ids": sorted(ids)}
        for container, ids in sorted(pod.cards.items())
    ]
    named = {"pod_uid": pod.pod_uid, "namespace": pod.namespace, "pod_name": pod.pod_name}
    return {**named, "devices": devices}


def read_checkpoint(body: bytes) -> Shown:
    """Return the checkpoint that the service shows. Raises InputError: as `read_holdings`."""
    said = _decoded(_CHECKPOINT, body, "not an answer with a checkpoint")
    again = min(said.again_seconds, AGAIN_SECONDS_MAX)
    return Shown(checkpoint=said.checkpoint, consistency=said.consistency, again_seconds=again)


def written(known: NodeHoldings, **more: object) -> bytes:
    """Return holdings as the service says them, with what else is said beside."""
    said = {
        "format": FORMAT,
        "node": {"name": known.origin.node_name, "uid": known.origin.node_uid},
        "ledger": {"cluster": known.origin.cluster, "incarnation": known.origin.incarnation},
        "position": known.position,
        "holdings": known.pods(),
        "cpu_claims": known.cpu_claims,
    }
    return msgspec.json.encode({**said, **more}, enc_hook=str)  # CPUs alone need it


def _given(container: ProvenContainer) -> dict[str, Any]:
    """Return what a container was seen to have: devices without amounts, or CPUs."""
    if isinstance(container, BoundContainer):
        cpus = {"cpus": str(container.cpus), "written": str(container.written)}
        return {"index": container.index, **cpus}
    devices = [
        {"device_type": one.device_type, "device_id": one.device_id, "minor": one.minor}
        for one in container.devices
    ]
    return {"index": container.index, "devices": devices}


def _decoded(
    decoder: msgspec.json.Decoder[_D], body: bytes, fact: str = "not an answer of the service"
) -> _D:
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, InputError) as error:
        raise InputError(f"{fact}: {error}") from error


def _read(decoder: msgspec.json.Decoder[_T], body: bytes) -> _T:
    answer = _decoded(decoder, body)
    if answer.format != FORMAT:
        raise InputError(f"an answer of an unknown format: value={answer.format}")
    return answer


def _origin(answer: _Answer) -> Origin:
    return Origin(
        node_name=answer.node.name,
        node_uid=answer.node.uid,
        cluster=answer.ledger.cluster,
        incarnation=answer.ledger.incarnation,
    )
