"""Kubelet and the runtime asked over real sockets, and files kept aside."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import grpc
import pytest

from agent.discover.host_files import HostFiles
from agent.witness import asking, said
from agent.witness.asking import AwayError, PodResources, Runtime, places
from agent.witness.confirmer import KEPT_MAX, Quarantine
from agent.witness.seen import Place
from ledger.domain.cpuset import parse_cpuset
from tests.support.sockets import serving
from tests.support.witnessing import LABELS


def test_kubelet_is_asked_who_was_given_what(tmp_path: Path) -> None:
    """A larger answer than gRPC takes by itself."""
    ids = [f"GPU-{number:040}" for number in range(120_000)]
    device = {"resource_name": "nvidia.com/gpu", "device_ids": ids}
    pod = {"name": "p", "namespace": "ml", "containers": [{"name": "c", "devices": [device]}]}
    whole = said.ListPodResourcesResponse(pod_resources=[pod]).SerializeToString()
    assert len(whole) > 4 << 20
    socket = tmp_path / "s"
    with serving(socket, "v1.PodResourcesLister", {"List": lambda *_: whole}):
        [found] = asyncio.run(PodResources(socket).answer()).given
    assert (found.pod, len(found.ids)) == (("ml", "p"), 120_000)


def test_kubelet_tells_the_claims_that_containers_have_something_of(tmp_path: Path) -> None:
    """By namespace and name, once however many containers share one."""
    claim = {"claim_namespace": "ml", "claim_name": "train-gpu-x7"}
    containers = [{"name": name, "dynamic_resources": [claim]} for name in ("a", "b")]
    pod = {"name": "p", "namespace": "ml", "containers": containers}
    whole = said.ListPodResourcesResponse(pod_resources=[pod]).SerializeToString()
    socket = tmp_path / "s"
    with serving(socket, "v1.PodResourcesLister", {"List": lambda *_: whole}):
        answer = asyncio.run(PodResources(socket).answer())
    assert answer == said.KubeletSaid(claims=frozenset({("ml", "train-gpu-x7")}))


def test_the_runtime_is_asked_once_about_each_container(tmp_path: Path) -> None:
    """One that ended is not asked about; one that can't be told of is left out."""
    asked: list[str] = []
    containers: list[dict[str, Any]] = []

    def lists(_: bytes, __: object) -> bytes:
        answer = said.ListContainersResponse(containers=containers)
        return bytes(answer.SerializeToString())

    def tells(request: bytes, context: Any) -> bytes:  # noqa: ANN401 - of gRPC
        key = said.ContainerStatusRequest.FromString(request).container_id
        asked.append(key)
        if key == "lost":
            context.abort(grpc.StatusCode.NOT_FOUND, "no such container")
        spec = {"process": {"env": [f"NVIDIA_VISIBLE_DEVICES={key}"]}}
        info = {said.INFO: json.dumps({"runtimeSpec": spec})}
        answer = said.ContainerStatusResponse(status={"id": key}, info=info)
        return bytes(answer.SerializeToString())

    def add(key: str, state: int) -> None:
        labels = {f"{LABELS}.pod.uid": "u", f"{LABELS}.container.name": key}
        containers.append({"id": key, "state": state, "labels": labels})

    socket = tmp_path / "s"
    runtime = Runtime(socket)
    add("a", said.RUNNING)
    add("ended", said.EXITED)
    add("lost", said.CREATED)
    calls = {"ListContainers": lists, "ContainerStatus": tells}
    with serving(socket, "runtime.v1.RuntimeService", calls):
        listed, inside = asyncio.run(runtime.containers())
        assert [one.container_id for one in listed] == ["a", "ended", "lost"]
        assert {key: one.visible for key, one in inside.items()} == {"a": "a"}
        containers.pop(0)
        add("b", said.RUNNING)
        _, inside = asyncio.run(runtime.containers())
    assert (set(inside), asked) == ({"b"}, ["a", "lost", "lost", "b"])


def test_who_is_not_there_is_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No socket, no such service, an answer that is none; never a wait without end."""
    monkeypatch.setattr(asking, "CALL_SECONDS", 5.0)
    with pytest.raises(AwayError, match="UNAVAILABLE"):
        asyncio.run(PodResources(tmp_path / "none").answer())
    socket = tmp_path / "s"
    with serving(socket, "v1.PodResourcesLister", {"List": lambda *_: b"\xff\xff"}):
        with pytest.raises(AwayError, match="UNIMPLEMENTED"):
            asyncio.run(Runtime(socket).containers())
        with pytest.raises(AwayError, match="not an answer"):
            asyncio.run(PodResources(socket).answer())


def test_processes_are_placed_by_the_hosts_own_files(tmp_path: Path) -> None:
    """One that has ended is not told of, one of the host is nobody's."""
    uid, cid = "0a1b2c3d-0000-1111-2222-333344445555", "ab" * 32
    for pid, text in ((1, "0::/init.scope"), (42, f"0::/kubepods/pod{uid}/{cid}")):
        (tmp_path / f"proc/{pid}").mkdir(parents=True)
        (tmp_path / f"proc/{pid}/cgroup").write_text(text)
    found = places(HostFiles(root=tmp_path), [42, 1, 7])
    assert found == {42: Place(pod_uid=uid, container_id=cid), 1: None}


def test_what_can_not_be_trusted_is_kept_aside_and_bounded(tmp_path: Path) -> None:
    """The same content once, the newest few of all."""
    aside = Quarantine(tmp_path / "aside")
    first = aside.keep("checkpoint", b"torn")
    assert first is not None
    assert (first.read_bytes(), aside.keep("checkpoint", b"torn")) == (b"torn", None)
    for number in range(3 * KEPT_MAX):
        assert aside.keep("checkpoint", b"%d" % number)
    kept = {path.read_bytes() for path in (tmp_path / "aside").iterdir()}
    assert len(kept) == KEPT_MAX
    assert b"%d" % (3 * KEPT_MAX - 1) in kept


def test_kubelet_tells_which_cpus_it_would_give(tmp_path: Path) -> None:
    """What it would not is what it reserves; a number that no CPU has is no answer."""
    socket, ids = tmp_path / "s", [6, 7, 1, 2, 3, 5]

    def offers(*_: object) -> bytes:
        return bytes(said.AllocatableResourcesResponse(cpu_ids=ids).SerializeToString())

    def lists(*_: object) -> bytes:
        pod = {"name": "p", "namespace": "ml", "containers": [{"name": "c", "cpu_ids": ids}]}
        return bytes(said.ListPodResourcesResponse(pod_resources=[pod]).SerializeToString())

    answers = {"GetAllocatableResources": offers, "List": lists}
    with serving(socket, "v1.PodResourcesLister", answers):
        kubelet = PodResources(socket)
        assert asyncio.run(kubelet.offered_cpus()) == parse_cpuset("1-3,5-7")
        ids.append(70_000)
        for ask in (kubelet.offered_cpus, kubelet.answer):
            with pytest.raises(AwayError, match="not an answer"):
                asyncio.run(ask())
