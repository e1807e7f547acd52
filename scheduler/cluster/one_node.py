"""One node and what it says of Pods that others placed, out of the objects that are about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ledger.domain.errors import InputError
from ledger.domain.kube.node_objects import KubeletReports, decode_node, decode_witnesses
from ledger.domain.kube.object_fields import section
from ledger.domain.nodes import NodeFacts
from ledger.domain.resources import UNHEALTHY_GPU_KEY
from scheduler.cluster.documents import Document
from scheduler.decide.settings import SchedulingSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeDocuments:
    """The objects that describe one node."""

    node: Document
    device: Document | None
    topology: Document | None
    unhealthy: Document | None


def read_node(
    about: NodeDocuments,
    settings: SchedulingSettings,
    known_pods: frozenset[str],
    body: Mapping[str, Any] | None = None,
) -> tuple[NodeFacts, list[str]]:
    """
    Return a node and what to warn of; `body` is its Node where that is another one by now.

    Args:
        known_pods: UIDs of the Pods that run there, as far as the caller sees to them.

    Raises:
        InputError: an object that can't be read; named, with the field.
    """
    unhealthy = None if about.unhealthy is None else _unhealthy_text(about.unhealthy)

    def decoded(*, device: bool, topology: bool) -> tuple[NodeFacts, list[str]]:
        return decode_node(
            about.node.body if body is None else body,
            about.device.body if about.device and device else None,
            about.topology.body if about.topology and topology else None,
            unhealthy,
            vocabulary=settings.vocabulary,
            cpu_ref_count_max=settings.cpu.max_ref_count,
            known_pods=known_pods,
        )

    try:
        return decoded(device=True, topology=True)
    except InputError as error:
        culprit = about.node  # the field path starts in whichever object the error is in
        if about.device is not None and not _fails(lambda: decoded(device=False, topology=False)):
            culprit = about.device
        if about.topology is not None and not _fails(lambda: decoded(device=True, topology=False)):
            culprit = about.topology
        raise culprit.blame(error) from None


def _fails(decode: Callable[[], object]) -> bool:
    try:
        decode()
    except InputError:
        return True
    return False


def _unhealthy_text(document: Document) -> str:
    text = section(document.body, "data").get(UNHEALTHY_GPU_KEY, "")
    if not isinstance(text, str):
        raise document.blame(InputError("must be text", field=f"data[{UNHEALTHY_GPU_KEY}]"))
    return text


def read_witnesses(about: NodeDocuments) -> KubeletReports:
    """Return what a node's objects say of Pods that others placed. Raises InputError."""
    device = about.device.body if about.device else None
    topology = about.topology.body if about.topology else None
    try:
        return decode_witnesses(device, topology)
    except InputError as error:
        in_device = about.device is not None and _fails(lambda: decode_witnesses(device))
        culprit = about.device if in_device else about.topology
        raise error if culprit is None else culprit.blame(error) from None
