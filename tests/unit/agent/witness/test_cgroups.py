"""Whose a process is, by the paths of its cgroups."""

from __future__ import annotations

import pytest

from agent.witness.seen import Place, place_of

UID = "0a1b2c3d-0000-1111-2222-333344445555"
SLICE = UID.replace("-", "_")
CID = "ab" * 32
OTHER = "cd" * 32
BURSTABLE = "kubepods-burstable.slice"
STATIC = "0123456789abcdef" * 2


@pytest.mark.parametrize(
    "text",
    [
        f"0::/kubepods/besteffort/pod{UID}/{CID}",
        f"0::/kubepods/pod{UID}/{CID}",
        f"0::/kubepods/pod{UID}/{CID}/init.scope",
        f"0::/kubepods.slice/{BURSTABLE}/kubepods-burstable-pod{SLICE}.slice/cri-containerd-{CID}.scope",
        f"0::/kubepods.slice/kubepods-pod{SLICE}.slice/crio-{CID}.scope/container",
        f"0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{SLICE}.slice/crio-{CID}",
        f"12:devices:/system.slice/containerd.service/kubepods-pod{SLICE}.slice:cri-containerd:{CID}",
        f"4:cpu,cpuacct:/kubepods/pod{UID}/{CID}\n3:pids:/kubepods/pod{UID}/{CID}\n0::/",
        f"0::/../../pod{UID}/{CID}",
        f"0::/RUN-1/kubepods/pod{UID}/{CID}\n",
        f"0::/kubepods/pod{UID}/{CID}/pod{UID}/{OTHER}",
    ],
)
def test_a_container_of_a_pod_is_found(text: str) -> None:
    """Both versions of cgroups, both drivers, three runtimes; what a container nests is its own."""
    assert place_of(text) == Place(pod_uid=UID, container_id=CID)


def test_a_static_pod_has_a_uid_without_dashes() -> None:
    """Kubelet's hash of its file."""
    found = place_of(f"0::/kubepods/burstable/pod{STATIC}/{CID}")
    assert found == Place(pod_uid=STATIC, container_id=CID)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0::/",
        "0::/system.slice/sshd.service",
        f"0::/kubepods/pod{UID}",
        f"0::/kubepods/pod{UID}/{CID[:-1]}",
        f"0::/kubepods/mypod{UID}/{CID}",
        f"0::/docker/{CID}",
        f"1:pids:/kubepods/pod{UID}/{CID}\n2:cpu:/kubepods/pod{UID}/{OTHER}",
    ],
)
def test_what_is_in_no_container_of_a_pod_is_nobodys(text: str) -> None:
    """Nor is it guessed where two lines name two containers."""
    assert place_of(text) is None
