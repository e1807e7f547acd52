"""
The Pods of this node, out of kubelet's own listener: `GET /pods`.

An agent has no right to list Pods in the API: what is on its node, kubelet tells it, whom
nobody else's Pods reach. Why this way and no other: docs/agent.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from agent.https import Caller, NoAnswerError
from ledger.domain.errors import InputError

PATH: Final = "/pods"
CALL_SECONDS: Final = 5.0
_GOOD: Final = 200
_DECODER: Final = msgspec.json.Decoder(dict[str, Any])

Pod = Mapping[str, Any]
"""An object as the API has it, with the spec that kubelet runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeletPods:
    """Asks kubelet for its Pods."""

    caller: Caller

    async def pods(self) -> Sequence[Pod]:
        """
        Return the Pods that kubelet knows, also those that it has not started.

        Raises:
            NoAnswerError: kubelet does not answer, or not to us.
            InputError: its answer can't be read, or we have no token.
        """
        answer = await self.caller.call(PATH, seconds=CALL_SECONDS)
        if answer.status != _GOOD:
            words = answer.body[:200].decode(errors="replace").strip()
            raise NoAnswerError(f"kubelet refuses: {answer.status}: {words}")
        return read_pods(answer.body)


def read_pods(body: bytes) -> Sequence[Pod]:
    """Return the Pods of a list in JSON. Raises InputError: it is none."""
    try:
        items = _DECODER.decode(body).get("items")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"not a list of Pods: {error}", place="kubelet") from error
    pods = [] if items is None else items
    if not isinstance(pods, list) or not all(map(_is_pod, pods)):
        raise InputError("not a list of Pods", place="kubelet")
    return pods


def _is_pod(thing: object) -> bool:
    if not isinstance(thing, dict) or not isinstance(thing.get("spec"), dict):
        return False
    metadata = thing.get("metadata")
    return isinstance(metadata, dict) and isinstance(metadata.get("uid"), str)
