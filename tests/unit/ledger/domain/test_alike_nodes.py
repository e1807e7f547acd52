"""Nodes alike are read once, and each as it would be by itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from ledger.domain.dialects.hami.words import REGISTER
from ledger.domain.errors import InputError
from ledger.domain.kube import alike_nodes
from ledger.domain.kube.alike_nodes import NodeReader
from ledger.domain.kube.node_objects import decode_node
from ledger.domain.nodes import NodeFacts
from ledger.domain.vocabulary import DEFAULT_VOCABULARY
from tests.support.objects import Object, device, gpu_device, node, nrt

Objects = tuple[Object, Object | None, Object | None, str | None]
KNOWN = frozenset({"pod-1"})
CPUS = {"detail": [{"id": n, "core": n // 2, "socket": 0, "node": 0} for n in range(4)]}


def objects(name: str, ids: tuple[str, ...] = ("GPU-a", "GPU-b")) -> Objects:
    """Return what the API says of a node of this name, with cards of these ids."""
    body = node(
        name,
        allocatable={"cpu": "8", "memory": "32Gi", "nvidia.com/gpu": str(len(ids))},
        labels={"kubernetes.io/hostname": name, "zone": "a"},
        annotations={},
        taints=[{"key": "dedicated", "value": "x", "effect": "NoSchedule"}],
    )
    body["metadata"] |= {"uid": f"uid-of-{name}", "creationTimestamp": f"made-{name}"}
    machine = {"systemUUID": f"SYS-{name}", "machineID": f"mid-{name}", "bootID": f"boot-{name}"}
    body["status"]["nodeInfo"] = machine
    cards = [gpu_device(minor, id=text) for minor, text in enumerate(ids)]
    return body, device(*cards, name=name), nrt(name, cpu_topology=CPUS), None


def anew(said: Objects, known: frozenset[str]) -> NodeFacts | str:
    """Return a node as it is read by itself, or why it can't be."""
    try:
        return decode_node(*said, known_pods=known)[0]
    except InputError as error:
        return str(error)


def remembering(reader: NodeReader, said: Objects, known: frozenset[str]) -> NodeFacts | str:
    """Return a node as a reader has it that has read others."""
    try:
        return reader.read(*said, known)
    except InputError as error:
        return str(error)


def kept(said: Objects, *path: str) -> Object:
    """Return a part of the Node."""
    found = said[0]
    for step in path:
        found = found[step]
    return found


def second_card(said: Objects, **more: object) -> Objects:
    """Say something else of the second card."""
    assert said[1] is not None
    said[1]["spec"]["devices"][1].update(more)
    return said


def annotated(said: Objects, **texts: str) -> Objects:
    """Add annotations to the Node."""
    kept(said, "metadata", "annotations").update(texts)
    return said


CHANGES: dict[str, Callable[[Objects, str], Objects]] = {
    "nothing": lambda said, _: said,
    "another zone": lambda said, _: (kept(said, "metadata", "labels").update(zone="b"), said)[1],
    "no hostname": lambda said, _: (
        kept(said, "metadata", "labels").pop("kubernetes.io/hostname"),
        said,
    )[1],
    "no UID": lambda said, _: (kept(said, "metadata").pop("uid"), said)[1],
    "a UID that is no text": lambda said, _: (kept(said, "metadata").update(uid=1), said)[1],
    "a name that is none": lambda said, _: (kept(said, "metadata").update(name="a/b"), said)[1],
    "no metadata": lambda said, _: ({**said[0], "metadata": None}, *said[1:]),
    "no machine": lambda said, _: (kept(said, "status").pop("nodeInfo"), said)[1],
    "no Device": lambda said, _: (said[0], None, *said[2:]),
    "no topology": lambda said, _: (*said[:2], None, None),
    "a card more ill": lambda said, _: second_card(said, health=False),
    "a card that stands for a bus": lambda said, _: second_card(said, id="0000:81:00.0"),
    "a card without an id": lambda said, _: second_card(said, id=""),
    "two cards of one id": lambda said, _: second_card(said, id="GPU-a"),
    "a card with an id that is none": lambda said, _: second_card(said, id=7),
    "a minor that is taken": lambda said, _: second_card(said, minor=0),
    "minors the other way": lambda said, _: (
        second_card(said, minor=0),
        said[1]["spec"]["devices"][0].update(minor=1),  # type: ignore[index]  # there is one
    )[0],
    "no list of cards": lambda said, _: (
        (said[0], {**said[1], "spec": 1}, *said[2:]) if said[1] else said
    ),
    "cards that a ConfigMap closes": lambda said, _: (*said[:3], "1"),
    "a card that HAMi closes": lambda said, _: annotated(
        said, **{REGISTER: "GPU-b,10,24576,100,NVIDIA-A10,0,false:"}
    ),
    "a card that HAMi does not know": lambda said, _: annotated(
        said, **{REGISTER: "GPU-z,10,24576,100,NVIDIA-A10,0,true:"}
    ),
    "CPUs of a Pod that is known": lambda said, _: (
        *said[:2],
        nrt(cpu_topology=CPUS, pod_cpu_allocs=[alloc("pod-1")]),
        None,
    ),
    "CPUs of a Pod that nobody knows": lambda said, _: (
        *said[:2],
        nrt(cpu_topology=CPUS, pod_cpu_allocs=[alloc("pod-2")]),
        None,
    ),
    "another's name in an annotation": lambda said, _: annotated(said, note="of xbeta-1"),
    "another's machine in two words": lambda said, name: (
        kept(said, "status", "nodeInfo").update(machineID=f"of {name}"),
        annotated(said, note="one of beta"),
    )[1],
    "its name in an annotation": lambda said, name: annotated(said, note=f"of {name}"),
    "memory that is none": lambda said, _: (
        kept(said, "status", "allocatable").update(memory="much"),
        said,
    )[1],
}


def alloc(uid: str) -> Object:
    """Return what kubelet gave a Pod."""
    return {"namespace": "a", "name": uid, "uid": uid, "cpuset": "0-1", "managedByKubelet": True}


@pytest.mark.parametrize("first", CHANGES)
def test_a_node_is_what_it_would_be_had_no_other_been_read(first: str) -> None:
    """Whichever was read before it, of its kind or of another, and on it other Pods."""
    for second in CHANGES:
        reader = NodeReader(DEFAULT_VOCABULARY, 1)
        for change, name, ids, known in (
            (first, "alpha", ("GPU-a", "GPU-b"), KNOWN),
            (second, "beta", ("GPU-b", "GPU-c"), frozenset()),
            (first, "gamma", ("GPU-b", "GPU-a"), KNOWN),
        ):
            said = CHANGES[change](objects(name, ids), name)
            assert remembering(reader, said, known) == anew(said, known), (second, name)


def test_nodes_alike_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one is not decoded, and has its parts in common with the first."""
    times: list[str] = []

    def counted(*said: Object, **more: object) -> tuple[NodeFacts, list[str]]:
        times.append(said[0]["metadata"]["name"])
        return decode_node(*said, **more)  # type: ignore[arg-type]  # as it was called

    monkeypatch.setattr(alike_nodes, "decode_node", counted)
    reader = NodeReader(DEFAULT_VOCABULARY, 1)

    first, second = (
        reader.read(*objects(name, ids), KNOWN)
        for name, ids in (("alpha", ("GPU-a", "GPU-b")), ("beta", ("GPU-c", "GPU-d")))
    )

    assert times == ["alpha"]
    assert second.derived_links is first.derived_links
    assert [each.device_id for each in second.devices] == ["GPU-c", "GPU-d"]


def test_devices_that_are_in_memory_already_are_what_is_returned() -> None:
    """All of them where they are what the node says, by the first of its kind and by others."""
    reader = NodeReader(DEFAULT_VOCABULARY, 1)
    for name, ids in (("alpha", ("GPU-a", "GPU-b")), ("beta", ("GPU-c", "GPU-d"))):
        there, _ = decode_node(*objects(name, ids), known_pods=KNOWN)

        read = reader.read(*objects(name, ids), KNOWN, recorded=there.devices)

        assert read.devices is there.devices
        assert read == there

    first, second = there.devices
    for another in (
        replace(second, device_id="GPU-x"),
        replace(second, unique_id=False),
        replace(second, healthy=False),
        replace(second, labels={"a": "b"}),
        replace(second, by_claims=True),
    ):
        read = reader.read(*objects(name, ids), KNOWN, recorded=(first, another))
        assert read == there, another
        assert read.devices[0] is first
    assert reader.read(*objects(name, ids), KNOWN, recorded=there.devices[:1]) == there


def test_what_is_remembered_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kind that was read first goes."""
    monkeypatch.setattr(alike_nodes, "KNOWN_MAX", 2)
    reader = NodeReader(DEFAULT_VOCABULARY, 1)

    for zone in "abc":
        said = objects("alpha")
        kept(said, "metadata", "labels").update(zone=zone)
        reader.read(*said, KNOWN)

    assert len(reader._known) == 2
