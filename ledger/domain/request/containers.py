"""Which of a Pod's devices its containers use."""

from __future__ import annotations

from collections.abc import Sequence

from ledger.domain.kube.pod_spec import INIT, SIDECAR
from ledger.domain.request.requests import ContainerNeed


def containers_on(
    needs: Sequence[ContainerNeed], device_type: str, count: int
) -> list[list[ContainerNeed]]:
    """
    Return which containers use the first, second, ... of the Pod's `count` devices.

    Rule: design section 3: app containers and sidecars take disjoint devices in spec order; an
    init container reuses the first ones that no sidecar started before it holds.

    Where the containers' numbers don't add up to devices of their own (two that ask for parts of
    one NIC) nobody is named: the whole Pod shares.
    """
    users: list[list[ContainerNeed]] = [[] for _ in range(count)]
    asked = [(need, dict(need.device_counts).get(device_type, 0)) for need in needs]
    if sum(number for need, number in asked if need.kind != INIT) > count:
        return users
    place, kept = 0, set[int]()
    for need, number in asked:
        if need.kind == INIT:
            free = [position for position in range(count) if position not in kept]
            taken: Sequence[int] = free[:number]
        else:
            taken, place = range(place, place + number), place + number
            if need.kind == SIDECAR:
                kept.update(taken)
        for position in taken:
            users[position].append(need)
    return users
