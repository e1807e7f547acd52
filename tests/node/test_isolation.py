"""On a real kubelet a part of a card is kept to by a library that the container can't leave out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.node.agents import Agent, Isolated, agent, holder
from tests.support.node.linked import LINKED, library, linked_image
from tests.support.node.node import Node
from tests.support.node.pods import Pods

GIB: Final = 1 << 30
CARD_BYTES: Final = 80 * GIB


@pytest.fixture(scope="module", autouse=True)
def _image(machine: Node, tmp_path_factory: pytest.TempPathFactory) -> None:
    """An image whose program the dynamic loader loads."""
    machine.load(linked_image(tmp_path_factory.mktemp("image")))


@pytest.fixture
def isolating(machine: Node, tmp_path: Path) -> Iterator[Agent]:
    """An agent of a node whose provider is HAMi-core, with cards of 80 GiB."""
    provider = Isolated(library=library(tmp_path), card_bytes=CARD_BYTES)
    with agent(machine, tmp_path, slots=2, isolated=provider) as running:
        yield running


def linked(name: str, **variables: str) -> dict[str, Any]:
    """Return a container of the image."""
    return holder(name, image=LINKED, environment=variables)


def told(pods: Pods, pod: str, container: str) -> dict[str, str]:
    """Return what the library and its program found in a container's environment."""
    (seen,) = pods.node.seen(pods.get(pod), container)
    words = ("CUDA_", "LD_", "LIBRARY_")
    return {name: text for name, text in seen["environment"].items() if name.startswith(words)}


LOADED: Final = {
    "CUDA_DEVICE_MEMORY_SHARED_CACHE": "/run/vgpu-cache/cache",
    "LD_PRELOAD": "/usr/local/vgpu/libvgpu.so",
    "LIBRARY_CACHE": "written",
    "LIBRARY_IS": "loaded",
    "LIBRARY_LOCKS": "there",
}


def test_two_containers_of_a_pod_are_kept_to_their_own_parts(isolating: Agent, pods: Pods) -> None:
    """Whatever the Pod itself says of the library and its limits."""
    lies = {"LD_PRELOAD": "", "CUDA_DEVICE_MEMORY_LIMIT": "1t", "CUDA_DEVICE_SM_LIMIT": "100"}
    pod = pods.make("two", [linked("small", **lies), linked("large")])
    isolating.hold_parts(pod, small=[("GPU-a", 40, 9019431321)], large=[("GPU-a", 60, 20 * GIB)])

    pods.running("two")

    small = {"CUDA_DEVICE_MEMORY_LIMIT": "9019431321", "CUDA_DEVICE_SM_LIMIT": "40"}
    assert told(pods, "two", "small") == {**LOADED, **small}
    large = {"CUDA_DEVICE_MEMORY_LIMIT": str(20 * GIB), "CUDA_DEVICE_SM_LIMIT": "60"}
    assert told(pods, "two", "large") == {**LOADED, **large}


def test_whole_cards_are_limited_by_nothing(isolating: Agent, pods: Pods) -> None:
    """Neither library nor limits; of a whole card beside a part only the part is limited."""
    pod = pods.make("whole", [linked("all"), linked("both")])
    whole = ("GPU-a", 100, CARD_BYTES)
    isolating.hold_parts(pod, all=[whole], both=[whole, ("GPU-b", 25, GIB)])

    pods.running("whole")

    assert told(pods, "whole", "all") == {}
    assert told(pods, "whole", "both") == {
        **LOADED,
        "CUDA_DEVICE_MEMORY_LIMIT_1": str(GIB),
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_DEVICE_SM_LIMIT_1": "25",
        "CUDA_VISIBLE_DEVICES": "0,1",
    }


def test_without_its_library_a_part_is_never_started(isolating: Agent, pods: Pods) -> None:
    """The start is refused, with the path; once the library is there the container runs."""
    assert isolating.isolated is not None
    there = isolating.isolated.library
    aside = there.rename(there.with_name("aside"))
    pod = pods.make("waits", [linked("main")])
    isolating.hold_parts(pod, main=[("GPU-a", 50, GIB)])
    pods.node.until(lambda: str(there) in str(pods.statuses("waits")), "its path is not told")
    assert not pods.node.logs(pods.get("waits"), "main")

    aside.rename(there)

    pods.running("waits", soon=True)
    assert told(pods, "waits", "main")["CUDA_DEVICE_SM_LIMIT"] == "50"


def test_a_library_that_goes_before_a_restart_keeps_the_container_waiting(
    isolating: Agent, pods: Pods
) -> None:
    """Also where kubelet does not ask us: the runtime can't mount what is not there."""
    assert isolating.isolated is not None
    pod = pods.make("again", [linked("main")])
    isolating.hold_parts(pod, main=[("GPU-a", 50, GIB)])
    pods.running("again")
    isolating.kill()
    pods.node.restart_kubelet(pods.get("again"))
    there = isolating.isolated.library
    aside = there.rename(there.with_name("aside"))
    pods.kill(pods.get("again"))
    pods.node.until(lambda: str(there) in str(pods.statuses("again")), "its path is not told")

    aside.rename(there)
    isolating.start()

    pods.running("again", restarts=1, soon=True)
    assert len(pods.node.logs(pods.get("again"), "main")) >= 2
