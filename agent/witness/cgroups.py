"""
Whose a process is, by its cgroups as `/proc/PID/cgroup` tells them.

Rule: kubelet's names of cgroups, v1 and v2, by the drivers `cgroupfs` and `systemd`, with the
containers of containerd, CRI-O and cri-dockerd in them. Pure: a text in, a value out.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

_UID: Final = r"[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32}"
_CONTAINER: Final = r"(?:(?:cri-containerd|crio|docker)[-:])?([0-9a-f]{64})(?:\.scope)?"
_POD: Final = re.compile(rf"(?:^|[/-])pod({_UID})(?:\.slice)?[/:]{_CONTAINER}(?:/|$)")
"""In a cgroup namespace of our own the path may begin anywhere below kubelet's root."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The container that a process runs in."""

    pod_uid: str
    container_id: str


def place_of(text: str) -> Place | None:
    """
    Return the Pod's container of a process; None where it is in none, or its lines disagree.

    What a container makes below its own cgroup counts for nothing: the outermost name does.
    """
    found = {place for line in text.splitlines() if (place := _place(line)) is not None}
    return found.pop() if len(found) == 1 else None


def _place(line: str) -> Place | None:
    """Return what one line `number:controllers:path` says; the path may have colons of its own."""
    _, _, rest = line.partition(":")
    _, colon, path = rest.partition(":")
    match = _POD.search(path) if colon else None
    if match is None:
        return None
    return Place(pod_uid=match[1].replace("_", "-"), container_id=match[2])
