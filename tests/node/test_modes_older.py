"""The mode `env` on containerd 1.6, which knows no CDI: the same tests."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.node.test_modes import (
    blind,
    handler,
    test_a_container_sees_what_its_annotation_says_when_it_is_made,
    test_no_card_is_given_by_the_environment_before_a_pod_has_shown_that_it_is_read,
)
from tests.support.kube.binaries import MissingProgramError
from tests.support.node.node import Node, node
from tests.support.node.programs import OLDER, older_programs

__all__ = [
    "blind",
    "handler",
    "test_a_container_sees_what_its_annotation_says_when_it_is_made",
    "test_no_card_is_given_by_the_environment_before_a_pod_has_shown_that_it_is_read",
]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def machine(machine: Node, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """The node with the older containerd, in the room of the other, which rests meanwhile."""
    try:
        programs = older_programs()
    except MissingProgramError as error:
        pytest.fail(str(error), pytrace=False)
    machine.kubelet.end()
    machine.containerd.end()
    here = replace(machine.room, folder=tmp_path_factory.mktemp("older"))
    with node(here, machine.plane, programs, older=True) as running:
        running.until(lambda: is_older(running), "another containerd serves")
        yield running
    machine.containerd.start()
    machine.kubelet.start()


def is_older(machine: Node) -> bool:
    """Tell whether kubelet says that it has this containerd."""
    version = machine.status()["nodeInfo"]["containerRuntimeVersion"]
    return str(version).startswith(f"containerd://{OLDER}.")
